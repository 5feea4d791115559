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

#define LONGEST_MS 8.64e7 // a day: the most that is paid for one batch
#define HARVEST_EVERY (100 * MICROSECOND)

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
    if (batch->held) ct_pay_rest(meter->device, (int64_t)ours - batch->charged, took, &batch->spilled);
    struct ct_slot *slot = ct_my_slot();
    if (slot) atomic_fetch_add_explicit(&slot->busy[meter->device], ours, memory_order_relaxed);
    ct_note_measured(meter->device, took);
    meter->paid += took;
    meter->ahead -= batch->estimate;
    meter->launches -= batch->launches;
    meter->guessed -= batch->guessed;
    spare_event(meter, &batch->start);
    spare_event(meter, &batch->end);
    if (batch->stream->open == batch) batch->stream->open = NULL;
    batch->state = SETTLED;
}

// The end of a held batch is recorded already: it becomes a closed one as it is.
static void close_as_is(struct ct_batch *batch) {
    struct ct_stream *stream = batch->stream;
    stream->open = NULL;
    batch->state = CLOSED;
    stream->closed = batch;
    stream->closed_serial = batch->serial;
}

void ct_close_batch(struct ct_meter *meter, struct ct_batch *batch) {
    batch->stream->open = NULL;
    if (batch->marked || CALL(cuEventRecord, batch->end, batch->stream->handle) == CUDA_SUCCESS) {
        close_as_is(batch);
    } else {
        ct_count_fault(CT_FAULT_EVENTS);
        ct_settle_batch(meter, batch, batch->estimate);
    }
}

void ct_mark_end(struct ct_meter *meter, struct ct_batch *batch) {
    batch->marked = CALL(cuEventRecord, batch->end, batch->stream->handle) == CUDA_SUCCESS;
    if (batch->marked) return;
    ct_count_fault(CT_FAULT_EVENTS);
    ct_settle_batch(meter, batch, batch->estimate);
}

bool ct_is_under_way(const struct ct_batch *batch) {
    int mode = ct_relax_capture();
    bool under_way = CALL(cuEventQuery, batch->end) == CUDA_ERROR_NOT_READY;
    ct_restore_capture(mode);
    return under_way;
}

// Puts a batch that has not ended aside, so that its place in the ring is free. It is measured when it ends.
static bool put_aside(struct ct_meter *meter, struct ct_batch *batch) {
    struct ct_stream *stream = batch->stream;
    if (batch->state == OPEN) ct_close_batch(meter, batch);
    if (batch->state == SETTLED) return true;
    for (int i = 0; i < ASIDE; i++) {
        struct ct_batch *place = &meter->aside[i];
        if (place->serial != 0 && place->state != SETTLED) continue;
        *place = *batch;
        meter->set_aside++;
        batch->state = SETTLED;
        if (stream->closed == batch && stream->closed_serial == batch->serial) stream->closed = place;
        return true;
    }
    return false;
}

// By the time that has passed, for lack of events.
static void settle_now(struct ct_meter *meter, struct ct_batch *batch, uint64_t now) {
    if (batch->serial == 0 || batch->state == SETTLED) return;
    ct_settle_batch(meter, batch, batch->estimate + (batch->held && now > batch->until ? now - batch->until : 0));
}

// The ring is full of batches, the oldest of which has not ended: frees its place. False: it cannot be freed yet.
static bool free_oldest(struct ct_meter *meter, struct ct_batch *oldest) {
    if (oldest->state == SETTLED) return true;
    if (oldest->pending > 0) return false;
    if (oldest->held && put_aside(meter, oldest)) return true;
    settle_now(meter, oldest, ct_clock());
    return true;
}

struct ct_batch *ct_open_batch(struct ct_meter *meter, struct ct_stream *stream, uint64_t kind, bool held) {
    struct ct_batch *batch = &meter->batches[meter->head % BATCHES];
    if (meter->head - meter->tail == BATCHES) { // the ring is full: this is the place of the oldest
        if (!free_oldest(meter, batch)) return NULL;
        meter->tail++;
    }
    *batch = (struct ct_batch){.stream = stream, .serial = ++meter->serial, .kind = kind, .paid = meter->paid,
                               .spilled = ct_note_spilled(meter->device), .held = held, .state = OPEN};
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
// frontier to the end of the batch if that is later. Batches that ended before this one cover at most what was paid for
// them since it was opened, and at most what is before the frontier: the smaller of the two is not paid again.
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
    double milliseconds = from >= 0 ? span : to, uncovered = span - (double)(meter->paid - batch->paid) / 1e6;
    if (uncovered > milliseconds) milliseconds = uncovered;
    if (!(milliseconds > 0)) return 0;
    return (int64_t)((milliseconds < LONGEST_MS ? milliseconds : LONGEST_MS) * 1e6);
}

