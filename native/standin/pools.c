// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory pools: they take memory from the device in whole chunks, keep what is freed, and give back what is above their
// threshold when the program synchronises.

#include <stdlib.h>

#include "driver.h"

#define CHUNK (UINT64_C(2) << 20)
#define MANAGED 2 // CU_MEM_ALLOCATION_TYPE_MANAGED, which CUDA 12 does not define

struct CUmemPoolHandle_st {
    int device; // -1: the host
    bool dead;
    uint64_t limit;
    uint64_t threshold;
    uint64_t reserved, used, reserved_high, used_high;
    int reuse[4];
    CUmemPoolProps properties;
    CUmemoryPool next;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool everything;
static CUmemoryPool ordinary[SI_DEVICES], chosen[SI_DEVICES];
static _Atomic bool unsettled;

static CUmemoryPool make(int device) {
    CUmemoryPool pool = calloc(1, sizeof *pool);
    pool->device = device;
    for (int i = 1; i < 4; i++) pool->reuse[i] = 1;
    pool->next = everything;
    everything = pool;
    return pool;
}

static CUmemoryPool ordinary_of(int device) {
    if (!ordinary[device]) {
        ordinary[device] = make(device);
        ordinary[device]->properties = (CUmemPoolProps){
            .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = si_ordinal(device)}};
    }
    return ordinary[device];
}

bool si_is_managed(CUmemoryPool pool) { return (int)pool->properties.allocType == MANAGED; }

static uint64_t chunks(uint64_t bytes) { return (bytes + CHUNK - 1) / CHUNK * CHUNK; }

static void shrink_to(CUmemoryPool pool, uint64_t kept) {
    uint64_t needed = chunks(pool->used);
    if (kept < needed) kept = needed;
    if (kept >= pool->reserved) return;
    if (pool->device >= 0) si_uncharged(pool->device, pool->reserved - kept);
    pool->reserved = kept;
}

void si_settle_pools(void) {
    if (!atomic_load_explicit(&unsettled, memory_order_relaxed)) return;
    pthread_mutex_lock(&guard);
    unsettled = false;
    for (CUmemoryPool pool = everything; pool; pool = pool->next) shrink_to(pool, pool->dead ? 0 : pool->threshold);
    pthread_mutex_unlock(&guard);
}

