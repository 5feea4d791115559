// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The debt of a slice on each GPU. A bucket fills with device-nanoseconds at the rate of the share, a launch takes out
// what it is expected to cost and later the rest of what it did cost, and who finds it in debt sleeps. The slice's
// processes share the bucket in the region. That can be written to by the tenant, so each process keeps one of its own
// beside it: whatever stands in the region, no process gets more than the share by itself.

#include "compute.h"

#include <errno.h>

#include "limits.h"
#include "meter.h"
#include "region.h"

#include "hooks.h"

#define MILLISECOND INT64_C(1000000)
#define SECOND (1000 * MILLISECOND)
#define SAVED (100 * MILLISECOND) // of the share, for who was held up
#define DEEPEST (10 * SECOND)     // of the share, in debt: nobody waits longer for what others did
#define RESUMED (10 * MILLISECOND) // of the share, saved before who was in debt goes on: launches come in small bursts,
#define BURST (2 * MILLISECOND)    // at most so long on the device, so that streams still run side by side
#define FILL_EVERY (100 * 1000)   // so that rounding does not show
#define NAP (10 * MILLISECOND)    // at most, before the limits are looked at again
#define LOOK_AGAIN (MILLISECOND / 4)
#define AGREED SECOND // clocks that differ by more were not read by us

static struct ct_bucket own[CT_DEVICES];
static _Atomic bool resting[CT_DEVICES]; // from being in debt until a burst is saved
static _Thread_local __attribute__((tls_model("initial-exec"))) bool inside;

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

// Fills the bucket up to now and returns what is in it. Any content is sane afterwards; a process that is killed half
// way loses the slice a moment's filling.
static int64_t fill(struct ct_bucket *bucket, uint32_t rate, uint64_t now) {
    uint64_t filled = atomic_load_explicit(&bucket->filled, memory_order_relaxed);
    int64_t span = (int64_t)(now - filled);
    bool strange = filled == 0 || span < -AGREED;
    if (!strange && span < FILL_EVERY) span = 0;
    if ((strange || span) && !atomic_compare_exchange_strong(&bucket->filled, &filled, now)) span = 0;
    int64_t more = strange ? 0 : clamp(span, 0, DEEPEST + SAVED) * rate / CT_WHOLE;
    int64_t before = atomic_load_explicit(&bucket->tokens, memory_order_relaxed), after;
    do {
        after = clamp(before, -DEEPEST, SAVED) + more;
        after = clamp(after, -DEEPEST * rate / CT_WHOLE, SAVED * rate / CT_WHOLE);
    } while (after != before && !atomic_compare_exchange_weak(&bucket->tokens, &before, after));
    return after;
}

void ct_pay(int device, int64_t nanoseconds) {
    atomic_fetch_sub_explicit(&ct_region->bucket[device].tokens, nanoseconds, memory_order_relaxed);
    atomic_fetch_sub_explicit(&own[device].tokens, nanoseconds, memory_order_relaxed);
}

// How long until the slice may launch; 0: now.
static uint64_t in_debt(int device, uint32_t rate, uint64_t now) {
    int64_t shared = fill(&ct_region->bucket[device], rate, now), mine = fill(&own[device], rate, now);
    int64_t tokens = shared < mine ? shared : mine;
    int64_t goal = atomic_load_explicit(&resting[device], memory_order_relaxed) || tokens < 0
                       ? clamp(RESUMED * rate / CT_WHOLE, 0, BURST)
                       : 0;
    atomic_store_explicit(&resting[device], tokens < goal, memory_order_relaxed);
    return tokens >= goal ? 0 : (uint64_t)((goal - tokens) * CT_WHOLE / rate) + 1;
}

static uint32_t rate_of(int device) {
    return (uint32_t)clamp(atomic_load_explicit(&ct_now[device].compute, memory_order_relaxed), 1, CT_WHOLE);
}

static bool share_is_held(int device) {
    if (rate_of(device) == CT_WHOLE) return false;
    switch (atomic_load_explicit(&ct_policy_now, memory_order_relaxed)) {
    case CT_NEVER: return false;
    case CT_ALWAYS: return true;
    default: return ct_contended(device);
    }
}

// 0: it may launch now, and the meter is locked; else how long it should sleep before it asks again.
static uint64_t turn(struct ct_meter *meter, int device, CUstream stream, uint64_t key, uint64_t now, bool *held) {
    *held = share_is_held(device);
    ct_meter_lock(meter);
    ct_harvest(meter, now);
    uint64_t wait = *held ? in_debt(device, rate_of(device), now) : 0;
    if (wait == 0 && ct_crowded(meter, key, now)) wait = LOOK_AGAIN;
    if (atomic_load_explicit(&ct_now[device].paused, memory_order_relaxed)) wait = NAP;
    if (wait) {
        ct_about_to_wait(meter, stream);
        ct_meter_unlock(meter);
    }
    return wait > NAP ? NAP : wait;
}

// Returns the time at which it may launch, with the meter locked.
static uint64_t wait_for_turn(struct ct_meter *meter, int device, CUstream stream, uint64_t key, bool *held) {
    uint64_t began = ct_clock(), now = began, wait;
    ct_watch(device, now);
    while ((wait = turn(meter, device, stream, key, now, held)) > 0) {
        ct_sleep_until(now + wait);
        ct_refresh();
        now = ct_clock();
        ct_watch(device, now);
    }
    if (now != began) {
        struct ct_slot *slot = ct_my_slot();
        if (slot) atomic_fetch_add_explicit(&slot->waited[device], now - began, memory_order_relaxed);
    }
    return now;
}

// What is captured does not run; the graph will.
static bool captured(CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!HAS(cuStreamIsCapturing)) return false;
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool ct_admit(struct ct_launch *launch, int device, CUstream stream, uint64_t key) {
    CUcontext context = NULL;
    if (inside) return false; // in a signal handler, on top of ourselves
    if (CALL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || !context || captured(stream)) return false;
    struct ct_meter *meter = ct_meter_of(context, device);
    if (!meter) return false;
    int saved = errno;
    bool held;
    inside = true;
    ct_refresh();
    uint64_t now = wait_for_turn(meter, device, stream, key, &held);
    ct_begin(launch, meter, stream, key, now, held);
    ct_meter_unlock(meter);
    inside = false;
    errno = saved;
    return true;
}

void ct_launched(struct ct_launch *launch) {
    if (!launch->batch) return;
    inside = true;
    ct_meter_lock(launch->meter);
    ct_end(launch);
    ct_meter_unlock(launch->meter);
    inside = false;
}

void ct_compute_forked(void) {
    inside = false;
    ct_meters_forked();
    ct_watch_forked();
}
