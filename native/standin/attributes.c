// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the driver says of an address, and advice about managed memory, which changes nothing here.

#include <string.h>

#include "driver.h"

static bool is_hosts(const struct si_block *block) { return block->kind == SI_HOST || block->kind == SI_REGISTERED; }

// Writes one attribute; false if the address does not have it.
static bool tell(const struct si_block *block, int attribute, uint64_t pointer, void *to) {
    bool reachable = is_hosts(block) || block->kind == SI_MANAGED;
    void *at = (void *)(uintptr_t)pointer, *pool = block->kind == SI_POOLED ? block->owner : NULL;
    int ordinal = block->device < 0 ? -1 : si_ordinal(block->device);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)to = block->context; return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)to = is_hosts(block) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)to = pointer; return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(void **)to = reachable ? at : NULL; return reachable;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(int *)to = 0; return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)to = block->id; return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)to = block->kind == SI_MANAGED; return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)to = ordinal; return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)to = block->kind == SI_DEVICE; return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)to = block->address; return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)to = block->size; return true;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)to = 1; return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)to = 0; return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(int *)to = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE; return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(void **)to = pool; return true;
    default: return false;
    }
}

// Of an address that the driver does not know: of the host, and nothing else.
static void tell_nothing(int attribute, uint64_t pointer, void *to) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)to = -2; return; // CU_DEVICE_INVALID
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(void **)to = (void *)(uintptr_t)pointer; return;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)to = 0; return;
    default: *(int *)to = 0;
    }
}

API(cuPointerGetAttribute)(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    struct si_block block;
    KNOWN(value && si_find_block(pointer, &block));
    return tell(&block, (int)attribute, pointer, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuPointerGetAttributes)(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr pointer) {
    struct si_block block;
    KNOWN(attributes && values);
    bool known = si_find_block(pointer, &block);
    for (unsigned i = 0; i < count; i++)
        if (!known || !tell(&block, (int)attributes[i], pointer, values[i]))
            tell_nothing((int)attributes[i], pointer, values[i]);
    return CUDA_SUCCESS;
}

API(cuPointerSetAttribute)(const void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    struct si_block block;
    KNOWN(value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && si_find_block(pointer, &block));
    return CUDA_SUCCESS;
}

static CUresult advise(CUdeviceptr pointer) {
    struct si_block block;
    TRY(si_ready());
    KNOWN(si_find_block(pointer, &block));
    KNOWN(block.kind == SI_MANAGED || (block.kind == SI_POOLED && si_is_managed(block.owner)));
    return CUDA_SUCCESS;
}

API(cuMemAdvise)(CUdeviceptr pointer, size_t size, CUmem_advise advice, CUdevice device) {
    (void)size, (void)advice, (void)device;
    return advise(pointer);
}

API(cuMemAdvise_v2)(CUdeviceptr pointer, size_t size, CUmem_advise advice, CUmemLocation location) {
    (void)size, (void)advice, (void)location;
    return advise(pointer);
}

API(cuMemPrefetchAsync)(CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream) {
    (void)size, (void)stream;
    TRY(advise(pointer));
    return si_prefetch(pointer, device == CU_DEVICE_CPU ? -1 : si_physical(device));
}

API(cuMemPrefetchAsync_v2)(CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned flags, CUstream stream) {
    (void)flags;
    return si_cuMemPrefetchAsync(pointer, size, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU, stream);
}

API(cuMemPrefetchBatchAsync)
(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *places, size_t *starts, size_t place_count,
 unsigned long long flags, CUstream stream) {
    KNOWN(pointers && sizes && count && places && starts && place_count && !starts[0] && !flags);
    for (size_t i = 0, place = 0; i < count; i++) {
        while (place + 1 < place_count && starts[place + 1] <= i) place++;
        TRY(si_cuMemPrefetchAsync_v2(pointers[i], sizes[i], places[place], 0, stream));
    }
    return CUDA_SUCCESS;
}

API(cuMemDiscardAndPrefetchBatchAsync)
(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *places, size_t *starts, size_t place_count,
 unsigned long long flags, CUstream stream) {
    return si_cuMemPrefetchBatchAsync(pointers, sizes, count, places, starts, place_count, flags, stream);
}
