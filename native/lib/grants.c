// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that is granted while the slice runs. An allocation that does not fit now, and may fit soon, is announced in
// this process's slot as wanted. The process that grants memory reads it there and raises the limit, after it has
// lowered the limits of other slices.

#define _GNU_SOURCE
#include <time.h>

#include "compute.h"
#include "lock.h"
#include "memory.h"

#define SECOND UINT64_C(1000000000)
#define PAUSE_NS 2000000
#define DRIVER_PAUSE_NS 10000000
#define DOUBTS 10 // looks, PAUSE_NS apart, that must agree before an allocation is refused
#define MIB_BYTES (UINT64_C(1) << 20)

static uint64_t load(_Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

static uint32_t in_mib(uint64_t bytes) {
    uint64_t mib = bytes / MIB_BYTES + (bytes % MIB_BYTES != 0);
    return mib < UINT32_MAX ? (uint32_t)mib : UINT32_MAX;
}

static bool is_within(uint64_t most, uint64_t used, uint64_t bytes) { return bytes <= most && used <= most - bytes; }

// For how long it is worth waiting: the bytes fit into what the slice is guaranteed, which always comes unless the
// granting process was killed; or into what it could be granted at present. 0: they do not fit.
static uint64_t patience(int device, uint64_t used, uint64_t bytes) {
    if (is_within(load(&ct_limits_now[device].request), used, bytes)) return CT_REQUEST_SECONDS * SECOND;
    return is_within(load(&ct_limits_now[device].most), used, bytes) ? CT_GRANT_SECONDS * SECOND : 0;
}

// The number in the slot is the sum of what the threads of this process want. It includes memory that is in use and in
// no account, because the process that grants memory adds the number to the accounts.
static void want(int device, uint32_t *announced, uint32_t mib) {
    _Atomic uint32_t *wanted = &ct_my_slot()->wanted[device];
    if (mib > *announced) atomic_fetch_add(wanted, mib - *announced);
    uint32_t less = mib < *announced ? *announced - mib : 0, before = atomic_fetch_sub(wanted, less);
    if (before < less) atomic_fetch_add(wanted, less - before); // another slot than the one it was announced in
    *announced = mib;
}

static bool is_granted_live(int device) {
    return device >= 0 && device < CT_DEVICES && load(&ct_limits_now[device].request);
}

// Whether the bytes could fit if the slice used nothing.
static bool can_fit(int device, uint64_t bytes) {
    return bytes <= load(&ct_limits_now[device].request) || bytes <= load(&ct_limits_now[device].most);
}

// When the attempts began that wait together; 0: each waits for itself.
static _Thread_local uint64_t attempts_began __attribute__((tls_model("initial-exec")));

void ct_begin_attempts(void) { attempts_began = ct_monotonic(); }

void ct_end_attempts(void) { attempts_began = 0; }

// What other threads and processes of the slice have announced, and will take back because it does not fit either, seems to
// be in use. So one look that finds no room is not believed.
bool ct_await_grant(int device, uint64_t bytes) {
    if (!is_granted_live(device)) return false;
    struct ct_thread_state before = ct_save_thread();
    uint64_t began = attempts_began ? attempts_began : ct_monotonic();
    uint32_t announced = 0;
    bool is_reserved = false;
    ct_confirm_limits();
    int enough = attempts_began ? 1 : DOUBTS; // attempts are repeated by their caller
    for (int doubts = 0; doubts < enough && can_fit(device, bytes);) {
        ct_confirm_limits();
        uint64_t used = ct_used(device, CT_DEVICE), counted = ct_counted(device);
        uint64_t waits = patience(device, used, bytes);
        doubts = waits ? 0 : doubts + 1;
        if (!waits) {
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
            continue;
        }
        want(device, &announced, in_mib(bytes + (used > counted ? used - counted : 0)));
        is_reserved = ct_reserve(device, CT_DEVICE, bytes);
        if (is_reserved || ct_monotonic() - began >= waits) break;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    want(device, &announced, 0);
    ct_restore_thread(before);
    return is_reserved;
}

bool ct_may_ask_again(int device, uint64_t bytes, struct ct_shortage *shortage) {
    if (!is_granted_live(device) || !is_within(load(&ct_limits_now[device].request), ct_used(device, CT_DEVICE), bytes))
        return false;
    uint64_t now = ct_monotonic();
    if (!shortage->since) shortage->since = now;
    if (now - shortage->since >= CT_DRIVER_SECONDS * SECOND) return false;
    struct ct_thread_state before = ct_save_thread();
    ct_refresh_limits();
    want(device, &shortage->announced, in_mib(bytes));
    nanosleep(&(struct timespec){.tv_nsec = DRIVER_PAUSE_NS}, NULL);
    ct_restore_thread(before);
    return true;
}

void ct_end_shortage(int device, struct ct_shortage *shortage) { want(device, &shortage->announced, 0); }
