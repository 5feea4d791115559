// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Destroying a context frees its memory and arrays. Pools and physical memory belong to the GPU and stay; the driver is
// asked afterwards what it still holds of them. A context may also have a heap, from which kernels allocate.

#include "compute.h"
#include "hooks.h"
#include "memory.h"

#define MOST_BYTES (UINT64_C(768) << 20) // of one context

// What a context may take within the request of the slice. What is granted beyond it is not guaranteed.
static uint64_t likely_bytes(int device) {
    uint64_t used = ct_used(device, CT_DEVICE);
    uint64_t request = atomic_load_explicit(&ct_limits_now[device].request, memory_order_relaxed);
    uint64_t left = request > used ? request - used : 0;
    return left < MOST_BYTES ? left : MOST_BYTES;
}

// The memory of a context is the driver's own and is not claimed. If there is none, and the slice has some left, others
// have to give it back.
#define MAKE(name, ordinal, ...)                                                                     \
    do {                                                                                             \
        if (!ct_in_slice()) return CALL(name, __VA_ARGS__);                                          \
        CUresult result = CALL(name, __VA_ARGS__);                                                   \
        int device = result == CUDA_ERROR_OUT_OF_MEMORY ? ct_device_of(ordinal) : -1;                \
        if (device < 0) return result;                                                               \
        CT_ASK_DRIVER(result, device, likely_bytes(device), CALL(name, __VA_ARGS__));                \
        return result;                                                                               \
    } while (0)

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice ordinal) {
    MAKE(cuCtxCreate, ordinal, context, flags, ordinal);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal) {
    MAKE(cuCtxCreate_v2, ordinal, context, flags, ordinal);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned flags, CUdevice ordinal) {
    MAKE(cuCtxCreate_v3, ordinal, context, affinities, count, flags, ordinal);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice ordinal) {
    MAKE(cuCtxCreate_v4, ordinal, context, parameters, flags, ordinal);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    MAKE(cuDevicePrimaryCtxRetain, ordinal, context, ordinal);
}

// The driver tells the context of a pointer only as long as the context exists, so the pointers that will go with it
// are marked before it is destroyed.
static bool mark_owned(struct ct_entry *entry, void *context) {
    CUcontext owner = 0;
    if (ct_is_pooled(entry)) return false;
    if (CALL(cuPointerGetAttribute, &owner, CU_POINTER_ATTRIBUTE_CONTEXT, entry->key) != CUDA_SUCCESS) return false;
    if (owner == context) entry->owner = (uint64_t)(uintptr_t)context;
    return false;
}

static bool give_back_owned(struct ct_entry *entry, void *context) {
    if (ct_is_pooled(entry) || entry->owner != (uint64_t)(uintptr_t)context) return false;
    ct_give_back(entry);
    return true;
}

static void prepare_to_lose(CUcontext context) { ct_edit_all(CT_POINTERS, mark_owned, context); }

static void give_back_all_of(CUcontext context) {
    ct_edit_all(CT_POINTERS, give_back_owned, context);
    ct_edit_all(CT_ARRAYS, give_back_owned, context);
    ct_forget_libraries(context);
    ct_expect_shrink();
    ct_settle_if_shrinking();
}

#define DESTROY(name, context)                                       \
    do {                                                             \
        bool ours = ct_in_slice() && (context);                     \
        if (ours) prepare_to_lose(context);                          \
        if (ours) ct_forget_events(context, false);                  \
        CUresult result = CALL(name, context);                       \
        if (ours && result == CUDA_SUCCESS) give_back_all_of(context); \
        return result;                                               \
    } while (0)

CUresult cuCtxDestroy(CUcontext context) { DESTROY(cuCtxDestroy, context); }

CUresult cuCtxDestroy_v2(CUcontext context) { DESTROY(cuCtxDestroy_v2, context); }

