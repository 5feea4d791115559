// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the launches of one context take of its device, by the driver's events. An event is put before and after some
// launches of a stream (a batch); the time that at least one batch ran is the time that the process used, so that
// streams side by side are not paid twice. Until a batch is measured it counts what its kinds of launches took before.

#ifndef COTENANT_METER_H
#define COTENANT_METER_H

#include "compute.h"

// A launch that wants to begin.
struct ct_request {
    CUstream stream;
    uint64_t key;
    uint64_t came; // clock
    uint64_t due;  // clock at which the slice's debt of that moment is repaid; 0: it had none yet
    uint32_t rate; // the share, in thousandths
    bool held;     // it is paid for
};

// The context's meter, made on first use. NULL: there is no memory for one.
struct ct_meter *ct_find_meter(CUcontext context, int device);

void ct_forget_meters(void); // in a forked child

// For meters.c, which knows which context has which meter: makes one; resets one for another context, with its lock
// held.
struct ct_meter *ct_new_meter(void);
void ct_reset_meter(struct ct_meter *meter, int device);

void ct_lock_meter(struct ct_meter *meter);
void ct_unlock_meter(struct ct_meter *meter);

// All of these need the lock.

// Reads the batches that have ended, and pays the difference between what they took and what they were charged.
void ct_harvest(struct ct_meter *meter, uint64_t now);

// Whether launches that are paid for are under way.
bool ct_is_unpaid(struct ct_meter *meter, uint64_t now);

// Pays for what is still under way by the time that has passed: the context is about to be destroyed, or `gone`.
void ct_settle_meter(struct ct_meter *meter, uint64_t now, bool gone);

// Closes every open batch in which no launch is under way, so that it can be measured.
void ct_close_batches(struct ct_meter *meter);

// If so much is under way that one more launch would run ahead of what is known of it: the nanoseconds after which to
// look again; 0: it may be launched.
uint64_t ct_time_crowded(struct ct_meter *meter, const struct ct_request *request, uint64_t now);

// Closes the stream's open batch, because this thread will sleep before it launches there: what it has launched so far
// is measured without the pause.
void ct_close_open_batch(struct ct_meter *meter, CUstream stream);

// Around the driver's own launch; the lock is not held meanwhile.
void ct_begin_launch(struct ct_launch *launch, struct ct_meter *meter, const struct ct_request *request, uint64_t now);
void ct_end_launch(struct ct_launch *launch);

#endif
