// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A lock for a few hundred nanoseconds, in one word that a forked child can simply set free. It is not pthread's,
// because with an older C library a program without threads is not linked with pthread. Also here: what keeps a thread
// from being cancelled while it holds such a lock.

#ifndef COTENANT_LOCK_H
#define COTENANT_LOCK_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

typedef _Atomic uint32_t ct_lock;

// What our own system calls must not change for the program: errno, and the point at which a thread is cancelled.
// Between ct_save_thread and ct_restore_thread it cannot be, since it would leave our locks closed.
struct ct_thread_state {
    int error, cancel;
};
#pragma weak pthread_setcancelstate

static inline struct ct_thread_state ct_save_thread(void) {
    struct ct_thread_state before = {.error = errno, .cancel = PTHREAD_CANCEL_ENABLE};
    if (pthread_setcancelstate) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before.cancel);
    return before;
}

static inline void ct_restore_thread(struct ct_thread_state before) {
    if (pthread_setcancelstate) pthread_setcancelstate(before.cancel, NULL);
    errno = before.error;
}

// Sleeps rather than yields: a spinning real-time thread would keep the lock's holder off the processor for ever.
__attribute__((noinline, cold, unused)) static void ct_wait_for(ct_lock *lock) {
    struct ct_thread_state before = ct_save_thread();
    for (unsigned spins = 0; atomic_load_explicit(lock, memory_order_relaxed); spins++)
        if (spins >= 100) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    ct_restore_thread(before);
}

static inline void ct_acquire(ct_lock *lock) {
    while (atomic_exchange_explicit(lock, 1, memory_order_acquire)) ct_wait_for(lock);
}

static inline void ct_set_free(ct_lock *lock) { atomic_store_explicit(lock, 0, memory_order_release); }

#endif