// Settles the batch if it has ended; false: it is still under way.
static bool finish(struct ct_meter *meter, struct ct_batch *batch, uint64_t now) {
    if (batch->pending > 0) return false;
    if (batch->state == SETTLED) return true;
    if (batch->state == OPEN) {
        if (now < batch->until + LATE) return false;
        if (!batch->held) {
            ct_settle_batch(meter, batch, batch->estimate);
            return true;
        }
        close_as_is(batch);
    }
    CUresult ended = CALL(cuEventQuery, batch->end);
    if (ended == CUDA_ERROR_NOT_READY) return false;
    int64_t took = ended == CUDA_SUCCESS ? measure(meter, batch) : -1;
    if (took < 0) {
        ct_count_fault(CT_FAULT_EVENTS);
        ct_settle_batch(meter, batch, batch->estimate);
    } else {
        ct_learn_kind(meter, batch, (uint64_t)took);
        ct_settle_batch(meter, batch, (uint64_t)took);
    }
    meter->progress = now;
    return true;
}

static bool is_overdue(const struct ct_batch *batch, uint64_t now) {
    return batch->held && batch->state == CLOSED && now > batch->until + PATIENCE;
}

// Looks behind a batch that runs long: others, on other streams, may have ended before it.
static void harvest_out_of_order(struct ct_meter *meter, uint64_t now) {
    meter->overdue = meter->set_aside = 0;
    for (uint32_t i = 0; i < ASIDE + (meter->head - meter->tail); i++) {
        struct ct_batch *batch = i < ASIDE ? &meter->aside[i] : &meter->batches[(meter->tail + i - ASIDE) % BATCHES];
        if (batch->serial == 0 || finish(meter, batch, now)) continue;
        meter->overdue += is_overdue(batch, now);
        meter->set_aside += i < ASIDE;
    }
}

uint64_t ct_overdue_since(const struct ct_meter *meter, const struct ct_stream *stream, uint64_t now) {
    uint64_t oldest = 0;
    for (uint32_t i = 0; i < ASIDE + BATCHES; i++) {
        const struct ct_batch *batch = i < ASIDE ? &meter->aside[i] : &meter->batches[i - ASIDE];
        if (batch->serial == 0 || !is_overdue(batch, now) || (stream && batch->stream != stream)) continue;
        uint64_t since = batch->until - batch->estimate;
        if (oldest == 0 || since < oldest) oldest = since;
    }
    return oldest;
}

void ct_harvest(struct ct_meter *meter, uint64_t now) {
    if (meter->head == meter->tail && meter->overdue == 0 && meter->set_aside == 0) return;
    if (now - meter->harvested < HARVEST_EVERY && meter->head - meter->tail < BATCHES / 2) return;
    meter->harvested = now;
    int mode = ct_relax_capture();
    while (meter->tail != meter->head && finish(meter, &meter->batches[meter->tail % BATCHES], now)) meter->tail++;
    bool is_late = meter->tail != meter->head && is_overdue(&meter->batches[meter->tail % BATCHES], now);
    if (is_late || meter->overdue || meter->set_aside) harvest_out_of_order(meter, now);
    ct_restore_capture(mode);
}

static void harvest_now(struct ct_meter *meter, uint64_t now) {
    meter->harvested = 0;
    ct_harvest(meter, now);
    if (meter->tail == meter->head && meter->set_aside == 0) return;
    int mode = ct_relax_capture();
    harvest_out_of_order(meter, now);
    ct_restore_capture(mode);
}

bool ct_is_unpaid(struct ct_meter *meter, uint64_t now) {
    bool unpaid = false;
    harvest_now(meter, now);
    for (uint32_t i = 0; i < BATCHES + ASIDE; i++) {
        const struct ct_batch *batch = i < BATCHES ? &meter->batches[i] : &meter->aside[i - BATCHES];
        unpaid |= batch->serial != 0 && batch->state != SETTLED && batch->held;
    }
    return unpaid;
}

void ct_close_batches(struct ct_meter *meter) {
    for (uint32_t i = meter->tail; i != meter->head; i++) {
        struct ct_batch *batch = &meter->batches[i % BATCHES];
        if (batch->state == OPEN && batch->pending == 0) ct_close_batch(meter, batch);
    }
}

void ct_settle_meter(struct ct_meter *meter, uint64_t now, bool gone) {
    if (!gone) ct_close_batches(meter);
    if (!gone) harvest_now(meter, now);
    for (; meter->tail != meter->head; meter->tail++) settle_now(meter, &meter->batches[meter->tail % BATCHES], now);
    for (int i = 0; i < ASIDE; i++) settle_now(meter, &meter->aside[i], now);
}
