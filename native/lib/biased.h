// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A biased lock: the thread that has used it alone for a while keeps it, and then enters without an atomic
// read-modify-write operation or a fence. Another thread that wants it takes it away with the kernel's help (membarrier),
// which costs about a microsecond; then it is an ordinary lock until a thread has used it alone again.
//
// A thread that is inside one may enter another one, which then costs as much as an ordinary lock. A signal handler that
// has interrupted its own thread inside waits for ever if it asks for the same lock, as with an ordinary one: it never gets in.

#ifndef COTENANT_BIASED_H
#define COTENANT_BIASED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lock.h"

struct ct_biased;

// A thread that may keep locks. Never freed, because a thread that takes a lock away may read it after its thread ended.
struct ct_thread {
    _Atomic(const struct ct_biased *) inside; // the lock that it has entered as its keeper
    _Atomic int id;                           // 0: of no thread
    _Atomic unsigned claims;                  // of memory; of all threads that are ct_nobody together
} __attribute__((aligned(64)));

struct ct_biased {
    _Atomic(struct ct_thread *) keeper; // the thread that enters by plain stores; NULL if none does
    ct_lock lock;                       // for all others
    uint32_t streak;                    // how often in a row `last` has entered; both are written inside
    const void *last;
};

// The calling thread; ct_nobody, which seems to be inside a lock, if it keeps none.
extern _Thread_local struct ct_thread *ct_self __attribute__((tls_model("initial-exec")));
extern struct ct_thread ct_nobody;

struct ct_thread *ct_enter_slowly(struct ct_biased *lock);

// Enters if the calling thread keeps the lock; else NULL. Invariant: a thread that takes the lock away clears `keeper`
// first, then makes every thread execute a barrier, then reads `inside`. So either it sees that we are inside, or we see that
// the lock is no longer ours.
static inline struct ct_thread *ct_enter_as_keeper(struct ct_biased *lock) {
    struct ct_thread *self = ct_self;
    if (!self) __builtin_unreachable();
    if (__builtin_expect(!atomic_load_explicit(&self->inside, memory_order_relaxed), 1)) {
        atomic_store_explicit(&self->inside, lock, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst); // the other side makes the processor's part of it
        if (__builtin_expect(atomic_load_explicit(&lock->keeper, memory_order_acquire) == self, 1)) return self;
        atomic_store_explicit(&self->inside, NULL, memory_order_release);
    }
    return NULL;
}

static inline void ct_leave_as_keeper(struct ct_thread *keeper) {
    atomic_store_explicit(&keeper->inside, NULL, memory_order_release);
}

// Returns what ct_leave needs.
static inline struct ct_thread *ct_enter(struct ct_biased *lock) {
    struct ct_thread *keeper = ct_enter_as_keeper(lock);
    return __builtin_expect(keeper != NULL, 1) ? keeper : ct_enter_slowly(lock);
}

static inline void ct_leave(struct ct_biased *lock, struct ct_thread *keeper) {
    if (__builtin_expect(keeper != NULL, 1)) ct_leave_as_keeper(keeper);
    else ct_set_free(&lock->lock);
}

// In a forked child: no thread keeps it, and it is free.
static inline void ct_reset(struct ct_biased *lock) {
    atomic_store(&lock->keeper, NULL);
    lock->last = NULL;
    ct_set_free(&lock->lock);
}

// Whether other processes can make every thread of this one execute a barrier, so that it may leave one out.
extern _Atomic bool ct_can_be_ordered;

// Makes every thread of such processes execute a barrier: what they have written is visible from now on.
void ct_order_processes(void);

// In a forked child.
void ct_forget_threads(void);

#endif
