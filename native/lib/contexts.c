// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Destroying a context frees its memory and arrays. Pools and physical memory belong to the GPU and stay; the driver is
// asked afterwards what it still holds of them. A context may also have a heap, from which kernels allocate.

#include "compute.h"
#include "hooks.h"
#include "memory.h"

// The driver tells the context of a pointer only as long as the context exists, so the pointers that will go with it
// are marked before it is destroyed.
static bool mark_owned(struct ct_entry *entry, void *context) {
    CUcontext owner = 0;
    if (entry->kind == CT_POOLED) return false;
    if (CALL(cuPointerGetAttribute, &owner, CU_POINTER_ATTRIBUTE_CONTEXT, entry->key) != CUDA_SUCCESS) return false;
    if (owner == context) entry->owner = (uint64_t)(uintptr_t)context;
    return false;
}

static bool give_back_owned(struct ct_entry *entry, void *context) {
    if (entry->kind == CT_POOLED || entry->owner != (uint64_t)(uintptr_t)context) return false;
    ct_give_back(entry);
    return true;
}

static void prepare_to_lose(CUcontext context) { ct_edit_all(CT_POINTERS, mark_owned, context); }

static void give_back_all_of(CUcontext context) {
    ct_edit_all(CT_POINTERS, give_back_owned, context);
    ct_edit_all(CT_ARRAYS, give_back_owned, context);
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
        CUresult result = CALL(name, device);                    \
        if (!context || is_active(device)) return result;        \
        ct_forget_events(context, true);                         \
        give_back_all_of(context);                               \
        return result;                                           \
    } while (0)

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { RELEASE(cuDevicePrimaryCtxRelease, device); }

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { RELEASE(cuDevicePrimaryCtxRelease_v2, device); }

// The heap is charged with the size that was set, in the book of arrays (it has no address either), under the context's
// key. The driver's default size is not charged.
CUresult cuCtxSetLimit(int limit, size_t value) {
    CUcontext context = 0;
    int device = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? ct_device_here() : -1;
    if (device >= 0) CALL(cuCtxGetCurrent, &context);
    if (!context) return CALL(cuCtxSetLimit, limit, value);
    struct ct_entry before, heap = {.owner = (uint64_t)(uintptr_t)context, .device = (int16_t)device};
    ct_take(CT_ARRAYS, heap.owner, &heap);
    uint64_t more = value > heap.bytes ? value - heap.bytes : 0, less = value < heap.bytes ? heap.bytes - value : 0;
    bool fits = ct_claim(device, more);
    CUresult result = fits ? CALL(cuCtxSetLimit, limit, value) : ct_refuse(device);
    if (result == CUDA_SUCCESS) heap.bytes = value;
    if (fits) ct_release(device, CT_DEVICE, result == CUDA_SUCCESS ? less : more);
    heap.key = heap.owner;
    if (heap.bytes && !ct_put(CT_ARRAYS, &heap, &before)) ct_count_fault(CT_FAULT_MEMORY);
    return result;
}
