// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Measuring without getting in the way. Events cost the host a microsecond and the device a gap, so short launches that
// queue up behind each other share one pair. Nothing tells when a stream has no more launches for its open batch: one
// that is paid for has its end recorded behind its latest launch, and is measured; any other is taken to have lasted as
// long as its launches did before. This file assigns launches to batches; batches.c times them.

#include "meter_parts.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "limits.h"
#include "memory.h"

#include "hooks.h"

#define WORTH_EVENTS (5 * MICROSECOND) // a shorter batch stays open even if nothing queues before it
#define MANY_LAUNCHES 32               // a batch of so many is closed
#define MEASURE_EVERY 16               // of so many launches of a kind, one is measured by itself
#define AHEAD (20 * MILLISECOND)       // of work under way is enough to keep a device busy
#define OVERDUE 4                      // streams: with so many batches that run longer than expected, no launch goes on
#define LOOK_AGAIN (MILLISECOND / 4)
#define NAP (10 * MILLISECOND)          // behind something that runs long
#define DEEP 256                       // launches; the driver takes about 1000 before it makes callers wait

static _Thread_local __attribute__((tls_model("initial-exec"))) char this_thread; // its address tells threads apart

void ct_lock_meter(struct ct_meter *meter) { ct_acquire(&meter->lock); }

void ct_unlock_meter(struct ct_meter *meter) { ct_set_free(&meter->lock); }

// Whether what was launched on the stream before its open batch is still under way.
static bool is_queueing(const struct ct_stream *stream, uint64_t now) {
    const struct ct_batch *before = stream->closed;
    if (now > stream->until || !before || before->serial != stream->closed_serial || before->state != CLOSED)
        return false;
    return ct_is_under_way(before);
}

// The stream of that handle, which replaces the idlest one if it is new. NULL: all places have an open batch.
static struct ct_stream *find_stream(struct ct_meter *meter, CUstream handle) {
    const void *thread = handle == CU_STREAM_PER_THREAD ? &this_thread : NULL;
    struct ct_stream *idlest = NULL;
    size_t first = ct_hash((uintptr_t)handle ^ (uintptr_t)thread, STREAMS);
    for (size_t i = 0; i < PROBES; i++) {
        struct ct_stream *stream = &meter->streams[(first + i) % STREAMS];
        if (stream->used && stream->handle == handle && stream->thread == thread) return stream;
        if (!stream->open && (!idlest || stream->until < idlest->until)) idlest = stream;
        if (!stream->used) break;
    }
    if (idlest) *idlest = (struct ct_stream){.handle = handle, .thread = thread, .used = true};
    return idlest;
}

// The clock since which something of this stream runs, far longer than expected, or something of many streams; 0: neither.
// Launches behind it would be charged what they were expected to cost, too, long before their true cost is known.
static uint64_t overdue_before(struct ct_meter *meter, CUstream handle, uint64_t now) {
    if (meter->overdue == 0) return 0;
    uint64_t since = ct_overdue_since(meter, find_stream(meter, handle), now);
    return since || meter->overdue < OVERDUE ? since : ct_overdue_since(meter, NULL, now);
}

// Whether a launch still waits for work that has run since then. The device may be waiting for this very thread, so it
// waits no longer than if that work had ended when the launch came, and had been paid for from then on.
static bool is_waiting_for(uint64_t since, const struct ct_request *request, uint64_t now) {
    uint64_t ran = request->came > since ? request->came - since : 0;
    uint64_t justified = ran / request->rate * (CT_WHOLE - request->rate);
    return now - request->came <= (justified > PATIENCE ? justified : PATIENCE);
}

uint64_t ct_time_crowded(struct ct_meter *meter, const struct ct_request *request, uint64_t now) {
    if (meter->launches == 0) return 0;
    uint64_t since = request->held ? overdue_before(meter, request->stream, now) : 0;
    if (since) return is_waiting_for(since, request, now) ? NAP : 0;
    if (meter->guessed > 0 && ct_find_kind(meter, request->key)->measured == 0) {
        if (now - meter->progress <= PATIENCE) return LOOK_AGAIN;
        return request->held && is_waiting_for(meter->progress, request, now) ? NAP : 0;
    }
    if (now - meter->progress > PATIENCE) return 0;
    uint64_t ours = meter->ahead / CT_FRACTION_ONE * ct_own_fraction(meter->device);
    return (meter->launches > 1 && ours >= AHEAD) || meter->head - meter->tail == BATCHES ? LOOK_AGAIN : 0;
}

// No batch ends, and soon the driver would block in a launch, while our lock keeps out threads that might help.
static bool is_stuck(const struct ct_meter *meter, uint64_t now) {
    return meter->launches > DEEP && now - meter->progress > PATIENCE;
}

// Ends the stream's open batch if this launch should not join it.
static void end_unsuited_batch(struct ct_meter *meter, struct ct_stream *stream, uint64_t now, bool held, bool alone) {
    struct ct_batch *open = stream->open;
    if (!open || open->pending > 0) return;
    if (open->held && !ct_is_under_way(open))
        ct_close_batch(meter, open); // time that passes between two launches is not theirs
    else if (!open->held && now > open->until + LATE)
        ct_settle_batch(meter, open, open->estimate); // it may have ended long ago
    else if (alone || open->held != held || (open->estimate >= WORTH_EVENTS && !is_queueing(stream, now)))
        ct_close_batch(meter, open);
}

void ct_close_open_batch(struct ct_meter *meter, CUstream handle) {
    struct ct_stream *stream = find_stream(meter, handle);
    if (stream && stream->open && stream->open->pending == 0) ct_close_batch(meter, stream->open);
}

void ct_begin_launch(struct ct_launch *launch, struct ct_meter *meter, const struct ct_request *request, uint64_t now) {
    uint64_t key = request->key;
    bool held = request->held;
    struct ct_launch_kind *kind = ct_find_kind(meter, key);
    struct ct_stream *stream = is_stuck(meter, now) ? NULL : find_stream(meter, request->stream);
    struct ct_batch *batch = NULL;
    bool alone = kind->measured < 2 || ++kind->since >= MEASURE_EVERY;
    if (stream) {
        end_unsuited_batch(meter, stream, now, held, alone);
        batch = stream->open ? stream->open : ct_open_batch(meter, stream, key, held);
    }
    int64_t charge = held ? (int64_t)(kind->estimate * ct_own_fraction(meter->device) / CT_FRACTION_ONE) : 0;
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
    batch->marked = false;
    batch->closing |= alone || !stays_open || batch->estimate >= LONG_BATCH || batch->launches >= MANY_LAUNCHES;
}

void ct_end_launch(struct ct_launch *launch) {
    struct ct_batch *batch = launch->batch;
    if (!batch || batch->serial != launch->serial) return; // not measured, or its context was destroyed meanwhile
    batch->pending--;
    if (batch->pending > 0 || batch->state != OPEN) return;
    if (batch->held) ct_mark_end(launch->meter, batch);
    if (batch->closing && batch->state == OPEN) ct_close_batch(launch->meter, batch);
}

struct ct_meter *ct_new_meter(void) {
    void *memory = mmap(NULL, sizeof(struct ct_meter), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void ct_reset_meter(struct ct_meter *meter, int device) {
    const size_t kept = offsetof(struct ct_meter, device); // and the serial, by which a launch knows its batch
    memset((char *)meter + kept, 0, sizeof *meter - kept);
    meter->device = device;
}
