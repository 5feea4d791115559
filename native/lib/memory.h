// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the hooks on memory share. The order is always the same: claim, call the driver, book; or take out of the books,
// call the driver, give back. So a race or a failure leaves the slice charged for too much for a moment, never for too
// little.

#ifndef COTENANT_MEMORY_H
#define COTENANT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "account.h"
#include "hooks.h"
#include "ledger.h"
#include "limits.h"
#include "region.h"

// Whether this process is in a slice.
static inline bool ct_in_slice(void) {
    if (__builtin_expect(atomic_load_explicit(&ct_limited, memory_order_relaxed), 1)) return true;
    CT_ENTER();
    return atomic_load_explicit(&ct_limited, memory_order_relaxed);
}

// The slice's index of the GPU on which the calling thread would allocate. -1: pass the call down as it is.
static inline int ct_device_here(void) {
    int device = atomic_load_explicit(&ct_only_device, memory_order_relaxed);
    if (__builtin_expect(device >= 0, 1)) return device;
    return ct_in_slice() ? ct_current_device() : -1;
}

// The same for a location that the program names; -1 for host memory, too.
int ct_device_at(const CUmemLocation *location);

// Reserves bytes of the device quota. Before it gives up it checks whether the limits have grown, and trims what pools
// and graphs hold unused. Reading a clock costs a third of all the rest, so small requests check for new limits only
// every CT_SMALL_BETWEEN calls.
#define CT_LARGE (UINT64_C(1) << 20)
#define CT_SMALL_BETWEEN 16
static inline bool ct_is_time_to_look(void) {
    struct ct_thread *self = ct_self;
    unsigned claims = atomic_load_explicit(&self->claims, memory_order_relaxed) + 1;
    atomic_store_explicit(&self->claims, claims, memory_order_relaxed);
    return claims % CT_SMALL_BETWEEN == 0;
}
bool ct_claim_slowly(int device, uint64_t bytes);

// overhead.c: asks NVML what the slice holds uncounted, if this process has grown much since it last did.
void ct_watch_memory(int device, uint64_t bytes);
uint64_t ct_measure_overhead(int device); // asks now; returns bytes
bool ct_review_overhead(int device);      // asks again before a refusal; true: there is less of it now
// Asks after a call that may have taken uncounted memory; false: it took much, and the slice has more than its limit.
bool ct_may_keep(int device, uint64_t before);
bool ct_has_room(int device); // asks before a call that cannot be undone; false: the slice is full
void ct_forget_overhead(void); // in a forked child

// grants.c: if the slice may get more memory, asks for it and waits; true: these bytes are reserved.
bool ct_await_grant(int device, uint64_t bytes);

// All waiting of this thread between the two counts together: it is as long as one allocation may wait.
void ct_begin_attempts(void);
void ct_end_attempts(void);

// A driver that is out of memory though the slice is within its request: a neighbour was killed and its memory comes back
// late, or the driver took memory that no account has. The call is made again for up to CT_DRIVER_SECONDS. `bytes` are
// those that the call takes and that are in no account yet.
struct ct_shortage {
    uint64_t since;
    uint32_t announced;
};
bool ct_may_ask_again(int device, uint64_t bytes, struct ct_shortage *shortage);
void ct_end_shortage(int device, struct ct_shortage *shortage);

#define CT_ASK_DRIVER(result, device, bytes, call)                                                           \
    do {                                                                                                     \
        (result) = (call);                                                                                   \
        CT_ASK_AGAIN(result, device, bytes, call);                                                           \
    } while (0)

// The same after the first call.
#define CT_ASK_AGAIN(result, device, bytes, call)                                                            \
    do {                                                                                                     \
        struct ct_shortage shortage = {0};                                                                   \
        while ((result) == CUDA_ERROR_OUT_OF_MEMORY && ct_may_ask_again(device, bytes, &shortage))           \
            (result) = (call);                                                                               \
        if (shortage.since) ct_end_shortage(device, &shortage);                                              \
    } while (0)

