// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The slow side of biased locks: who may keep one, and how another thread takes it away.

#define _GNU_SOURCE
#include "biased.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

#define THREADS 64
#define STREAK 256 // a lock changes its keeper at most once in so many uses, so the microsecond for that does not count

// Commands of membarrier, of Linux 4.14 and 4.16.
#define ORDER_PROCESSES 2
#define REGISTER_FOR_PROCESSES 4
#define ORDER_THREADS 8
#define REGISTER_FOR_THREADS 16
#ifndef MEMBARRIER
#define MEMBARRIER(command) syscall(SYS_membarrier, command, 0, 0)
#endif

struct ct_thread ct_nobody = {.inside = (const struct ct_biased *)&ct_nobody};
_Thread_local struct ct_thread *ct_self = &ct_nobody;
_Atomic bool ct_can_be_ordered;

static struct ct_thread threads[THREADS];
static ct_lock naming;
static _Atomic bool is_registered;
static _Thread_local unsigned uses __attribute__((tls_model("initial-exec")));

// Without the kernel's help: by then every processor has long written what it had in its buffers.
static void order(int command) {
    if (MEMBARRIER(command) != 0) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

void ct_order_processes(void) { order(ORDER_PROCESSES); }

// The first time takes the kernel some milliseconds if the process has several threads, so no lock that others wait for
// is held meanwhile.
static bool ask_kernel(void) {
    if (is_registered) return true;
    is_registered = MEMBARRIER(REGISTER_FOR_THREADS) == 0;
    ct_can_be_ordered = is_registered && MEMBARRIER(REGISTER_FOR_PROCESSES) == 0;
    return is_registered;
}

static bool has_ended(int id) { return syscall(SYS_tgkill, getpid(), id, 0) != 0 && errno == ESRCH; }

static void name_self(void) {
    struct ct_thread_state before = ct_save_thread();
    if (!atomic_exchange(&naming, 1)) {
        for (int i = 0; i < THREADS && ct_self == &ct_nobody && ask_kernel(); i++) {
            if (threads[i].id && !has_ended(threads[i].id)) continue;
            threads[i].id = (int)syscall(SYS_gettid);
            ct_self = &threads[i];
        }
        ct_set_free(&naming);
    }
    ct_restore_thread(before);
}

// If the keeper is the calling thread, it waits only in a signal handler that has interrupted it inside.
static void wait_for_keeper(struct ct_biased *lock, struct ct_thread *keeper) {
    struct ct_thread_state before = ct_save_thread();
    if (keeper != ct_self) {
        atomic_store(&lock->keeper, NULL);
        order(ORDER_THREADS);
    }
    for (unsigned spins = 0; atomic_load_explicit(&keeper->inside, memory_order_acquire) == lock; spins++)
        if (spins >= 100) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    ct_restore_thread(before);
}

// A new keeper is marked as inside before it is the keeper, so a signal handler never finds it to be outside in here.
struct ct_thread *ct_enter_slowly(struct ct_biased *lock) {
    if (ct_self == &ct_nobody && ++uses % STREAK == 0) name_self();
    struct ct_thread *self = ct_self;
    ct_acquire(&lock->lock);
    struct ct_thread *keeper = atomic_load_explicit(&lock->keeper, memory_order_relaxed);
    // We keep it, and are inside another lock: we stay its keeper.
    bool stays = keeper == self && atomic_load_explicit(&self->inside, memory_order_relaxed) != lock;
    if (keeper && !stays) wait_for_keeper(lock, keeper);
    if (lock->last != &ct_self) lock->streak = 0;
    lock->last = &ct_self;
    if (++lock->streak < STREAK || atomic_load_explicit(&self->inside, memory_order_relaxed)) return NULL;
    lock->streak = 0;
    atomic_store_explicit(&self->inside, lock, memory_order_relaxed);
    atomic_store_explicit(&lock->keeper, self, memory_order_release);
    ct_set_free(&lock->lock);
    return self;
}

void ct_forget_threads(void) {
    for (int i = 0; i < THREADS; i++) {
        threads[i].inside = NULL;
        threads[i].id = 0;
    }
    ct_self = &ct_nobody;
    uses = 0;
    is_registered = ct_can_be_ordered = false;
    ct_set_free(&naming);
}
