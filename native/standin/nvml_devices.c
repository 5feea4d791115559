// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// NVML over the same GPUs: their properties. Their use is in nvml_usage.c.

#include "nvml_driver.h"

#include <cuda.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entries.h"

static char handles[SI_DEVICES];
static _Atomic int initialised;

int si_nvml_not_supported(const char *name) {
    si_log(name);
    return NVML_ERROR_NOT_SUPPORTED;
}

int si_index(nvmlDevice_t device) {
    ptrdiff_t index = (char *)device - handles;
    if (!initialised || index < 0 || index >= SI_DEVICES) return -1;
    return index < (ptrdiff_t)si_state()->set.devices || si_is_instance((int)index) ? (int)index : -1;
}

nvmlDevice_t si_handle(int index) { return (nvmlDevice_t)&handles[index]; }

nvmlReturn_t si_text(char *to, unsigned length, const char *text) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t number(nvmlDevice_t device, unsigned *to, unsigned value) {
    DEVICE(device);
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    *to = value;
    return NVML_SUCCESS;
}

// Its number among those that this process can see.
static int position(int card) {
    int cards[SI_DEVICES], count = si_present(cards);
    for (int place = 0; place < count; place++)
        if (cards[place] == card) return place;
    return -1;
}

#define FIRST_SWITCH_BUS 0x80u // no GPU has a bus beyond it

static nvmlReturn_t at_bus(nvmlPciInfo_t *info, unsigned bus) {
    if (!info) return NVML_ERROR_INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    info->bus = bus;
    snprintf(info->busId, sizeof info->busId, "00000000:%02X:00.0", (unsigned char)bus);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "0000:%02X:00.0", (unsigned char)bus);
    return NVML_SUCCESS;
}

// As in `si_settings`; 0 also for a link that no GPU has.
static int far_end(int index, unsigned link) {
    return link < SI_NVLINKS ? si_state()->set.nvlink[index][link] : 0;
}

API(nvmlInit_v2)(void) {
    si_state();
    initialised++;
    return NVML_SUCCESS;
}

API(nvmlInitWithFlags)(unsigned flags) {
    (void)flags;
    return si_nvmlInit_v2();
}

API(nvmlShutdown)(void) {
    if (!initialised) return NVML_ERROR_UNINITIALIZED;
    initialised--;
    return NVML_SUCCESS;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Unknown Error";
    }
}

API(nvmlSystemGetDriverVersion)(char *text, unsigned length) { return si_text(text, length, "575.57.08"); }

API(nvmlSystemGetNVMLVersion)(char *text, unsigned length) { return si_text(text, length, "12.575.57.08"); }

API(nvmlSystemGetCudaDriverVersion_v2)(int *version) {
    const char *claimed = getenv("STANDIN_DRIVER");
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    *version = claimed && *claimed ? atoi(claimed) : CUDA_VERSION;
    return NVML_SUCCESS;
}

API(nvmlSystemGetProcessName)(unsigned pid, char *text, unsigned length) {
    char path[64], name[512] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file) return NVML_ERROR_NOT_FOUND;
    size_t got = fread(name, 1, sizeof name - 1, file);
    fclose(file);
    if (!text || !length) return NVML_ERROR_INVALID_ARGUMENT;
    name[got] = 0; // the command's first word, cut to what there is room for
    snprintf(text, length, "%s", name);
    return NVML_SUCCESS;
}

API(nvmlDeviceGetCount_v2)(unsigned *count) {
    if (!initialised) return NVML_ERROR_UNINITIALIZED;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    int cards[SI_DEVICES];
    *count = (unsigned)si_present(cards);
    return NVML_SUCCESS;
}

API(nvmlDeviceGetHandleByIndex_v2)(unsigned index, nvmlDevice_t *device) {
    if (!initialised) return NVML_ERROR_UNINITIALIZED;
    int cards[SI_DEVICES];
    if (!device || index >= (unsigned)si_present(cards)) return NVML_ERROR_INVALID_ARGUMENT;
    *device = si_handle(cards[index]);
    return NVML_SUCCESS;
}

