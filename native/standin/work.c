// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What streams and events have to do with the engines. Work of a stream is known by a reference into this process's
// lane of the device; events that wait for work hang on it here, and get their time when this process next takes note
// of what is done.

#include <stdlib.h>
#include <string.h>

#include "driver.h"

// This process's lane of each device. Guarded by the lock of the shared state.
static struct lane {
    _Atomic int number; // + 1
    uint64_t fence;     // after which everything on ordinary streams comes: the newest work of the legacy stream
    CUevent waiting[SI_RING];
} lanes[SI_DEVICES];

static CUstream everything; // guarded likewise
static unsigned long long ids = 2;

// Streams of a thread's own, one for each context that it has used one of.
struct own {
    CUstream stream;
    struct own *next;
};
static __thread struct own *own_streams __attribute__((tls_model("initial-exec")));

CUstream si_make_stream(CUcontext context, unsigned flags, int priority) {
    CUstream made = calloc(1, sizeof *made);
    made->context = context, made->flags = flags, made->priority = priority;
    si_lock();
    made->id = ++ids;
    made->next = everything;
    everything = made;
    si_unlock();
    return made;
}

static CUstream legacy(void) {
    CUstream known = __atomic_load_n(&si_current->legacy, __ATOMIC_ACQUIRE);
    if (SI_LIKELY(known != NULL)) return known;
    CUstream made = si_make_stream(si_current, 0, 0);
    if (!__atomic_compare_exchange_n(&si_current->legacy, &known, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        made = known;
    return made;
}

static CUstream per_thread(void) {
    for (struct own *one = own_streams; one; one = one->next)
        if (one->stream->context == si_current) return one->stream;
    struct own *fresh = malloc(sizeof *fresh);
    *fresh = (struct own){si_make_stream(si_current, 0, 0), own_streams};
    own_streams = fresh;
    return fresh->stream;
}

CUresult si_stream(CUstream handle, CUstream *stream) {
    TRY(si_ready());
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        *stream = legacy();
    } else {
        *stream = handle == CU_STREAM_PER_THREAD ? per_thread() : handle;
    }
    return (*stream)->dead ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static struct si_lane *shared_lane(const struct lane *lane) { return &si_mapped->lane[lane->number - 1]; }

static uint64_t jitter(void) {
    static uint64_t seed;
    uint64_t most = si_mapped->set.jitter;
    if (!most) return 0;
    seed = (seed + 1 + (uint64_t)si_claim_slot()) * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (seed >> 33) % (2 * most + 1) - most; // may wrap below zero, as the sum undoes
}

static void stamp(CUevent event, uint64_t when) {
    event->when = when + jitter();
    atomic_store_explicit(&event->reference, 0, memory_order_release);
}

// Gives their time to events whose work is done, and frees the places in the ring.
static void take_note(struct lane *lane) {
    if (!lane->number) return;
    struct si_lane *shared = shared_lane(lane);
    for (uint64_t sequence = shared->tail; sequence < shared->head; sequence++) {
        struct si_item *item = &shared->item[sequence % SI_RING];
        if (item->state != SI_DONE) continue;
        CUevent *waiting = &lane->waiting[sequence % SI_RING];
        while (*waiting) {
            CUevent event = *waiting;
            *waiting = event->next;
            stamp(event, item->end);
        }
        if (sequence == shared->tail) shared->tail = sequence + 1;
    }
}

static void look(void) {
    si_serve(si_now());
    for (int device = 0; device < SI_DEVICES; device++) take_note(&lanes[device]);
}

// The lock is held; gives it up while the ring is full.
static CUresult lane_with_room(int device, struct lane **found) {
    struct lane *lane = *found = &lanes[device];
    if (!lane->number) lane->number = si_claim_lane(device) + 1;
    if (!lane->number) return CUDA_ERROR_OUT_OF_MEMORY;
    struct si_lane *shared = shared_lane(lane);
    while (shared->head - shared->tail >= SI_RING) {
        uint64_t oldest = si_reference((unsigned)lane->number - 1, shared->tail);
        si_unlock();
        si_wait(0, oldest);
        si_lock();
        look();
    }
    return CUDA_SUCCESS;
}

static bool is_legacy(CUstream stream) { return stream == stream->context->legacy; }

CUresult si_enqueue(CUstream stream, uint64_t length) {
    if (!length) return CUDA_SUCCESS;
    if (__builtin_expect(length == SI_FAULT, 0)) return si_fault();
    si_hold_share(length);
    struct lane *lane;
    si_lock();
    look();
    CUresult result = lane_with_room(stream->context->device, &lane);
    if (result == CUDA_SUCCESS) {
        uint64_t after[SI_DEPENDENCIES], fence = 0;
        memcpy(after, stream->waits, sizeof after);
        after[0] = stream->last;
        bool ordinary = !(stream->flags & CU_STREAM_NON_BLOCKING);
        if (ordinary && lane->fence > fence) fence = lane->fence;
        if (is_legacy(stream)) fence = shared_lane(lane)->head;
        uint64_t sequence = si_push((unsigned)lane->number - 1, length, after, fence);
        if (is_legacy(stream)) lane->fence = sequence + 1;
        stream->last = si_reference((unsigned)lane->number - 1, sequence);
        memset(stream->waits, 0, sizeof stream->waits);
    }
    si_unlock();
    return result;
}

// What the stream's next work would come after. The legacy stream comes after all, the others after it.
static uint64_t newest(CUstream stream) {
    struct lane *lane = &lanes[stream->context->device];
    uint64_t last = stream->last;
    if (!lane->number || stream->flags & CU_STREAM_NON_BLOCKING) return last;
    uint64_t all = is_legacy(stream) ? shared_lane(lane)->head : lane->fence;
    uint64_t fence = all > 1 ? si_reference((unsigned)lane->number - 1, all - 1) : 0;
    return fence > last ? fence : last;
}

static uint64_t later(uint64_t one, uint64_t other) {
    if (si_is_done(one) || si_is_done(other)) return si_is_done(one) ? other : one;
    return si_ticket(one) > si_ticket(other) ? one : other;
}

// What the stream has yet to see done, its newest last; 0 or something done if nothing.
static uint64_t awaited(CUstream stream) {
    uint64_t reference = newest(stream);
    for (int i = 1; i < SI_DEPENDENCIES; i++) reference = later(reference, stream->waits[i]);
    return reference;
}

static bool settled(CUstream stream) {
    if (!atomic_load_explicit(&lanes[stream->context->device].number, memory_order_relaxed)) return true;
    si_lock();
    look();
    bool done = si_is_done(awaited(stream));
    si_unlock();
    return done;
}

bool si_is_idle(CUstream stream) { return settled(stream); }

CUresult si_finish_stream(CUstream stream) {
    while (!settled(stream)) {
        si_lock();
        uint64_t waited = awaited(stream);
        si_unlock();
        si_wait(0, waited);
    }
    return CUDA_SUCCESS;
}

CUresult si_finish_device(int device) {
    struct lane *lane = &lanes[device];
    while (lane->number) {
        si_lock();
        look();
        struct si_lane *shared = shared_lane(lane);
        uint64_t last = shared->front < shared->head ? si_reference((unsigned)lane->number - 1, shared->head - 1) : 0;
        if (last && si_is_done(last)) last = si_reference((unsigned)lane->number - 1, shared->front);
        si_unlock();
        if (!last) break;
        si_wait(0, last);
    }
    return CUDA_SUCCESS;
}

CUresult si_not_ready(void) {
    si_poll();
    return CUDA_ERROR_NOT_READY;
}

// The lock is held.
static void take_off(CUevent event) {
    uint64_t sequence = event->reference & SI_SEQUENCE;
    CUevent *link = event->reference ? &event->lane->waiting[sequence % SI_RING] : NULL;
    while (link && *link && *link != event) link = &(*link)->next;
    if (link && *link) *link = event->next;
    event->reference = 0;
}

void si_forget_event(CUevent event) {
    if (!event->reference) return;
    si_lock();
    take_off(event);
    si_unlock();
}

void si_record(CUevent event, CUstream stream) {
    struct lane *lane = &lanes[stream->context->device];
    if (!lane->number) {
        event->when = si_now() + jitter();
        return;
    }
    si_lock();
    look();
    take_off(event);
    uint64_t waited = awaited(stream);
    if (si_is_done(waited)) {
        stamp(event, si_now());
    } else {
        lane = &lanes[si_mapped->lane[(waited >> 48) - 1].device];
        event->lane = lane;
        event->next = lane->waiting[(waited & SI_SEQUENCE) % SI_RING];
        lane->waiting[(waited & SI_SEQUENCE) % SI_RING] = event;
        event->reference = waited;
    }
    si_unlock();
}

bool si_has_happened(CUevent event) {
    if (!atomic_load_explicit(&event->reference, memory_order_acquire)) return true;
    si_lock();
    look();
    si_unlock();
    return !event->reference;
}

// Work of the stream that comes later comes after the event. If it waits for too much already, the caller waits.
void si_make_wait(CUstream stream, CUevent event) {
    uint64_t late = 0;
    si_lock();
    look();
    uint64_t reference = event->reference;
    int place = 1;
    while (place < SI_DEPENDENCIES && !si_is_done(stream->waits[place])) place++;
    if (place < SI_DEPENDENCIES) {
        stream->waits[place] = reference;
    } else {
        late = reference;
    }
    si_unlock();
    if (late) si_wait(0, late);
}

void si_forget_work(void) {
    memset(lanes, 0, sizeof lanes);
    everything = NULL;
    own_streams = NULL;
}

void si_free_context_streams(CUcontext context) {
    si_lock();
    for (CUstream stream = everything; stream; stream = stream->next)
        if (stream->context == context) stream->dead = true;
    si_unlock();
}
