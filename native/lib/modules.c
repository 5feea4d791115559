// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Modules and libraries. The driver takes memory for their code and globals and does not tell how much, so what the
// slice holds uncounted is measured before and after; what took more than the slice has left is unloaded again.
//
// A library may take its memory later, when something of it is first used in a context. That cannot be undone without
// the library, so it is loaded there and measured when the program asks for the first part of it, and not if the slice
// is full already.

#include "hooks.h"
#include "memory.h"

#define LOAD(name, unload, module, ...)                                                       \
    do {                                                                               \
        int device = ct_device_here();                                                 \
        uint64_t before = ct_measure_overhead(device);                                 \
        CUresult result;                                                               \
        CT_ASK_DRIVER(result, device, 0, CALL(name, module, __VA_ARGS__));             \
        if (device < 0 || result != CUDA_SUCCESS || ct_may_keep(device, before)) return result; \
        CALL(unload, *(module));                                                       \
        ct_measure_overhead(device);                                                   \
        return ct_refuse(device);                                                      \
    } while (0)

CUresult cuModuleLoad(CUmodule *module, const char *path) { LOAD(cuModuleLoad, cuModuleUnload, module, path); }

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    LOAD(cuModuleLoadData, cuModuleUnload, module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, void *options, void **values) {
    LOAD(cuModuleLoadDataEx, cuModuleUnload, module, image, count, options, values);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    LOAD(cuModuleLoadFatBinary, cuModuleUnload, module, image);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CT_LIBRARY_OPTIONS) {
    LOAD(cuLibraryLoadData, cuLibraryUnload, library, image, options, values, count, own_options, own_values, own_count);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CT_LIBRARY_OPTIONS) {
    LOAD(cuLibraryLoadFromFile, cuLibraryUnload, library, path, options, values, count, own_options, own_values, own_count);
}

static bool is_of_library(struct ct_entry *entry, void *library) { return entry->host == (uint64_t)(uintptr_t)library; }

CUresult cuLibraryUnload(CUlibrary library) {
    CUresult result = CALL(cuLibraryUnload, library);
    if (result == CUDA_SUCCESS && ct_in_slice()) ct_edit_all(CT_LIBRARIES, is_of_library, library);
    return result;
}

static bool is_of_context(struct ct_entry *entry, void *context) { return entry->owner == (uint64_t)(uintptr_t)context; }

void ct_forget_libraries(CUcontext context) { ct_edit_all(CT_LIBRARIES, is_of_context, context); }

// Loads the library into the current context if that has not happened yet.
static CUresult load_here(CUlibrary library) {
    CUcontext context = 0;
    CUmodule module;
    int device = ct_device_here();
    if (device >= 0 && library) CALL(cuCtxGetCurrent, &context);
    if (!context) return CUDA_SUCCESS;
    struct ct_entry known, entry = {.host = (uint64_t)(uintptr_t)library, .owner = (uint64_t)(uintptr_t)context};
    entry.key = (entry.host ^ entry.owner << 32 ^ entry.owner >> 32) | 1;
    if (ct_get(CT_LIBRARIES, entry.key, &known) && known.host == entry.host) return CUDA_SUCCESS;
    if (!ct_has_room(device)) return ct_refuse(device);
    uint64_t before = ct_measured[device].uncounted;
    bool is_loaded = CALL(cuLibraryGetModule, &module, library) == CUDA_SUCCESS;
    if (!ct_may_keep(device, before)) return ct_refuse(device);
    if (is_loaded && !ct_put(CT_LIBRARIES, &entry, &known)) ct_count_fault(CT_FAULT_MEMORY);
    return CUDA_SUCCESS;
}

#define USE(name, library, ...)                                 \
    do {                                                        \
        CUresult result = load_here(library);                   \
        return result == CUDA_SUCCESS ? CALL(name, __VA_ARGS__) : result; \
    } while (0)

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    USE(cuLibraryGetKernel, library, kernel, library, name);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    USE(cuLibraryEnumerateKernels, library, kernels, count, library);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) { USE(cuLibraryGetModule, library, module, library); }

CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name) {
    USE(cuLibraryGetGlobal, library, pointer, bytes, library, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name) {
    USE(cuLibraryGetManaged, library, pointer, bytes, library, name);
}

CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name) {
    USE(cuLibraryGetUnifiedFunction, library, function, library, name);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUlibrary library = 0;
    if (ct_in_slice()) CALL(cuKernelGetLibrary, &library, kernel);
    USE(cuKernelGetFunction, library, function, kernel);
}
