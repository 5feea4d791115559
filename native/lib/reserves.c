// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Reserves hold more memory than is in use: the driver's pools, and what graphs keep on a GPU between launches. What a
// request may make them grow by is announced, and afterwards the charge is settled to the driver's own figure. Both
// kinds are in one book; graph memory is under the GPU's ordinal, which is far below any address. What requests under
// way have announced, and what they were promised of the unused, is in the entry too: threads share a reserve.

#include <time.h>

#include "hooks.h"
#include "lock.h"
#include "memory.h"
#include "region.h"

#define ORDINALS 256 // more than a driver has
#define TRIES 1000   // of 50 us, while others are under way

_Atomic _Bool ct_shrinking;

static CUmemoryPool pool_of(uint64_t key) { return (CUmemoryPool)(uintptr_t)key; }

static _Bool is_graph_memory(uint64_t key) { return key <= ORDINALS; }

static CUdevice ordinal_of(uint64_t key) { return (CUdevice)key - 1; }

static CUresult ask(uint64_t key, int pool_attribute, int graph_attribute, uint64_t *bytes) {
    *bytes = 0;
    if (is_graph_memory(key)) return CALL(cuDeviceGetGraphMemAttribute, ordinal_of(key), graph_attribute, bytes);
    return CALL(cuMemPoolGetAttribute, pool_of(key), pool_attribute, bytes);
}

static CUresult ask_held(uint64_t key, uint64_t *bytes) {
    return ask(key, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
}

uint64_t ct_unused(uint64_t key) {
    uint64_t held, used;
    if (ask_held(key, &held) != CUDA_SUCCESS) return CT_NOT_TOLD;
    if (ask(key, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS) return 0;
    return held > used ? held - used : 0;
}

struct settling {
    struct ct_taking taken;
    _Bool fits;
};

static uint64_t minus(uint64_t from, uint64_t bytes) { return from > bytes ? from - bytes : 0; }

// What others have announced may be in the driver's figure already: the last of them finds out, and it is charged.
static _Bool settle_one(struct ct_entry *entry, void *with) {
    struct settling *settling = with;
    uint64_t held, owed = entry->bytes + settling->taken.more;
    entry->owner = minus(entry->owner, settling->taken.more);
    entry->host = minus(entry->host, settling->taken.unused);
    if (entry->device < 0 || ask_held(entry->key, &held) != CUDA_SUCCESS) held = entry->bytes;
    if (held > owed) held = held - owed > entry->owner ? held - entry->owner : owed;
    if (held < owed) ct_release(entry->device, CT_DEVICE, owed - held);
    if (held > owed && !ct_reserve(entry->device, CT_DEVICE, held - owed)) {
        settling->fits = 0;
        ct_charge(entry->device, CT_DEVICE, held - owed);
    }
    entry->bytes = held;
    return 0;
}

_Bool ct_settle(uint64_t key, struct ct_taking taken) {
    struct settling settling = {.taken = taken, .fits = 1};
    ct_edit(CT_POOLS, key, settle_one, &settling);
    return settling.fits;
}

static _Bool promise(struct ct_entry *entry, void *with) {
    struct ct_taking *taking = with;
    uint64_t left = minus(ct_unused(entry->key), entry->host);
    taking->unused = taking->more < left ? taking->more : left;
    taking->more -= taking->unused;
    entry->host += taking->unused;
    return 0;
}

static _Bool announce(struct ct_entry *entry, void *with) {
    entry->owner += ((const struct ct_taking *)with)->more;
    return 0;
}

static _Bool withdraw(struct ct_entry *entry, void *with) {
    struct ct_taking *taking = with;
    entry->host = minus(entry->host, taking->unused);
    *taking = (struct ct_taking){entry->host, entry->owner}; // of others
    return 0;
}

_Bool ct_take_whole(uint64_t key, int device, struct ct_taking *taking) {
    if (!ct_claim(device, taking->more)) return 0;
    ct_edit(CT_POOLS, key, announce, taking);
    return 1;
}

// Between the driver's launch and ours being settled a request counts twice: as used, and as promised. So who does not
// fit asks again while there are such.
_Bool ct_take_part(uint64_t key, int device, uint64_t bytes, struct ct_taking *taking) {
    struct ct_aside before = ct_step_aside();
    _Bool fits = 0, others = 1;
    for (int i = 0; i < TRIES && !fits && others; i++) {
        if (i > 0) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        *taking = (struct ct_taking){.more = bytes};
        ct_edit(CT_POOLS, key, promise, taking);
        fits = ct_take_whole(key, device, taking);
        if (!fits) ct_edit(CT_POOLS, key, withdraw, taking);
        others = taking->unused || taking->more;
    }
    if (!fits) *taking = (struct ct_taking){0};
    ct_step_back(before);
    return fits;
}

// What is freed but not yet out of use, or kept for later, may still go at the synchronisation after this one.
static _Bool settle_and_look(struct ct_entry *entry, void *unused) {
    (void)unused;
    settle_one(entry, &(struct settling){0});
    if (entry->device >= 0 && ct_unused(entry->key)) ct_may_shrink();
    return 0;
}

void ct_settle_all(void) {
    atomic_store_explicit(&ct_shrinking, 0, memory_order_relaxed);
    ct_edit_all(CT_POOLS, settle_and_look, NULL);
}

// What was promised to somebody is not unused.
static _Bool trim_one(struct ct_entry *entry, void *with) {
    struct ct_entry *sought = with;
    if (entry->device != sought->device || entry->host) return 0;
    uint64_t before = entry->bytes;
    if (is_graph_memory(entry->key)) CALL(cuDeviceGraphMemTrim, ordinal_of(entry->key));
    else CALL(cuMemPoolTrimTo, pool_of(entry->key), 0);
    settle_one(entry, &(struct settling){0});
    sought->bytes += before > entry->bytes ? before - entry->bytes : 0;
    return 0;
}

_Bool ct_trim(int device) {
    struct ct_entry sought = {.device = (int16_t)device};
    ct_edit_all(CT_POOLS, trim_one, &sought);
    return sought.bytes > 0;
}

void ct_learn_reserve(uint64_t key, int device) {
    struct ct_entry entry = {.key = key, .device = (int16_t)device}, before;
    if (ct_look(CT_POOLS, key, &before)) return;
    if (!ct_put(CT_POOLS, &entry, &before)) ct_fault(CT_FAULT_MEMORY);
    else if (before.key) ct_put(CT_POOLS, &before, &entry); // two threads at once: the first was charged already
}

uint64_t ct_graph_memory(CUdevice ordinal, int device) {
    uint64_t key = (uint64_t)ordinal + 1;
    ct_learn_reserve(key, device);
    return key;
}
