// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The debt of a slice on each GPU. A bucket fills with device-nanoseconds at the rate of the share; a launch takes out
// what it is expected to cost, and later the rest of what it did cost; a launch that finds the bucket in debt sleeps.
// The slice's processes share the bucket in the region. The tenant can write to that, so each process keeps a bucket of
// its own beside it: whatever the region says, no single process gets more than the share.

#include "compute.h"

#include <errno.h>

#include "limits.h"
#include "meter.h"
#include "region.h"

#include "hooks.h"

#define MILLISECOND INT64_C(1000000)
#define SECOND (1000 * MILLISECOND)
#define SAVED (100 * MILLISECOND)  // of the share: the most that a slice saves up while it launches nothing
#define DEEPEST (10 * SECOND)      // of the share: the largest debt, and so the longest wait for what others did
#define RESUMED (10 * MILLISECOND) // of the share, saved after a debt before launches go on: they come in small bursts
#define BURST (2 * MILLISECOND)    // at most so long on the device, so that streams still run side by side
#define FILL_EVERY (100 * 1000)    // nanoseconds between refills, so that rounding does not show
#define NAP (10 * MILLISECOND)     // the longest sleep before the limits are read again
#define LOOK_AGAIN (MILLISECOND / 4)
#define AGREED SECOND // a time of the last refill further in the future is not ours, and is ignored

static struct ct_bucket own[CT_DEVICES];
static _Atomic bool resting[CT_DEVICES]; // from the moment of debt until a burst is saved
static _Thread_local __attribute__((tls_model("initial-exec"))) bool inside;

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

// Fills the bucket up to now and returns what is in it. Any content is within bounds afterwards. The time is claimed
// first and the tokens are added after, so a process that is killed in between costs the slice one refill.
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

// Nanoseconds until the slice may launch; 0: now.
static uint64_t time_until_paid(int device, uint32_t rate, uint64_t now) {
    int64_t shared = fill(&ct_region->bucket[device], rate, now), mine = fill(&own[device], rate, now);
    int64_t tokens = shared < mine ? shared : mine;
    int64_t goal = atomic_load_explicit(&resting[device], memory_order_relaxed) || tokens < 0
                       ? clamp(RESUMED * rate / CT_WHOLE, 0, BURST)
                       : 0;
    atomic_store_explicit(&resting[device], tokens < goal, memory_order_relaxed);
    return tokens >= goal ? 0 : (uint64_t)((goal - tokens) * CT_WHOLE / rate) + 1;
}

static uint32_t rate_of(int device) {
    return (uint32_t)clamp(atomic_load_explicit(&ct_limits_now[device].compute, memory_order_relaxed), 1, CT_WHOLE);
}

static bool is_share_enforced(int device) {
    if (rate_of(device) == CT_WHOLE) return false;
    switch (atomic_load_explicit(&ct_policy_now, memory_order_relaxed)) {
    case CT_NEVER: return false;
    case CT_ALWAYS: return true;
    default: return ct_is_contended(device);
    }
}

// 0: it may launch now, and the meter is locked; else the nanoseconds to sleep before the next try.
static uint64_t try_to_launch(struct ct_meter *meter, int device, CUstream stream, uint64_t key, uint64_t now,
                              bool *held) {
    *held = is_share_enforced(device);
    ct_lock_meter(meter);
    ct_harvest(meter, now);
    uint64_t wait = *held ? time_until_paid(device, rate_of(device), now) : 0;
    if (wait == 0 && ct_is_crowded(meter, key, now)) wait = LOOK_AGAIN;
    if (atomic_load_explicit(&ct_limits_now[device].paused, memory_order_relaxed)) wait = NAP;
    if (wait) {
        ct_close_open_batch(meter, stream);
        ct_unlock_meter(meter);
    }
    return wait > NAP ? NAP : wait;
}

// Returns the time at which it may launch, with the meter locked.
static uint64_t wait_to_launch(struct ct_meter *meter, int device, CUstream stream, uint64_t key, bool *held) {
    uint64_t began = ct_clock(), now = began, wait;
    ct_watch_device(device, now);
    while ((wait = try_to_launch(meter, device, stream, key, now, held)) > 0) {
        ct_sleep_until(now + wait);
        ct_refresh_limits();
        now = ct_clock();
        ct_watch_device(device, now);
    }
    if (now != began) {
        struct ct_slot *slot = ct_my_slot();
        if (slot) atomic_fetch_add_explicit(&slot->waited[device], now - began, memory_order_relaxed);
    }
    return now;
}

// A launch on a stream that records a graph does not run; the graph does later.
static bool is_capturing(CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!HAS(cuStreamIsCapturing)) return false;
    return REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool ct_admit(struct ct_launch *launch, int device, CUstream stream, uint64_t key) {
    CUcontext context = NULL;
    if (inside) return false; // in a signal handler that interrupted this very code
    if (CALL(cuCtxGetCurrent, &context) != CUDA_SUCCESS || !context || is_capturing(stream)) return false;
    struct ct_meter *meter = ct_find_meter(context, device);
    if (!meter) return false;
    int saved = errno;
    bool held;
    inside = true;
    ct_refresh_limits();
    uint64_t now = wait_to_launch(meter, device, stream, key, &held);
    ct_begin_launch(launch, meter, stream, key, now, held);
    ct_unlock_meter(meter);
    inside = false;
    errno = saved;
    return true;
}

void ct_finish_launch(struct ct_launch *launch) {
    if (!launch->batch) return;
    inside = true;
    ct_lock_meter(launch->meter);
    ct_end_launch(launch);
    ct_unlock_meter(launch->meter);
    inside = false;
}

void ct_forget_compute(void) {
    inside = false;
    ct_forget_meters();
    ct_forget_views();
}
