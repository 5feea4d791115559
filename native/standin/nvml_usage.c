// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What NVML reports of the use of a GPU: memory and processes as they are, utilisation over a window that ended a while
// ago.

#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml_driver.h"

#define NOBODY UINT32_MAX
#define MANY 100

struct usage {
    unsigned pid;
    uint64_t memory;
    uint64_t busy;
    bool mps;
};

static unsigned percent_of_window(uint64_t busy) {
    uint64_t percent = busy * MANY / si_state()->set.nvml_window;
    return percent > MANY ? MANY : (unsigned)percent;
}

static uint64_t window_end(uint64_t now) {
    uint64_t lag = si_state()->set.nvml_lag;
    return now > lag ? now - lag : 0;
}

// The processes that are on the device now, by slot; those of one process count as one. Returns how many.
static unsigned processes(int device, struct usage found[SI_SLOTS]) {
    unsigned count = 0;
    uint64_t now = si_now(), end = window_end(now);
    uint64_t window = si_state()->set.nvml_window, from = end > window ? end - window : 0;
    si_lock();
    si_reap_locked();
    si_find_host_pids_locked();
    si_serve(now);
    for (unsigned slot = 0; slot < si_mapped->slots; slot++) {
        struct si_slot *one = &si_mapped->slot[slot];
        unsigned same = 0;
        if (!one->used || !one->uses[device] || one->unknown) continue;
        while (same < count && found[same].pid != one->pid) same++;
        uint64_t busy = si_busy(device, one->pid, from, end);
        if (same == count) found[count++] = (struct usage){.pid = one->pid, .busy = busy};
        found[same].memory += one->bytes[device] + si_inherited(device, slot);
        found[same].mps = found[same].mps || one->mps;
    }
    si_unlock();
    return count;
}

API(nvmlDeviceGetMemoryInfo)(nvmlDevice_t device, nvmlMemory_t *memory) {
    int index = DEVICE(device);
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    si_reap();
    memory->total = si_mapped->set.memory[index];
    memory->used = si_level(index);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

// Unlike the older one, it tells a process in a cgroup with a limit of its own part.
API(nvmlDeviceGetMemoryInfo_v2)(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t plain;
    uint64_t total, used;
    if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = si_nvmlDeviceGetMemoryInfo(device, &plain);
    if (result != NVML_SUCCESS) return result;
    si_visible_memory(si_index(device), &total, &used);
    memory->total = total, memory->used = used, memory->free = total - used, memory->reserved = 0;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetBAR1MemoryInfo)(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    DEVICE(device);
    *memory = (nvmlBAR1Memory_t){.bar1Total = 256 << 20, .bar1Free = 256 << 20};
    return NVML_SUCCESS;
}

API(nvmlDeviceGetUtilizationRates)(nvmlDevice_t device, nvmlUtilization_t *rates) {
    int index = DEVICE(device);
    if (!rates) return NVML_ERROR_INVALID_ARGUMENT;
    if (si_is_instance(index) || si_is_partitioned(index)) return NVML_ERROR_NOT_SUPPORTED;
    uint64_t now = si_now(), end = window_end(now), window = si_state()->set.nvml_window;
    si_lock();
    si_serve(now);
    rates->gpu = percent_of_window(si_busy(index, 0, end > window ? end - window : 0, end));
    rates->memory = 0;
    si_unlock();
    return NVML_SUCCESS;
}

// Microseconds since 1970, as NVML counts; of the virtual clock if there is one.
static unsigned long long sample_time(void) {
    if (si_state()->set.virtual_clock) return window_end(si_now()) / 1000;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000 -
           si_state()->set.nvml_lag / 1000;
}

API(nvmlDeviceGetProcessUtilization)
(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count, unsigned long long since) {
    struct usage found[SI_SLOTS];
    int index = DEVICE(device);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    if (si_is_instance(index) || si_is_partitioned(index)) return NVML_ERROR_NOT_SUPPORTED;
    unsigned room = *count, many = processes(index, found);
    unsigned long long when = sample_time();
    if (when <= since) many = 0;
    *count = many;
    if (!many) return NVML_ERROR_NOT_FOUND;
    if (!samples || room < many) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < many; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = found[i].pid, .timeStamp = when, .smUtil = percent_of_window(found[i].busy)};
    return NVML_SUCCESS;
}

