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

#include "ledger_parts.h"

#define FIRST_SLOTS 64
#define BEHIND 1 // key of an entry behind the last slot: what follows that slot is not simply empty

struct ct_stripe ct_books[CT_BOOKS][CT_STRIPES];

static inline struct ct_entry *find(const struct ct_stripe *stripe, uint64_t key) {
    if (!stripe->used) return NULL;
    struct ct_entry *entry = ct_probe(stripe, key);
    return entry->key ? entry : NULL;
}

__attribute__((noinline, cold)) static bool grow(struct ct_stripe *stripe) {
    struct ct_stripe larger = {.slots = stripe->slots ? stripe->slots * 2 : FIRST_SLOTS};
    int saved = errno;
    void *memory = mmap(NULL, (larger.slots + 1) * sizeof *larger.entry, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = saved;
    if (memory == MAP_FAILED) return false;
    larger.entry = memory;
    larger.entry[larger.slots].key = BEHIND;
    for (uint64_t i = 0; i < stripe->slots; i++)
        if (stripe->entry[i].key) *ct_probe(&larger, stripe->entry[i].key) = stripe->entry[i];
    if (stripe->slots) munmap(stripe->entry, (stripe->slots + 1) * sizeof *stripe->entry);
    stripe->slots = larger.slots;
    stripe->most = (uint32_t)(larger.slots / 2);
    stripe->entry = larger.entry;
    return true;
}

// Takes the entry out and moves its successors into the gap, as far as that moves none of them before its home slot.
static inline void drop(struct ct_stripe *stripe, struct ct_entry *entry) {
    uint64_t mask = stripe->slots - 1, gap = (uint64_t)(entry - stripe->entry);
    for (uint64_t at = (gap + 1) & mask; stripe->entry[at].key; at = (at + 1) & mask) {
        uint64_t from_home = (at - ct_home(stripe, stripe->entry[at].key)) & mask;
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
    struct ct_stripe *stripe = ct_stripe_of(book, entry->key);
    struct ct_thread *keeper = ct_enter(&stripe->lock);
    before->key = 0;
    // A table that cannot grow is filled up to its last but one slot: probing needs an empty one to end at.
    bool room = stripe->used < stripe->most || grow(stripe) || stripe->used + 1 < stripe->slots;
    if (__builtin_expect(room, 1)) {
        struct ct_entry *slot = ct_probe(stripe, entry->key);
        if (__builtin_expect(slot->key != 0, 0)) copy(before, slot);
        else stripe->used++;
        copy(slot, entry);
    }
    ct_leave(&stripe->lock, keeper);
    return room;
}

struct ct_plain ct_drop_and_leave(struct ct_stripe *stripe, struct ct_entry *entry, struct ct_thread *keeper,
                                  struct ct_plain taken) {
    drop(stripe, entry);
    ct_leave_as_keeper(keeper);
    return taken;
}

bool ct_take(enum ct_book book, uint64_t key, struct ct_entry *entry) {
    struct ct_stripe *stripe = ct_stripe_of(book, key);
    struct ct_thread *keeper = ct_enter(&stripe->lock);
    struct ct_entry *found = find(stripe, key);
    if (found) {
        copy(entry, found);
        drop(stripe, found);
    }
    ct_leave(&stripe->lock, keeper);
    return found != NULL;
}

bool ct_get(enum ct_book book, uint64_t key, struct ct_entry *entry) {
    struct ct_stripe *stripe = ct_stripe_of(book, key);
    struct ct_thread *keeper = ct_enter(&stripe->lock);
    const struct ct_entry *found = find(stripe, key);
    if (found) *entry = *found;
    ct_leave(&stripe->lock, keeper);
    return found != NULL;
}

bool ct_edit(enum ct_book book, uint64_t key, ct_edit_entry edit, void *with) {
    struct ct_stripe *stripe = ct_stripe_of(book, key);
    struct ct_thread *keeper = ct_enter(&stripe->lock);
    struct ct_entry *found = find(stripe, key);
    if (found && edit(found, with)) drop(stripe, found);
    ct_leave(&stripe->lock, keeper);
    return found != NULL;
}

void ct_edit_all(enum ct_book book, ct_edit_entry edit, void *with) {
    for (struct ct_stripe *stripe = ct_books[book]; stripe < ct_books[book] + CT_STRIPES; stripe++) {
        struct ct_thread *keeper = ct_enter(&stripe->lock);
        // A dropped entry's slot may get a successor, so it is looked at again.
        for (uint64_t at = 0; stripe->used && at < stripe->slots;) {
            struct ct_entry *entry = &stripe->entry[at];
            if (entry->key && edit(entry, with)) drop(stripe, entry);
            else at++;
        }
        ct_leave(&stripe->lock, keeper);
    }
}

// Another thread of the parent may have held a lock or been in the middle of a change, so the old tables are not read.
void ct_forget_books(void) {
    for (int book = 0; book < CT_BOOKS; book++)
        for (int i = 0; i < CT_STRIPES; i++) {
            struct ct_stripe *stripe = &ct_books[book][i];
            stripe->used = stripe->most = 0;
            stripe->slots = 0;
            stripe->entry = NULL;
            ct_reset(&stripe->lock);
        }
}
