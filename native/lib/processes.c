// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Which processes NVML shows a program on a GPU: those of its slice, by the IDs that they have in its PID namespace.
// Without this, a program in a container sees its neighbours, by IDs of the host that mean other processes here or none.
// The driver writes all processes into the caller's array, and what is not of the slice is taken out of it again, so an
// array that is too small for all of them is refused with the driver's own count.

#include "compute.h"
#include "hooks.h"
#include "limits.h"
#include "lock.h"
#include "memory.h"

#include <stddef.h>
#include <string.h>

// The version of a structure as its caller must write it.
#define FIRST_VERSION(type) ((unsigned)sizeof(type) | 1u << 24)

// The ID by which the caller knows a process; 0: it is of another slice, or cannot be told from one that is.
static uint32_t shown_pid(uint32_t pid) {
    uint32_t listed = ct_listed_pid(pid);
    if (listed || !ct_sees_host_pids()) return listed;
    return ct_is_in_slice(pid) ? pid : 0;
}

// The process ID is at the same place in each entry. Entries that are not shown are overwritten.
static unsigned keep_own(char *entries, size_t size, size_t at, unsigned count) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned pid;
        memcpy(&pid, entries + i * size + at, sizeof pid);
        pid = shown_pid(pid);
        if (!pid) continue;
        memmove(entries + kept * size, entries + i * size, size);
        memcpy(entries + kept++ * size + at, &pid, sizeof pid);
    }
    memset(entries + kept * size, 0, (count - kept) * size);
    return kept;
}

static void show_own(nvmlReturn_t result, void *entries, size_t size, size_t at, unsigned *count) {
    if (result != 0 || !entries || !count || !ct_in_slice()) return;
    ct_refresh_limits();
    struct ct_thread_state before = ct_save_thread();
    *count = keep_own(entries, size, at, *count);
    ct_restore_thread(before);
}

#define RUNNING(name, entry)                                                                                           \
    nvmlReturn_t name(nvmlDevice_t device, unsigned *count, entry *infos) {                                            \
        nvmlReturn_t result = NVML_CALL(name, device, count, infos);                                                   \
        show_own(result, infos, sizeof *infos, 0, count);                                                              \
        return result;                                                                                                 \
    }

RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned *count, unsigned long long since) {
    nvmlReturn_t result = NVML_CALL(nvmlDeviceGetProcessUtilization, device, samples, count, since);
    show_own(result, samples, sizeof *samples, 0, count);
    return result;
}

// Lists with a version: one that is newer than this library may be laid out otherwise, so it is refused.
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list) {
    if (list && list->version != FIRST_VERSION(*list) && ct_in_slice()) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = NVML_CALL(nvmlDeviceGetRunningProcessDetailList, device, list);
    if (list) show_own(result, list->procArray, sizeof *list->procArray, 0, &list->numProcArrayEntries);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info) {
    if (info && info->version != FIRST_VERSION(*info) && ct_in_slice()) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = NVML_CALL(nvmlDeviceGetProcessesUtilizationInfo, device, info);
    size_t at = offsetof(nvmlProcessUtilizationInfo_v1_t, pid);
    if (info) show_own(result, info->procUtilArray, sizeof *info->procUtilArray, at, &info->processSamplesCount);
    return result;
}
