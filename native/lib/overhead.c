// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that the slice holds and that its account lacks: what the driver takes for each context, for modules, stacks
// and graphs, what is lost to its granularity, and what a process holds whose slot was overwritten. NVML's figures for
// the processes of the slice less their account is that amount, and it counts against the limit.
//
// Only figures of processes that are known to be of this slice count: by the list of processes, or on the host by the
// region that they map. In a container without a list NVML's process IDs mean nothing, and nothing is added.

#include "base.h"
#include "compute.h"
#include "limits.h"
#include "lock.h"
#include "memory.h"
#include "region.h"

#include "hooks.h"

#define PROCESSES 512
#define LEAST_GROWTH (UINT64_C(16) << 20)
#define GROWTH_PARTS 32 // NVML is asked when this process has grown by this part of the limit
#define NOT_AVAILABLE UINT64_MAX

static _Atomic uint64_t looked_at[CT_DEVICES]; // what this process used when NVML was last asked; at most what it uses
static nvmlDevice_t handles[CT_DEVICES];
static nvmlProcessInfo_t found[PROCESSES];
static ct_lock looking; // guards the two

static bool open_device(int device) {
    if (handles[device]) return true;
    return HAS(nvmlInit_v2) && HAS(nvmlDeviceGetHandleByUUID) && HAS(nvmlDeviceGetComputeRunningProcesses_v3) &&
           REAL(nvmlInit_v2)() == CUDA_SUCCESS &&
           REAL(nvmlDeviceGetHandleByUUID)(ct_uuid_of(device), &handles[device]) == CUDA_SUCCESS && handles[device];
}

// Bytes of the slice's processes by NVML; 0 if it does not tell.
static uint64_t ask_nvml(int device) {
    unsigned count = PROCESSES;
    uint64_t sum = 0;
    if (!open_device(device)) return 0;
    if (REAL(nvmlDeviceGetComputeRunningProcesses_v3)(handles[device], &count, found) != CUDA_SUCCESS) return 0;
    for (unsigned i = 0; i < count && i < PROCESSES; i++) {
        if (found[i].usedGpuMemory == NOT_AVAILABLE || !ct_is_in_slice(found[i].pid)) continue;
        if (__builtin_add_overflow(sum, found[i].usedGpuMemory, &sum)) return 0;
    }
    return sum;
}

static uint64_t counted(int device) {
    uint64_t used = ct_used(device, CT_DEVICE), uncounted = ct_uncounted[device];
    return used > uncounted ? used - uncounted : 0;
}

static uint64_t look(int device) {
    struct ct_thread_state state = ct_save_thread();
    ct_acquire(&looking);
    // Bytes are counted before the driver has them, and taken off before it frees them: the larger account is the one
    // to compare with, or memory that comes and goes would seem to be uncounted.
    uint64_t before = counted(device), held = ask_nvml(device), after = counted(device);
    uint64_t most = before > after ? before : after, uncounted = held > most ? held - most : 0;
    ct_uncounted[device] = uncounted;
    ct_set_free(&looking);
    ct_restore_thread(state);
    return uncounted;
}

static uint64_t limit_of(int device) {
    return atomic_load_explicit(&ct_limits_now[device].memory, memory_order_relaxed);
}

static bool counts(int device) {
    return device >= 0 && limit_of(device) != CT_UNLIMITED &&
           !atomic_load_explicit(&ct_ignores_overhead, memory_order_relaxed);
}

void ct_watch_memory(int device, uint64_t bytes) {
    if (device < 0) return;
    uint64_t limit = limit_of(device);
    uint64_t growth = limit / GROWTH_PARTS > LEAST_GROWTH ? limit / GROWTH_PARTS : LEAST_GROWTH;
    uint64_t mine = atomic_load_explicit(&ct_own_use[CT_DEVICE][device], memory_order_relaxed);
    uint64_t looked = atomic_load_explicit(&looked_at[device], memory_order_relaxed);
    if (__builtin_expect(mine < looked, 0)) atomic_store_explicit(&looked_at[device], looked = mine, memory_order_relaxed);
    if (__builtin_expect(bytes < growth && mine + bytes < looked + growth, 1)) return;
    if (!counts(device) || bytes > limit) return;
    atomic_store_explicit(&looked_at[device], mine + bytes, memory_order_relaxed);
    look(device);
}

uint64_t ct_measure_overhead(int device) {
    if (counts(device)) return look(device);
    if (device >= 0) ct_uncounted[device] = 0;
    return 0;
}

bool ct_review_overhead(int device) {
    if (device < 0 || ct_uncounted[device] == 0) return false;
    uint64_t before = ct_uncounted[device];
    return ct_measure_overhead(device) < before;
}

// A little more than before is never too much: the driver takes some memory for any module.
bool ct_may_keep(int device, uint64_t before) {
    uint64_t now = ct_measure_overhead(device);
    return now <= before || now - before <= LEAST_GROWTH || ct_used(device, CT_DEVICE) <= limit_of(device);
}

void ct_forget_overhead(void) {
    ct_set_free(&looking);
    for (int i = 0; i < CT_DEVICES; i++) {
        ct_uncounted[i] = looked_at[i] = 0;
        handles[i] = NULL;
    }
}
