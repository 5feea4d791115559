// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The devices' engines: which work runs when. A discrete-event simulation that every caller advances to the present, so
// that completion times are exact however late the call comes. All functions are called with the lock held.
//
// First in, first out: work starts in the order in which it came, over all processes; that of one process may overlap.
// Round-robin: processes take turns of a quantum as long as several have work that can run.

#include <string.h>
#include <unistd.h>

#include "shared.h"

#define MILLISECOND UINT64_C(1000000)
#define REMEMBERED 64 // ended processes that can be queried

static struct si_item *item_at(struct si_lane *lane, uint64_t sequence) { return &lane->item[sequence % SI_RING]; }

static bool done_in(struct si_lane *lane, uint64_t sequence) {
    return sequence < lane->front || item_at(lane, sequence)->state == SI_DONE;
}

bool si_is_done(uint64_t reference) {
    return !reference || done_in(&si_mapped->lane[(reference >> 48) - 1], reference & SI_SEQUENCE);
}

uint64_t si_ticket(uint64_t reference) {
    return item_at(&si_mapped->lane[(reference >> 48) - 1], reference & SI_SEQUENCE)->ticket;
}

static bool can_run(struct si_lane *lane, struct si_item *item) {
    if (item->state == SI_DONE) return false;
    if (item->fence > lane->front) return false;
    for (int i = 0; i < SI_DEPENDENCIES; i++)
        if (!si_is_done(item->after[i])) return false;
    return true;
}

// The first item from `from` on that can run, or the head. Streams that do not overlap run in order of arrival.
static uint64_t runnable(struct si_lane *lane, uint64_t from) {
    uint64_t sequence = from < lane->front ? lane->front : from;
    if (!si_mapped->set.overlap) {
        bool first = sequence == lane->front && sequence < lane->head;
        return first && can_run(lane, item_at(lane, sequence)) ? sequence : lane->head;
    }
    while (sequence < lane->head && !can_run(lane, item_at(lane, sequence))) sequence++;
    return sequence;
}

static bool has_work(struct si_lane *lane, uint32_t device) {
    return lane->live && lane->device == device && lane->front < lane->head && runnable(lane, 0) < lane->head;
}

static uint64_t first_ticket(struct si_lane *lane) { return item_at(lane, runnable(lane, 0))->ticket; }

static bool is_running(struct si_lane *lane) {
    for (uint64_t sequence = lane->front; sequence < lane->head; sequence++) {
        if (item_at(lane, sequence)->state == SI_RUNNING) return true;
        if (!si_mapped->set.overlap) break;
    }
    return false;
}

// Lets run what may run of the lane among what came before `ticket`, and says when the first of it ends.
static uint64_t start(struct si_lane *lane, uint64_t ticket) {
    uint64_t shortest = SI_NEVER;
    for (uint64_t sequence = runnable(lane, 0); sequence < lane->head; sequence = runnable(lane, sequence + 1)) {
        struct si_item *item = item_at(lane, sequence);
        if (item->state == SI_PENDING && item->ticket > ticket) continue;
        item->state = SI_RUNNING;
        if (item->left < shortest) shortest = item->left;
    }
    return shortest;
}

static uint64_t in_order(struct si_engine *engine, uint32_t device) {
    struct si_state *state = si_mapped;
    uint64_t first = SI_NEVER, second = SI_NEVER;
    bool busy = engine->holder && state->lane[engine->holder - 1].live && is_running(&state->lane[engine->holder - 1]);
    for (uint32_t lane = 0; lane < state->lanes; lane++) {
        if ((busy && lane == engine->holder - 1) || !has_work(&state->lane[lane], device)) continue;
        uint64_t ticket = first_ticket(&state->lane[lane]);
        if (ticket < first) {
            second = first, first = ticket;
            if (!busy) engine->holder = lane + 1;
        } else if (ticket < second) {
            second = ticket;
        }
    }
    if (!busy && first == SI_NEVER) return SI_NEVER;
    return start(&state->lane[engine->holder - 1], busy ? first : second);
}

