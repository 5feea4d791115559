// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What this process holds of each GPU, allocation by allocation, so that freeing gives back exactly what allocating
// took. The region has the sums; the books are private to the process, and a forked child begins with empty ones.

#ifndef COTENANT_LEDGER_H
#define COTENANT_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum ct_book {
    CT_POINTERS, // what cuMemFree and cuMemFreeAsync take
    CT_ARRAYS,   // arrays and mipmapped arrays
    CT_CHUNKS,   // physical memory of cuMemCreate, by a number of our own
    CT_HANDLES,  // handles of chunks
    CT_MAPPINGS, // addresses at which chunks are mapped
    CT_TILES,    // tiles of sparse arrays in which chunks are mapped, by a number of our own
    CT_FILES,    // open files to which chunks were exported, by their number plus one
    CT_LIBRARIES, // libraries that are loaded into a context
    CT_POOLS,    // memory pools, and the graph memory of each GPU
    CT_EXECS,    // executable graphs that allocate
    CT_BOOKS
};

// How a pointer was allocated.
enum ct_kind {
    CT_PLAIN,
    CT_FELL_BACK, // beyond the device quota, as managed memory
    CT_POOLED,    // from a pool: the pool is charged, not the pointer
    CT_POOLED_ELSEWHERE, // from a pool, and prefetched to another GPU, where the pointer is charged too
};

struct ct_entry {
    uint64_t key;    // never 0
    uint64_t bytes;  // in all; where in its array a tile begins; what tells a file from others
    uint64_t host;   // the part that is charged to the host budget; of a reserve: unused bytes that are promised to
                     // requests under way; the array of a tile; the library
    uint64_t owner;  // the context; the pool of a pooled pointer; the chunk of a handle, mapping, tile or file; of a
                     // reserve: bytes that requests under way have announced
    int16_t device;  // index in the slice; of a tile: the upper bits of its extents, whose lower ones are in count
    uint16_t kind;   // enum ct_kind of a pointer; the type of a tile
    uint32_t count;  // references to a chunk or handle; the ordinal of a graph's GPU
};

static inline bool ct_is_pooled(const struct ct_entry *pointer) {
    return pointer->kind == CT_POOLED || pointer->kind == CT_POOLED_ELSEWHERE;
}

// Adds an entry. If the key is known already, the old allocation was freed without our knowledge: it is replaced and
// copied to *before (whose key is otherwise 0). False: no memory for the books.
bool ct_put(enum ct_book book, const struct ct_entry *entry, struct ct_entry *before);

// Removes an entry and copies it; false if the key is not known.
bool ct_take(enum ct_book book, uint64_t key, struct ct_entry *entry);

// Copies an entry; false if the key is not known.
bool ct_get(enum ct_book book, uint64_t key, struct ct_entry *entry);

// Calls edit on one entry, or on each, with its part of the book locked; if edit returns true the entry is removed.
// edit must not call functions of the books. ct_edit_all may pass the same entry twice.
typedef bool (*ct_edit_entry)(struct ct_entry *entry, void *with);
bool ct_edit(enum ct_book book, uint64_t key, ct_edit_entry edit, void *with);
void ct_edit_all(enum ct_book book, ct_edit_entry edit, void *with);

// In a forked child: nothing in the books belongs to it.
void ct_forget_books(void);

#endif
