// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// How programs find the driver's functions, and the names of its errors. Nothing here calls the dynamic linker, so that
// a test notices a hooking library that interposes dlsym only.

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "entries.h"

int si_not_supported(const char *name) {
    si_log(name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static int claimed(void) {
    const char *text = getenv("STANDIN_DRIVER");
    return text && *text ? atoi(text) : CUDA_VERSION;
}

static bool is_missing(const char *name) {
    const char *list = getenv("STANDIN_MISSING");
    size_t length = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length])) return true;
    return false;
}

static unsigned first_of(const char *name) {
    unsigned low = 0, high = si_address_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (strcmp(si_addresses[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// The newest function that is not newer than the requested version; the per-thread one if requested and available.
static void *find(const char *name, int version, cuuint64_t flags, bool *exists) {
    const struct si_address *plain = NULL, *per_thread = NULL;
    for (unsigned i = first_of(name); i < si_address_count && !strcmp(si_addresses[i].name, name); i++) {
        const struct si_address *entry = &si_addresses[i];
        if (entry->version > claimed()) continue;
        *exists = true;
        if (entry->version > version) continue;
        if (entry->per_thread) {
            per_thread = entry;
        } else {
            plain = entry;
        }
    }
    bool wants = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct si_address *chosen = wants && per_thread ? per_thread : plain;
    return chosen ? chosen->function : NULL;
}

API(cuGetProcAddress_v2)
(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    KNOWN(name && function);
    bool exists = false;
    *function = is_missing(name) ? NULL : find(name, version, flags, &exists);
    if (!status) return CUDA_SUCCESS;
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
              : exists  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

// The older function returns an error in cases for which the newer one has a status.
API(cuGetProcAddress)(const char *name, void **function, int version, cuuint64_t flags) {
    TRY(si_cuGetProcAddress_v2(name, function, version, flags, NULL));
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API(cuDriverGetVersion)(int *version) {
    KNOWN(version);
    *version = claimed();
    return CUDA_SUCCESS;
}

// The vendor's private tables are not imitated.
API(cuGetExportTable)(const void **table, const CUuuid *id) {
    (void)id;
    if (table) *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

#define ERROR(name) {name, #name}
static const struct {
    int code;
    const char *name;
} errors[] = {
    ERROR(CUDA_SUCCESS),
    ERROR(CUDA_ERROR_INVALID_VALUE),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY),
    ERROR(CUDA_ERROR_NOT_INITIALIZED),
    ERROR(CUDA_ERROR_DEINITIALIZED),
    ERROR(CUDA_ERROR_NO_DEVICE),
    ERROR(CUDA_ERROR_INVALID_DEVICE),
    ERROR(CUDA_ERROR_INVALID_IMAGE),
    ERROR(CUDA_ERROR_INVALID_CONTEXT),
    ERROR(CUDA_ERROR_ALREADY_MAPPED),
    ERROR(CUDA_ERROR_NOT_MAPPED),
    ERROR(CUDA_ERROR_FILE_NOT_FOUND),
    ERROR(CUDA_ERROR_INVALID_HANDLE),
    ERROR(CUDA_ERROR_ILLEGAL_STATE),
    ERROR(CUDA_ERROR_NOT_FOUND),
    ERROR(CUDA_ERROR_NOT_READY),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS),
    ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED),
    ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    ERROR(CUDA_ERROR_LAUNCH_FAILED),
    ERROR(CUDA_ERROR_NOT_PERMITTED),
    ERROR(CUDA_ERROR_NOT_SUPPORTED),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
    ERROR(CUDA_ERROR_UNKNOWN),
};

API(cuGetErrorName)(CUresult error, const char **name) {
    KNOWN(name);
    *name = NULL;
    for (size_t i = 0; !*name && i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)error) *name = errors[i].name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API(cuGetErrorString)(CUresult error, const char **text) {
    return si_cuGetErrorName(error, text); // the names say enough
}

API(cuProfilerStart)(void) { return CUDA_SUCCESS; }

API(cuProfilerStop)(void) { return CUDA_SUCCESS; }
