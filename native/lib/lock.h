// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A lock for a few hundred nanoseconds, in one word that a forked child can simply set free. Not pthread's: a program
// that has no threads need not have them, in older C libraries. And what keeps a thread from being cancelled with it.

#ifndef COTENANT_LOCK_H
#define COTENANT_LOCK_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

typedef _Atomic uint32_t ct_lock;

// What our own system calls must not change for the program: errno, and that a thread which is to be cancelled goes on
// until it is at one of the program's, since it would leave our locks closed.
struct ct_aside {
    int error, cancel;
};
#pragma weak pthread_setcancelstate

static inline struct ct_aside ct_step_aside(void) {
    struct ct_aside before = {.error = errno, .cancel = PTHREAD_CANCEL_ENABLE};
    if (pthread_setcancelstate) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.cancel);
    return before;
}

static inline void ct_step_back(struct ct_aside before) {
    if (pthread_setcancelstate) pthread_setcancelstate(before.cancel, NULL);
    errno = before.error;
}

// Sleeps rather than yields: a spinning thread of a real-time class would keep the holder off the processor for ever.
__attribute__((noinline, cold, unused)) static void ct_wait_for(ct_lock *lock) {
    struct ct_aside before = ct_step_aside();
    for (unsigned spins = 0; atomic_load_explicit(lock, memory_order_relaxed); spins++)
        if (spins >= 100) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    ct_step_back(before);
}

static inline void ct_acquire(ct_lock *lock) {
    while (atomic_exchange_explicit(lock, 1, memory_order_acquire)) ct_wait_for(lock);
}

static inline void ct_set_free(ct_lock *lock) { atomic_store_explicit(lock, 0, memory_order_release); }

#endif
