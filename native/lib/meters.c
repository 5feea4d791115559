// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Which context has which meter: events belong to a context and are destroyed with it. A meter is never freed, since a
// thread may be about to lock it; the next context gets it.

#include "lock.h"
#include "meter.h"
#include "region.h"

#include "hooks.h"

#define CONTEXTS 1024 // at a time: more than a GPU has memory for; launches of a context beyond them are not held back
#define READ_PAUSE UINT64_C(1000000) // ns between two looks at events that were just recorded
#define READ_TRIES 5

static struct {
    _Atomic(CUcontext) context; // NULL: the meter is free
    _Atomic(struct ct_meter *) meter;
} places[CONTEXTS];
static ct_lock giving;

static int place_of(CUcontext context) {
    for (int i = 0; i < CONTEXTS && places[i].meter; i++)
        if (atomic_load_explicit(&places[i].context, memory_order_acquire) == context) return i;
    return -1;
}

static struct ct_meter *give(CUcontext context, int device) {
    for (int i = 0; i < CONTEXTS; i++) {
        struct ct_meter *meter = places[i].meter;
        if (meter && places[i].context) continue;
        if (!meter) meter = ct_new_meter();
        if (!meter) break;
        ct_lock_meter(meter);
        ct_reset_meter(meter, device);
        ct_unlock_meter(meter);
        places[i].meter = meter;
        places[i].context = context;
        return meter;
    }
    ct_count_fault(CT_FAULT_MEMORY);
    return NULL;
}

struct ct_meter *ct_find_meter(CUcontext context, int device) {
    int place = place_of(context);
    if (place >= 0) return places[place].meter;
    ct_acquire(&giving);
    place = place_of(context);
    struct ct_meter *meter = place >= 0 ? places[place].meter : give(context, device);
    ct_set_free(&giving);
    return meter;
}

static void wait_for_all(CUcontext context) {
    CUcontext popped;
    if (!HAS(cuCtxPopCurrent_v2) || CALL(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS) return;
    CALL(cuCtxSynchronize);
    REAL(cuCtxPopCurrent_v2)(&popped);
}

void ct_read_events(CUcontext context) {
    int place = context ? place_of(context) : -1;
    if (place < 0) return;
    struct ct_meter *meter = places[place].meter;
    ct_lock_meter(meter);
    ct_close_batches(meter);
    for (int i = 0; i < READ_TRIES && ct_is_unpaid(meter, ct_clock()); i++) {
        ct_unlock_meter(meter);
        ct_sleep_until(ct_clock() + READ_PAUSE);
        ct_lock_meter(meter);
    }
    ct_unlock_meter(meter);
}

void ct_forget_events(CUcontext context, bool gone) {
    int place = context ? place_of(context) : -1;
    if (place < 0) return;
    struct ct_meter *meter = places[place].meter;
    ct_lock_meter(meter);
    if (!gone && ct_is_unpaid(meter, ct_clock())) {
        ct_unlock_meter(meter);
        wait_for_all(context);
        ct_lock_meter(meter);
    }
    ct_settle_meter(meter, ct_clock(), gone);
    places[place].context = NULL;
    ct_reset_meter(meter, 0);
    ct_unlock_meter(meter);
}

void ct_forget_meters(void) {
    ct_set_free(&giving);
    for (int i = 0; i < CONTEXTS && places[i].meter; i++) {
        places[i].context = NULL;
        ct_unlock_meter(places[i].meter); // a thread that held it is not in this process
    }
}
