// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// libcndev.so, Cambricon's management library, over the stand-in GPUs: the functions that inventories and monitors call.
//
// A handle is the GPU's number plus BASE, so that a caller that takes an index for a handle fails. A structure whose
// version is newer than ours is refused, as the library does. `standinBreak` makes a GPU answer with that error, or,
// with IN_PROBLEM, answer as usual and report that it is not healthy.

#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "observed.h"

#define BASE 1000
#define VERSION 6
#define UUID_BYTES 37
#define IN_PROBLEM 18

enum {
    SUCCESS = 0,
    UNSUPPORTED_API_VERSION = 3,
    UNINITIALIZED = 4,
    INVALID_ARGUMENT = 5,
    INVALID_DEVICE_ID = 6,
    INSUFFICIENT_SPACE = 9,
};

struct card_info {
    int version;
    unsigned number;
};

struct uuid_info {
    int version;
    uint8_t uuid[UUID_BYTES];
    uint64_t ncs;
};

struct memory_info { // MiB
    int64_t physical_total, physical_used, reserved_memory, virtual_total, virtual_used;
    uint64_t global_memory, reserved[16];
};

struct utilization_info {
    int version, average, core[80];
};

struct health_state {
    int version, health, device_state, driver_state;
};

struct pcie_info {
    int version;
    unsigned subsystem_id, device_id;
    uint16_t vendor, subsystem_vendor;
    unsigned domain, bus, device, function;
    const char *physical_slot;
    int slot;
};

struct process_info { // KiB
    int version;
    unsigned pid;
    uint64_t physical_used, virtual_used;
};

struct relationship {
    int version, relation;
};

static _Atomic int sessions;

static int gpu_of(int32_t handle) {
    int gpu = handle - BASE;
    for (uint32_t index = 0; index < si_observed_count(); index++)
        if (si_observed_gpu(index) == gpu) return gpu;
    return -1;
}

// What keeps a question about a GPU from being answered; SUCCESS: nothing.
static int refusal(int32_t handle, const void *answer, int version) {
    if (!sessions) return UNINITIALIZED;
    if (!answer) return INVALID_ARGUMENT;
    if (version < 1 || version > VERSION) return UNSUPPORTED_API_VERSION;
    int gpu = gpu_of(handle);
    if (gpu < 0) return INVALID_DEVICE_ID;
    int fault = si_observed_fault(gpu);
    return fault == IN_PROBLEM ? SUCCESS : fault;
}

EXPORTED int cndevInit(int reserved) {
    (void)reserved;
    si_state();
    sessions++;
    return SUCCESS;
}

EXPORTED int cndevRelease(void) {
    if (!sessions) return UNINITIALIZED;
    sessions--;
    return SUCCESS;
}

EXPORTED const char *cndevGetErrorString(int error) {
    switch (error) {
    case SUCCESS: return "Success";
    case UNSUPPORTED_API_VERSION: return "Unsupported API version";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid argument";
    case INVALID_DEVICE_ID: return "Invalid device ID";
    case INSUFFICIENT_SPACE: return "Insufficient space";
    default: return "Unknown error";
    }
}

EXPORTED int cndevGetDeviceCount(struct card_info *info) {
    if (!sessions) return UNINITIALIZED;
    if (!info) return INVALID_ARGUMENT;
    if (info->version < 1 || info->version > VERSION) return UNSUPPORTED_API_VERSION;
    info->number = si_observed_count();
    return SUCCESS;
}

EXPORTED int cndevGetDeviceHandleByIndex(int index, int32_t *handle) {
    if (!sessions) return UNINITIALIZED;
    int gpu = index < 0 ? -1 : si_observed_gpu((uint32_t)index);
    if (!handle || gpu < 0) return INVALID_ARGUMENT;
    *handle = gpu + BASE;
    return SUCCESS;
}

EXPORTED int cndevGetUUID(struct uuid_info *info, int32_t handle) {
    int refused = refusal(handle, info, info ? info->version : 0);
    if (refused) return refused;
    char text[SI_UUID];
    si_uuid(gpu_of(handle), text);
    snprintf((char *)info->uuid, sizeof info->uuid, "%s", strchr(text, '-') + 1); // callers add MLU-
    return SUCCESS;
}

EXPORTED const char *cndevGetCardNameStringByDevId(int32_t handle) {
    int gpu = gpu_of(handle);
    return gpu < 0 ? NULL : si_state()->set.name[gpu];
}

EXPORTED int cndevGetMemoryUsageV2(struct memory_info *info, int32_t handle) {
    int refused = refusal(handle, info, VERSION);
    if (refused) return refused;
    int gpu = gpu_of(handle);
    *info = (struct memory_info){.physical_total = (int64_t)(si_state()->set.memory[gpu] >> 20),
                                 .physical_used = (int64_t)(si_observed_bytes(gpu) >> 20)};
    return SUCCESS;
}

EXPORTED int cndevGetDeviceUtilizationInfo(struct utilization_info *info, int32_t handle) {
    int refused = refusal(handle, info, info ? info->version : 0);
    if (!refused) info->average = (int)si_observed_percent(gpu_of(handle));
    return refused;
}

EXPORTED int cndevGetCardHealthState(struct health_state *state, int32_t handle) {
    int refused = refusal(handle, state, state ? state->version : 0);
    if (refused) return refused;
    state->health = state->device_state = si_observed_fault(gpu_of(handle)) != IN_PROBLEM;
    state->driver_state = 4; // running
    return SUCCESS;
}

EXPORTED int cndevGetPCIeInfo(struct pcie_info *info, int32_t handle) {
    int refused = refusal(handle, info, info ? info->version : 0);
    if (refused) return refused;
    *info = (struct pcie_info){.version = info->version, .vendor = 0xcabc, .bus = (unsigned)gpu_of(handle) + 1};
    return SUCCESS;
}

EXPORTED int cndevGetProcessInfo(unsigned *count, struct process_info *infos, int32_t handle) {
    if (!count) return INVALID_ARGUMENT;
    int refused = refusal(handle, infos, infos ? infos->version : 0);
    if (refused) return refused;
    struct si_process found[SI_SLOTS];
    unsigned room = *count;
    *count = si_observed_processes(gpu_of(handle), found);
    if (room < *count) return INSUFFICIENT_SPACE;
    for (unsigned place = 0; place < *count; place++)
        infos[place] = (struct process_info){
            .version = VERSION, .pid = found[place].pid, .physical_used = found[place].bytes >> 10};
    return SUCCESS;
}

// Two and two are at one switch, as in nvml_devices.c.
EXPORTED int cndevTopologyGetRelationship(struct relationship *info, int32_t handle, int32_t other) {
    int refused = refusal(handle, info, info ? info->version : 0);
    if (!refused) refused = refusal(other, info, info->version);
    if (!refused) info->relation = gpu_of(handle) / 2 == gpu_of(other) / 2 ? 2 : 6;
    return refused;
}
