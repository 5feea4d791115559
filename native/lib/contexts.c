// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A context takes its memory and arrays with it when it goes. Pools and physical memory belong to the GPU and stay;
// what the driver still holds of them is asked afterwards. And a context may have a heap, from which kernels allocate.

#include "compute.h"
#include "hooks.h"
#include "memory.h"

// Pointers tell their context, as long as it is there: what will go with it is marked before.
static _Bool mark(struct ct_entry *entry, void *context) {
    CUcontext owner = 0;
    if (entry->kind == CT_POOLED) return 0;
    if (CALL(cuPointerGetAttribute, &owner, CU_POINTER_ATTRIBUTE_CONTEXT, entry->key) != CUDA_SUCCESS) return 0;
    if (owner == context) entry->owner = (uint64_t)(uintptr_t)context;
    return 0;
}

static _Bool is_of(struct ct_entry *entry, void *context) {
    if (entry->kind == CT_POOLED || entry->owner != (uint64_t)(uintptr_t)context) return 0;
    ct_give_back(entry);
    return 1;
}

static void going(CUcontext context) { ct_edit_all(CT_POINTERS, mark, context); }

static void gone(CUcontext context) {
    ct_edit_all(CT_POINTERS, is_of, context);
    ct_edit_all(CT_ARRAYS, is_of, context);
    ct_may_shrink();
    ct_synchronised();
}

#define DESTROY(name, context)                                       \
    do {                                                             \
        _Bool ours = ct_in_slice() && (context);                     \
        if (ours) going(context), ct_forget_events(context);         \
        CUresult result = CALL(name, context);                       \
        if (ours && result == CUDA_SUCCESS) gone(context);           \
        return result;                                               \
    } while (0)

CUresult cuCtxDestroy(CUcontext context) { DESTROY(cuCtxDestroy, context); }

CUresult cuCtxDestroy_v2(CUcontext context) { DESTROY(cuCtxDestroy_v2, context); }

static _Bool active(CUdevice device) {
    unsigned flags;
    int active = 0;
    return CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

// The primary context of a GPU if there is one now. Holding it tells which it is; one more reference, taken off again,
// changes nothing.
static CUcontext primary(CUdevice device) {
    CUcontext context = 0;
    if (!ct_in_slice() || !active(device) || CALL(cuDevicePrimaryCtxRetain, &context, device) != CUDA_SUCCESS) return 0;
    if (HAS(cuDevicePrimaryCtxRelease_v2)) REAL(cuDevicePrimaryCtxRelease_v2)(device);
    else CALL(cuDevicePrimaryCtxRelease, device);
    return context;
}

// A reset ends it however often it is held.
#define RESET(name, device)                                      \
    do {                                                         \
        CUcontext context = primary(device);                     \
        if (context) going(context), ct_forget_events(context);  \
        CUresult result = CALL(name, device);                    \
        if (context && result == CUDA_SUCCESS) gone(context);    \
        return result;                                           \
    } while (0)

CUresult cuDevicePrimaryCtxReset(CUdevice device) { RESET(cuDevicePrimaryCtxReset, device); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { RESET(cuDevicePrimaryCtxReset_v2, device); }

// The last release ends it; which one that was is seen afterwards.
#define RELEASE(name, device)                                    \
    do {                                                         \
        CUcontext context = primary(device);                     \
        if (context) going(context);                             \
        CUresult result = CALL(name, device);                    \
        if (!context || active(device)) return result;           \
        ct_forget_events(context);                               \
        gone(context);                                           \
        return result;                                           \
    } while (0)

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { RELEASE(cuDevicePrimaryCtxRelease, device); }

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { RELEASE(cuDevicePrimaryCtxRelease_v2, device); }

// The heap is charged as large as it is set, in the book of what has no address; its key is the context's. The driver's
// own default is not charged: it is taken by few programs and seen by none.
CUresult cuCtxSetLimit(int limit, size_t value) {
    CUcontext context = 0;
    int device = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? ct_here() : -1;
    if (device >= 0) CALL(cuCtxGetCurrent, &context);
    if (!context) return CALL(cuCtxSetLimit, limit, value);
    struct ct_entry before, heap = {.owner = (uint64_t)(uintptr_t)context, .device = (int16_t)device};
    ct_take(CT_ARRAYS, heap.owner, &heap);
    uint64_t more = value > heap.bytes ? value - heap.bytes : 0, less = value < heap.bytes ? heap.bytes - value : 0;
    _Bool fits = ct_claim(device, more);
    CUresult result = fits ? CALL(cuCtxSetLimit, limit, value) : ct_refuse(device);
    if (result == CUDA_SUCCESS) heap.bytes = value;
    if (fits) ct_release(device, CT_DEVICE, result == CUDA_SUCCESS ? less : more);
    heap.key = heap.owner;
    if (heap.bytes && !ct_put(CT_ARRAYS, &heap, &before)) ct_fault(CT_FAULT_MEMORY);
    return result;
}
