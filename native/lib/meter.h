// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the launches of one context take of its device, by the driver's events. An event is put before and after some
// launches of a stream (a batch); the time that at least one batch ran is the time that the process used, so that
// streams side by side are not paid twice. Until a batch is measured it counts what its kinds of launches took before.

#ifndef COTENANT_METER_H
#define COTENANT_METER_H

#include "compute.h"

// The context's meter, made on first use. NULL: there is no room for one.
struct ct_meter *ct_meter_of(CUcontext context, int device);

void ct_meters_forked(void);

// Of meters.c, which knows whose is which: a new one, and one as good as new for another context (its lock is held).
struct ct_meter *ct_new_meter(void);
void ct_reset_meter(struct ct_meter *meter, int device);

void ct_meter_lock(struct ct_meter *meter);
void ct_meter_unlock(struct ct_meter *meter);

// All of these with the lock held.

// Reads the batches that have ended, and pays the difference between what they took and what they were charged.
void ct_harvest(struct ct_meter *meter, uint64_t now);

// So much is under way that one more launch of this kind would run ahead of what is known of it.
bool ct_crowded(struct ct_meter *meter, uint64_t key, uint64_t now);

// This thread will sleep before it launches on the stream: what it has launched there is measured as far as it is.
void ct_about_to_wait(struct ct_meter *meter, CUstream stream);

// Around the driver's own launch; the lock is not held meanwhile. `held`: it is paid for.
void ct_begin(struct ct_launch *launch, struct ct_meter *meter, CUstream stream, uint64_t key, uint64_t now, bool held);
void ct_end(struct ct_launch *launch);

#endif