static inline bool ct_claim(int device, uint64_t bytes) {
    if (bytes == 0) return true; // also while the slice holds more than its limit
    if (bytes >= CT_LARGE || ct_is_time_to_look()) {
        ct_refresh_limits();
        ct_watch_memory(device, bytes);
    }
    return ct_reserve(device, CT_DEVICE, bytes) || ct_claim_slowly(device, bytes);
}

// Counts a refusal and returns its error.
CUresult ct_refuse(int device);

// The same for calls that need a current context: without one, returns the driver's error for that.
CUresult ct_refuse_in_context(int device);

// Ends a claim: books it under its key if the driver gave the memory, and gives it back if it did not. Without memory
// for the books it stays charged until the process ends: the quota holds, and the program goes on.
CUresult ct_book_claim(enum ct_book book, struct ct_entry *claim, CUresult result, uint64_t key);

// The same for a pointer.
CUresult ct_book_pointer(int device, uint64_t bytes, CUresult result, CUdeviceptr pointer);

// Gives back what is charged for an entry; for a pooled pointer that is nothing.
void ct_give_back(const struct ct_entry *entry);

// Ends what began with ct_take: gives the entry back if the driver freed it, and books it again if it did not.
CUresult ct_book_free(enum ct_book book, bool known, struct ct_entry *entry, CUresult result);

// Allocates beyond the quota: managed memory on the host budget, or a refusal.
CUresult ct_fall_back(int device, CUdeviceptr *pointer, uint64_t bytes);

// Whether managed memory may be tried after the driver's answer: the GPU is full, and there is a host budget.
bool ct_may_fall_back(int device, CUresult result);

// Another stream may be recording a graph in a mode that forbids some calls to the whole process. Between these two,
// our own calls do not spoil the recording.
int ct_relax_capture(void);
void ct_restore_capture(int mode);

// reserves.c. A reserve is a pool, or the memory that graphs keep on one GPU: both hold more than is in use, and only
// the driver knows how much.
#define CT_UNKNOWN_BYTES UINT64_MAX
void ct_learn_reserve(uint64_t key, int device); // adds it without a charge; a known one keeps its charge
uint64_t ct_learn_graph_memory(CUdevice ordinal, int device); // adds that of a GPU; returns its key
// Bytes that it can hand out without growing; CT_UNKNOWN_BYTES if the driver does not tell.
uint64_t ct_unused_bytes(uint64_t key);

// What a request draws from a reserve: bytes that are unused there, and bytes by which it may grow, which are claimed.
struct ct_draw {
    uint64_t unused, more;
};
bool ct_take_whole(uint64_t key, int device, struct ct_draw *draw); // claims draw->more
bool ct_take_part(uint64_t key, int device, uint64_t bytes, struct ct_draw *draw); // claims what is not unused
bool ct_settle(uint64_t key, struct ct_draw draw); // charges what it holds; false: that does not fit
bool ct_trim_reserves(int device); // gives back what reserves hold unused; false: there was nothing
void ct_settle_all(void);
extern _Atomic bool ct_shrinking; // memory was freed into a reserve: the next synchronisation may make it smaller
static inline void ct_expect_shrink(void) { atomic_store_explicit(&ct_shrinking, true, memory_order_relaxed); }
static inline void ct_settle_if_shrinking(void) {
    if (__builtin_expect(atomic_load_explicit(&ct_shrinking, memory_order_relaxed), 0)) ct_settle_all();
}

// modules.c: of a context that is destroyed.
void ct_forget_libraries(CUcontext context);

// vmm.c: gives back chunks that were held by files only, which are closed now; false: there were none.
bool ct_forget_closed_files(void);
// Of a sparse array that is destroyed: the driver may give its handle to another one before its call returns, so the
// tiles are set aside before (0: there are none), and forgotten or put back after it.
uint64_t ct_set_tiles_aside(const void *array);
void ct_end_tiles(uint64_t aside, const void *array, CUresult destroyed);

// graphs.c. An allocation node that is larger than the quota can never run.
bool ct_node_fits(int device, uint64_t bytes);

#endif
