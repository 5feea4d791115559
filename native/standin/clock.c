// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The clock of the devices: the machine's, or a virtual one that passes only when every thread that takes part waits.
// With a virtual clock one thread at a time is awake, and of those that may wake the one that joined first does: what
// happens depends on nothing but the program.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shared.h"

#define LOOK_AGAIN_NS 20000           // real clock: not more often than this
#define LOOK_FOR_DEAD_NS 20000000     // virtual clock: how often a waiting thread checks for ended processes
#define POLL_NS 1000
#define STUCK_NS UINT64_C(1000000000) // awake for so long: it may wait for one that could wake

static __thread __attribute__((tls_model("initial-exec"))) int own_party; // + 1
static pthread_key_t leaving;
static pthread_once_t leaving_made = PTHREAD_ONCE_INIT;

uint64_t si_real_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t si_now(void) {
    struct si_state *state = si_state();
    return state->set.virtual_clock ? atomic_load_explicit(&state->now, memory_order_relaxed) : si_real_now();
}

static void sleep_real(uint64_t until) {
    struct timespec when = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
        ;
}

static void wait_real(uint64_t when, uint64_t reference) {
    for (unsigned looks = 0;; looks++) {
        uint64_t now = si_real_now(), until = when;
        if (reference) {
            si_lock();
            if (looks % 16 == 15) si_reap_locked(); // the dead must not keep the engine
            si_serve(now);
            bool done = si_is_done(reference);
            if (!done) until = si_earliest_end(reference);
            si_unlock();
            if (done) return;
            if (until < now + LOOK_AGAIN_NS) until = now + LOOK_AGAIN_NS;
            if (until > now + LOOK_FOR_DEAD_NS) until = now + LOOK_FOR_DEAD_NS;
        } else if (now >= when) {
            return;
        }
        sleep_real(until);
    }
}

static bool may_wake(const struct si_party *party) {
    if (party->state != SI_WAITING) return false;
    return party->item ? si_is_done(party->item) : party->when <= si_mapped->now;
}

static void wake(struct si_party *party) {
    party->state = SI_AWAKE;
    si_mapped->awake++;
    si_mapped->switched = si_real_now();
    party->word++;
    if (own_party && party == &si_mapped->party[own_party - 1]) return;
    syscall(SYS_futex, &party->word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static struct si_party *next_to_wake(void) {
    struct si_party *first = NULL;
    for (unsigned i = 0; i < si_mapped->parties; i++) {
        struct si_party *party = &si_mapped->party[i];
        if (may_wake(party) && (!first || party->joined < first->joined)) first = party;
    }
    return first;
}

static uint64_t next_time(void) {
    uint64_t next = si_next_completion();
    for (unsigned i = 0; i < si_mapped->parties; i++) {
        struct si_party *party = &si_mapped->party[i];
        if (party->state == SI_WAITING && !party->item && party->when < next) next = party->when;
    }
    return next;
}

// Wakes one party if none is awake, letting as much time pass as that needs.
static void pass_time(void) {
    struct si_state *state = si_mapped;
    while (!state->awake && state->taking_part && state->started) {
        struct si_party *next = next_to_wake();
        if (next) {
            wake(next);
            return;
        }
        uint64_t then = next_time();
        if (then == SI_NEVER) return;
        si_serve(then);
        state->now = then;
    }
}

static void wake_beside_stuck(void) {
    struct si_state *state = si_mapped;
    if (!state->awake || !state->started || si_real_now() - state->switched < STUCK_NS) return;
    struct si_party *next = next_to_wake();
    if (next) wake(next);
}

static void leave_on_exit(void *unused) {
    (void)unused;
    si_leave();
}

static void make_key(void) { pthread_key_create(&leaving, leave_on_exit); }

static void join_locked(void) {
    struct si_state *state = si_mapped;
    for (unsigned i = 0; !own_party && i < SI_PARTIES; i++) {
        struct si_party *party = &state->party[i];
        if (party->state != SI_ABSENT) continue;
        party->slot = (uint32_t)si_claim_slot();
        party->joined = ++state->joins;
        party->state = SI_AWAKE;
        state->awake++;
        if (i >= state->parties) state->parties = i + 1;
        if (++state->taking_part >= state->set.parties) state->started = true;
        own_party = (int)i + 1;
    }
    pthread_setspecific(leaving, &own_party);
}

void si_join(void) {
    if (!si_state()->set.virtual_clock || own_party) return;
    pthread_once(&leaving_made, make_key);
    si_claim_slot(); // takes the lock itself
    si_lock();
    join_locked();
    si_unlock();
}

static void drop(struct si_party *party) {
    if (party->state == SI_AWAKE) si_mapped->awake--;
    if (party->state != SI_ABSENT) si_mapped->taking_part--;
    party->state = SI_ABSENT;
}

void si_leave(void) {
    if (!own_party) return;
    si_lock();
    drop(&si_mapped->party[own_party - 1]);
    own_party = 0;
    pass_time();
    si_unlock();
}

void si_drop_parties(unsigned slot) {
    for (unsigned i = 0; i < si_mapped->parties; i++)
        if (si_mapped->party[i].slot == slot) drop(&si_mapped->party[i]);
}

static void sleep_until_woken(struct si_party *party, uint32_t word) {
    struct timespec patience = {0, LOOK_FOR_DEAD_NS};
    syscall(SYS_futex, &party->word, FUTEX_WAIT, word, &patience, NULL, 0);
    if (party->word != word) return;
    si_lock();
    si_reap_locked();
    wake_beside_stuck();
    pass_time();
    si_unlock();
}

// Waits again and again until woken; with patience, at most so long by the machine's clock.
static void be_woken(struct si_party *party, uint32_t word, uint64_t patience) {
    uint64_t end = patience == SI_NEVER ? SI_NEVER : si_real_now() + patience;
    while (party->word == word) {
        sleep_until_woken(party, word);
        if (end == SI_NEVER || si_real_now() < end) continue;
        si_lock();
        if (party->state == SI_WAITING) wake(party);
        si_unlock();
    }
}

static void wait_virtual(uint64_t when, uint64_t reference, uint64_t patience) {
    si_join();
    if (!own_party) return;
    struct si_party *party = &si_mapped->party[own_party - 1];
    si_lock();
    si_serve(si_mapped->now);
    if (reference ? si_is_done(reference) : when <= si_mapped->now) {
        si_unlock();
        return;
    }
    uint32_t word = party->word;
    party->when = when;
    party->item = reference;
    party->state = SI_WAITING;
    si_mapped->awake--;
    si_mapped->switched = si_real_now();
    pass_time();
    si_unlock();
    be_woken(party, word, patience);
}

// Waits until that time, or until that work is done if one is named.
void si_wait(uint64_t when, uint64_t reference) {
    if (si_state()->set.virtual_clock) {
        wait_virtual(when, reference, SI_NEVER);
    } else {
        wait_real(when, reference);
    }
}

// Asking again and again must end, so it takes time of a virtual clock. Another thread may wait for something that the
// asking one holds, and then no time can pass: that is why it is not waited for long.
void si_poll(void) {
    if (si_state()->set.virtual_clock) wait_virtual(si_now() + POLL_NS, 0, LOOK_FOR_DEAD_NS);
}

void si_clock_forked(void) { own_party = 0; }
