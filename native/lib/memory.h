// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the hooks on memory share. The order is always the same: claim, ask the driver, write down; or take out of the
// books, ask the driver, give back. So a race or a failure leaves the slice charged for too much for a moment, never
// for too little.

#ifndef COTENANT_MEMORY_H
#define COTENANT_MEMORY_H

#include <stdint.h>

#include "hooks.h"
#include "ledger.h"
#include "limits.h"
#include "region.h"

// Whether this process is in a slice.
static inline _Bool ct_in_slice(void) {
    if (__builtin_expect(atomic_load_explicit(&ct_limited, memory_order_relaxed), 1)) return 1;
    CT_ENTER();
    return atomic_load_explicit(&ct_limited, memory_order_relaxed);
}

// The slice's index of the GPU on which the calling thread would allocate. -1: pass the call down as it is.
static inline int ct_here(void) { return ct_in_slice() ? ct_current_device() : -1; }

// The same for a place that is named; -1 for the host's, too.
int ct_device_at(const CUmemLocation *location);

// Reserves bytes of the device quota. Before it gives up it looks whether the limits have grown, and trims what pools
// and graphs hold unused. Reading a clock costs as much as all the rest, so that small requests look for new limits
// only now and then.
#define CT_LARGE (UINT64_C(1) << 20)
#define CT_SMALL_BETWEEN 8
extern _Thread_local unsigned ct_small_claims __attribute__((tls_model("initial-exec")));
_Bool ct_claim_slowly(int device, uint64_t bytes);
static inline _Bool ct_claim(int device, uint64_t bytes) {
    if (bytes >= CT_LARGE || ++ct_small_claims % CT_SMALL_BETWEEN == 0) ct_refresh();
    return ct_reserve(device, CT_DEVICE, bytes) || ct_claim_slowly(device, bytes);
}

// Counts a refusal and is its answer.
CUresult ct_refuse(int device);

// The same for calls that need a context: without one the driver has another answer to them.
CUresult ct_refuse_here(int device);

// Ends a claim, which is written down under its key if the driver gave the memory and given back if it did not. Without
// memory for the books it stays charged until the process ends: the quota holds, and the program goes on.
CUresult ct_booked(enum ct_book book, struct ct_entry *claim, CUresult result, uint64_t key);

// The same for a pointer.
CUresult ct_book_pointer(int device, uint64_t bytes, CUresult result, CUdeviceptr pointer);

// Gives back what is charged for an entry by itself.
void ct_give_back(const struct ct_entry *entry);

// Ends what began with ct_take: given back if the driver freed it, written down again if it did not.
CUresult ct_freed(enum ct_book book, _Bool known, struct ct_entry *entry, CUresult result);

// Beyond the quota: managed memory on the host budget, or the refusal.
CUresult ct_fall_back(int device, CUdeviceptr *pointer, uint64_t bytes);

// Whether the driver's answer may still become managed memory: the card is full, and there is a host budget for that.
_Bool ct_may_fall_back(int device, CUresult result);

// Another stream may be recording a graph in a mode that forbids some calls to the whole process; ours must not spoil
// it.
int ct_relax_capture(void);
void ct_restore_capture(int mode);

// reserves.c. A reserve is a pool, or the memory that graphs keep on one GPU: both hold more than is in use, and only
// the driver knows how much.
#define CT_NOT_TOLD UINT64_MAX
void ct_learn_reserve(uint64_t key, int device);        // nothing is charged yet; a known one keeps its charge
uint64_t ct_graph_memory(CUdevice ordinal, int device); // learns that of a GPU; its key
uint64_t ct_unused(uint64_t key); // bytes it can hand out without growing; CT_NOT_TOLD by a driver that does not say

// What a request may take of a reserve: of what that has unused, and what it may grow by, which is claimed.
struct ct_taking {
    uint64_t unused, more;
};
_Bool ct_take_whole(uint64_t key, int device, struct ct_taking *taking); // claims `more`, as it is said there
_Bool ct_take_part(uint64_t key, int device, uint64_t bytes, struct ct_taking *taking); // only what is not unused
_Bool ct_settle(uint64_t key, struct ct_taking taken); // charges what it holds; false: that does not fit
_Bool ct_trim(int device); // gives back what reserves hold unused; whether there was any
void ct_settle_all(void);
extern _Atomic _Bool ct_shrinking; // something was freed into a reserve: the next synchronisation may make it smaller
static inline void ct_may_shrink(void) { atomic_store_explicit(&ct_shrinking, 1, memory_order_relaxed); }
static inline void ct_synchronised(void) {
    if (__builtin_expect(atomic_load_explicit(&ct_shrinking, memory_order_relaxed), 0)) ct_settle_all();
}

// graphs.c. An allocation node that is larger than the quota can never run.
_Bool ct_node_fits(int device, uint64_t bytes);

#endif
