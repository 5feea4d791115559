// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory in use on each device, exact at any moment and right after any process was killed, without a lock: each change
// is one compare-and-swap that also leaves the changer's mark. A process that overwrites a mark first notes in its
// owner's slot that the mark was seen, so it is known whether the change of an ended process happened (its mark is
// there, or was seen) or not.

#include "shared.h"

#define CHANGE_VALID (UINT32_C(1) << 31)
#define CHANGE_SEEN (UINT32_C(1) << 30)
#define BYTES(word) ((word) & ((UINT64_C(1) << 43) - 1))
#define SEQUENCE(word) ((uint32_t)((word) >> 43) & 0xfff)
#define OWNER(word) ((unsigned)((word) >> 55))
#define RELAXED memory_order_relaxed

static struct si_change *change_of(struct si_state *state, unsigned slot) {
    return slot == SI_REAPER ? &state->reaping : &state->slot[slot].change;
}

static uint32_t name_of(int device, uint32_t sequence) { return CHANGE_VALID | (uint32_t)device << 12 | sequence; }

static void raise_peak(struct si_level *level, uint64_t bytes) {
    uint64_t peak = atomic_load_explicit(&level->peak, RELAXED);
    while (bytes > peak && !atomic_compare_exchange_weak(&level->peak, &peak, bytes))
        ;
}

// Tells the owner of the mark in `word` that it was there. One that has gone on since needs no telling, and telling it
// late must not hide what another has told it of its next change: hence no plain store.
static void see(struct si_state *state, uint64_t word, int device) {
    uint32_t name = name_of(device, SEQUENCE(word));
    atomic_compare_exchange_strong(&change_of(state, OWNER(word))->begun, &name, name | CHANGE_SEEN);
}

// Adds `delta` to the level of the device and to the bytes of slot `whose`, atomically. Callers of one process
// come one at a time.
static bool change(struct si_state *state, unsigned me, unsigned whose, int device, int64_t delta) {
    struct si_change *own = change_of(state, me);
    struct si_level *level = &state->level[device];
    uint32_t sequence = own->sequence = (own->sequence + 1) & 0xfff;
    uint64_t target = atomic_load_explicit(&state->slot[whose].bytes[device], RELAXED) + (uint64_t)delta;
    atomic_store_explicit(&own->target, target, RELAXED);
    atomic_store_explicit(&own->slot, whose, RELAXED);
    atomic_store_explicit(&own->begun, name_of(device, sequence), memory_order_release);
    uint64_t word = atomic_load_explicit(&level->word, memory_order_acquire), bytes;
    do {
        bytes = BYTES(word) + (uint64_t)delta;
        if (delta > 0 && bytes > state->set.memory[device]) {
            atomic_store_explicit(&own->begun, 0, memory_order_release);
            return false;
        }
        if (OWNER(word) != me) see(state, word, device);
    } while (!atomic_compare_exchange_weak(&level->word, &word, bytes | (uint64_t)sequence << 43 | (uint64_t)me << 55));
    atomic_store_explicit(&state->slot[whose].bytes[device], target, memory_order_release);
    atomic_store_explicit(&own->begun, 0, memory_order_release);
    if (delta > 0) raise_peak(level, bytes);
    return true;
}

// What the owner of the change was doing when it died, done now if it had taken effect.
void si_finish_change(struct si_state *state, struct si_change *change, unsigned slot) {
    uint32_t begun = change->begun;
    if (!begun) return;
    int device = (int)(begun >> 12 & 0xf);
    uint64_t word = state->level[device].word;
    begun = change->begun; // after the mark: it may have been seen and overwritten just now
    bool marked = OWNER(word) == slot && name_of(device, SEQUENCE(word)) == begun;
    if (marked || begun & CHANGE_SEEN) state->slot[change->slot].bytes[device] = change->target;
    change->begun = 0;
}

void si_give_back(struct si_state *state, unsigned slot) {
    si_finish_change(state, &state->slot[slot].change, slot);
    for (int device = 0; device < SI_DEVICES; device++) {
        uint64_t bytes = state->slot[slot].bytes[device];
        if (bytes) change(state, SI_REAPER, slot, device, -(int64_t)bytes);
    }
}

uint64_t si_most[SI_DEVICES];

