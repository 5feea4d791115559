// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Measuring without getting in the way. Events cost the host a microsecond and the device a gap, so short launches that
// queue up behind each other share one pair. No synchronisation is hooked: a batch that its stream has left open is
// charged what its launches took before. Nothing here waits for the device, since a stream may be waiting for the very
// thread that launches.

#include "meter.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "lock.h"
#include "memory.h"
#include "region.h"

#include "hooks.h"

#define BATCHES 512 // under way at once in one context
#define STREAMS 1024
#define KINDS 4096
#define PROBES 8 // places in a table where one thing may be
#define EVENTS (2 * BATCHES + 2)

#define MICROSECOND UINT64_C(1000)
#define MILLISECOND (1000 * MICROSECOND)
#define FIRST_GUESS (1 * MILLISECOND)   // of a kind of launch that was never measured
#define WORTH_EVENTS (5 * MICROSECOND)  // a shorter batch stays open even where nothing queues before it
#define LONG_BATCH (1 * MILLISECOND)    // a longer one is closed
#define MANY_LAUNCHES 32                // and so is one of so many
#define MEASURE_EVERY 16                // launches of a kind, one is measured by itself
#define HARVEST_EVERY (100 * MICROSECOND)
#define AHEAD (20 * MILLISECOND)        // of work under way is enough to keep a device busy
#define PATIENCE (500 * MILLISECOND)    // without any batch ending: perhaps the device waits for us
#define ENDLESS (60 * PATIENCE)         // then the oldest is not waited for any more
#define DEEP 256                        // launches; the driver takes a thousand before it makes callers wait
#define LATE (1 * MILLISECOND)          // after its predicted end an open batch is given up

enum batch_state { OPEN, CLOSED, SETTLED };

struct batch {
    CUevent start, end;
    struct stream *stream;
    uint64_t serial;
    uint64_t kind;     // of all its launches; 0: of several
    uint64_t estimate; // device-nanoseconds
    uint64_t until;    // when that should be over, by the clock
    int64_t charged;
    uint32_t launches;
    uint32_t pending; // launches that the driver has not yet been given
    enum batch_state state;
    bool held, guessed, closing;
};

struct stream {
    CUstream handle;
    const void *thread; // of a per-thread stream: each thread has its own by the same name
    uint64_t until;     // when its work should be over
    struct batch *open;
    struct batch *closed;   // the latest that was, if its serial still is
    uint64_t closed_serial;
    bool used;
};

struct kind {
    uint64_t key;
    uint64_t estimate;
    uint32_t measured;
    uint32_t since; // launches since it was last measured
};

struct ct_meter {
    ct_lock lock;
    uint64_t serial;
    int device; // all from here on is set anew for another context
    uint32_t head, tail; // of the batches, in the order in which they were opened
    uint64_t ahead;      // estimate of what is under way
    uint32_t launches;   // that are under way
    uint32_t guessed;    // batches under way with a kind that was never measured
    uint64_t progress;   // when something was last seen to end
    uint64_t harvested;
    CUevent frontier; // end of the latest interval that was paid
    uint32_t spare;
    CUevent events[EVENTS];
    struct batch batches[BATCHES];
    struct stream streams[STREAMS];
    struct kind kinds[KINDS];
};

static _Thread_local __attribute__((tls_model("initial-exec"))) char this_thread;

void ct_meter_lock(struct ct_meter *meter) { ct_acquire(&meter->lock); }

void ct_meter_unlock(struct ct_meter *meter) { ct_set_free(&meter->lock); }

static size_t hash(uint64_t value, size_t size) { return (size_t)(value * UINT64_C(0x9e3779b97f4a7c15) >> 32) % size; }

