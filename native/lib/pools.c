// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered allocation. Freed memory may stay in its pool, so a slice is charged for what its pools hold
// (reserves.c) and not for what was requested from them.

#include "hooks.h"
#include "memory.h"
#include "region.h"

#define GRANULE (UINT64_C(2) << 20) // the least by which a pool grows

static uint64_t whole_granules(uint64_t bytes) {
    return bytes > UINT64_MAX - GRANULE ? UINT64_MAX : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

static uint64_t key_of(CUmemoryPool pool) { return (uint64_t)(uintptr_t)pool; }

static CUdevice find_default_of(CUmemoryPool pool) {
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

// The GPU whose quota a pool's memory counts against. Managed memory may move to the device wherever it is located.
static int counting_device(int type, const CUmemLocation *location) {
    int device = ct_device_at(location);
    return device < 0 && type == CU_MEM_ALLOCATION_TYPE_MANAGED ? ct_current_device() : device;
}

static bool get_attribute(CUmemoryPool pool, int attribute, int *value) {
    return CALL(cuMemPoolGetAttribute, pool, attribute, value) == CUDA_SUCCESS;
}

// For a pool whose creation was not hooked: the driver's own, or one from before the library started.
static int find_device(CUmemoryPool pool) {
    int type;
    CUmemLocation location;
    if (get_attribute(pool, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type) &&
        get_attribute(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &location.type) &&
        get_attribute(pool, CU_MEMPOOL_ATTR_LOCATION_ID, &location.id))
        return counting_device(type, &location);
    CUdevice ordinal = find_default_of(pool);
    return ordinal < 0 ? ct_current_device() : ct_device_of(ordinal);
}

static int device_of(CUmemoryPool pool) {
    struct ct_entry entry;
    if (ct_get(CT_POOLS, key_of(pool), &entry)) return entry.device;
    int device = find_device(pool);
    ct_learn_reserve(key_of(pool), device);
    return device;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = CALL(cuMemPoolCreate, pool, properties);
    if (result != CUDA_SUCCESS || !ct_in_slice()) return result;
    ct_learn_reserve(key_of(*pool), counting_device(properties->allocType, &properties->location));
    return result;
}

// Memory that is still allocated from a destroyed pool lives on, and is charged pointer by pointer.
static bool charge_orphan(struct ct_entry *entry, void *with) {
    const struct ct_entry *pool = with;
    if (!ct_is_pooled(entry) || entry->owner != pool->key) return false;
    if (entry->kind == CT_POOLED) ct_charge(entry->device, CT_DEVICE, entry->bytes);
    entry->kind = CT_PLAIN;
    entry->owner = 0;
    return false;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    struct ct_entry entry;
    bool known = ct_in_slice() && ct_take(CT_POOLS, key_of(pool), &entry);
    CUresult result = CALL(cuMemPoolDestroy, pool);
    if (known && result == CUDA_SUCCESS) ct_edit_all(CT_POINTERS, charge_orphan, &entry);
    return ct_book_free(CT_POOLS, known, &entry, result);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = CALL(cuMemPoolTrimTo, pool, keep);
    if (ct_in_slice()) ct_settle(key_of(pool), (struct ct_draw){0});
    return result;
}

// The handle of a per-thread default stream for functions that are not of the per-thread family.
static CUstream per_thread(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

static bool is_capturing(CUstream stream) {
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

// A request for memory on a stream, and the driver's function that serves it.
struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool; // 0: the current one of the stream's GPU
    CUstream stream;
    CUresult (*call)(const struct request *request);
};

// If the driver does not tell what a pool holds, a request is charged like any other allocation.
static CUresult allocate_by_request(int device, const struct request *request) {
    if (!ct_claim(device, request->bytes)) return ct_fall_back(device, request->pointer, request->bytes);
    CUresult result;
    CT_ASK_DRIVER(result, device, 0, request->call(request));
    return ct_book_pointer(device, request->bytes, result, *request->pointer);
}

// Frees what was allocated: the pool grew by more than the request, and that does not fit into the quota.
static void undo(int device, const struct request *request, CUstream stream) {
    CALL(cuMemFreeAsync, *request->pointer, stream);
    ct_expect_shrink();
    ct_trim_reserves(device);
}

// All of the request is announced, though the pool may have as much unused: another thread may be about to take the
// same bytes, or they may be fragmented. Near the quota an unused pool is therefore trimmed rather than used again.
static CUresult allocate_pooled(int device, const struct request *request, CUstream stream, uint64_t pool) {
    struct ct_draw draw = {.more = whole_granules(request->bytes)};
    if (ct_unused_bytes(pool) == CT_UNKNOWN_BYTES) return allocate_by_request(device, request);
    if (ct_take_whole(pool, device, &draw)) {
        CUresult result;
        CT_ASK_DRIVER(result, device, 0, request->call(request));
        bool fits = ct_settle(pool, draw);
        struct ct_entry entry = {.bytes = request->bytes, .owner = pool, .device = (int16_t)device, .kind = CT_POOLED};
        if (result != CUDA_SUCCESS && !ct_may_fall_back(device, result)) return result;
        if (result == CUDA_SUCCESS && fits) return ct_book_claim(CT_POINTERS, &entry, result, *request->pointer);
        if (result == CUDA_SUCCESS) undo(device, request, stream);
    }
    return ct_fall_back(device, request->pointer, request->bytes);
}

// `stream` is the request's stream, by the handle that plain functions know it by.
static CUresult allocate(const struct request *request, CUstream stream) {
    int device = ct_device_here();
    if (device < 0 || !request->pointer || !request->bytes) return request->call(request);
    CUmemoryPool pool = request->pool ? request->pool : current_pool(stream);
    if (pool) device = device_of(pool);
    if (device < 0) return request->call(request);
    // On a stream that records a graph nothing is allocated before the graph is launched.
    if (is_capturing(stream) && !ct_node_fits(device, request->bytes)) return ct_refuse(device);
    if (is_capturing(stream)) return request->call(request);
    return pool ? allocate_pooled(device, request, stream, key_of(pool)) : allocate_by_request(device, request);
}

#define CALL_FOR(name, ...) \
    static CUresult call_##name(const struct request *of) { return CALL(name, of->pointer, of->bytes, __VA_ARGS__); }
CALL_FOR(cuMemAllocAsync, of->stream)
CALL_FOR(cuMemAllocAsync_ptsz, of->stream)
CALL_FOR(cuMemAllocFromPoolAsync, of->pool, of->stream)
CALL_FOR(cuMemAllocFromPoolAsync_ptsz, of->pool, of->stream)

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(&(struct request){pointer, bytes, 0, stream, call_cuMemAllocAsync}, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(&(struct request){pointer, bytes, 0, stream, call_cuMemAllocAsync_ptsz}, per_thread(stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate(&(struct request){pointer, bytes, pool, stream, call_cuMemAllocFromPoolAsync}, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate(&(struct request){pointer, bytes, pool, stream, call_cuMemAllocFromPoolAsync_ptsz},
                    per_thread(stream));
}

// Managed memory is freed at once, so the stream is synchronised first: it may still use the memory.
static CUresult free_after(CUdeviceptr pointer, CUstream stream) {
    int mode = ct_relax_capture();
    CUresult result = CALL(cuStreamSynchronize, stream);
    if (result == CUDA_SUCCESS) result = CALL(cuMemFree_v2, pointer);
    ct_restore_capture(mode);
    return result;
}

static CUresult release(CUdeviceptr pointer, CUstream stream, CUresult (*real)(CUdeviceptr, CUstream),
                        CUstream called) {
    struct ct_entry entry;
    if (!ct_in_slice()) return real(pointer, called);
    bool known = ct_take(CT_POINTERS, pointer, &entry);
    bool fell_back = known && entry.kind == CT_FELL_BACK && !is_capturing(stream);
    CUresult result = fell_back ? free_after(pointer, stream) : real(pointer, called);
    if (!known || ct_is_pooled(&entry)) ct_expect_shrink();
    return ct_book_free(CT_POINTERS, known, &entry, result);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    if (!HAS(cuMemFreeAsync)) return CUDA_ERROR_NOT_SUPPORTED;
    return release(pointer, stream, REAL(cuMemFreeAsync), stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    if (!HAS(cuMemFreeAsync_ptsz)) return CUDA_ERROR_NOT_SUPPORTED;
    return release(pointer, per_thread(stream), REAL(cuMemFreeAsync_ptsz), stream);
}

// A pool gives memory back when the program synchronises; until then it is charged for it.
#define SYNCHRONISES(name, parameters, ...)       \
    CUresult name parameters {                    \
        CUresult result = CALL(name, __VA_ARGS__); \
        ct_settle_if_shrinking();                        \
        return result;                            \
    }
SYNCHRONISES(cuStreamSynchronize, (CUstream stream), stream)
SYNCHRONISES(cuStreamSynchronize_ptsz, (CUstream stream), stream)
SYNCHRONISES(cuCtxSynchronize, (void))
SYNCHRONISES(cuCtxSynchronize_v2, (CUcontext context), context)
SYNCHRONISES(cuEventSynchronize, (CUevent event), event)
