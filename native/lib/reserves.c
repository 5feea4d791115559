// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Reserves hold more memory than is in use: the driver's pools, and what graphs keep on a GPU between launches. The
// bytes by which a request may make them grow are announced, and afterwards the charge is settled to the driver's own
// number. Both kinds are in one book; graph memory is under the GPU's ordinal, which is far below any address. Threads
// share a reserve, so the entry also has what requests under way have announced, and what they were promised of the
// unused.

#include <time.h>

#include "hooks.h"
#include "lock.h"
#include "memory.h"
#include "region.h"

#define ORDINALS 256 // more than a driver has
#define TRIES 1000   // 50 us apart, while other requests are under way

_Atomic bool ct_shrinking;

static CUmemoryPool pool_of(uint64_t key) { return (CUmemoryPool)(uintptr_t)key; }

static bool is_graph_memory(uint64_t key) { return key <= ORDINALS; }

static CUdevice ordinal_of(uint64_t key) { return (CUdevice)key - 1; }

static CUresult ask(uint64_t key, int pool_attribute, int graph_attribute, uint64_t *bytes) {
    *bytes = 0;
    if (is_graph_memory(key)) return CALL(cuDeviceGetGraphMemAttribute, ordinal_of(key), graph_attribute, bytes);
    return CALL(cuMemPoolGetAttribute, pool_of(key), pool_attribute, bytes);
}

static CUresult ask_held(uint64_t key, uint64_t *bytes) {
    return ask(key, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
}

uint64_t ct_unused_bytes(uint64_t key) {
    uint64_t held, used;
    if (ask_held(key, &held) != CUDA_SUCCESS) return CT_UNKNOWN_BYTES;
    if (ask(key, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS) return 0;
    return held > used ? held - used : 0;
}

struct settling {
    struct ct_draw draw;
    bool fits;
};

static uint64_t minus(uint64_t from, uint64_t bytes) { return from > bytes ? from - bytes : 0; }

// Charges what the reserve holds by the driver's number. What other requests have announced may be in that number
// already, so up to that much is not charged here: the last request under way settles it.
static bool settle_one(struct ct_entry *entry, void *with) {
    struct settling *settling = with;
    uint64_t held, owed = entry->bytes + settling->draw.more;
    entry->owner = minus(entry->owner, settling->draw.more);
    entry->host = minus(entry->host, settling->draw.unused);
    if (entry->device < 0 || ask_held(entry->key, &held) != CUDA_SUCCESS) held = entry->bytes;
    if (held > owed) held = held - owed > entry->owner ? held - entry->owner : owed;
    if (held < owed) ct_release(entry->device, CT_DEVICE, owed - held);
    if (held > owed && !ct_reserve(entry->device, CT_DEVICE, held - owed)) {
        settling->fits = false;
        ct_charge(entry->device, CT_DEVICE, held - owed);
    }
    entry->bytes = held;
    return false;
}

bool ct_settle(uint64_t key, struct ct_draw draw) {
    struct settling settling = {.draw = draw, .fits = true};
    ct_edit(CT_POOLS, key, settle_one, &settling);
    return settling.fits;
}

static bool promise(struct ct_entry *entry, void *with) {
    struct ct_draw *draw = with;
    uint64_t left = minus(ct_unused_bytes(entry->key), entry->host);
    draw->unused = draw->more < left ? draw->more : left;
    draw->more -= draw->unused;
    entry->host += draw->unused;
    return false;
}

static bool announce(struct ct_entry *entry, void *with) {
    entry->owner += ((const struct ct_draw *)with)->more;
    return false;
}

static bool withdraw(struct ct_entry *entry, void *with) {
    struct ct_draw *draw = with;
    entry->host = minus(entry->host, draw->unused);
    *draw = (struct ct_draw){entry->host, entry->owner}; // what is left is of other requests
    return false;
}

bool ct_take_whole(uint64_t key, int device, struct ct_draw *draw) {
    if (!ct_claim(device, draw->more)) return false;
    ct_edit(CT_POOLS, key, announce, draw);
    return true;
}

// Between the driver's launch and our settling a request counts twice: as used, and as promised. So a request that does
// not fit is tried again while others are under way.
bool ct_take_part(uint64_t key, int device, uint64_t bytes, struct ct_draw *draw) {
    struct ct_thread_state before = ct_save_thread();
    bool fits = false, others = true;
    ct_begin_attempts(); // each attempt may wait for a grant, and all of them together no longer than one
    for (int i = 0; i < TRIES && !fits && others; i++) {
        if (i > 0) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        *draw = (struct ct_draw){.more = bytes};
        ct_edit(CT_POOLS, key, promise, draw);
        fits = ct_take_whole(key, device, draw);
        if (!fits) ct_edit(CT_POOLS, key, withdraw, draw);
        others = draw->unused || draw->more;
    }
    ct_end_attempts();
    if (!fits) *draw = (struct ct_draw){0};
    ct_restore_thread(before);
    return fits;
}

// Memory that is freed but still in use, or kept for later, may be given back at the synchronisation after this one.
static bool settle_and_look(struct ct_entry *entry, void *unused) {
    (void)unused;
    settle_one(entry, &(struct settling){0});
    if (entry->device >= 0 && ct_unused_bytes(entry->key)) ct_expect_shrink();
    return false;
}

void ct_settle_all(void) {
    atomic_store_explicit(&ct_shrinking, false, memory_order_relaxed);
    ct_edit_all(CT_POOLS, settle_and_look, NULL);
}

// A reserve that has promised unused bytes to a request is not trimmed.
static bool trim_one(struct ct_entry *entry, void *with) {
    struct ct_entry *sought = with;
    if (entry->device != sought->device || entry->host) return false;
    uint64_t before = entry->bytes;
    if (is_graph_memory(entry->key)) CALL(cuDeviceGraphMemTrim, ordinal_of(entry->key));
    else CALL(cuMemPoolTrimTo, pool_of(entry->key), 0);
    settle_one(entry, &(struct settling){0});
    sought->bytes += before > entry->bytes ? before - entry->bytes : 0;
    return false;
}

bool ct_trim_reserves(int device) {
    struct ct_entry sought = {.device = (int16_t)device};
    ct_edit_all(CT_POOLS, trim_one, &sought);
    return sought.bytes > 0;
}

void ct_learn_reserve(uint64_t key, int device) {
    struct ct_entry entry = {.key = key, .device = (int16_t)device}, before;
    if (ct_get(CT_POOLS, key, &before)) return;
    if (!ct_put(CT_POOLS, &entry, &before)) ct_count_fault(CT_FAULT_MEMORY);
    else if (before.key) ct_put(CT_POOLS, &before, &entry); // two threads at once: the first may be charged already
}

uint64_t ct_learn_graph_memory(CUdevice ordinal, int device) {
    uint64_t key = (uint64_t)ordinal + 1;
    ct_learn_reserve(key, device);
    return key;
}
