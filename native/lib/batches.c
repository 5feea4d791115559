// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Batches, and the events that time them. The time that a process pays for is the time during which at least one of its
// batches ran. `frontier` is the end of the latest interval that was paid for; a batch that began before it pays only
// for what is behind it, so that streams which run side by side are not paid for twice. Nothing here waits for the
// device, since a stream may be waiting for the very thread that launches.

#include "meter_parts.h"

#include "memory.h"
#include "region.h"

#include "hooks.h"

#define HARVEST_EVERY (100 * MICROSECOND)
#define ENDLESS (30 * 1000 * MILLISECOND) // without any batch ending: the oldest is settled by its estimate

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

void ct_settle_batch(struct ct_meter *meter, struct ct_batch *batch, uint64_t took) {
    uint64_t ours = took * ct_own_fraction(meter->device) / CT_FRACTION_ONE;
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

void ct_close_batch(struct ct_meter *meter, struct ct_batch *batch) {
    struct ct_stream *stream = batch->stream;
    stream->open = NULL;
    if (CALL(cuEventRecord, batch->end, stream->handle) == CUDA_SUCCESS) {
        batch->state = CLOSED;
        stream->closed = batch;
        stream->closed_serial = batch->serial;
    } else {
        ct_count_fault(CT_FAULT_EVENTS);
        ct_settle_batch(meter, batch, batch->estimate);
    }
}

struct ct_batch *ct_open_batch(struct ct_meter *meter, struct ct_stream *stream, uint64_t kind, bool held) {
    struct ct_batch *batch = &meter->batches[meter->head % BATCHES];
    if (meter->head - meter->tail == BATCHES) { // the ring is full: this is the place of the oldest
        if (batch->pending > 0) return NULL;
        if (batch->state != SETTLED) ct_settle_batch(meter, batch, batch->estimate);
        meter->tail++;
    }
    *batch = (struct ct_batch){.stream = stream, .serial = ++meter->serial, .kind = kind, .held = held, .state = OPEN};
    batch->start = new_event(meter);
    batch->end = new_event(meter);
    if (!batch->start || !batch->end || CALL(cuEventRecord, batch->start, stream->handle) != CUDA_SUCCESS) {
        ct_count_fault(CT_FAULT_EVENTS);
        spare_event(meter, &batch->start);
        spare_event(meter, &batch->end);
        return NULL;
    }
    meter->head++;
    return stream->open = batch;
}

// The time of the batch that no other batch was paid for, in nanoseconds; negative: its events do not tell. Moves the
// frontier to the end of the batch if that is later.
static int64_t measure(struct ct_meter *meter, struct ct_batch *batch) {
    float span = 0, from = 0, to = 0; // milliseconds; from and to count from the frontier
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

// Settles the batch if it has ended; false: it is still under way.
static bool finish(struct ct_meter *meter, struct ct_batch *batch, uint64_t now) {
    if (batch->pending > 0) return false;
    if (batch->state == SETTLED) return true;
    if (batch->state == OPEN) {
        if (now < batch->until + LATE) return false;
        ct_settle_batch(meter, batch, batch->estimate);
        return true;
    }
    CUresult ended = CALL(cuEventQuery, batch->end);
    if (ended == CUDA_ERROR_NOT_READY) return false;
    int64_t took = ended == CUDA_SUCCESS ? measure(meter, batch) : -1;
    if (took < 0) {
        ct_count_fault(CT_FAULT_EVENTS);
        ct_settle_batch(meter, batch, batch->estimate);
    } else {
        ct_settle_batch(meter, batch, ct_learn_kind(meter, batch, (uint64_t)took));
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
    struct ct_batch *oldest = &meter->batches[meter->tail % BATCHES];
    if (meter->tail != meter->head && now - meter->progress > ENDLESS && oldest->pending == 0) {
        ct_settle_batch(meter, oldest, oldest->estimate);
        meter->tail++;
        meter->progress = now;
    }
}
