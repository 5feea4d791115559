// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The share of a GPU's time: launches wait while the slice is in debt, and pay what the driver's events say they took.
//
//   launch.c      the hooks, and the short path for a process without a compute limit
//   compute.c     the debt: which launches wait, and how long
//   meter.c       what launches took, by events (batches.c, estimates.c); meters.c has one meter for each context
//   contention.c  what NVML says of it, and whether other processes use the GPU
//   clock.c       time

#ifndef COTENANT_COMPUTE_H
#define COTENANT_COMPUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

// Nanoseconds of the clock that device time runs by: the machine's, or the driver's own if it has one (the stand-in
// has: standinNow and standinSleepUntil).
uint64_t ct_clock(void);
uint64_t ct_monotonic(void); // ns of the machine's clock, for waits: signals cut sleeps short, so rounds do not tell
void ct_sleep_until(uint64_t when);

// graphs.c: before a graph with allocation nodes is launched, and after. CUDA_SUCCESS: its memory fits.
CUresult ct_reserve_graph(CUgraphExec graph);
void ct_settle_graph(CUgraphExec graph);

// Called by contexts.c when a context may be about to be destroyed: pays for what has ended while it can be measured.
void ct_read_events(CUcontext context);

// Called by contexts.c when a context is about to be destroyed, or `gone`: its events are not used again. Waits for
// launches that are paid for, as the driver does when it destroys a context, since they could not be measured later.
void ct_forget_events(CUcontext context, bool gone);

// Called by start.c in a forked child: frees locks that a thread of the parent held, and forgets the parent's events.
void ct_forget_compute(void);

// A launch under way, from ct_admit to ct_finish_launch. The serial tells whether the batch is still the same one.
struct ct_launch {
    struct ct_meter *meter;
    struct ct_batch *batch;
    uint64_t serial;
};

// Waits until the slice may launch on the device, and begins to measure. False: this launch is not measured, and
// ct_finish_launch must not be called for it. `key` names what is launched: the same kernel costs about the same again.
bool ct_admit(struct ct_launch *launch, int device, CUstream stream, uint64_t key);
void ct_finish_launch(struct ct_launch *launch);

// Takes device-nanoseconds out of the slice's bucket; negative gives back.
void ct_pay(int device, int64_t nanoseconds);

// What came in when the slice's bucket and this process's own were full, in device-nanoseconds since they were made.
struct ct_spilled {
    int64_t shared, own;
};
struct ct_spilled ct_note_spilled(int device);

// Pays for launches that took so long and ended, less what was charged before. Had it been paid for while they ran, the
// buckets would not have been full: what has spilled since `before`, up to the share of that time, counts as paid.
void ct_pay_rest(int device, int64_t rest, uint64_t took, const struct ct_spilled *before);

// contention.c: asks NVML if the last answer is old enough. What other tenants do on a GPU stretches the intervals that
// our events measure; ct_own_fraction is the part of them that is ours, in units of 1/CT_FRACTION_ONE.
#define CT_FRACTION_ONE 65536
void ct_watch_device(int device, uint64_t now);
uint32_t ct_own_fraction(int device);
bool ct_is_in_slice(uint32_t pid); // whether a process that NVML names is known to be of this slice
bool ct_is_contended(int device); // others use the GPU, or that is unknown
void ct_note_measured(int device, uint64_t nanoseconds);
void ct_forget_views(void); // in a forked child

#endif