API(nvmlDeviceGetProcessesUtilizationInfo)(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    nvmlProcessUtilizationSample_t samples[SI_SLOTS];
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned room = info->processSamplesCount, many = SI_SLOTS;
    nvmlReturn_t result = si_nvmlDeviceGetProcessUtilization(device, samples, &many, info->lastSeenTimeStamp);
    if (result != NVML_SUCCESS) return result;
    info->processSamplesCount = many;
    if (!info->procUtilArray || room < many) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < many; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = samples[i].timeStamp, .pid = samples[i].pid, .smUtil = samples[i].smUtil};
    return NVML_SUCCESS;
}

// All of them, into `found`, if the caller's list has room.
static nvmlReturn_t running(nvmlDevice_t device, unsigned *count, struct usage found[SI_SLOTS]) {
    int index = DEVICE(device);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count;
    *count = processes(index, found);
    return room < *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

// Whether NVML cannot tell the memory of processes in this answer.
static bool is_untold(void) {
    static _Atomic uint64_t answers;
    const char *from = getenv("STANDIN_UNTOLD");
    return from && ++answers >= strtoull(from, NULL, 10);
}

API(nvmlDeviceGetComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    struct usage found[SI_SLOTS];
    bool untold = is_untold();
    nvmlReturn_t result = running(device, count, found);
    for (unsigned i = 0; result == NVML_SUCCESS && infos && i < *count; i++)
        infos[i] = (nvmlProcessInfo_t){.pid = found[i].pid,
                                       .usedGpuMemory = untold ? (unsigned long long)NVML_VALUE_NOT_AVAILABLE : found[i].memory,
                                       .gpuInstanceId = NOBODY,
                                       .computeInstanceId = NOBODY};
    return result;
}

API(nvmlDeviceGetRunningProcessDetailList)(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    struct usage found[SI_SLOTS];
    if (!list) return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = running(device, &list->numProcArrayEntries, found);
    for (unsigned i = 0; result == NVML_SUCCESS && list->procArray && i < list->numProcArrayEntries; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = found[i].pid,
                                                      .usedGpuMemory = found[i].memory,
                                                      .gpuInstanceId = NOBODY,
                                                      .computeInstanceId = NOBODY};
    return result;
}

// The second version's entries are laid out as the third's.
API(nvmlDeviceGetComputeRunningProcesses_v2)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos) {
    return si_nvmlDeviceGetComputeRunningProcesses_v3(device, count, (nvmlProcessInfo_t *)infos);
}

API(nvmlDeviceGetComputeRunningProcesses)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos) {
    struct usage found[SI_SLOTS];
    nvmlReturn_t result = running(device, count, found);
    for (unsigned i = 0; result == NVML_SUCCESS && infos && i < *count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){.pid = found[i].pid, .usedGpuMemory = found[i].memory};
    return result;
}

API(nvmlDeviceGetMPSComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    struct usage found[SI_SLOTS];
    int index = DEVICE(device);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count, all = processes(index, found), many = 0;
    for (unsigned i = 0; i < all; i++) {
        if (!found[i].mps) continue;
        if (infos && many < room)
            infos[many] = (nvmlProcessInfo_t){.pid = found[i].pid,
                                              .usedGpuMemory = found[i].memory,
                                              .gpuInstanceId = NOBODY,
                                              .computeInstanceId = NOBODY};
        many++;
    }
    *count = many;
    return room < many ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t none(nvmlDevice_t device, unsigned *count) {
    DEVICE(device);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetGraphicsRunningProcesses_v3)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    (void)infos;
    return none(device, count);
}

API(nvmlDeviceGetGraphicsRunningProcesses_v2)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos) {
    (void)infos;
    return none(device, count);
}

API(nvmlDeviceGetGraphicsRunningProcesses)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos) {
    (void)infos;
    return none(device, count);
}

API(nvmlDeviceGetEncoderUtilization)(nvmlDevice_t device, unsigned *percent, unsigned *period) {
    DEVICE(device);
    *percent = 0, *period = 1000000;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetDecoderUtilization)(nvmlDevice_t device, unsigned *percent, unsigned *period) {
    return si_nvmlDeviceGetEncoderUtilization(device, percent, period);
}
