// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What this process holds of each GPU, thing by thing, so that freeing gives back exactly what allocating took. The
// region has the sums; the books are private to the process and a forked child begins with empty ones.

#ifndef COTENANT_LEDGER_H
#define COTENANT_LEDGER_H

#include <stdint.h>

enum ct_book {
    CT_POINTERS, // what cuMemFree and cuMemFreeAsync take
    CT_ARRAYS,   // arrays and mipmapped arrays
    CT_CHUNKS,   // physical memory of cuMemCreate, by a number of our own
    CT_HANDLES,  // its handles
    CT_MAPPINGS, // where it is mapped
    CT_POOLS,    // memory pools, and the graph memory of each GPU
    CT_EXECS,    // executable graphs that allocate
    CT_BOOKS
};

// How a pointer came to be.
enum ct_kind {
    CT_PLAIN,
    CT_FELL_BACK, // beyond the device quota, so it is managed memory
    CT_POOLED,    // its pool is charged, not the pointer
};

struct ct_entry {
    uint64_t key;    // never 0
    uint64_t bytes;  // in all
    uint64_t host;   // of these, charged to the host budget; of a reserve's unused, promised to requests under way
    uint64_t owner;  // the context; the pool of a pooled pointer; the chunk of a handle or mapping; of a reserve, bytes
                     // that requests under way have announced
    int16_t device;  // index in the slice
    uint16_t kind;   // enum ct_kind of a pointer
    uint32_t count;  // references to a chunk or handle; the ordinal of a graph's GPU
};

// Writes an entry down. The key may be known: what was freed behind our back is told by its address coming again, and
// is then in *before (whose key is otherwise 0). False: no memory for the books.
_Bool ct_put(enum ct_book book, const struct ct_entry *entry, struct ct_entry *before);

// Takes an entry out; false if the key is not known.
_Bool ct_take(enum ct_book book, uint64_t key, struct ct_entry *entry);

// Copies an entry.
_Bool ct_look(enum ct_book book, uint64_t key, struct ct_entry *entry);

// Calls edit on one entry, or on each, with its part of the book locked; true from edit takes the entry out. It must
// not come back to the books. An entry may be seen twice by ct_edit_all.
typedef _Bool (*ct_edit_entry)(struct ct_entry *entry, void *with);
_Bool ct_edit(enum ct_book book, uint64_t key, ct_edit_entry edit, void *with);
void ct_edit_all(enum ct_book book, ct_edit_entry edit, void *with);

// In a forked child: nothing in the books is the child's.
void ct_forget_books(void);

#endif
