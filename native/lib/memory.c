// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The plain ways to allocate, and the one that stands behind several others: with a host budget, what exceeds the
// device quota becomes managed memory, which the driver keeps in host memory and moves to the device as it is used.

#include "memory.h"

#include "region.h"

#define PITCH_BYTES 512 // the driver's pitches are multiples of this on all devices we know of
#define DOES_NOT_FIT UINT64_MAX

int ct_device_at(const CUmemLocation *location) {
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return ct_device_of(location->id);
    // A part of a device: the ordinal is the first byte.
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) return ct_device_of(location->id & 0xff);
    return -1;
}

static uint64_t quota(int device) { return atomic_load_explicit(&ct_now[device].memory, memory_order_relaxed); }

_Thread_local unsigned ct_small_claims;

_Bool ct_claim_slowly(int device, uint64_t bytes) {
    uint64_t before = quota(device);
    ct_refresh();
    return (quota(device) > before || ct_trim(device)) && ct_reserve(device, CT_DEVICE, bytes);
}

CUresult ct_refuse(int device) {
    ct_refused(device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult ct_refuse_here(int device) {
    CUdevice ordinal;
    CUresult result = CALL(cuCtxGetDevice, &ordinal);
    return result == CUDA_SUCCESS ? ct_refuse(device) : result;
}

void ct_give_back(const struct ct_entry *entry) {
    if (entry->kind == CT_POOLED) return;
    ct_release(entry->device, CT_DEVICE, entry->bytes - entry->host);
    if (entry->host) ct_release(entry->device, CT_HOST, entry->host);
}

CUresult ct_booked(enum ct_book book, struct ct_entry *claim, CUresult result, uint64_t key) {
    struct ct_entry before;
    claim->key = key;
    if (result != CUDA_SUCCESS) ct_give_back(claim);
    else if (!ct_put(book, claim, &before)) ct_fault(CT_FAULT_MEMORY);
    else if (before.key) ct_give_back(&before);
    return result;
}

CUresult ct_book_pointer(int device, uint64_t bytes, CUresult result, CUdeviceptr pointer) {
    struct ct_entry claim = {.bytes = bytes, .device = (int16_t)device};
    return ct_booked(CT_POINTERS, &claim, result, pointer);
}

CUresult ct_freed(enum ct_book book, _Bool known, struct ct_entry *entry, CUresult result) {
    if (known && result != CUDA_SUCCESS) ct_booked(book, entry, CUDA_SUCCESS, entry->key);
    else if (known) ct_give_back(entry);
    return result;
}

// All of it on the host budget, or as much as the device quota has left and the rest there: the bytes that are on the
// host budget.
static uint64_t claim_host(int device, uint64_t bytes) {
    if (!atomic_load_explicit(&ct_now[device].host, memory_order_relaxed)) return DOES_NOT_FIT;
    if (ct_reserve(device, CT_HOST, bytes)) return bytes;
    uint64_t used = ct_used(device, CT_DEVICE), left = used < quota(device) ? quota(device) - used : 0;
    if (!left || left >= bytes || !ct_reserve(device, CT_DEVICE, left)) return DOES_NOT_FIT;
    if (ct_reserve(device, CT_HOST, bytes - left)) return bytes - left;
    ct_release(device, CT_DEVICE, left);
    return DOES_NOT_FIT;
}

int ct_relax_capture(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (HAS(cuThreadExchangeStreamCaptureMode)) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

void ct_restore_capture(int mode) {
    if (HAS(cuThreadExchangeStreamCaptureMode)) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

CUresult ct_fall_back(int device, CUdeviceptr *pointer, uint64_t bytes) {
    struct ct_entry claim = {.bytes = bytes, .device = (int16_t)device, .kind = CT_FELL_BACK};
    claim.host = claim_host(device, bytes);
    if (claim.host == DOES_NOT_FIT) return ct_refuse_here(device);
    int mode = ct_relax_capture();
    CUresult result = CALL(cuMemAllocManaged, pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    ct_restore_capture(mode);
    ct_booked(CT_POINTERS, &claim, result, *pointer);
    return result == CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

_Bool ct_may_fall_back(int device, CUresult result) {
    return result == CUDA_ERROR_OUT_OF_MEMORY && atomic_load_explicit(&ct_now[device].host, memory_order_relaxed);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    int device = ct_here();
    if (device < 0 || !pointer || !bytes) return CALL(cuMemAlloc_v2, pointer, bytes);
    if (ct_claim(device, bytes)) {
        CUresult result = CALL(cuMemAlloc_v2, pointer, bytes);
        ct_book_pointer(device, bytes, result, *pointer);
        if (!ct_may_fall_back(device, result)) return result;
    }
    return ct_fall_back(device, pointer, bytes);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes) {
    int device = ct_here();
    if (device < 0 || !pointer || !bytes) return CALL(cuMemAlloc, pointer, bytes);
    if (!ct_claim(device, bytes)) return ct_refuse_here(device); // managed memory has no 32-bit addresses
    CUresult result = CALL(cuMemAlloc, pointer, bytes);
    return ct_book_pointer(device, bytes, result, *pointer);
}

static uint64_t rows(uint64_t pitch, uint64_t height) {
    uint64_t bytes;
    return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t likely_pitch(uint64_t width) {
    return width > UINT64_MAX - PITCH_BYTES ? UINT64_MAX : (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
}

// The driver chose a pitch: what was announced becomes what was taken, or 0 where that does not fit after all.
static uint64_t adjusted(int device, uint64_t announced, uint64_t taken) {
    if (taken > announced && !ct_claim(device, taken - announced)) return 0;
    if (taken < announced) ct_release(device, CT_DEVICE, announced - taken);
    return taken;
}

static _Bool valid_pitch(const void *pointer, const void *pitch, size_t width, size_t height, unsigned element) {
    return pointer && pitch && width && height && (element == 4 || element == 8 || element == 16);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    int device = ct_here();
    if (device < 0 || !valid_pitch(pointer, pitch, width, height, element))
        return CALL(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
    uint64_t announced = rows(likely_pitch(width), height), taken = announced;
    if (ct_claim(device, announced)) {
        CUresult result = CALL(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
        if (result == CUDA_SUCCESS) taken = adjusted(device, announced, rows(*pitch, height));
        if (taken) ct_book_pointer(device, taken, result, *pointer);
        if (taken && !ct_may_fall_back(device, result)) return result;
        if (!taken) {
            CALL(cuMemFree_v2, *pointer);
            ct_release(device, CT_DEVICE, announced);
        }
    }
    CUresult result = ct_fall_back(device, pointer, announced);
    if (result == CUDA_SUCCESS) *pitch = likely_pitch(width);
    return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    int device = ct_here();
    if (device < 0 || !valid_pitch(pointer, pitch, width, height, element))
        return CALL(cuMemAllocPitch, pointer, pitch, width, height, element);
    uint64_t announced = rows(likely_pitch(width), height), taken = announced;
    if (!ct_claim(device, announced)) return ct_refuse_here(device);
    CUresult result = CALL(cuMemAllocPitch, pointer, pitch, width, height, element);
    if (result == CUDA_SUCCESS) taken = adjusted(device, announced, rows(*pitch, height));
    if (taken) return ct_book_pointer(device, taken, result, *pointer);
    CALL(cuMemFree, *pointer);
    ct_release(device, CT_DEVICE, announced);
    return ct_refuse_here(device);
}

// Managed memory may all be on the device at once, so it counts there first.
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    int device = ct_here();
    if (device < 0 || !pointer || !bytes) return CALL(cuMemAllocManaged, pointer, bytes, flags);
    struct ct_entry claim = {.bytes = bytes, .device = (int16_t)device};
    claim.host = ct_claim(device, bytes) ? 0 : claim_host(device, bytes);
    if (claim.host == DOES_NOT_FIT) return ct_refuse_here(device);
    CUresult result = CALL(cuMemAllocManaged, pointer, bytes, flags);
    return ct_booked(CT_POINTERS, &claim, result, *pointer);
}

// Of anything: a plain pointer, managed memory, a pool's. What the books do not know may be a graph's or another
// process's. Freeing waits for the device, so what a pool no longer needs is gone afterwards.
#define FREE(name, pointer)                                                           \
    do {                                                                              \
        struct ct_entry entry;                                                        \
        if (!ct_in_slice()) return CALL(name, pointer);                               \
        _Bool known = ct_take(CT_POINTERS, pointer, &entry);                          \
        CUresult result = CALL(name, pointer);                                        \
        if (!known || entry.kind == CT_POOLED) ct_may_shrink();                       \
        ct_freed(CT_POINTERS, known, &entry, result);                                 \
        ct_synchronised();                                                            \
        return result;                                                                \
    } while (0)

CUresult cuMemFree_v2(CUdeviceptr pointer) { FREE(cuMemFree_v2, pointer); }

CUresult cuMemFree(CUdeviceptr_v1 pointer) { FREE(cuMemFree, pointer); }