static CUresult grow_by(CUmemoryPool pool, uint64_t bytes) {
    uint64_t needed = chunks(pool->used + bytes);
    if (pool->limit && needed > chunks(pool->limit)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (needed > pool->reserved) {
        if (pool->device >= 0) TRY(si_charged(pool->device, needed - pool->reserved));
        pool->reserved = needed;
    }
    pool->used += bytes;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool pool) {
    uint64_t address;
    pthread_mutex_lock(&guard);
    CUresult result = grow_by(pool, size);
    pthread_mutex_unlock(&guard);
    TRY(result);
    TRY(si_new_block(&address, size, SI_POOLED, pool->device, pool));
    *pointer = address;
    return CUDA_SUCCESS;
}

CUresult si_free_pooled(const struct si_block *block) {
    CUmemoryPool pool = block->owner;
    pthread_mutex_lock(&guard);
    pool->used -= block->size;
    unsettled = true;
    pthread_mutex_unlock(&guard);
    if (pool->dead) si_settle_pools();
    return si_drop_memory(block);
}

API(cuMemAllocFromPoolAsync)(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream handle) {
    CUstream stream;
    KNOWN(pointer && pool && size);
    TRY(si_stream(handle, &stream));
    if (stream->capturing) return si_capture_allocation(stream, (uint64_t *)pointer, size);
    return allocate(pointer, size, pool);
}

API(cuMemAllocAsync)(CUdeviceptr *pointer, size_t size, CUstream handle) {
    CUmemoryPool pool;
    TRY(si_ready());
    CUresult si_cuDeviceGetMemPool(CUmemoryPool *, CUdevice);
    TRY(si_cuDeviceGetMemPool(&pool, si_ordinal(si_current->device)));
    return si_cuMemAllocFromPoolAsync(pointer, size, pool, handle);
}

API(cuMemFreeAsync)(CUdeviceptr pointer, CUstream handle) {
    CUstream stream;
    struct si_block block;
    TRY(si_stream(handle, &stream));
    if (stream->capturing) return si_capture_free(stream, pointer);
    if (!pointer) return CUDA_SUCCESS;
    unsigned kinds = 1u << SI_POOLED | 1u << SI_GRAPH | 1u << SI_DEVICE;
    if (!si_take_block(pointer, kinds, &block)) return CUDA_ERROR_INVALID_VALUE;
    if (block.kind == SI_POOLED) return si_free_pooled(&block);
    return block.kind == SI_GRAPH ? si_free_graph_memory(&block) : si_drop_memory(&block);
}

static CUresult known(CUdevice device, void *answer) {
    KNOWN(answer);
    return si_known_device(device);
}

API(cuDeviceGetDefaultMemPool)(CUmemoryPool *pool, CUdevice device) {
    TRY(known(device, pool));
    pthread_mutex_lock(&guard);
    *pool = ordinary_of(si_physical(device));
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}

API(cuDeviceGetMemPool)(CUmemoryPool *pool, CUdevice device) {
    TRY(known(device, pool));
    *pool = chosen[si_physical(device)];
    return *pool ? CUDA_SUCCESS : si_cuDeviceGetDefaultMemPool(pool, device);
}

API(cuDeviceSetMemPool)(CUdevice device, CUmemoryPool pool) {
    TRY(known(device, pool));
    chosen[si_physical(device)] = pool;
    return CUDA_SUCCESS;
}

API(cuMemPoolCreate)(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    KNOWN(pool && properties);
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    int device = on_device ? si_physical(properties->location.id) : -1;
    KNOWN(!on_device || device >= 0);
    pthread_mutex_lock(&guard);
    *pool = make(device);
    (*pool)->properties = *properties;
    (*pool)->limit = properties->maxSize;
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}

// Its allocations live on until they are freed.
API(cuMemPoolDestroy)(CUmemoryPool pool) {
    KNOWN(pool && !pool->dead);
    for (int device = 0; device < SI_DEVICES; device++) {
        KNOWN(ordinary[device] != pool);
        if (chosen[device] == pool) chosen[device] = NULL;
    }
    pool->dead = true;
    unsettled = true;
    si_settle_pools();
    return CUDA_SUCCESS;
}

API(cuMemPoolTrimTo)(CUmemoryPool pool, size_t kept) {
    KNOWN(pool);
    pthread_mutex_lock(&guard);
    shrink_to(pool, chunks(kept));
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}

static uint64_t *figure(CUmemoryPool pool, CUmemPool_attribute attribute) {
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->used_high;
    default: return NULL;
    }
}

API(cuMemPoolGetAttribute)(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    KNOWN(pool && value);
    uint64_t *found = figure(pool, attribute);
    if (found) {
        *(cuuint64_t *)value = *found;
        return CUDA_SUCCESS;
    }
    KNOWN(attribute >= 1 && attribute <= 3);
    *(int *)value = pool->reuse[attribute];
    return CUDA_SUCCESS;
}

API(cuMemPoolSetAttribute)(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    KNOWN(pool && value);
    uint64_t given = attribute > 3 ? *(cuuint64_t *)value : 0;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = given; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        KNOWN(!given); // a high mark can only be set back
        *figure(pool, attribute) = *figure(pool, attribute - 1);
        return CUDA_SUCCESS;
    default: break;
    }
    KNOWN(attribute >= 1 && attribute <= 3);
    pool->reuse[attribute] = *(int *)value;
    return CUDA_SUCCESS;
}

API(cuMemPoolSetAccess)(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
    KNOWN(pool && (access || !count));
    return CUDA_SUCCESS;
}

API(cuMemPoolGetAccess)(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
    KNOWN(flags && pool && location);
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}
