// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Modules. The driver takes memory for their code and globals and does not tell how much, so what the slice holds
// uncounted is measured before and after; a module that took more than the slice has left is unloaded again.

#include "hooks.h"
#include "memory.h"

#define LOAD(name, module, ...)                                                        \
    do {                                                                               \
        int device = ct_device_here();                                                 \
        uint64_t before = ct_measure_overhead(device);                                 \
        CUresult result = CALL(name, module, __VA_ARGS__);                             \
        if (device < 0 || result != CUDA_SUCCESS || ct_may_keep(device, before)) return result; \
        CALL(cuModuleUnload, *(module));                                               \
        ct_measure_overhead(device);                                                   \
        return ct_refuse(device);                                                      \
    } while (0)

CUresult cuModuleLoad(CUmodule *module, const char *path) { LOAD(cuModuleLoad, module, path); }

CUresult cuModuleLoadData(CUmodule *module, const void *image) { LOAD(cuModuleLoadData, module, image); }

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, void *options, void **values) {
    LOAD(cuModuleLoadDataEx, module, image, count, options, values);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { LOAD(cuModuleLoadFatBinary, module, image); }