// The processes of a cgroup with a limit come one at a time, so that together they never have more.
static bool take(struct si_state *state, unsigned me, int device, uint64_t bytes) {
    if (SI_LIKELY(!state->partitions)) return change(state, me, me, device, (int64_t)bytes);
    si_lock();
    bool fits = si_has_room(state, me, device, bytes) && change(state, me, me, device, (int64_t)bytes);
    si_unlock();
    return fits;
}

bool si_charge(int device, uint64_t bytes) {
    unsigned me = (unsigned)si_claim_slot();
    struct si_state *state = si_mapped;
    if (bytes > state->set.memory[device]) return false;
    if (si_most[device] && state->slot[me].bytes[device] + bytes > si_most[device]) return false;
    if (SI_LIKELY(take(state, me, device, bytes))) return true;
    if (state->living == 1) return false;
    si_reap();
    return take(state, me, device, bytes);
}

void si_uncharge(int device, uint64_t bytes) {
    unsigned me = (unsigned)si_claim_slot();
    change(si_mapped, me, me, device, -(int64_t)bytes);
}

uint64_t si_used(int device, uint32_t pid) {
    struct si_state *state = si_state();
    uint64_t sum = 0;
    for (unsigned slot = 0; pid && slot < state->slots; slot++)
        if (state->slot[slot].used && state->slot[slot].pid == pid)
            sum += state->slot[slot].bytes[device] + si_inherited(device, slot);
    return pid ? sum : si_level(device);
}

static struct si_share *share_of(uint64_t place) {
    for (int i = 0; i < SI_SHARES; i++)
        if (si_mapped->share[i].place == place) return &si_mapped->share[i];
    return NULL;
}

static bool replace_holder(struct si_share *share, uint32_t old, uint32_t new) {
    for (int i = 0; i < SI_HOLDERS; i++)
        if (share->holder[i] == old) return share->holder[i] = new, true;
    return false;
}

static bool is_held(const struct si_share *share) {
    for (int i = 0; i < SI_HOLDERS; i++)
        if (share->holder[i]) return true;
    return false;
}

bool si_share(uint64_t place, uint64_t size, int device) {
    uint32_t me = (uint32_t)si_claim_slot() + 1;
    struct si_share *share = share_of(place);
    if (share) return true;
    if (!(share = share_of(0))) return false;
    *share = (struct si_share){.place = place, .size = size, .device = device, .maker = me, .holder = {me}};
    return true;
}

bool si_join_share(uint64_t place) {
    struct si_share *share = share_of(place);
    return share && replace_holder(share, 0, (uint32_t)si_claim_slot() + 1);
}

// After a holder has left. `changer` is the slot under which the bytes change.
static void pass_on(struct si_state *state, struct si_share *share, unsigned changer, uint32_t left, bool was_maker) {
    int64_t size = (int64_t)share->size;
    bool held = is_held(share);
    if (was_maker) change(state, changer, left - 1, share->device, -size);
    if (was_maker && held) change(state, changer, SI_NOBODY, share->device, size);
    if (!was_maker && !held && !share->maker) change(state, changer, SI_NOBODY, share->device, -size);
    if (was_maker) share->maker = 0;
    if (!held) share->place = 0;
}

void si_leave_share(uint64_t place, bool is_maker) {
    uint32_t me = (uint32_t)si_claim_slot() + 1;
    struct si_share *share = share_of(place);
    if (share && replace_holder(share, me, 0)) pass_on(si_mapped, share, me - 1, me, is_maker && share->maker == me);
}

void si_drop_shares(struct si_state *state, unsigned slot) {
    for (int i = 0; i < SI_SHARES; i++) {
        struct si_share *share = &state->share[i];
        bool held = false, was_maker = share->maker == slot + 1;
        while (share->place && replace_holder(share, slot + 1, 0)) held = true;
        if (held) pass_on(state, share, SI_REAPER, slot + 1, was_maker);
    }
}

uint64_t si_inherited(int device, unsigned slot) {
    uint64_t sum = 0;
    for (int i = 0; i < SI_SHARES; i++) {
        const struct si_share *share = &si_mapped->share[i];
        uint32_t first = 0;
        for (int k = 0; k < SI_HOLDERS && !first; k++) first = share->holder[k];
        if (share->place && !share->maker && share->device == device && first == slot + 1) sum += share->size;
    }
    return sum;
}
