// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The GPUs that this process sees, in the order of CUDA_VISIBLE_DEVICES, and their properties.

#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define KIB 1024
#define WARP 32
#define PROCESSORS 108
#define ANY_NUMBER 2147483647

bool si_initialised;
int si_visible;

static int physical[SI_DEVICES];

int si_physical(CUdevice device) { return device >= 0 && device < si_visible ? physical[device] : -1; }

CUdevice si_ordinal(int which) {
    for (int i = 0; i < si_visible; i++)
        if (physical[i] == which) return i;
    return -1;
}

static int first_instance(int card) {
    int found[SI_DEVICES];
    return si_instances(card, found) ? found[0] : -1;
}

static int instance_named(const char *word) {
    for (int device = 0; device < SI_DEVICES; device++) {
        char text[SI_UUID];
        si_uuid(device, text);
        if (si_is_instance(device) && si_sees(device) && !strcasecmp(text, word)) return device;
    }
    return -1;
}

// An index, or the beginning of a UUID that fits one device.
static int card_named(const char *word, const int *present, int count) {
    if (strncmp(word, "GPU-", 4)) {
        char *end;
        long index = strtol(word, &end, 10);
        return end != word && !*end && index >= 0 && index < count ? present[index] : -1;
    }
    int found = -1;
    for (int i = 0; i < count; i++) {
        char text[SI_UUID];
        si_uuid(present[i], text);
        if (strncasecmp(text, word, strlen(word))) continue;
        if (found >= 0) return -1;
        found = present[i];
    }
    return found;
}

// The name of a partitioned card means its first instance.
static int device_named(const char *word, const int *present, int count) {
    if (!strncasecmp(word, "MIG-", 4)) return instance_named(word);
    int card = card_named(word, present, count);
    return card >= 0 && si_is_partitioned(card) ? first_instance(card) : card;
}

// A process that sees a MIG instance sees nothing else.
static void see_any(const int *present, int count) {
    for (int i = 0; i < count && !si_visible; i++) {
        int instance = si_is_partitioned(present[i]) ? first_instance(present[i]) : -1;
        if (instance >= 0) physical[si_visible++] = instance;
    }
    for (int i = 0; i < count && (!si_visible || !si_is_instance(physical[0])); i++)
        if (!si_is_partitioned(present[i])) physical[si_visible++] = present[i];
}

// The first name that is not one ends the list, and so does a MIG instance; a device named twice leaves none.
static void see_named(char *list, const int *present, int count) {
    for (char *word; (word = strsep(&list, ","));) {
        while (isspace((unsigned char)*word)) word++;
        for (size_t length = strlen(word); length && isspace((unsigned char)word[length - 1]);) word[--length] = 0;
        int device = device_named(word, present, count);
        if (device < 0 || si_visible == SI_DEVICES) return;
        if (si_ordinal(device) >= 0) {
            si_visible = 0;
            return;
        }
        if (si_visible && si_is_instance(device)) return;
        physical[si_visible++] = device;
        if (si_is_instance(device)) return;
    }
}

API(cuInit)(unsigned flags) {
    KNOWN(!flags);
    if (si_initialised) return CUDA_SUCCESS;
    int present[SI_DEVICES], count = si_present(present);
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    si_visible = 0;
    if (named) {
        char *copy = strdup(named);
        see_named(copy, present, count);
        free(copy);
    } else {
        see_any(present, count);
    }
    if (!si_visible) return CUDA_ERROR_NO_DEVICE;
    TRY(si_join_mps());
    si_initialised = true;
    return CUDA_SUCCESS;
}

