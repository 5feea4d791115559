// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The share of a GPU's time: launches wait while the slice is in debt, and pay what the driver's events say they took.
//
//   launch.c   the hooks, and the way round all of this for who has no limit
//   compute.c  the debt: who waits, and how long
//   meter.c    what launches took, by events; meters.c has one for each context
//   trim.c     what NVML says of it, and whether anybody else is on the GPU
//   clock.c    time

#ifndef COTENANT_COMPUTE_H
#define COTENANT_COMPUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

// Nanoseconds of the clock that device time runs by: the machine's, or the driver's own where it brings one (the
// stand-in does: standinNow and standinSleepUntil).
uint64_t ct_clock(void);
void ct_sleep_until(uint64_t when);

// Before graphs with allocation nodes are launched, and after: in graphs.c. CUDA_SUCCESS means it fits.
CUresult ct_graph_reserve(CUgraphExec graph);
void ct_graph_settle(CUgraphExec graph);

// A context is about to be destroyed: its events are not used again. Called by contexts.c, which stands in front of
// cuCtxDestroy and its kin.
void ct_forget_events(CUcontext context);

// In the child of a fork, by start.c: locks that a thread of the parent held are free, its events are not ours.
void ct_compute_forked(void);

// A launch under way, from ct_admit to ct_launched.
struct ct_launch {
    struct ct_meter *meter;
    struct batch *batch;
    uint64_t serial;
};

// Waits until the slice may launch on the device, and begins to measure. False: this launch is not measured, and
// ct_launched is not called for it. `key` names what is launched: the same kernel costs about the same again.
bool ct_admit(struct ct_launch *launch, int device, CUstream stream, uint64_t key);
void ct_launched(struct ct_launch *launch);

// Takes device-nanoseconds out of the slice's bucket; negative gives back.
void ct_pay(int device, int64_t nanoseconds);

// NVML, asked when `now` says that it is time to. What others do on a GPU stretches our intervals on it: the factor (of
// CT_TRIM_ONE) is how much of them is ours.
#define CT_TRIM_ONE 65536
void ct_watch(int device, uint64_t now);
uint32_t ct_ours(int device);
bool ct_contended(int device); // others use the GPU, or nobody knows
void ct_note_measured(int device, uint64_t nanoseconds);
void ct_watch_forked(void);

#endif
