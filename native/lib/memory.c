// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The plain ways to allocate, and the fallback of several others: with a host budget, an allocation beyond the device
// quota becomes managed memory, which the driver keeps in host memory and moves to the device as it is used.

#include "memory.h"

#include "ledger_parts.h"
#include "region.h"

#define SMALLEST 512    // the driver gives no less than this, and multiples of it
#define PITCH_BYTES 512 // the driver's pitches are multiples of this on all known devices
#define DOES_NOT_FIT UINT64_MAX

int ct_device_at(const CUmemLocation *location) {
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return ct_device_of(location->id);
    // A part of a device: the ordinal is the first byte.
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) return ct_device_of(location->id & 0xff);
    return -1;
}

static uint64_t quota(int device) { return atomic_load_explicit(&ct_limits_now[device].memory, memory_order_relaxed); }

bool ct_claim_slowly(int device, uint64_t bytes) {
    uint64_t before = quota(device);
    ct_refresh_limits();
    bool freed = ct_forget_closed_files();
    freed = ct_review_overhead(device) || freed;
    bool has_more = quota(device) > before || ct_trim_reserves(device) || freed;
    return (has_more && ct_reserve(device, CT_DEVICE, bytes)) || ct_await_grant(device, bytes);
}

CUresult ct_refuse(int device) {
    ct_count_refusal(device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult ct_refuse_in_context(int device) {
    CUdevice ordinal;
    CUresult result = CALL(cuCtxGetDevice, &ordinal);
    return result == CUDA_SUCCESS ? ct_refuse(device) : result;
}

void ct_give_back(const struct ct_entry *entry) {
    if (entry->kind == CT_POOLED) return;
    ct_release(entry->device, CT_DEVICE, entry->bytes - entry->host);
    if (entry->host) ct_release(entry->device, CT_HOST, entry->host);
}

CUresult ct_book_claim(enum ct_book book, struct ct_entry *claim, CUresult result, uint64_t key) {
    struct ct_entry before;
    claim->key = key;
    if (result != CUDA_SUCCESS) ct_give_back(claim);
    else if (!ct_put(book, claim, &before)) ct_count_fault(CT_FAULT_MEMORY);
    else if (before.key) ct_give_back(&before);
    return result;
}

CUresult ct_book_pointer(int device, uint64_t bytes, CUresult result, CUdeviceptr pointer) {
    struct ct_entry claim = {.bytes = bytes, .device = (int16_t)device};
    return ct_book_claim(CT_POINTERS, &claim, result, pointer);
}

CUresult ct_book_free(enum ct_book book, bool known, struct ct_entry *entry, CUresult result) {
    if (known && result != CUDA_SUCCESS) ct_book_claim(book, entry, CUDA_SUCCESS, entry->key);
    else if (known) ct_give_back(entry);
    return result;
}

// Claims all bytes of the host budget, or what the device quota has left and the rest of the host budget. Returns the
// bytes that are claimed of the host budget.
static uint64_t claim_host(int device, uint64_t bytes) {
    if (!atomic_load_explicit(&ct_limits_now[device].host, memory_order_relaxed)) return DOES_NOT_FIT;
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
    if (claim.host == DOES_NOT_FIT) return ct_refuse_in_context(device);
    int mode = ct_relax_capture();
    CUresult result = CALL(cuMemAllocManaged, pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    ct_restore_capture(mode);
    ct_book_claim(CT_POINTERS, &claim, result, *pointer);
    return result == CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

bool ct_may_fall_back(int device, CUresult result) {
    return result == CUDA_ERROR_OUT_OF_MEMORY &&
           atomic_load_explicit(&ct_limits_now[device].host, memory_order_relaxed) > 0;
}

static inline uint64_t rounded(uint64_t bytes) {
    return __builtin_expect(bytes > UINT64_MAX - SMALLEST, 0) ? bytes : (bytes + SMALLEST - 1) / SMALLEST * SMALLEST;
}

// The bytes are claimed, and the driver has answered once.
__attribute__((noinline)) static CUresult end_allocation(int device, CUdeviceptr *pointer, size_t bytes, CUresult result) {
    CT_ASK_AGAIN(result, device, 0, CALL(cuMemAlloc_v2, pointer, bytes));
    ct_book_pointer(device, rounded(bytes), result, *pointer);
    return ct_may_fall_back(device, result) ? ct_fall_back(device, pointer, bytes) : result;
}

__attribute__((noinline)) static CUresult allocate_slowly(CUdeviceptr *pointer, size_t bytes) {
    int device = ct_device_here();
    if (device < 0 || !pointer || !bytes) return CALL(cuMemAlloc_v2, pointer, bytes);
    if (!ct_claim(device, rounded(bytes))) return ct_fall_back(device, pointer, bytes);
    return end_allocation(device, pointer, bytes, CALL(cuMemAlloc_v2, pointer, bytes));
}

// The limits are looked at after the bytes were reserved, so that nothing has to be kept meanwhile.
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    int device = atomic_load_explicit(&ct_only_device, memory_order_relaxed);
    bool is_small = pointer && bytes - 1 < CT_LARGE - SMALLEST;
    if (__builtin_expect(device < 0 || !is_small || !ct_reserve_quickly(device, rounded(bytes)), 0))
        return allocate_slowly(pointer, bytes);
    if (__builtin_expect(ct_is_time_to_look(), 0)) {
        ct_refresh_limits();
        ct_watch_memory(device, 0);
    }
    CUresult result = CALL(cuMemAlloc_v2, pointer, bytes);
    if (__builtin_expect(result == CUDA_SUCCESS && ct_put_plain(*pointer, rounded(bytes), device), 1)) return result;
    return end_allocation(device, pointer, bytes, result);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes) {
    int device = ct_device_here();
    if (device < 0 || !pointer || !bytes) return CALL(cuMemAlloc, pointer, bytes);
    uint64_t taken = rounded(bytes);
    if (!ct_claim(device, taken)) return ct_refuse_in_context(device); // managed memory has no 32-bit addresses
    CUresult result;
    CT_ASK_DRIVER(result, device, 0, CALL(cuMemAlloc, pointer, bytes));
    return ct_book_pointer(device, taken, result, *pointer);
}

static uint64_t rows(uint64_t pitch, uint64_t height) {
    uint64_t bytes;
    return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t likely_pitch(uint64_t width) {
    return width > UINT64_MAX - PITCH_BYTES ? UINT64_MAX : (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
}

// The driver chose a pitch: adjusts the claim to the bytes that were taken. Returns them, or 0 if they do not fit.
static uint64_t adjust_claim(int device, uint64_t announced, uint64_t taken) {
    if (taken > announced && !ct_claim(device, taken - announced)) return 0;
    if (taken < announced) ct_release(device, CT_DEVICE, announced - taken);
    return taken;
}

static bool is_valid_pitch(const void *pointer, const void *pitch, size_t width, size_t height, unsigned element) {
    return pointer && pitch && width && height && (element == 4 || element == 8 || element == 16);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    int device = ct_device_here();
    if (device < 0 || !is_valid_pitch(pointer, pitch, width, height, element))
        return CALL(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
    uint64_t announced = rows(likely_pitch(width), height), taken = announced;
    if (ct_claim(device, announced)) {
        CUresult result;
        CT_ASK_DRIVER(result, device, 0, CALL(cuMemAllocPitch_v2, pointer, pitch, width, height, element));
        if (result == CUDA_SUCCESS) taken = adjust_claim(device, announced, rows(*pitch, height));
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
    int device = ct_device_here();
    if (device < 0 || !is_valid_pitch(pointer, pitch, width, height, element))
        return CALL(cuMemAllocPitch, pointer, pitch, width, height, element);
    uint64_t announced = rows(likely_pitch(width), height), taken = announced;
    if (!ct_claim(device, announced)) return ct_refuse_in_context(device);
    CUresult result;
    CT_ASK_DRIVER(result, device, 0, CALL(cuMemAllocPitch, pointer, pitch, width, height, element));
    if (result == CUDA_SUCCESS) taken = adjust_claim(device, announced, rows(*pitch, height));
    if (taken) return ct_book_pointer(device, taken, result, *pointer);
    CALL(cuMemFree, *pointer);
    ct_release(device, CT_DEVICE, announced);
    return ct_refuse_in_context(device);
}

// All managed memory may be on the device at once, so it counts against the device quota first.
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    int device = ct_device_here();
    if (device < 0 || !pointer || !bytes) return CALL(cuMemAllocManaged, pointer, bytes, flags);
    struct ct_entry claim = {.bytes = bytes, .device = (int16_t)device};
    claim.host = ct_claim(device, bytes) ? 0 : claim_host(device, bytes);
    if (claim.host == DOES_NOT_FIT) return ct_refuse_in_context(device);
    CUresult result;
    CT_ASK_DRIVER(result, device, 0, CALL(cuMemAllocManaged, pointer, bytes, flags));
    return ct_book_claim(CT_POINTERS, &claim, result, *pointer);
}

// Frees a plain pointer, managed memory, or memory of a pool. A pointer that is not in the books may be a graph's or
// another process's. Freeing waits for the device, so a pool may have given memory back afterwards.
#define FREE(name, pointer)                                                           \
    do {                                                                              \
        struct ct_entry entry;                                                        \
        if (!ct_in_slice()) return CALL(name, pointer);                               \
        bool known = ct_take(CT_POINTERS, pointer, &entry);                          \
        CUresult result = CALL(name, pointer);                                        \
        if (!known || ct_is_pooled(&entry)) ct_expect_shrink();                         \
        ct_book_free(CT_POINTERS, known, &entry, result);                                 \
        ct_settle_if_shrinking();                                                            \
        return result;                                                                \
    } while (0)

__attribute__((noinline)) static CUresult free_slowly(CUdeviceptr pointer) { FREE(cuMemFree_v2, pointer); }

__attribute__((noinline)) static CUresult end_free(CUdeviceptr pointer, struct ct_plain plain, CUresult result) {
    if (result != CUDA_SUCCESS) ct_book_pointer((int)plain.device, plain.bytes, CUDA_SUCCESS, pointer);
    else ct_release((int)plain.device, CT_DEVICE, plain.bytes);
    ct_settle_if_shrinking();
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct ct_plain plain = ct_take_plain(pointer);
    if (__builtin_expect(!plain.bytes, 0)) return free_slowly(pointer);
    CUresult result = CALL(cuMemFree_v2, pointer);
    bool is_simple = result == CUDA_SUCCESS && !atomic_load_explicit(&ct_shrinking, memory_order_relaxed);
    if (__builtin_expect(is_simple && ct_release_quickly((int)plain.device, plain.bytes), 1)) return result;
    return end_free(pointer, plain, result);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) { FREE(cuMemFree, pointer); }