static uint64_t by_turns(struct si_engine *engine, uint32_t device) {
    struct si_state *state = si_mapped;
    uint32_t last = engine->holder ? engine->holder - 1 : state->lanes, next = state->lanes;
    bool keeps = engine->holder && has_work(&state->lane[last], device);
    for (uint32_t step = 1; step <= state->lanes && next == state->lanes; step++) {
        uint32_t lane = (last + step) % state->lanes;
        if (lane != last && has_work(&state->lane[lane], device)) next = lane;
    }
    if (next == state->lanes && !keeps) return SI_NEVER;
    if (!keeps || (state->served >= engine->turn_end && next != state->lanes)) {
        engine->holder = next + 1;
        engine->turn_end = state->served + state->set.quantum;
    } else if (state->served >= engine->turn_end) {
        engine->turn_end = state->served + state->set.quantum;
    }
    uint64_t shortest = start(&state->lane[engine->holder - 1], SI_NEVER);
    uint64_t turn = engine->turn_end - state->served;
    return next != state->lanes && turn < shortest ? turn : shortest;
}

static uint64_t choose(uint32_t device) {
    struct si_engine *engine = &si_mapped->engine[device];
    return si_mapped->set.round_robin ? by_turns(engine, device) : in_order(engine, device);
}

static void note_stretch(struct si_lane *lane, uint64_t from, uint64_t to) {
    struct si_stretch *last = &lane->stretch[(lane->stretches - 1) % SI_STRETCHES];
    if (lane->stretches && last->to == from) {
        last->to = to;
    } else {
        lane->stretch[lane->stretches % SI_STRETCHES] = (struct si_stretch){from, to};
        lane->stretches++;
    }
}

static void note_busy(struct si_lane *lane, uint64_t from, uint64_t to) {
    lane->busy += to - from;
    note_stretch(lane, from, to);
    if (to - from > SI_RECORD * MILLISECOND) from = to - SI_RECORD * MILLISECOND;
    while (from < to) {
        uint64_t ms = from / MILLISECOND, end = (ms + 1) * MILLISECOND;
        if (end > to) end = to;
        unsigned at = ms % SI_RECORD;
        if (lane->record_ms[at] != (uint32_t)ms) lane->record_ms[at] = (uint32_t)ms, lane->record_ns[at] = 0;
        lane->record_ns[at] += (uint32_t)(end - from);
        from = end;
    }
}

static void run(uint32_t device, uint64_t until) {
    struct si_engine *engine = &si_mapped->engine[device];
    struct si_lane *lane = &si_mapped->lane[engine->holder - 1];
    uint64_t passed = until - si_mapped->served;
    note_busy(lane, si_mapped->served, until);
    for (uint64_t sequence = lane->front; sequence < lane->head; sequence++) {
        struct si_item *item = item_at(lane, sequence);
        if (item->state != SI_RUNNING) {
            if (!si_mapped->set.overlap) break;
            continue;
        }
        item->left = item->left > passed ? item->left - passed : 0;
        if (!item->left) item->end = until, item->state = SI_DONE;
        if (!si_mapped->set.overlap) break;
    }
    while (lane->front < lane->head && item_at(lane, lane->front)->state == SI_DONE) lane->front++;
}

// Choices stand until something ends, so what is chosen for one device runs exactly as long as for the others.
static uint64_t choose_all(uint64_t lengths[SI_DEVICES]) {
    uint64_t shortest = SI_NEVER;
    for (uint32_t device = 0; device < si_mapped->all; device++) {
        lengths[device] = si_mapped->lanes ? choose(device) : SI_NEVER;
        if (lengths[device] < shortest) shortest = lengths[device];
    }
    return shortest;
}

void si_serve(uint64_t until) {
    struct si_state *state = si_mapped;
    while (state->served < until) {
        uint64_t lengths[SI_DEVICES], shortest = choose_all(lengths), to = until;
        if (shortest != SI_NEVER && state->served + shortest < until) to = state->served + shortest;
        for (uint32_t device = 0; device < state->all; device++)
            if (lengths[device] != SI_NEVER) run(device, to);
        state->served = to;
    }
}

uint64_t si_next_completion(void) {
    uint64_t lengths[SI_DEVICES], shortest = choose_all(lengths);
    return shortest == SI_NEVER ? SI_NEVER : si_mapped->served + shortest;
}

