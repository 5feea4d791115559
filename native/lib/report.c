// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What a program sees of its GPU's memory: its slice. The total is the quota (or the GPU's memory, if that is smaller)
// plus the host budget; used is what all processes of the slice hold; free is the rest, and its device part is never
// more than the GPU itself had free when the driver was last asked. The driver is asked when the slice's use has
// changed and every CALLS_BETWEEN calls, since asking costs far more than answering; so is the limits file.

#include "hooks.h"
#include "limits.h"
#include "memory.h"
#include "region.h"

#define CALLS_BETWEEN 64
#define HANDLES 64

struct gpu {
    _Atomic uint64_t total; // 0: not known yet
    _Atomic uint64_t free;
    _Atomic uint64_t used; // by the slice, when free was read
};

static struct gpu gpus[CT_DEVICES];

static inline uint64_t load(_Atomic uint64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

static void store(_Atomic uint64_t *word, uint64_t value) { atomic_store_explicit(word, value, memory_order_relaxed); }

static inline uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

static inline uint64_t left(uint64_t of, uint64_t used) { return used < of ? of - used : 0; }

static inline uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

static inline uint64_t shown_total(int device, uint64_t total) {
    return sum(smaller(ct_quota(device), total), load(&ct_limits_now[device].host));
}

static inline uint64_t shown_free(int device, uint64_t total, uint64_t free, uint64_t used) {
    uint64_t on_device = smaller(left(smaller(ct_quota(device), total), used), free);
    uint64_t host = load(&ct_limits_now[device].host);
    return __builtin_expect(host != 0, 0) ? sum(on_device, left(host, ct_used(device, CT_HOST))) : on_device;
}

// The sum of the slots as they are, and what no slot has: unlike a limit, a displayed number need not be safe from the
// tenant's own changes.
static inline uint64_t displayed_use(int device) {
    uint32_t high = atomic_load_explicit(&ct_region->high, memory_order_relaxed);
    uint32_t slots = high < CT_SLOTS ? high : CT_SLOTS;
    uint64_t used = sum(load(&ct_region->slot[0].memory[device]), load(&ct_measured[device].uncounted));
    for (uint32_t i = 1; i < slots; i++) used = sum(used, load(&ct_region->slot[i].memory[device]));
    return used;
}

// Reads the current GPU's memory from the driver; returns the driver's error if it fails.
__attribute__((noinline, cold)) static CUresult read_gpu_memory(struct gpu *gpu, uint64_t used) {
    size_t free, total;
    ct_refresh_limits();
    CUresult result = CALL(cuMemGetInfo_v2, &free, &total);
    if (result != CUDA_SUCCESS) return result;
    store(&gpu->free, free);
    store(&gpu->used, used);
    store(&gpu->total, total);
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    static _Thread_local __attribute__((tls_model("initial-exec"))) unsigned calls;
    CUcontext context = 0;
    int device = ct_device_here();
    __typeof__(&cuCtxGetCurrent) current = REAL(cuCtxGetCurrent);
    if (device >= 0 && current) current(&context);
    if (!context || !free || !total) return CALL(cuMemGetInfo_v2, free, total); // the driver returns the right error
    ct_settle_if_shrinking(); // memory that a pool has given back must not count as used
    struct gpu *gpu = &gpus[device];
    if (__builtin_expect(!load(&gpu->total), 0)) ct_measure_overhead(device); // the program may ask before it allocates
    uint64_t used = displayed_use(device);
    if (__builtin_expect(calls++ % CALLS_BETWEEN == 0 || used != load(&gpu->used) || !load(&gpu->total), 0)) {
        CUresult result = read_gpu_memory(gpu, used);
        if (result != CUDA_SUCCESS) return result;
    }
    *total = shown_total(device, load(&gpu->total));
    *free = shown_free(device, load(&gpu->total), load(&gpu->free), used);
    return CUDA_SUCCESS;
}

static CUresult narrow(size_t wide, unsigned *to) {
    *to = wide > UINT32_MAX ? UINT32_MAX : (unsigned)wide;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned *free, unsigned *total) {
    size_t wide_free, wide_total;
    if (!free || !total || ct_device_here() < 0) return CALL(cuMemGetInfo, free, total);
    CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS) result = narrow(wide_free, free);
    return result == CUDA_SUCCESS ? narrow(wide_total, total) : result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    CUresult result = CALL(cuDeviceTotalMem_v2, bytes, ordinal);
    int device = result == CUDA_SUCCESS && ct_in_slice() ? ct_device_of(ordinal) : -1;
    if (device < 0) return result;
    ct_refresh_limits();
    *bytes = shown_total(device, *bytes);
    return result;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice ordinal) {
    size_t wide;
    if (!bytes || !ct_in_slice() || ct_device_of(ordinal) < 0) return CALL(cuDeviceTotalMem, bytes, ordinal);
    CUresult result = cuDeviceTotalMem_v2(&wide, ordinal);
    return result == CUDA_SUCCESS ? narrow(wide, bytes) : result;
}

// NVML's handles are few and never change their meaning, so the UUID of each is read once.
static struct {
    _Atomic(nvmlDevice_t) handle;
    _Atomic int device_and_one; // 0: not written yet
} known[HANDLES];

static int read_device(nvmlDevice_t handle) {
    char uuid[CT_UUID_BYTES] = "";
    if (!HAS(nvmlDeviceGetUUID) || REAL(nvmlDeviceGetUUID)(handle, uuid, sizeof uuid) != 0) return -1;
    return ct_device_of_uuid(uuid);
}

static int device_of(nvmlDevice_t handle) {
    int device = -1;
    for (unsigned i = 0; i < HANDLES; i++) {
        nvmlDevice_t there = atomic_load(&known[i].handle);
        int written = there == handle ? atomic_load(&known[i].device_and_one) : 0;
        if (written) return written - 1;
        if (there && there != handle) continue;
        if ((device = read_device(handle)) < 0) return device;
        if (there || atomic_compare_exchange_strong(&known[i].handle, &there, handle)) {
            atomic_store(&known[i].device_and_one, device + 1);
            return device;
        }
    }
    return device < 0 ? read_device(handle) : device;
}

// The slice's index of a handle, if the slice limits its memory; -1: NVML's own answer stays.
static int find_limited(nvmlDevice_t handle, nvmlReturn_t result, const void *memory) {
    if (result != 0 || !memory || !ct_in_slice()) return -1;
    ct_refresh_limits();
    int device = device_of(handle);
    return device < 0 || load(&ct_limits_now[device].memory) == CT_UNLIMITED ? -1 : device;
}

// Replaces NVML's numbers of a GPU by those of the slice.
static void show_slice(int device, unsigned long long *total, unsigned long long *free, unsigned long long *used) {
    uint64_t on_device = ct_used(device, CT_DEVICE);
    *free = shown_free(device, *total, *free, on_device);
    *total = shown_total(device, *total);
    *used = smaller(sum(on_device, ct_used(device, CT_HOST)), *total);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    nvmlReturn_t result = NVML_CALL(nvmlDeviceGetMemoryInfo, handle, memory);
    int device = find_limited(handle, result, memory);
    if (device >= 0) show_slice(device, &memory->total, &memory->free, &memory->used);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = NVML_CALL(nvmlDeviceGetMemoryInfo_v2, handle, memory);
    int device = find_limited(handle, result, memory);
    if (device < 0) return result;
    show_slice(device, &memory->total, &memory->free, &memory->used);
    memory->reserved = 0; // the driver's own reserve is not part of the slice
    return result;
}
