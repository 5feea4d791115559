// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Each book is a few hash tables, each with a lock of its own, so that threads which allocate seldom wait. Open
// addressing with linear probing; the place of an entry taken out is filled by its successors, so that there are no
// tombstones and a table that was once full is as fast as a new one. Tables come from mmap: the program's malloc may be
// calling us.

#define _GNU_SOURCE
#include "ledger.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#include "lock.h"

#define STRIPES 16
#define FIRST_SLOTS 64

struct stripe {
    ct_lock lock;
    uint32_t used;
    uint64_t slots; // a power of two, or 0
    struct ct_entry *entry;
} __attribute__((aligned(64)));

static struct stripe books[CT_BOOKS][STRIPES];

static uint64_t mix(uint64_t key) { return key * UINT64_C(0x9e3779b97f4a7c15); }

static uint64_t home(const struct stripe *stripe, uint64_t key) {
    return (mix(key) >> 24) & (stripe->slots - 1);
}

static struct stripe *lock(enum ct_book book, uint64_t key) {
    struct stripe *stripe = &books[book][mix(key) >> 60];
    ct_acquire(&stripe->lock);
    return stripe;
}

// The slot of the key, or the empty one in which it would be. The table must have an empty slot.
static struct ct_entry *probe(const struct stripe *stripe, uint64_t key) {
    uint64_t at = home(stripe, key);
    while (stripe->entry[at].key && stripe->entry[at].key != key) at = (at + 1) & (stripe->slots - 1);
    return &stripe->entry[at];
}

static struct ct_entry *find(const struct stripe *stripe, uint64_t key) {
    if (!stripe->used || !key) return NULL;
    struct ct_entry *entry = probe(stripe, key);
    return entry->key ? entry : NULL;
}

__attribute__((noinline, cold)) static bool grow(struct stripe *stripe) {
    struct stripe larger = {.slots = stripe->slots ? stripe->slots * 2 : FIRST_SLOTS};
    int saved = errno;
    void *memory = mmap(NULL, larger.slots * sizeof *larger.entry, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (memory == MAP_FAILED) return false;
    larger.entry = memory;
    for (uint64_t i = 0; i < stripe->slots; i++)
        if (stripe->entry[i].key) *probe(&larger, stripe->entry[i].key) = stripe->entry[i];
    if (stripe->slots) munmap(stripe->entry, stripe->slots * sizeof *stripe->entry);
    stripe->slots = larger.slots;
    stripe->entry = larger.entry;
    return true;
}

// Takes the entry out and moves its successors into the gap, as far as that moves none of them before its home slot.
static inline void drop(struct stripe *stripe, struct ct_entry *entry) {
    uint64_t mask = stripe->slots - 1, gap = (uint64_t)(entry - stripe->entry);
    for (uint64_t at = (gap + 1) & mask; stripe->entry[at].key; at = (at + 1) & mask) {
        uint64_t from_home = (at - home(stripe, stripe->entry[at].key)) & mask;
        if (from_home < ((at - gap) & mask)) continue;
        stripe->entry[gap] = stripe->entry[at];
        gap = at;
    }
    stripe->entry[gap].key = 0;
    stripe->used--;
}

// Word by word: a wide load of what was just stored in parts would stall until the stores have left the processor.
static inline void copy(struct ct_entry *to, const volatile struct ct_entry *from) {
    to->key = from->key;
    to->bytes = from->bytes;
    to->host = from->host;
    to->owner = from->owner;
    to->device = from->device;
    to->kind = from->kind;
    to->count = from->count;
}

bool ct_put(enum ct_book book, const struct ct_entry *entry, struct ct_entry *before) {
    struct stripe *stripe = lock(book, entry->key);
    before->key = 0;
    // A table that cannot grow is filled up to its last but one slot: probing needs an empty one to end at.
    bool room = stripe->used * 4 < stripe->slots * 3 || grow(stripe) || stripe->used + 1 < stripe->slots;
    if (room) {
        struct ct_entry *slot = probe(stripe, entry->key);
        if (slot->key) copy(before, slot);
        else stripe->used++;
        copy(slot, entry);
    }
    ct_set_free(&stripe->lock);
    return room;
}

bool ct_take(enum ct_book book, uint64_t key, struct ct_entry *entry) {
    struct stripe *stripe = lock(book, key);
    struct ct_entry *found = find(stripe, key);
    if (found) {
        copy(entry, found);
        drop(stripe, found);
    }
    ct_set_free(&stripe->lock);
    return found != NULL;
}

bool ct_get(enum ct_book book, uint64_t key, struct ct_entry *entry) {
    struct stripe *stripe = lock(book, key);
    const struct ct_entry *found = find(stripe, key);
    if (found) *entry = *found;
    ct_set_free(&stripe->lock);
    return found != NULL;
}

bool ct_edit(enum ct_book book, uint64_t key, ct_edit_entry edit, void *with) {
    struct stripe *stripe = lock(book, key);
    struct ct_entry *found = find(stripe, key);
    if (found && edit(found, with)) drop(stripe, found);
    ct_set_free(&stripe->lock);
    return found != NULL;
}

void ct_edit_all(enum ct_book book, ct_edit_entry edit, void *with) {
    for (struct stripe *stripe = books[book]; stripe < books[book] + STRIPES; stripe++) {
        ct_acquire(&stripe->lock);
        // A dropped entry's slot may get a successor, so it is looked at again.
        for (uint64_t at = 0; stripe->used && at < stripe->slots;) {
            struct ct_entry *entry = &stripe->entry[at];
            if (entry->key && edit(entry, with)) drop(stripe, entry);
            else at++;
        }
        ct_set_free(&stripe->lock);
    }
}

// Another thread of the parent may have held a lock or been in the middle of a change, so the old tables are not read.
void ct_forget_books(void) {
    for (int book = 0; book < CT_BOOKS; book++)
        for (int i = 0; i < STRIPES; i++) {
            struct stripe *stripe = &books[book][i];
            stripe->used = 0;
            stripe->slots = 0;
            stripe->entry = NULL;
            ct_set_free(&stripe->lock);
        }
}
