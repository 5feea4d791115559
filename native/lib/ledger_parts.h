// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// How a book is stored: private to ledger.c, and to memory.c for what nearly all of its calls do, inline.

#ifndef COTENANT_LEDGER_PARTS_H
#define COTENANT_LEDGER_PARTS_H

#include <stddef.h>

#include "biased.h"
#include "ledger.h"

#define CT_STRIPES 16

struct ct_stripe {
    struct ct_biased lock;
    uint32_t used, most; // most: entries beyond which the table should grow
    uint64_t slots;      // a power of two, or 0
    struct ct_entry *entry;
} __attribute__((aligned(64)));
extern struct ct_stripe ct_books[CT_BOOKS][CT_STRIPES];

static inline uint64_t ct_mix(uint64_t key) { return key * UINT64_C(0x9e3779b97f4a7c15); }

static inline uint64_t ct_home(const struct ct_stripe *stripe, uint64_t key) {
    return (ct_mix(key) >> 24) & (stripe->slots - 1);
}

static inline struct ct_stripe *ct_stripe_of(enum ct_book book, uint64_t key) {
    return &ct_books[book][ct_mix(key) >> 60];
}

// The slot of the key, or the empty one in which it would be. The table must have an empty slot.
static inline struct ct_entry *ct_probe(const struct ct_stripe *stripe, uint64_t key) {
    struct ct_entry *entries = stripe->entry, *found;
    uint64_t mask = stripe->slots - 1, at = ct_home(stripe, key);
    while ((found = &entries[at & mask])->key != key && found->key) at++;
    return found;
}

// Nearly all entries are memory of cuMemAlloc, put in and taken out by the thread that keeps the locks of the book. These two
// do only that. False, or 0 bytes: nothing was done, because it is something else.
struct ct_plain {
    uint64_t bytes;
    int64_t device;
};

static inline bool ct_put_plain(uint64_t key, uint64_t bytes, int device) {
    struct ct_stripe *stripe = ct_stripe_of(CT_POINTERS, key);
    struct ct_thread *keeper = ct_enter_as_keeper(&stripe->lock);
    if (__builtin_expect(!keeper, 0)) return false;
    struct ct_entry *slot = stripe->used < stripe->most ? ct_probe(stripe, key) : NULL;
    bool is_simple = slot && !slot->key;
    if (__builtin_expect(is_simple, 1)) {
        *slot = (struct ct_entry){.key = key, .bytes = bytes, .device = (int16_t)device, .kind = CT_PLAIN};
        stripe->used++;
    }
    ct_leave_as_keeper(keeper);
    return is_simple;
}

// The rest of ct_take_plain if successors of the entry may have to move.
struct ct_plain ct_drop_and_leave(struct ct_stripe *stripe, struct ct_entry *entry, struct ct_thread *keeper,
                                  struct ct_plain taken);

static inline struct ct_plain ct_take_plain(uint64_t key) {
    struct ct_stripe *stripe = ct_stripe_of(CT_POINTERS, key);
    struct ct_thread *keeper = ct_enter_as_keeper(&stripe->lock);
    if (__builtin_expect(!keeper, 0)) return (struct ct_plain){0};
    struct ct_entry *found = stripe->used ? ct_probe(stripe, key) : NULL;
    struct ct_plain taken = {0};
    if (__builtin_expect(found && found->key && found->kind == CT_PLAIN && !found->host && found->device >= 0, 1)) {
        taken = (struct ct_plain){found->bytes, found->device};
        if (__builtin_expect(found[1].key != 0, 0)) return ct_drop_and_leave(stripe, found, keeper, taken);
        found->key = 0;
        stripe->used--;
    }
    ct_leave_as_keeper(keeper);
    return taken;
}

#endif
