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
#define LONGEST (86400 * SECOND)   // of device time: a larger debt in the region is no debt that launches have made,
#define FORGIVEN (10 * SECOND)     // of the share: and becomes this one
#define RESUMED (10 * MILLISECOND) // of the share, saved after a debt before launches go on: they come in small bursts
#define BURST (2 * MILLISECOND)    // at most so long on the device, so that streams still run side by side
#define FILL_EVERY (100 * 1000)    // nanoseconds between refills, so that rounding does not show
#define NAP (10 * MILLISECOND)     // the longest sleep before the limits are read again
#define LAST_IN_LINE MILLISECOND   // a launch that has just come looks so much later than one that has long waited
#define GRACE (500 * MILLISECOND)  // after the debt that a launch found is repaid, its siblings' debt counts no more
#define AGREED SECOND // a time of the last refill further in the future is not ours, and is ignored

static struct ct_bucket own[CT_DEVICES];
static _Atomic bool resting[CT_DEVICES]; // from the moment of debt until a burst is saved
static _Atomic int64_t own_spilled[CT_DEVICES];
static _Thread_local __attribute__((tls_model("initial-exec"))) bool inside;

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

// Fills the bucket up to now and returns what is in it. Any content is within bounds afterwards; a debt that launches
// have made is never reduced but by time. The time is claimed first and the tokens are added after, so a process that is
// killed in between costs the slice one refill.
static int64_t fill(struct ct_bucket *bucket, _Atomic int64_t *spilled, uint32_t rate, uint64_t now) {
    const int64_t most = SAVED * rate / CT_WHOLE;
    uint64_t filled = atomic_load_explicit(&bucket->filled, memory_order_relaxed);
    int64_t span = (int64_t)(now - filled);
    bool strange = filled == 0 || span < -AGREED;
    if (!strange && span < FILL_EVERY) span = 0;
    if ((strange || span) && !atomic_compare_exchange_strong(&bucket->filled, &filled, now)) span = 0;
    int64_t more = strange ? 0 : clamp(span, 0, LONGEST) / CT_WHOLE * rate;
    int64_t before = atomic_load_explicit(&bucket->tokens, memory_order_relaxed), filled_up, after;
    do {
        filled_up = (before < -LONGEST ? -FORGIVEN * rate / CT_WHOLE : clamp(before, -LONGEST, most)) + more;
        after = clamp(filled_up, -LONGEST, most);
    } while (after != before && !atomic_compare_exchange_weak(&bucket->tokens, &before, after));
    if (filled_up > after) atomic_fetch_add_explicit(spilled, filled_up - after, memory_order_relaxed);
    return after;
}

void ct_pay(int device, int64_t nanoseconds) {
    atomic_fetch_sub_explicit(&ct_region->bucket[device].tokens, nanoseconds, memory_order_relaxed);
    atomic_fetch_sub_explicit(&own[device].tokens, nanoseconds, memory_order_relaxed);
}

static uint32_t rate_of(int device) {
    return (uint32_t)clamp(atomic_load_explicit(&ct_limits_now[device].compute, memory_order_relaxed), 1, CT_WHOLE);
}

struct ct_spilled ct_note_spilled(int device) {
    return (struct ct_spilled){atomic_load_explicit(&ct_region->spilled[device], memory_order_relaxed),
                               atomic_load_explicit(&own_spilled[device], memory_order_relaxed)};
}

// Takes out of what has spilled since then, at most so much, and returns it. Another process may want the same part, so
// it is taken away from what they see.
static int64_t take_spilled(_Atomic int64_t *spilled, int64_t before, int64_t most) {
    int64_t since = (int64_t)((uint64_t)atomic_load_explicit(spilled, memory_order_relaxed) - (uint64_t)before);
    int64_t taken = clamp(since, 0, most);
    atomic_fetch_sub_explicit(spilled, taken, memory_order_relaxed);
    return taken;
}

