// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Limits on the device memory of a cgroup, which NVML has since CUDA 13.4. Older headers do not declare them, so for
// these they are declared and exported here. An older driver does not have them.

#include <cuda.h>
#include <stdlib.h>

#include "entries.h"
#include "nvml_driver.h"

#define SINCE 13040

#ifndef NVML_DEVICE_MEMORY_LIMIT_MAX
#define EXPORTED __attribute__((visibility("default")))

typedef struct {
    const char *nameSpace; // path of the cgroup
    unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
    const char *nameSpace;
    unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

API(nvmlDeviceSetMemoryLimits_v1)(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits);
API(nvmlDeviceGetMemoryLimits_v1)(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits);

EXPORTED nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    int instead = si_gate("nvmlDeviceSetMemoryLimits_v1");
    if (instead) return (nvmlReturn_t)instead;
    return si_nvmlDeviceSetMemoryLimits_v1(device, limits);
}

EXPORTED nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
    return si_nvmlDeviceGetMemoryLimits_v1(device, limits);
}
#endif

static bool is_known(void) {
    const char *claimed = getenv("STANDIN_DRIVER");
    return (claimed && *claimed ? atoi(claimed) : CUDA_VERSION) >= SINCE;
}

API(nvmlDeviceSetMemoryLimits_v1)(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    if (!is_known()) return NVML_ERROR_FUNCTION_NOT_FOUND;
    int index = DEVICE(device);
    if (!limits || !limits->nameSpace) return NVML_ERROR_INVALID_ARGUMENT;
    if (getenv("STANDIN_UNPRIVILEGED")) return NVML_ERROR_NO_PERMISSION;
    if (si_is_instance(index) || si_is_partitioned(index)) return NVML_ERROR_NOT_SUPPORTED;
    si_lock();
    struct si_partition *found = si_group_limit(si_mapped, index, limits->nameSpace, true);
    if (found) found->soft = limits->softLimit, found->hard = limits->hardLimit;
    si_unlock();
    return found ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM; // the path is no cgroup
}

API(nvmlDeviceGetMemoryLimits_v1)(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
    if (!is_known()) return NVML_ERROR_FUNCTION_NOT_FOUND;
    int index = DEVICE(device);
    if (!limits || !limits->nameSpace) return NVML_ERROR_INVALID_ARGUMENT;
    si_reap();
    si_lock();
    const struct si_partition *found = si_group_limit(si_mapped, index, limits->nameSpace, false);
    if (found) {
        limits->softLimit = found->soft;
        limits->hardLimit = found->hard;
        limits->currentUsed = si_partition_used(si_mapped, found);
    }
    si_unlock();
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
