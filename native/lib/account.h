// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What this process uses, and how nearly all small reservations and releases change it: inline, without a fence, a lock or
// a sum, if no other process of the slice is there and the calling thread keeps the lock of the account. region.c does the rest.

#ifndef COTENANT_ACCOUNT_H
#define COTENANT_ACCOUNT_H

#include "biased.h"
#include "region.h"

// In one structure, so that the compiler computes one address.
struct ct_account {
    struct ct_biased lock;         // of `use`
    struct ct_slot *_Atomic slot;  // what the other processes see of it; NULL: none yet
    // The most that this process may use of a GPU, alone in the slice, without anything having to be looked at: it is
    // within the limit, less what no account has, and no new peak. 0: not known, or the limit can change at any time.
    _Atomic uint64_t margin[CT_DEVICES];
    _Atomic uint64_t use[2][CT_DEVICES]; // by enum ct_where
};
extern struct ct_account ct_account;

// After a change of anything that a margin depends on.
void ct_forget_margins(void);

static inline uint64_t ct_own_bytes(int device, enum ct_where where) {
    return atomic_load_explicit(&ct_account.use[where][device], memory_order_relaxed);
}

static inline void ct_show_use(struct ct_slot *slot, int device, enum ct_where where, uint64_t bytes) {
    atomic_store_explicit(&ct_account.use[where][device], bytes, memory_order_relaxed);
    atomic_store_explicit(where == CT_DEVICE ? &slot->memory[device] : &slot->host[device], bytes, memory_order_release);
}

bool ct_decide(int device, enum ct_where where, uint64_t bytes, uint64_t mine);

// Sets what this process uses of a device, and leaves the lock of the account.
static inline bool ct_end_quickly(struct ct_thread *keeper, int device, uint64_t bytes, bool is_easy) {
    struct ct_slot *slot = atomic_load_explicit(&ct_account.slot, memory_order_acquire);
    is_easy = is_easy && slot;
    if (__builtin_expect(is_easy, 1)) ct_show_use(slot, device, CT_DEVICE, bytes);
    ct_leave_as_keeper(keeper);
    return is_easy;
}

// Announces bytes and decides about them as ct_reserve does, if that takes no more than a look at the margin. False: nothing
// was done. A process that claims a slot raises `high`, then makes our threads execute a barrier, and only then sums: so it
// sees what we had announced before we read `high`.
static inline bool ct_reserve_quickly(int device, uint64_t bytes) {
    struct ct_thread *keeper = ct_enter_as_keeper(&ct_account.lock);
    if (__builtin_expect(!keeper, 0)) return false;
    uint64_t mine = ct_own_bytes(device, CT_DEVICE) + bytes;
    bool is_easy = mine <= atomic_load_explicit(&ct_account.margin[device], memory_order_relaxed);
    if (__builtin_expect(!ct_end_quickly(keeper, device, mine, is_easy), 0)) return false;
    atomic_signal_fence(memory_order_seq_cst);
    struct ct_region *region = atomic_load_explicit(&ct_region, memory_order_acquire);
    return __builtin_expect(region->high <= 1, 1) || ct_decide(device, CT_DEVICE, bytes, mine);
}

// ct_release of memory of a device; false: nothing was done.
static inline bool ct_release_quickly(int device, uint64_t bytes) {
    struct ct_thread *keeper = ct_enter_as_keeper(&ct_account.lock);
    if (__builtin_expect(!keeper, 0)) return false;
    uint64_t mine = ct_own_bytes(device, CT_DEVICE);
    return ct_end_quickly(keeper, device, mine - bytes, mine >= bytes);
}

#endif