API(nvmlDeviceGetHandleByUUID)(const char *uuid, nvmlDevice_t *device) {
    if (!initialised) return NVML_ERROR_UNINITIALIZED;
    if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
    int cards[SI_DEVICES], count = si_present(cards);
    for (int index = 0; index < count; index++) {
        char text[SI_UUID];
        si_uuid(cards[index], text);
        if (!strcmp(uuid, text)) return si_nvmlDeviceGetHandleByIndex_v2((unsigned)index, device);
    }
    for (int instance = 0; instance < SI_DEVICES; instance++) {
        char text[SI_UUID];
        si_uuid(instance, text);
        if (!si_is_instance(instance) || !si_sees(instance) || strcmp(uuid, text) != 0) continue;
        *device = si_handle(instance);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API(nvmlDeviceGetHandleByPciBusId_v2)(const char *text, nvmlDevice_t *device) {
    unsigned domain = 0, bus = 0;
    if (!initialised) return NVML_ERROR_UNINITIALIZED;
    if (!text || sscanf(text, "%x:%x:", &domain, &bus) != 2) return NVML_ERROR_INVALID_ARGUMENT;
    int place = position((int)bus - 1);
    return place < 0 ? NVML_ERROR_NOT_FOUND : si_nvmlDeviceGetHandleByIndex_v2((unsigned)place, device);
}

API(nvmlDeviceGetUUID)(nvmlDevice_t device, char *text, unsigned length) {
    char uuid[SI_UUID];
    si_uuid(DEVICE(device), uuid);
    return si_text(text, length, uuid);
}

API(nvmlDeviceGetName)(nvmlDevice_t device, char *text, unsigned length) {
    int index = DEVICE(device);
    return si_text(text, length, si_state()->set.name[index]);
}

API(nvmlDeviceGetIndex)(nvmlDevice_t device, unsigned *index) {
    return number(device, index, (unsigned)position(si_card_of(si_index(device))));
}

API(nvmlDeviceGetMinorNumber)(nvmlDevice_t device, unsigned *minor) {
    return number(device, minor, (unsigned)si_card_of(si_index(device)));
}

API(nvmlDeviceGetPciInfo_v3)(nvmlDevice_t device, nvmlPciInfo_t *info) {
    return at_bus(info, (unsigned)si_card_of(DEVICE(device)) + 1);
}

API(nvmlDeviceGetNvLinkState)(nvmlDevice_t device, unsigned link, nvmlEnableState_t *active) {
    int end = far_end(DEVICE(device), link);
    if (!active || link >= SI_NVLINKS) return NVML_ERROR_INVALID_ARGUMENT;
    *active = end ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetNvLinkRemotePciInfo_v2)(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *info) {
    int end = far_end(DEVICE(device), link);
    if (!end) return NVML_ERROR_INVALID_ARGUMENT;
    return at_bus(info, end > 0 ? (unsigned)end : FIRST_SWITCH_BUS + (unsigned)-end);
}

API(nvmlDeviceGetNvLinkRemoteDeviceType)(nvmlDevice_t device, unsigned link, nvmlIntNvLinkDeviceType_t *type) {
    int end = far_end(DEVICE(device), link);
    if (!end || !type) return NVML_ERROR_INVALID_ARGUMENT;
    *type = end > 0 ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetMemoryAffinity)(nvmlDevice_t device, unsigned words, unsigned long *nodes, nvmlAffinityScope_t scope) {
    int node = si_state()->set.numa[DEVICE(device)];
    (void)scope;
    if (node < 0) return NVML_ERROR_NOT_SUPPORTED;
    if (!nodes || !words) return NVML_ERROR_INVALID_ARGUMENT;
    memset(nodes, 0, words * sizeof *nodes);
    nodes[0] = 1UL << node;
    return NVML_SUCCESS;
}

// Two and two are at one switch.
API(nvmlDeviceGetTopologyCommonAncestor)(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level) {
    int first = DEVICE(device), second = DEVICE(other);
    if (!level) return NVML_ERROR_INVALID_ARGUMENT;
    *level = first / 2 == second / 2 ? NVML_TOPOLOGY_SINGLE : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetTemperature)(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned *degrees) {
    (void)sensor;
    return number(device, degrees, 42);
}

API(nvmlDeviceGetPowerUsage)(nvmlDevice_t device, unsigned *milliwatts) { return number(device, milliwatts, 99000); }

API(nvmlDeviceGetEnforcedPowerLimit)(nvmlDevice_t device, unsigned *milliwatts) {
    return number(device, milliwatts, 300000);
}

API(nvmlDeviceGetPowerManagementLimit)(nvmlDevice_t device, unsigned *milliwatts) {
    return number(device, milliwatts, 300000);
}

API(nvmlDeviceGetFanSpeed)(nvmlDevice_t device, unsigned *percent) { return number(device, percent, 30); }

API(nvmlDeviceGetNumGpuCores)(nvmlDevice_t device, unsigned *count) { return number(device, count, 6912); }

API(nvmlDeviceGetPerformanceState)(nvmlDevice_t device, nvmlPstates_t *state) {
    DEVICE(device);
    *state = NVML_PSTATE_0;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetPersistenceMode)(nvmlDevice_t device, nvmlEnableState_t *mode) {
    DEVICE(device);
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetComputeMode)(nvmlDevice_t device, nvmlComputeMode_t *mode) {
    DEVICE(device);
    *mode = (nvmlComputeMode_t)si_state()->mode[si_index(device)];
    return NVML_SUCCESS;
}

API(nvmlDeviceSetComputeMode)(nvmlDevice_t device, nvmlComputeMode_t mode) {
    int index = DEVICE(device);
    if (getenv("STANDIN_UNPRIVILEGED")) return NVML_ERROR_NO_PERMISSION;
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD || mode >= NVML_COMPUTEMODE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    si_state()->mode[index] = (int)mode;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetCudaComputeCapability)(nvmlDevice_t device, int *major, int *minor) {
    const int8_t *capability = si_state()->set.capability[DEVICE(device)];
    *major = capability[0], *minor = capability[1];
    return NVML_SUCCESS;
}

API(nvmlDeviceGetClockInfo)(nvmlDevice_t device, nvmlClockType_t type, unsigned *mhz) {
    return number(device, mhz, type == NVML_CLOCK_MEM ? 1215 : 1410);
}

API(nvmlDeviceGetMaxClockInfo)(nvmlDevice_t device, nvmlClockType_t type, unsigned *mhz) {
    return si_nvmlDeviceGetClockInfo(device, type, mhz);
}

API(nvmlDeviceGetPcieThroughput)(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned *kib) {
    (void)counter;
    return number(device, kib, 0);
}