// Not too late: when it would end if nothing that comes later were to run before it.
uint64_t si_earliest_end(uint64_t reference) {
    struct si_state *state = si_mapped;
    struct si_lane *own = &state->lane[(reference >> 48) - 1];
    struct si_item *waited = item_at(own, reference & SI_SEQUENCE);
    if (state->set.overlap) return state->served + waited->left;
    uint64_t sum = state->served;
    for (uint32_t i = 0; i < state->lanes; i++) {
        struct si_lane *lane = &state->lane[i];
        if (!lane->live || lane->device != own->device || (lane != own && state->set.round_robin)) continue;
        for (uint64_t sequence = lane->front; sequence < lane->head; sequence++) {
            struct si_item *item = item_at(lane, sequence);
            if (item->state != SI_DONE && item->ticket <= waited->ticket) sum += item->left;
        }
    }
    return sum;
}

// The lane that has been dead the longest, when there are many; one that was never used otherwise.
static int free_lane(struct si_state *state) {
    int oldest = -1, dead = 0;
    for (unsigned lane = 0; lane < state->lanes; lane++) {
        if (state->lane[lane].live) continue;
        dead++;
        if (oldest < 0 || state->lane[lane].born < state->lane[oldest].born) oldest = (int)lane;
    }
    return dead < REMEMBERED && state->lanes < SI_LANES ? (int)state->lanes++ : oldest;
}

int si_claim_lane(int device) {
    struct si_state *state = si_mapped;
    int claimed = free_lane(state);
    if (claimed < 0) return -1;
    struct si_lane *lane = &state->lane[claimed];
    if (lane->busy) memset(lane->record_ms, 0, sizeof lane->record_ms);
    lane->busy = lane->stretches = 0;
    lane->head = lane->front = lane->tail = 1; // 0 is no sequence number
    lane->slot = (uint32_t)si_claim_slot();
    lane->pid = si_mapped->slot[lane->slot].pid;
    lane->device = (uint32_t)device;
    lane->born = ++state->tickets;
    lane->live = 1;
    return claimed;
}

// The lane has room: head - tail < SI_RING.
uint64_t si_push(unsigned number, uint64_t length, const uint64_t after[SI_DEPENDENCIES], uint64_t fence) {
    struct si_lane *lane = &si_mapped->lane[number];
    uint64_t sequence = lane->head;
    struct si_item *item = item_at(lane, sequence);
    *item = (struct si_item){.left = length, .ticket = ++si_mapped->tickets, .fence = fence};
    memcpy(item->after, after, sizeof item->after);
    lane->head = sequence + 1;
    return sequence;
}

// Within a millisecond: exact if the newest records reach so far back, evenly spread otherwise.
static uint64_t busy_within(struct si_lane *lane, uint64_t from, uint64_t to, uint64_t ns) {
    uint64_t sum = 0;
    for (uint64_t i = lane->stretches; i; i--) {
        struct si_stretch *one = &lane->stretch[(i - 1) % SI_STRETCHES];
        if (lane->stretches - i >= SI_STRETCHES) return ns * (to - from) / MILLISECOND;
        if (one->to <= from) break;
        uint64_t begin = one->from > from ? one->from : from, end = one->to < to ? one->to : to;
        if (begin < end) sum += end - begin;
    }
    return sum;
}

static uint64_t busy_in(struct si_lane *lane, uint64_t from, uint64_t to) {
    uint64_t sum = 0, past = to / MILLISECOND, first = from / MILLISECOND;
    if (past - first > SI_RECORD) first = past - SI_RECORD, from = first * MILLISECOND;
    for (uint64_t ms = first; ms * MILLISECOND < to; ms++) {
        unsigned at = ms % SI_RECORD;
        if (lane->record_ms[at] != (uint32_t)ms) continue;
        uint64_t begin = ms * MILLISECOND, end = begin + MILLISECOND;
        if (begin >= from && end <= to) {
            sum += lane->record_ns[at];
        } else {
            sum += busy_within(lane, begin > from ? begin : from, end < to ? end : to, lane->record_ns[at]);
        }
    }
    return sum;
}

uint64_t si_busy(int device, uint32_t pid, uint64_t from, uint64_t to) {
    struct si_state *state = si_mapped;
    uint64_t sum = 0;
    for (unsigned lane = 0; lane < state->lanes && from < to; lane++) {
        struct si_lane *found = &state->lane[lane];
        bool meant = found->device == (uint32_t)device && (!pid || found->pid == pid);
        if (meant && found->busy) sum += busy_in(found, from, to);
    }
    return sum;
}
