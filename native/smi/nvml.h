// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of NVML that cotenant-smi calls. They are looked up at run time, since the program must start in
// containers without a driver, too.

#ifndef COTENANT_SMI_NVML_H
#define COTENANT_SMI_NVML_H

#include "../lib/cuda_abi.h"

#define FUNCTIONS(X)                                                                                                   \
    X(nvmlInit_v2, (void))                                                                                             \
    X(nvmlDeviceGetCount_v2, (unsigned *))                                                                             \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *))                                                       \
    X(nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned))                                                             \
    X(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned))                                                             \
    X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *))                                                         \
    X(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *))                                              \
    X(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))

struct nvml {
#define X(name, arguments) nvmlReturn_t (*name) arguments;
    FUNCTIONS(X)
#undef X
};

// Whether the library has all of them.
static inline bool find_functions(void *library, struct nvml *nvml) {
    bool found = true;
#define X(name, arguments) found = (nvml->name = (nvmlReturn_t (*) arguments)dlsym(library, #name)) && found;
    FUNCTIONS(X)
#undef X
    return found;
}

#endif
