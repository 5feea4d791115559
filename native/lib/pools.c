// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered allocation. What is freed may stay in its pool, so a slice is charged for what its pools hold
// (reserves.c) and not for what was asked of them.

#include "hooks.h"
#include "memory.h"
#include "region.h"

#define GRANULE (UINT64_C(2) << 20) // the least by which a pool grows

static uint64_t whole_granules(uint64_t bytes) {
    return bytes > UINT64_MAX - GRANULE ? UINT64_MAX : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

static uint64_t key_of(CUmemoryPool pool) { return (uint64_t)(uintptr_t)pool; }

static CUdevice whose_default(CUmemoryPool pool) {
    int count = 0;
    if (HAS(cuDeviceGetCount)) REAL(cuDeviceGetCount)(&count);
    for (CUdevice ordinal = 0; ordinal < count; ordinal++) {
        CUmemoryPool first = 0, current = 0;
        CALL(cuDeviceGetDefaultMemPool, &first, ordinal);
        CALL(cuDeviceGetMemPool, &current, ordinal);
        if (pool == first || pool == current) return ordinal;
    }
    return -1;
}

// Where a pool's memory counts. Managed memory may go to the device wherever it is at home.
static int counts_on(int type, const CUmemLocation *location) {
    int device = ct_device_at(location);
    return device < 0 && type == CU_MEM_ALLOCATION_TYPE_MANAGED ? ct_current_device() : device;
}

static _Bool tells(CUmemoryPool pool, int attribute, int *value) {
    return CALL(cuMemPoolGetAttribute, pool, attribute, value) == CUDA_SUCCESS;
}

// A pool we did not see made: the driver's own, or one from before we were here.
static int find_device(CUmemoryPool pool) {
    int type;
    CUmemLocation location;
    if (tells(pool, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type) &&
        tells(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &location.type) &&
        tells(pool, CU_MEMPOOL_ATTR_LOCATION_ID, &location.id))
        return counts_on(type, &location);
    CUdevice ordinal = whose_default(pool);
    return ordinal < 0 ? ct_current_device() : ct_device_of(ordinal);
}

static int device_of(CUmemoryPool pool) {
    struct ct_entry entry;
    if (ct_look(CT_POOLS, key_of(pool), &entry)) return entry.device;
    int device = find_device(pool);
    ct_learn_reserve(key_of(pool), device);
    return device;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = CALL(cuMemPoolCreate, pool, properties);
    if (result != CUDA_SUCCESS || !ct_in_slice()) return result;
    ct_learn_reserve(key_of(*pool), counts_on(properties->allocType, &properties->location));
    return result;
}

// What is still allocated from a destroyed pool lives on, and is charged pointer by pointer.
static _Bool orphan(struct ct_entry *entry, void *with) {
    const struct ct_entry *pool = with;
    if (entry->kind != CT_POOLED || entry->owner != pool->key) return 0;
    entry->kind = CT_PLAIN;
    entry->owner = 0;
    ct_charge(entry->device, CT_DEVICE, entry->bytes);
    return 0;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    struct ct_entry entry;
    _Bool known = ct_in_slice() && ct_take(CT_POOLS, key_of(pool), &entry);
    CUresult result = CALL(cuMemPoolDestroy, pool);
    if (known && result == CUDA_SUCCESS) ct_edit_all(CT_POINTERS, orphan, &entry);
    return ct_freed(CT_POOLS, known, &entry, result);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = CALL(cuMemPoolTrimTo, pool, keep);
    if (ct_in_slice()) ct_settle(key_of(pool), (struct ct_taking){0});
    return result;
}

// The name by which a stream can be asked about through functions that know nothing of per-thread default streams.
static CUstream per_thread(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

static _Bool capturing(CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CALL(cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUmemoryPool current_pool(CUstream stream) {
    CUdevice ordinal = 0;
    CUmemoryPool pool = 0;
    if (!stream || CALL(cuStreamGetDevice, stream, &ordinal) != CUDA_SUCCESS) CALL(cuCtxGetDevice, &ordinal);
    CALL(cuDeviceGetMemPool, &pool, ordinal);
    return pool;
}

// A request of a stream, and by which of the driver's functions it came.
struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool; // 0: the current one of the stream's GPU
    CUstream stream;
    CUresult (*ask)(const struct request *request);
};

// Where a pool's holdings are not told, a request is charged like any other allocation.
static CUresult allocate_by_request(int device, const struct request *request) {
    if (!ct_claim(device, request->bytes)) return ct_fall_back(device, request->pointer, request->bytes);
    CUresult result = request->ask(request);
    return ct_book_pointer(device, request->bytes, result, *request->pointer);
}

// The pool grew by more than the request, and by more than there is room for.
static void undo(int device, const struct request *request, CUstream stream) {
    CALL(cuMemFreeAsync, *request->pointer, stream);
    ct_may_shrink();
    ct_trim(device);
}

// All of the request is announced, though the pool may have it unused: another thread may be about to take the same, or
// it may lie in pieces. Near the quota an unused pool is therefore trimmed rather than used again.
static CUresult allocate_pooled(int device, const struct request *request, CUstream stream, uint64_t pool) {
    struct ct_taking taking = {.more = whole_granules(request->bytes)};
    if (ct_unused(pool) == CT_NOT_TOLD) return allocate_by_request(device, request);
    if (ct_take_whole(pool, device, &taking)) {
        CUresult result = request->ask(request);
        _Bool fits = ct_settle(pool, taking);
        struct ct_entry entry = {.bytes = request->bytes, .owner = pool, .device = (int16_t)device, .kind = CT_POOLED};
        if (result != CUDA_SUCCESS && !ct_may_fall_back(device, result)) return result;
        if (result == CUDA_SUCCESS && fits) return ct_booked(CT_POINTERS, &entry, result, *request->pointer);
        if (result == CUDA_SUCCESS) undo(device, request, stream);
    }
    return ct_fall_back(device, request->pointer, request->bytes);
}

// `stream` is the request's, by the name it can be asked about with.
static CUresult allocate(const struct request *request, CUstream stream) {
    int device = ct_here();
    if (device < 0 || !request->pointer || !request->bytes) return request->ask(request);
    CUmemoryPool pool = request->pool ? request->pool : current_pool(stream);
    if (pool) device = device_of(pool);
    if (device < 0) return request->ask(request);
    // Recorded into a graph, it allocates nothing before that is launched.
    if (capturing(stream) && !ct_node_fits(device, request->bytes)) return ct_refuse(device);
    if (capturing(stream)) return request->ask(request);
    return pool ? allocate_pooled(device, request, stream, key_of(pool)) : allocate_by_request(device, request);
}

#define ASK(name, ...) \
    static CUresult ask_##name(const struct request *of) { return CALL(name, of->pointer, of->bytes, __VA_ARGS__); }
ASK(cuMemAllocAsync, of->stream)
ASK(cuMemAllocAsync_ptsz, of->stream)
ASK(cuMemAllocFromPoolAsync, of->pool, of->stream)
ASK(cuMemAllocFromPoolAsync_ptsz, of->pool, of->stream)

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(&(struct request){pointer, bytes, 0, stream, ask_cuMemAllocAsync}, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(&(struct request){pointer, bytes, 0, stream, ask_cuMemAllocAsync_ptsz}, per_thread(stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate(&(struct request){pointer, bytes, pool, stream, ask_cuMemAllocFromPoolAsync}, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate(&(struct request){pointer, bytes, pool, stream, ask_cuMemAllocFromPoolAsync_ptsz},
                    per_thread(stream));
}

// Managed memory is freed at once, so what the stream still does with it is waited for.
static CUresult free_after(CUdeviceptr pointer, CUstream stream) {
    int mode = ct_relax_capture();
    CUresult result = CALL(cuStreamSynchronize, stream);
    if (result == CUDA_SUCCESS) result = CALL(cuMemFree_v2, pointer);
    ct_restore_capture(mode);
    return result;
}

static CUresult release(CUdeviceptr pointer, CUstream stream, CUresult (*ask)(CUdeviceptr, CUstream), CUstream called) {
    struct ct_entry entry;
    if (!ct_in_slice()) return ask(pointer, called);
    _Bool known = ct_take(CT_POINTERS, pointer, &entry);
    _Bool fell_back = known && entry.kind == CT_FELL_BACK && !capturing(stream);
    CUresult result = fell_back ? free_after(pointer, stream) : ask(pointer, called);
    if (!known || entry.kind == CT_POOLED) ct_may_shrink();
    return ct_freed(CT_POINTERS, known, &entry, result);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    if (!HAS(cuMemFreeAsync)) return CUDA_ERROR_NOT_SUPPORTED;
    return release(pointer, stream, REAL(cuMemFreeAsync), stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    if (!HAS(cuMemFreeAsync_ptsz)) return CUDA_ERROR_NOT_SUPPORTED;
    return release(pointer, per_thread(stream), REAL(cuMemFreeAsync_ptsz), stream);
}

// A pool gives memory back when something is waited for; until then it is charged for it.
#define SYNCHRONISES(name, parameters, ...)       \
    CUresult name parameters {                    \
        CUresult result = CALL(name, __VA_ARGS__); \
        ct_synchronised();                        \
        return result;                            \
    }
SYNCHRONISES(cuStreamSynchronize, (CUstream stream), stream)
SYNCHRONISES(cuStreamSynchronize_ptsz, (CUstream stream), stream)
SYNCHRONISES(cuCtxSynchronize, (void))
SYNCHRONISES(cuCtxSynchronize_v2, (CUcontext context), context)
SYNCHRONISES(cuEventSynchronize, (CUevent event), event)
