// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Starts the library once, when the first hook is called: a program that never uses a GPU pays only for reading one
// environment variable. Starts it again in a forked child.

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "biased.h"
#include "compute.h"
#include "hooks.h"
#include "ledger.h"
#include "lock.h"
#include "memory.h"

#ifndef CT_FIXED_LIMITS
#define CT_FIXED_LIMITS "/etc/cotenant/limits"
#endif
#define VARIABLE "COTENANT_LIMITS"
#define WAITS 5000 // of 200 us

_Atomic bool ct_started;

static char named[CT_PATH_BYTES]; // path from the environment, as it was when the program began
static bool is_remembered;
static _Atomic uint64_t starter; // the process and the thread that starts the library

int ct_stat(const char *path, struct stat *found) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, 0);
}

int ct_fstat(int file, struct stat *found) {
    return (int)syscall(SYS_fstat, file, found);
}

__attribute__((constructor)) static void remember(void) {
    if (is_remembered) return;
    is_remembered = true;
    const char *path = getauxval(AT_SECURE) ? NULL : getenv(VARIABLE);
    if (path && strlen(path) < sizeof named) strcpy(named, path);
}

const char *ct_named_limits(void) {
    remember();
    return named;
}

// What the first copy of the library tells one that it loads into another namespace: the program may have changed its
// environment since it began. The first copy itself cannot be told anything.
__attribute__((visibility("default"))) void ct_inherit_limits(const char *path);
void ct_inherit_limits(const char *path) {
    if (!ct_started && !ct_is_in_base_space() && strlen(path) < sizeof named) strcpy(named, path);
}

// Whether there is a limits file that only root can write: it applies whatever the environment says.
static bool is_fixed(void) {
    struct stat found;
    return ct_stat(CT_FIXED_LIMITS, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == 0 &&
           !(found.st_mode & (S_IWGRP | S_IWOTH));
}

bool ct_has_limits(void) {
    remember();
    return *named || is_fixed();
}

void ct_restart_after_fork(void) {
    ct_forget_threads();
    ct_forget_changing();
    ct_forget_slot();
    ct_forget_reading();
    ct_forget_devices();
    ct_forget_books();
    ct_forget_compute();
    ct_forget_opening();
    ct_forget_overhead();
}

// glibc has the first function and musl the second. Both are looked up, since the library must load without either.
void ct_watch_forks(void) {
    static _Atomic bool is_watching;
    if (atomic_exchange(&is_watching, true)) return;
    int (*glibc)(void (*)(void), void (*)(void), void (*)(void), void *) = ct_find_in_libc("__register_atfork");
    int (*posix)(void (*)(void), void (*)(void), void (*)(void)) = ct_find_in_libc("pthread_atfork");
    if (glibc) glibc(NULL, NULL, ct_restart_after_fork, NULL);
    else if (posix) posix(NULL, NULL, ct_restart_after_fork);
}

static void start(void) {
    remember();
    const char *path = is_fixed() ? CT_FIXED_LIMITS : *named ? named : NULL;
    if (!path) return;
    ct_follow_limits(path);
    ct_watch_forks();
    ct_limited = true;
}

// Another thread waits until the start is done. The same thread can only get here through a wrapper around a function
// that the start calls, and goes on at once.
static void wait_for(uint64_t self) {
    for (int i = 0; i < WAITS && !ct_started && starter != self; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

void ct_start(void) {
    struct ct_thread_state saved = ct_save_thread();
    uint64_t process = (uint64_t)getpid() << 32, self = process | (uint64_t)syscall(SYS_gettid), before = starter;
    bool ours = before >> 32 != process >> 32 && atomic_compare_exchange_strong(&starter, &before, self);
    if (ours) {
        if (before) ct_restart_after_fork(); // forked while a thread of the parent was starting it
        start();
        ct_started = true;
    } else {
        wait_for(self);
    }
    ct_restore_thread(saved);
}
