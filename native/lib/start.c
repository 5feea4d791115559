// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Begins, once, when the first hook is called: a program that never touches a GPU pays for nothing but the look at one
// environment variable. And begins anew in a forked child.

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
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

_Atomic _Bool ct_started;

static char named[CT_PATH_BYTES]; // by the environment, as it was when the program began
static bool is_remembered;
static _Atomic uint64_t starter; // the process and the thread that is at it

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

// Nobody but root could have written it: it holds whatever the environment says.
static bool is_fixed(void) {
    struct stat found;
    return ct_stat(CT_FIXED_LIMITS, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == 0 &&
           !(found.st_mode & (S_IWGRP | S_IWOTH));
}

void ct_forked(void) {
    ct_forget_slot();
    ct_forget_reading();
    ct_forget_devices();
    ct_forget_books();
    ct_compute_forked();
}

// glibc has the first and musl the second; neither may be missing for the library to load.
static void tell_of_forks(void) {
    int (*glibc)(void (*)(void), void (*)(void), void (*)(void), void *) = ct_of_libc("__register_atfork");
    int (*posix)(void (*)(void), void (*)(void), void (*)(void)) = ct_of_libc("pthread_atfork");
    if (glibc) glibc(NULL, NULL, ct_forked, NULL);
    else if (posix) posix(NULL, NULL, ct_forked);
}

static void start(void) {
    remember();
    const char *path = is_fixed() ? CT_FIXED_LIMITS : *named ? named : NULL;
    if (!path) return;
    ct_follow_limits(path);
    tell_of_forks();
    ct_limited = true;
}

// Another thread waits until it is done. The same thread can only come here through a wrapper around what is called
// here, and passes.
static void wait_for(uint64_t self) {
    for (int i = 0; i < WAITS && !ct_started && starter != self; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

void ct_start(void) {
    struct ct_aside aside = ct_step_aside();
    uint64_t process = (uint64_t)getpid() << 32, self = process | (uint64_t)syscall(SYS_gettid), before = starter;
    bool ours = before >> 32 != process >> 32 && atomic_compare_exchange_strong(&starter, &before, self);
    if (ours) {
        if (before) ct_forked(); // a fork while a thread of the parent was half way, which is not here to go on
        start();
        ct_started = true;
    } else {
        wait_for(self);
    }
    ct_step_back(aside);
}