void ct_pay_rest(int device, int64_t rest, uint64_t took, const struct ct_spilled *before) {
    int64_t share = (int64_t)(took / CT_WHOLE * rate_of(device)), most = clamp(rest, 0, share);
    int64_t shared = take_spilled(&ct_region->spilled[device], before->shared, most);
    int64_t mine = take_spilled(&own_spilled[device], before->own, most);
    atomic_fetch_sub_explicit(&ct_region->bucket[device].tokens, rest - shared, memory_order_relaxed);
    atomic_fetch_sub_explicit(&own[device].tokens, rest - mine, memory_order_relaxed);
}

static uint64_t time_to_earn(int64_t tokens, uint32_t rate) { return (uint64_t)tokens / rate * CT_WHOLE + CT_WHOLE; }

// Siblings wait for the same moment. The one that has waited longest comes first: the others look a little later.
static uint64_t time_behind_siblings(const struct ct_request *request, uint64_t now) {
    if (atomic_load_explicit(&ct_region->high, memory_order_relaxed) < 2) return 0;
    return LAST_IN_LINE * NAP / (NAP + (now - request->came));
}

// Nanoseconds until the slice may launch; 0: now. What siblings add to the debt while a launch waits does not keep it
// waiting for ever: a little after the debt that it found is repaid it goes on, and what it takes is debt again.
static uint64_t time_until_paid(int device, struct ct_request *request, uint64_t now) {
    uint32_t rate = request->rate;
    int64_t shared = fill(&ct_region->bucket[device], &ct_region->spilled[device], rate, now);
    int64_t mine = fill(&own[device], &own_spilled[device], rate, now);
    bool is_due = request->due && now >= request->due;
    int64_t tokens = is_due || mine < shared ? mine : shared;
    int64_t goal = atomic_load_explicit(&resting[device], memory_order_relaxed) || tokens < 0
                       ? clamp(RESUMED * rate / CT_WHOLE, 0, BURST)
                       : 0;
    atomic_store_explicit(&resting[device], tokens < goal, memory_order_relaxed);
    if (tokens >= goal) return 0;
    if (!request->due) request->due = now + GRACE + (shared < goal ? time_to_earn(goal - shared, rate) : 0);
    return time_to_earn(goal - tokens, rate) + time_behind_siblings(request, now);
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
static uint64_t try_to_launch(struct ct_meter *meter, int device, struct ct_request *request, uint64_t now) {
    request->held = is_share_enforced(device);
    request->rate = rate_of(device);
    ct_lock_meter(meter);
    ct_harvest(meter, now);
    uint64_t wait = request->held ? time_until_paid(device, request, now) : 0;
    if (wait == 0) wait = ct_time_crowded(meter, request, now);
    if (atomic_load_explicit(&ct_limits_now[device].paused, memory_order_relaxed)) wait = NAP;
    if (wait) {
        ct_close_open_batch(meter, request->stream);
        ct_unlock_meter(meter);
    }
    return wait > NAP ? NAP : wait;
}

// Returns the time at which it may launch, with the meter locked.
static uint64_t wait_to_launch(struct ct_meter *meter, int device, struct ct_request *request) {
    uint64_t now = ct_clock(), wait;
    request->came = now;
    ct_watch_device(device, now);
    while ((wait = try_to_launch(meter, device, request, now)) > 0) {
        ct_sleep_until(now + wait);
        ct_refresh_limits();
        now = ct_clock();
        ct_watch_device(device, now);
    }
    if (now != request->came) {
        struct ct_slot *slot = ct_my_slot();
        if (slot) atomic_fetch_add_explicit(&slot->waited[device], now - request->came, memory_order_relaxed);
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
    struct ct_request request = {.stream = stream, .key = key};
    inside = true;
    ct_refresh_limits();
    uint64_t now = wait_to_launch(meter, device, &request);
    ct_begin_launch(launch, meter, &request, now);
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