static CUevent new_event(struct ct_meter *meter) {
    if (meter->spare > 0) return meter->events[--meter->spare];
    CUevent event = NULL;
    int mode = ct_relax_capture();
    if (CALL(cuEventCreate, &event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) event = NULL;
    ct_restore_capture(mode);
    return event;
}

static void spare_event(struct ct_meter *meter, CUevent *event) {
    if (*event && meter->spare < EVENTS) meter->events[meter->spare++] = *event;
    *event = NULL;
}

static struct kind *kind_of(struct ct_meter *meter, uint64_t key) {
    struct kind *oldest = NULL;
    size_t first = hash(key, KINDS);
    for (size_t i = 0; i < PROBES; i++) {
        struct kind *kind = &meter->kinds[(first + i) % KINDS];
        if (kind->key == key) return kind;
        if (!oldest || kind->key == 0 || (oldest->key && kind->measured < oldest->measured)) oldest = kind;
        if (kind->key == 0) break;
    }
    *oldest = (struct kind){.key = key, .estimate = FIRST_GUESS};
    return oldest;
}

// Pays what the batch took instead of what it was charged, and forgets it.
static void settle(struct ct_meter *meter, struct batch *batch, uint64_t took) {
    uint64_t ours = took * ct_ours(meter->device) / CT_TRIM_ONE;
    if (batch->held) ct_pay(meter->device, (int64_t)ours - batch->charged);
    struct ct_slot *slot = ct_my_slot();
    if (slot) atomic_fetch_add_explicit(&slot->busy[meter->device], ours, memory_order_relaxed);
    ct_note_measured(meter->device, took);
    meter->ahead -= batch->estimate;
    meter->launches -= batch->launches;
    meter->guessed -= batch->guessed;
    spare_event(meter, &batch->start);
    spare_event(meter, &batch->end);
    if (batch->stream->open == batch) batch->stream->open = NULL;
    batch->state = SETTLED;
}

static void close_batch(struct ct_meter *meter, struct batch *batch) {
    struct stream *stream = batch->stream;
    stream->open = NULL;
    if (CALL(cuEventRecord, batch->end, stream->handle) == CUDA_SUCCESS) {
        batch->state = CLOSED;
        stream->closed = batch;
        stream->closed_serial = batch->serial;
    } else {
        ct_fault(CT_FAULT_EVENTS);
        settle(meter, batch, batch->estimate);
    }
}

// Whether what was launched on the stream before its open batch is still under way.
static bool is_queueing(const struct stream *stream, uint64_t now) {
    const struct batch *before = stream->closed;
    if (now > stream->until || !before || before->serial != stream->closed_serial || before->state != CLOSED)
        return false;
    int mode = ct_relax_capture();
    bool queueing = CALL(cuEventQuery, before->end) == CUDA_ERROR_NOT_READY;
    ct_restore_capture(mode);
    return queueing;
}

static struct stream *stream_of(struct ct_meter *meter, CUstream handle) {
    const void *thread = handle == CU_STREAM_PER_THREAD ? &this_thread : NULL;
    struct stream *idlest = NULL;
    size_t first = hash((uintptr_t)handle ^ (uintptr_t)thread, STREAMS);
    for (size_t i = 0; i < PROBES; i++) {
        struct stream *stream = &meter->streams[(first + i) % STREAMS];
        if (stream->used && stream->handle == handle && stream->thread == thread) return stream;
        if (!stream->open && (!idlest || stream->until < idlest->until)) idlest = stream;
        if (!stream->used) break;
    }
    if (idlest) *idlest = (struct stream){.handle = handle, .thread = thread, .used = true};
    return idlest;
}

// The time of the batch that no other batch has been paid for; negative: its events do not say.
static int64_t measure(struct ct_meter *meter, struct batch *batch) {
    float span = 0, from = 0, to = 0;
    if (CALL(cuEventElapsedTime, &span, batch->start, batch->end) != CUDA_SUCCESS) return -1;
    if (!meter->frontier)
        to = span;
    else if (CALL(cuEventElapsedTime, &from, meter->frontier, batch->start) != CUDA_SUCCESS ||
             CALL(cuEventElapsedTime, &to, meter->frontier, batch->end) != CUDA_SUCCESS)
        return -1;
    if (to > 0) {
        CUevent older = meter->frontier;
        meter->frontier = batch->end;
        batch->end = older;
    }
    double milliseconds = from >= 0 ? span : to;
    if (!(milliseconds > 0)) return 0;
    return milliseconds < 1e7 ? (int64_t)(milliseconds * 1e6) : -1;
}

static uint64_t learn(struct ct_meter *meter, struct batch *batch, uint64_t took) {
    // Something else may have run between the launches of one batch (a copy, a wait); what is new is believed in steps.
    if (batch->launches > 1 && took > 4 * batch->estimate + LONG_BATCH) took = 4 * batch->estimate + LONG_BATCH;
    if (batch->kind == 0) return took;
    struct kind *kind = kind_of(meter, batch->kind);
    int64_t each = (int64_t)(took / batch->launches), known = (int64_t)kind->estimate;
    kind->estimate = (uint64_t)(kind->measured ? known + (each - known) / 4 : each);
    kind->measured += kind->measured < UINT32_MAX;
    kind->since = 0;
    return took;
}

// False: it is still under way.
static bool finish(struct ct_meter *meter, struct batch *batch, uint64_t now) {
    if (batch->pending > 0) return false;
    if (batch->state == SETTLED) return true;
    if (batch->state == OPEN) {
        if (now < batch->until + LATE) return false;
        settle(meter, batch, batch->estimate);
        return true;
    }
    CUresult ended = CALL(cuEventQuery, batch->end);
    if (ended == CUDA_ERROR_NOT_READY) return false;
    int64_t took = ended == CUDA_SUCCESS ? measure(meter, batch) : -1;
    if (took < 0) {
        ct_fault(CT_FAULT_EVENTS);
        settle(meter, batch, batch->estimate);
    } else {
        settle(meter, batch, learn(meter, batch, (uint64_t)took));
    }
    return true;
}

void ct_harvest(struct ct_meter *meter, uint64_t now) {
    if (meter->head == meter->tail) return;
    if (now - meter->harvested < HARVEST_EVERY && meter->head - meter->tail < BATCHES / 2) return;
    meter->harvested = now;
    int mode = ct_relax_capture();
    while (meter->tail != meter->head && finish(meter, &meter->batches[meter->tail % BATCHES], now)) {
        meter->tail++;
        meter->progress = now;
    }
    ct_restore_capture(mode);
    struct batch *oldest = &meter->batches[meter->tail % BATCHES];
    if (meter->tail != meter->head && now - meter->progress > ENDLESS && oldest->pending == 0) {
        settle(meter, oldest, oldest->estimate);
        meter->tail++;
        meter->progress = now;
    }
}

bool ct_crowded(struct ct_meter *meter, uint64_t key, uint64_t now) {
    if (meter->launches == 0 || now - meter->progress > PATIENCE) return false;
    if (meter->guessed > 0 && kind_of(meter, key)->measured == 0) return true;
    uint64_t ours = meter->ahead / CT_TRIM_ONE * ct_ours(meter->device);
    return (meter->launches > 1 && ours >= AHEAD) || meter->head - meter->tail == BATCHES;
}

// Nothing ends, and soon the driver would make us wait for it, with our lock held against threads that might help.
static bool is_stuck(const struct ct_meter *meter, uint64_t now) {
    return meter->launches > DEEP && now - meter->progress > PATIENCE;
}

static struct batch *open_batch(struct ct_meter *meter, struct stream *stream, uint64_t kind, bool held) {
    struct batch *batch = &meter->batches[meter->head % BATCHES];
    if (meter->head - meter->tail == BATCHES) { // the oldest never ends, or nobody looked
        if (batch->pending > 0) return NULL;
        if (batch->state != SETTLED) settle(meter, batch, batch->estimate);
        meter->tail++;
    }
    *batch = (struct batch){.stream = stream, .serial = ++meter->serial, .kind = kind, .held = held, .state = OPEN};
    batch->start = new_event(meter);
    batch->end = new_event(meter);
    if (!batch->start || !batch->end || CALL(cuEventRecord, batch->start, stream->handle) != CUDA_SUCCESS) {
        ct_fault(CT_FAULT_EVENTS);
        spare_event(meter, &batch->start);
        spare_event(meter, &batch->end);
        return NULL;
    }
    meter->head++;
    return stream->open = batch;
}

// Ends the stream's open batch where this launch should not join it.
static void part(struct ct_meter *meter, struct stream *stream, uint64_t now, bool held, bool alone) {
    struct batch *open = stream->open;
    if (!open || open->pending > 0) return;
    if (now > open->until + LATE)
        settle(meter, open, open->estimate); // it may have ended long ago
    else if (alone || open->held != held || (open->estimate >= WORTH_EVENTS && !is_queueing(stream, now)))
        close_batch(meter, open);
}

void ct_about_to_wait(struct ct_meter *meter, CUstream handle) {
    struct stream *stream = stream_of(meter, handle);
    if (stream && stream->open && stream->open->pending == 0) close_batch(meter, stream->open);
}

void ct_begin(struct ct_launch *launch, struct ct_meter *meter, CUstream handle, uint64_t key, uint64_t now,
              bool held) {
    struct kind *kind = kind_of(meter, key);
    struct stream *stream = is_stuck(meter, now) ? NULL : stream_of(meter, handle);
    struct batch *batch = NULL;
    bool alone = kind->measured < 2 || ++kind->since >= MEASURE_EVERY;
    if (stream) {
        part(meter, stream, now, held, alone);
        batch = stream->open ? stream->open : open_batch(meter, stream, key, held);
    }
    int64_t charge = held ? (int64_t)(kind->estimate * ct_ours(meter->device) / CT_TRIM_ONE) : 0;
    if (charge) ct_pay(meter->device, charge);
    *launch = (struct ct_launch){.meter = meter, .batch = batch, .serial = batch ? batch->serial : 0};
    if (!batch) return;

    bool stays_open = batch->launches > 0 || kind->estimate < WORTH_EVENTS || is_queueing(stream, now);
    stream->until = (stream->until > now ? stream->until : now) + kind->estimate;
    if (meter->launches == 0) meter->progress = now;
    meter->launches++;
    meter->ahead += kind->estimate;
    if (kind->measured == 0 && !batch->guessed) {
        batch->guessed = true;
        meter->guessed++;
    }
    if (batch->kind != key) batch->kind = 0;
    batch->charged += charge;
    batch->estimate += kind->estimate;
    batch->until = stream->until;
    batch->launches++;
    batch->pending++;
    batch->closing |= alone || !stays_open || batch->estimate >= LONG_BATCH || batch->launches >= MANY_LAUNCHES;
}

void ct_end(struct ct_launch *launch) {
    struct batch *batch = launch->batch;
    if (!batch || batch->serial != launch->serial) return; // not measured, or its context has gone meanwhile
    batch->pending--;
    if (batch->pending == 0 && batch->closing && batch->state == OPEN) close_batch(launch->meter, batch);
}

struct ct_meter *ct_new_meter(void) {
    void *room = mmap(NULL, sizeof(struct ct_meter), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return room == MAP_FAILED ? NULL : room;
}

void ct_reset_meter(struct ct_meter *meter, int device) {
    const size_t kept = offsetof(struct ct_meter, device); // and the serial, by which a launch knows its batch
    memset((char *)meter + kept, 0, sizeof *meter - kept);
    meter->device = device;
}
