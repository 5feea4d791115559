// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What a meter consists of. Three files share it, and no other file includes it:
//
//   meter.c      launches and their streams: to which batch a launch belongs, and whether too much is under way
//   batches.c    batches and their events: when a batch began and ended, and what is paid for it
//   estimates.c  what a launch of some kind is expected to take, learned from the batches that were measured
//
// Invariants, whenever the meter's lock is free:
//   every batch that is not SETTLED is in batches[tail..head) (modulo BATCHES), in the order in which they were opened,
//   or in aside[];
//   ahead, launches and guessed are the sums over the batches that are not SETTLED;
//   the end event of an OPEN batch that is held is behind its latest launch that the driver was given, so that its time
//   can be read whenever it has ended: it is never settled by its estimate, which the program could make wrong;
//   a stream has at most one OPEN batch, and stream->open points to it;
//   the serial of a batch is never used again, so that a pointer and a serial together name one batch for ever.

#ifndef COTENANT_METER_PARTS_H
#define COTENANT_METER_PARTS_H

#include "lock.h"
#include "meter.h"

#define BATCHES 512 // under way at once in one context
#define STREAMS 1024
#define KINDS 4096
#define PROBES 8 // places in a table in which one key may be
#define EVENTS (2 * BATCHES + 2)

#define MICROSECOND UINT64_C(1000)
#define MILLISECOND (1000 * MICROSECOND)
#define LONG_BATCH (1 * MILLISECOND) // a batch that is expected to take longer is closed
#define LATE (1 * MILLISECOND)       // so long after its expected end an open batch is closed, or settled if it is not held
#define PATIENCE (500 * MILLISECOND) // without any batch ending: perhaps the device waits for the program
#define ASIDE 32                     // batches that run so long that their places in the ring are needed

enum ct_batch_state { OPEN, CLOSED, SETTLED };

// Some launches of one stream between two events.
struct ct_batch {
    CUevent start, end;
    struct ct_stream *stream;
    uint64_t serial;
    uint64_t kind;     // of all its launches; 0: they differ
    uint64_t estimate; // of what its launches take, in nanoseconds
    uint64_t until;    // clock at which it is expected to end
    uint64_t paid;     // what the meter had measured in all when this batch was opened
    int64_t charged;   // device-nanoseconds paid in advance
    struct ct_spilled spilled; // out of the buckets before it was opened
    uint32_t launches;
    uint32_t pending; // launches that the driver has not been given yet
    enum ct_batch_state state;
    bool held, guessed, closing; // it is paid for; one of its kinds was never measured; close it after this launch
    bool marked;                 // its end is recorded behind its latest launch
};

struct ct_stream {
    CUstream handle;
    const void *thread; // of a per-thread stream: every thread has its own under the same handle
    uint64_t until;     // clock at which its work is expected to end
    struct ct_batch *open;
    struct ct_batch *closed; // the latest one, as long as its serial is closed_serial
    uint64_t closed_serial;
    bool used;
};

// Launches of the same function and size.
struct ct_launch_kind {
    uint64_t key;
    uint64_t estimate; // nanoseconds of one launch
    uint32_t measured; // times
    uint32_t since;    // launches since it was last measured
};

struct ct_meter {
    ct_lock lock;
    uint64_t serial;
    int device; // this and all that follows is reset for another context
    uint32_t head, tail; // of the batches, in the order in which they were opened
    uint64_t ahead;      // estimate of what is under way, in nanoseconds
    uint32_t launches;   // under way
    uint32_t guessed;    // batches under way with a kind that was never measured
    uint64_t progress;   // clock at which a batch was last seen to end
    uint64_t harvested;  // clock of the last harvest
    CUevent frontier;    // end of the latest interval that was paid for
    uint64_t paid;       // sum of all intervals that were paid for, in nanoseconds
    uint32_t overdue;    // held batches that run PATIENCE longer than expected
    uint32_t set_aside;  // batches in aside[] that are not settled
    struct ct_batch aside[ASIDE];
    uint32_t spare;      // events in events[]
    CUevent events[EVENTS];
    struct ct_batch batches[BATCHES];
    struct ct_stream streams[STREAMS];
    struct ct_launch_kind kinds[KINDS];
};

// The first place of a key in a table of that size.
static inline size_t ct_hash(uint64_t key, size_t size) {
    return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) % size;
}

// estimates.c: the kind of that key, which replaces the least measured one if it is new.
struct ct_launch_kind *ct_find_kind(struct ct_meter *meter, uint64_t key);
// Updates the estimate of the batch's kind.
void ct_learn_kind(struct ct_meter *meter, const struct ct_batch *batch, uint64_t took);

// batches.c: opens a batch of the stream with its first event. NULL: its launches are not measured.
struct ct_batch *ct_open_batch(struct ct_meter *meter, struct ct_stream *stream, uint64_t kind, bool held);
// Records the batch's second event; the next harvest after that event pays for it.
void ct_close_batch(struct ct_meter *meter, struct ct_batch *batch);
// Records the end of a held batch that stays open behind its latest launch.
void ct_mark_end(struct ct_meter *meter, struct ct_batch *batch);
// The clock at which the oldest batch was expected to begin that is paid for and runs PATIENCE longer than expected, of
// this stream or (NULL) of all; 0: there is none.
uint64_t ct_overdue_since(const struct ct_meter *meter, const struct ct_stream *stream, uint64_t now);
// Whether the batch, whose end is recorded, is still under way.
bool ct_is_under_way(const struct ct_batch *batch);
// Pays for what the batch took, less what it was charged, and frees its place.
void ct_settle_batch(struct ct_meter *meter, struct ct_batch *batch, uint64_t took);

#endif