static bool is_active(CUdevice device) {
    unsigned flags;
    int active = 0;
    return CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

// The primary context of a GPU, if there is one now. Retaining it tells which it is; the reference is released at once.
static CUcontext find_primary(CUdevice device) {
    CUcontext context = 0;
    if (!ct_in_slice() || !is_active(device)) return 0;
    if (CALL(cuDevicePrimaryCtxRetain, &context, device) != CUDA_SUCCESS) return 0;
    if (HAS(cuDevicePrimaryCtxRelease_v2)) REAL(cuDevicePrimaryCtxRelease_v2)(device);
    else CALL(cuDevicePrimaryCtxRelease, device);
    return context;
}

// A reset destroys the primary context however many references there are.
#define RESET(name, device)                                      \
    do {                                                         \
        CUcontext context = find_primary(device);                     \
        if (context) prepare_to_lose(context);                   \
        if (context) ct_forget_events(context, false);           \
        CUresult result = CALL(name, device);                    \
        if (context && result == CUDA_SUCCESS) give_back_all_of(context); \
        return result;                                           \
    } while (0)

CUresult cuDevicePrimaryCtxReset(CUdevice device) { RESET(cuDevicePrimaryCtxReset, device); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { RESET(cuDevicePrimaryCtxReset_v2, device); }

// The last release destroys the primary context; whether it was the last one is seen afterwards.
#define RELEASE(name, device)                                    \
    do {                                                         \
        CUcontext context = find_primary(device);                     \
        if (context) prepare_to_lose(context);                   \
        if (context) ct_read_events(context);                    \
        CUresult result = CALL(name, device);                    \
        if (!context || is_active(device)) return result;        \
        ct_forget_events(context, true);                         \
        give_back_all_of(context);                               \
        return result;                                           \
    } while (0)

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { RELEASE(cuDevicePrimaryCtxRelease, device); }

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { RELEASE(cuDevicePrimaryCtxRelease_v2, device); }

// What the driver takes for a limit of this value, if it can be told: a heap and a FIFO of that size, or a stack for each
// thread that can run at a time.
static bool bytes_of(int limit, uint64_t value, uint64_t *bytes) {
    int processors = 0, threads = 0;
    CUdevice ordinal;
    *bytes = value;
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE) return true;
    if (limit != CU_LIMIT_STACK_SIZE || CALL(cuCtxGetDevice, &ordinal) != CUDA_SUCCESS) return false;
    CALL(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal);
    CALL(cuDeviceGetAttribute, &threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, ordinal);
    if (processors <= 0 || threads <= 0) return false;
    if (__builtin_mul_overflow(value, (uint64_t)processors * (uint64_t)threads, bytes)) *bytes = UINT64_MAX;
    return true;
}

// A limit is charged with the size that was set, in the book of arrays (it has no address either), under a key that is
// no array's. The driver's default sizes are not charged.
static CUresult set_known_limit(CUcontext context, int device, int limit, size_t value, uint64_t bytes) {
    struct ct_entry before, memory = {.owner = (uint64_t)(uintptr_t)context, .device = (int16_t)device};
    uint64_t key = memory.owner + (uint64_t)limit;
    ct_take(CT_ARRAYS, key, &memory);
    uint64_t more = bytes > memory.bytes ? bytes - memory.bytes : 0, less = bytes < memory.bytes ? memory.bytes - bytes : 0;
    bool fits = ct_claim(device, more);
    CUresult result = fits ? CALL(cuCtxSetLimit, limit, value) : ct_refuse(device);
    if (result == CUDA_SUCCESS) memory.bytes = bytes;
    if (fits) ct_release(device, CT_DEVICE, result == CUDA_SUCCESS ? less : more);
    memory.key = key;
    if (memory.bytes && !ct_put(CT_ARRAYS, &memory, &before)) ct_count_fault(CT_FAULT_MEMORY);
    return result;
}

// What the driver takes for other limits (launches that kernels make) it does not tell: it is measured.
static CUresult set_other_limit(int device, int limit, size_t value) {
    size_t former = 0;
    bool known = CALL(cuCtxGetLimit, &former, limit) == CUDA_SUCCESS;
    uint64_t before = ct_measure_overhead(device);
    CUresult result = CALL(cuCtxSetLimit, limit, value);
    if (result != CUDA_SUCCESS || !known || ct_may_keep(device, before)) return result;
    CALL(cuCtxSetLimit, limit, former);
    ct_measure_overhead(device);
    return ct_refuse(device);
}

CUresult cuCtxSetLimit(int limit, size_t value) {
    CUcontext context = 0;
    uint64_t bytes;
    int device = ct_device_here();
    if (device >= 0) CALL(cuCtxGetCurrent, &context);
    if (!context) return CALL(cuCtxSetLimit, limit, value);
    if (!bytes_of(limit, value, &bytes)) return set_other_limit(device, limit, value);
    return set_known_limit(context, device, limit, value, bytes);
}
