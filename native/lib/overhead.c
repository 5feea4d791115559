// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that the slice holds and that its account lacks: what the driver takes for each context, for modules, stacks
// and graphs, what is lost to its granularity, and what a process holds whose slot was overwritten. NVML's figures for
// the processes of the slice less their account is that amount, and it counts against the limit.
//
// Only figures of processes that are known to be of this slice count: by the list of processes, or on the host by the
// region that they map. In a container without a list NVML's process IDs mean nothing, and nothing is added.
//
// Another process may overwrite the account between NVML's answer and the next sum of the slots. So what the others
// hold by NVML is kept too, and counts if the slots say less.

#include <time.h>

#include "account.h"
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

#define LIST_WAIT UINT64_C(3000000000) // ns: the writer of the list looks every 2 s
#define LIST_PAUSE INT64_C(10000000)   // ns

// What this process used when NVML was last asked, with what it was about to take; lowered if it uses less.
static _Atomic uint64_t looked_at[CT_DEVICES];
static _Atomic uint64_t little[CT_DEVICES]; // bytes that ct_may_keep has granted beyond the limit
static _Atomic bool has_waited;             // for the list
static nvmlDevice_t handles[CT_DEVICES];
static nvmlProcessInfo_t found[PROCESSES];
static ct_lock looking; // guards handles and found

static bool open_device(int device) {
    if (handles[device]) return true;
    return HAS(nvmlInit_v2) && HAS(nvmlDeviceGetHandleByUUID) && HAS(nvmlDeviceGetComputeRunningProcesses_v3) &&
           REAL(nvmlInit_v2)() == CUDA_SUCCESS &&
           REAL(nvmlDeviceGetHandleByUUID)(ct_uuid_of(device), &handles[device]) == CUDA_SUCCESS && handles[device];
}

// The bytes of the slice's processes by NVML. False: it does not tell, or which processes those are is unknown.
static bool ask_nvml(int device, uint64_t *held) {
    unsigned count = PROCESSES;
    *held = 0;
    if (!open_device(device) || !ct_knows_processes()) return false;
    if (REAL(nvmlDeviceGetComputeRunningProcesses_v3)(handles[device], &count, found) != CUDA_SUCCESS) return false;
    for (unsigned i = 0; i < count && i < PROCESSES; i++) {
        if (!ct_is_in_slice(found[i].pid)) continue;
        if (found[i].usedGpuMemory == NOT_AVAILABLE) return false;
        if (__builtin_add_overflow(*held, found[i].usedGpuMemory, held)) return false;
    }
    return true;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t minus(uint64_t from, uint64_t bytes) { return from > bytes ? from - bytes : 0; }

// What no answer tells stays as it was last known.
static uint64_t look(int device) {
    struct ct_thread_state state = ct_save_thread();
    ct_acquire(&looking);
    // Bytes are counted before the driver has them, and taken off before it frees them: the larger account is the one
    // to compare with, or memory that comes and goes would seem to be uncounted.
    uint64_t held, counted = ct_counted(device), own = ct_own_bytes(device, CT_DEVICE);
    if (ask_nvml(device, &held)) {
        atomic_store(&ct_measured[device].uncounted, minus(held, larger(counted, ct_counted(device))));
        atomic_store(&ct_measured[device].by_others, minus(held, larger(own, ct_own_bytes(device, CT_DEVICE))));
        ct_forget_margins();
    }
    ct_set_free(&looking);
    ct_restore_thread(state);
    return atomic_load_explicit(&ct_measured[device].uncounted, memory_order_relaxed);
}

static bool counts(int device) {
    return device >= 0 && ct_quota(device) != CT_UNLIMITED &&
           !atomic_load_explicit(&ct_ignores_overhead, memory_order_relaxed);
}

// In a container a new process is on no list yet, so it cannot know by NVML what the others hold. What they say of
// themselves may be overwritten; so if the kernel says that there are others, it waits for the list, once.
static void wait_for_list(void) {
    if (atomic_load_explicit(&has_waited, memory_order_relaxed) || ct_knows_processes() || !ct_has_list()) return;
    if (!ct_has_siblings()) return;
    struct ct_thread_state state = ct_save_thread();
    for (uint64_t end = ct_monotonic() + LIST_WAIT; !ct_knows_processes() && ct_monotonic() < end;) {
        nanosleep(&(struct timespec){.tv_nsec = LIST_PAUSE}, NULL);
        ct_refresh_limits();
    }
    has_waited = true;
    ct_restore_thread(state);
}

void ct_watch_memory(int device, uint64_t bytes) {
    if (device < 0) return;
    uint64_t limit = ct_quota(device);
    uint64_t growth = limit / GROWTH_PARTS > LEAST_GROWTH ? limit / GROWTH_PARTS : LEAST_GROWTH;
    uint64_t mine = ct_own_bytes(device, CT_DEVICE);
    uint64_t looked = atomic_load_explicit(&looked_at[device], memory_order_relaxed);
    if (__builtin_expect(mine < looked, 0)) atomic_store_explicit(&looked_at[device], looked = mine, memory_order_relaxed);
    if (__builtin_expect(bytes < growth && mine + bytes < looked + growth, 1)) return;
    if (!counts(device) || bytes > limit) return;
    wait_for_list();
    atomic_store_explicit(&looked_at[device], mine + bytes, memory_order_relaxed);
    look(device);
}

uint64_t ct_measure_overhead(int device) {
    if (counts(device)) return look(device);
    if (device >= 0) ct_measured[device].uncounted = ct_measured[device].by_others = 0;
    ct_forget_margins();
    return 0;
}

bool ct_review_overhead(int device) {
    if (device < 0 || ct_measured[device].by_others == 0) return false;
    uint64_t before = ct_used(device, CT_DEVICE);
    ct_measure_overhead(device);
    return ct_used(device, CT_DEVICE) < before;
}

// A little more is not too much even in a full slice, since the driver takes some memory for any module; but all of it
// together must be little.
bool ct_may_keep(int device, uint64_t before) {
    uint64_t more = minus(ct_measure_overhead(device), before);
    if (ct_used(device, CT_DEVICE) <= ct_quota(device)) {
        little[device] = 0;
        return true;
    }
    if (atomic_fetch_add(&little[device], more) + more <= LEAST_GROWTH) return true;
    atomic_fetch_sub(&little[device], more);
    return more == 0;
}

bool ct_has_room(int device) {
    ct_measure_overhead(device);
    uint64_t used = ct_used(device, CT_DEVICE), limit = ct_quota(device);
    return used <= limit || used - limit <= LEAST_GROWTH;
}

void ct_forget_overhead(void) {
    ct_set_free(&looking);
    for (int i = 0; i < CT_DEVICES; i++) {
        ct_measured[i].uncounted = ct_measured[i].by_others = looked_at[i] = little[i] = 0;
        handles[i] = NULL;
    }
    has_waited = false;
}
