// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Modules, libraries, kernels and functions. Any image is accepted and any name is found. A kernel only takes
// time: one named ns_1000000 takes that many nanoseconds, others what STANDIN_KERNEL_NS says, and one named fault ends
// with a fatal exception. An image that begins with
// "globals=" and a number takes so many bytes on the device until it is unloaded.

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define GLOBAL_BYTES 65536
#define IMAGE_BYTES 64

struct CUmod_st {
    struct CUfunc_st *functions;
    struct global *globals;
    uint64_t bytes; // of its globals, on the device
    uint64_t later; // of the globals of a library, until something of it is first used
    int device;
};
struct global {
    char *name;
    uint64_t address;
    struct global *next;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static uint64_t length_of(const char *name) {
    const char *found = strstr(name, "ns_");
    if (!strcmp(name, "fault")) return SI_FAULT;
    if (found && !strcmp(found, "ns_parameter")) return SI_BY_PARAMETER;
    bool named = found && (found == name || found[-1] == '_') && found[3] >= '0' && found[3] <= '9';
    return named ? strtoull(found + 3, NULL, 10) : si_state()->set.kernel;
}

CUfunction si_function(CUmodule module, const char *name) {
    pthread_mutex_lock(&guard);
    CUfunction function = module->functions;
    while (function && strcmp(function->name, name)) function = function->next;
    if (!function) {
        function = calloc(1, sizeof *function);
        *function = (struct CUfunc_st){.name = strdup(name), .length = length_of(name), .module = module};
        function->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
        function->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
        function->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = 80;
        function->attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 80;
        function->next = module->functions;
        module->functions = function;
    }
    pthread_mutex_unlock(&guard);
    return function;
}

static uint64_t globals_of(const char *image) {
    return strncmp(image, "globals=", 8) ? 0 : strtoull(image + 8, NULL, 0);
}

CUresult si_load_lazily(CUmodule library) {
    uint64_t bytes = __atomic_exchange_n(&library->later, 0, __ATOMIC_RELAXED);
    if (!bytes) return CUDA_SUCCESS;
    CUresult result = si_ready();
    if (result == CUDA_SUCCESS) result = si_charged(si_current->device, bytes);
    if (result == CUDA_SUCCESS) library->bytes = bytes, library->device = si_current->device;
    else library->later = bytes;
    return result;
}

API(cuModuleLoadData)(CUmodule *module, const void *image) {
    KNOWN(module && image);
    TRY(si_ready());
    uint64_t bytes = globals_of(image);
    if (bytes && !si_charge(si_current->device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *module = calloc(1, sizeof **module);
    (*module)->bytes = bytes, (*module)->device = si_current->device;
    return CUDA_SUCCESS;
}

API(cuModuleLoad)(CUmodule *module, const char *path) {
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    fclose(file);
    return si_cuModuleLoadData(module, path);
}

API(cuModuleLoadDataEx)(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    (void)count, (void)options, (void)values;
    return si_cuModuleLoadData(module, image);
}

API(cuModuleLoadFatBinary)(CUmodule *module, const void *image) { return si_cuModuleLoadData(module, image); }

// Its functions may still be queried: nothing is freed.
API(cuModuleUnload)(CUmodule module) {
    KNOWN(module);
    TRY(si_ready());
    if (module->bytes) si_uncharge(module->device, module->bytes);
    module->bytes = 0;
    return CUDA_SUCCESS;
}

API(cuModuleGetLoadingMode)(CUmoduleLoadingMode *mode) {
    KNOWN(mode);
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

API(cuModuleGetFunction)(CUfunction *function, CUmodule module, const char *name) {
    KNOWN(function && module && name);
    TRY(si_ready());
    *function = si_function(module, name);
    return CUDA_SUCCESS;
}

API(cuModuleGetFunctionCount)(unsigned *count, CUmodule module) {
    KNOWN(count && module);
    *count = 0;
    for (CUfunction one = module->functions; one; one = one->next) ++*count;
    return CUDA_SUCCESS;
}

API(cuModuleGetGlobal_v2)(CUdeviceptr *pointer, size_t *size, CUmodule module, const char *name) {
    KNOWN(module && name);
    TRY(si_ready());
    pthread_mutex_lock(&guard);
    struct global *global = module->globals;
    while (global && strcmp(global->name, name)) global = global->next;
    uint64_t address = global ? global->address : 0;
    CUresult result = CUDA_SUCCESS;
    if (!global) {
        result = si_new_block(&address, GLOBAL_BYTES, SI_GLOBAL, si_current->device, NULL);
        global = malloc(sizeof *global);
        *global = (struct global){strdup(name), address, module->globals};
        module->globals = global;
    }
    pthread_mutex_unlock(&guard);
    if (pointer) *pointer = address;
    if (size) *size = GLOBAL_BYTES;
    return result;
}

// A library is a module of no context. Its globals come to a device when something of it is first used there, or at
// once if there is a context and CUDA_MODULE_LOADING is EAGER.
API(cuLibraryLoadData)
(CUlibrary *library, const void *image, CUjit_option *options, void **values, unsigned count,
 CUlibraryOption *library_options, void **library_values, unsigned library_count) {
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    KNOWN(library && image);
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    const char *mode = getenv("CUDA_MODULE_LOADING");
    CUmodule made = calloc(1, sizeof *made);
    made->later = globals_of(image);
    *library = (CUlibrary)made;
    return mode && !strcmp(mode, "EAGER") && si_current ? si_load_lazily(made) : CUDA_SUCCESS;
}

API(cuLibraryLoadFromFile)
(CUlibrary *library, const char *path, CUjit_option *options, void **values, unsigned count,
 CUlibraryOption *library_options, void **library_values, unsigned library_count) {
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    fclose(file);
    return si_cuLibraryLoadData(library, path, options, values, count, library_options, library_values, library_count);
}

API(cuLibraryUnload)(CUlibrary library) {
    KNOWN(library);
    CUmodule module = (CUmodule)library;
    if (module->bytes) si_uncharged(module->device, module->bytes);
    module->bytes = module->later = 0;
    return CUDA_SUCCESS;
}

API(cuLibraryGetModule)(CUmodule *module, CUlibrary library) {
    KNOWN(module && library);
    TRY(si_ready());
    *module = (CUmodule)library;
    return si_load_lazily(*module);
}

API(cuLibraryGetKernel)(CUkernel *kernel, CUlibrary library, const char *name) {
    KNOWN(kernel && library && name);
    *kernel = (CUkernel)si_function((CUmodule)library, name);
    return CUDA_SUCCESS;
}

API(cuLibraryGetKernelCount)(unsigned *count, CUlibrary library) {
    return si_cuModuleGetFunctionCount(count, (CUmodule)library);
}

API(cuLibraryGetGlobal)(CUdeviceptr *pointer, size_t *size, CUlibrary library, const char *name) {
    KNOWN(library);
    TRY(si_load_lazily((CUmodule)library));
    return si_cuModuleGetGlobal_v2(pointer, size, (CUmodule)library, name);
}

API(cuLibraryGetManaged)(CUdeviceptr *pointer, size_t *size, CUlibrary library, const char *name) {
    return si_cuModuleGetGlobal_v2(pointer, size, (CUmodule)library, name);
}

API(cuKernelGetFunction)(CUfunction *function, CUkernel kernel) {
    KNOWN(function && kernel);
    TRY(si_ready());
    *function = (CUfunction)kernel;
    return si_load_lazily((*function)->module);
}

API(cuKernelGetLibrary)(CUlibrary *library, CUkernel kernel) {
    KNOWN(library && kernel);
    *library = (CUlibrary)((CUfunction)kernel)->module;
    return CUDA_SUCCESS;
}

API(cuKernelGetName)(const char **name, CUkernel kernel) {
    KNOWN(name && kernel);
    *name = ((CUfunction)kernel)->name;
    return CUDA_SUCCESS;
}

API(cuFuncGetName)(const char **name, CUfunction function) { return si_cuKernelGetName(name, (CUkernel)function); }

API(cuFuncGetModule)(CUmodule *module, CUfunction function) {
    return si_cuKernelGetLibrary((CUlibrary *)module, (CUkernel)function);
}

API(cuFuncGetAttribute)(int *value, CUfunction_attribute attribute, CUfunction function) {
    KNOWN(value && function && (unsigned)attribute < 32);
    *value = function->attributes[attribute];
    return CUDA_SUCCESS;
}

API(cuFuncSetAttribute)(CUfunction function, CUfunction_attribute attribute, int value) {
    KNOWN(function && (unsigned)attribute < 32);
    function->attributes[attribute] = value;
    return CUDA_SUCCESS;
}

API(cuKernelGetAttribute)(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
    (void)device;
    return si_cuFuncGetAttribute(value, attribute, (CUfunction)kernel);
}

API(cuKernelSetAttribute)(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
    (void)device;
    return si_cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}

API(cuFuncSetCacheConfig)(CUfunction function, CUfunc_cache config) {
    (void)config;
    KNOWN(function);
    return CUDA_SUCCESS;
}

API(cuFuncSetSharedMemConfig)(CUfunction function, CUsharedconfig config) {
    (void)config;
    KNOWN(function);
    return CUDA_SUCCESS;
}

API(cuFuncLoad)(CUfunction function) {
    KNOWN(function);
    return CUDA_SUCCESS;
}

API(cuFuncIsLoaded)(CUfunctionLoadingState *state, CUfunction function) {
    KNOWN(state && function);
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, CUfunction function, int size, size_t shared) {
    (void)shared;
    KNOWN(blocks && function && size > 0);
    *blocks = size > 1024 ? 0 : 2048 / size > 32 ? 32 : 2048 / size;
    return CUDA_SUCCESS;
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int *blocks, CUfunction function, int size, size_t shared, unsigned flags) {
    (void)flags;
    return si_cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, size, shared);
}

API(cuOccupancyMaxPotentialBlockSize)
(int *grid, int *size, CUfunction function, CUoccupancyB2DSize shared, size_t dynamic, int limit) {
    (void)shared, (void)dynamic, (void)limit;
    KNOWN(grid && size && function);
    *grid = 216, *size = 1024;
    return CUDA_SUCCESS;
}

API(cuOccupancyMaxPotentialBlockSizeWithFlags)
(int *grid, int *size, CUfunction function, CUoccupancyB2DSize shared, size_t dynamic, int limit, unsigned flags) {
    (void)flags;
    return si_cuOccupancyMaxPotentialBlockSize(grid, size, function, shared, dynamic, limit);
}

API(cuLinkCreate_v2)(unsigned count, CUjit_option *options, void **values, CUlinkState *link) {
    (void)count, (void)options, (void)values;
    KNOWN(link);
    TRY(si_ready());
    *link = calloc(1, IMAGE_BYTES);
    return CUDA_SUCCESS;
}

API(cuLinkAddData_v2)
(CUlinkState link, CUjitInputType type, void *data, size_t size, const char *name, unsigned count,
 CUjit_option *options, void **values) {
    (void)type, (void)size, (void)name, (void)count, (void)options, (void)values;
    KNOWN(link && data);
    return CUDA_SUCCESS;
}

API(cuLinkAddFile_v2)
(CUlinkState link, CUjitInputType type, const char *path, unsigned count, CUjit_option *options, void **values) {
    (void)type, (void)count, (void)options, (void)values;
    KNOWN(link && path);
    return CUDA_SUCCESS;
}

API(cuLinkComplete)(CUlinkState link, void **image, size_t *size) {
    KNOWN(link && image);
    *image = link;
    if (size) *size = IMAGE_BYTES;
    return CUDA_SUCCESS;
}

API(cuLinkDestroy)(CUlinkState link) {
    free(link);
    return CUDA_SUCCESS;
}