CUresult si_known_device(CUdevice device) {
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    return si_physical(device) < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

API(cuDeviceGet)(CUdevice *device, int ordinal) {
    KNOWN(device);
    TRY(si_known_device(ordinal));
    *device = ordinal;
    return CUDA_SUCCESS;
}

API(cuDeviceGetCount)(int *count) {
    KNOWN(count);
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    *count = si_visible;
    return CUDA_SUCCESS;
}

API(cuDeviceGetName)(char *name, int length, CUdevice device) {
    KNOWN(name && length > 0);
    TRY(si_known_device(device));
    snprintf(name, (size_t)length, "%s", si_state()->set.name[si_physical(device)]);
    return CUDA_SUCCESS;
}

API(cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice device) {
    KNOWN(uuid);
    TRY(si_known_device(device));
    memset(uuid, 0, sizeof *uuid);
    int which = si_physical(device);
    uint32_t serial = si_is_instance(which) ? si_state()->instance[which].serial : 0;
    uuid->bytes[8] = (char)(serial >> 8), uuid->bytes[9] = (char)serial;
    uuid->bytes[15] = (char)(si_state()->set.first + (uint32_t)si_card_of(which));
    return CUDA_SUCCESS;
}

API(cuDeviceGetPCIBusId)(char *text, int length, CUdevice device) {
    KNOWN(text && length > 0);
    TRY(si_known_device(device));
    snprintf(text, (size_t)length, "0000:%02x:00.0", si_card_of(si_physical(device)) + 1);
    return CUDA_SUCCESS;
}

API(cuDeviceGetByPCIBusId)(CUdevice *device, const char *text) {
    KNOWN(device && text);
    unsigned domain = 0, bus = 0;
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2 || si_ordinal((int)bus - 1) < 0) return CUDA_ERROR_INVALID_DEVICE;
    *device = si_ordinal((int)bus - 1);
    return CUDA_SUCCESS;
}

API(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice device) {
    KNOWN(bytes);
    TRY(si_known_device(device));
    *bytes = si_state()->set.memory[si_physical(device)];
    return CUDA_SUCCESS;
}

API(cuDeviceTotalMem)(unsigned *bytes, CUdevice device) {
    KNOWN(bytes);
    TRY(si_known_device(device));
    uint64_t all = si_state()->set.memory[si_physical(device)];
    *bytes = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
    return CUDA_SUCCESS;
}

API(cuDeviceComputeCapability)(int *major, int *minor, CUdevice device) {
    KNOWN(major && minor);
    TRY(si_known_device(device));
    const int8_t *capability = si_state()->set.capability[si_physical(device)];
    *major = capability[0], *minor = capability[1];
    return CUDA_SUCCESS;
}

API(cuDeviceCanAccessPeer)(int *can, CUdevice device, CUdevice peer) {
    KNOWN(can);
    TRY(si_known_device(device));
    TRY(si_known_device(peer));
    *can = device != peer;
    return CUDA_SUCCESS;
}

API(cuDeviceGetP2PAttribute)(int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer) {
    KNOWN(value && device != peer);
    TRY(si_known_device(device));
    TRY(si_known_device(peer));
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}

API(cuDeviceGetExecAffinitySupport)(int *supported, CUexecAffinityType type, CUdevice device) {
    (void)type;
    KNOWN(supported);
    TRY(si_known_device(device));
    *supported = 0;
    return CUDA_SUCCESS;
}

// Those that are not 0, by CU_DEVICE_ATTRIBUTE_...: much like a GPU of compute capability 8.0.
static const struct {
    int attribute, value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, ANY_NUMBER},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * KIB},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 * KIB},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, WARP},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, ANY_NUMBER},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 64 * KIB},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1410000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, PROCESSORS},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1215000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 40 * KIB * KIB},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 164 * KIB},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 64 * KIB},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 163 * KIB},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 30 * KIB * KIB},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, KIB},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
};

API(cuDeviceGetAttribute)(int *value, CUdevice_attribute attribute, CUdevice device) {
    KNOWN(value && attribute > 0);
    TRY(si_known_device(device));
    *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? si_card_of(si_physical(device)) + 1 : 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == (int)attribute) *value = attributes[i].value;
    int physical = si_physical(device);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = si_state()->set.capability[physical][0]; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = si_state()->set.capability[physical][1]; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = si_state()->mode[physical]; break;
    default: break;
    }
    return CUDA_SUCCESS;
}
