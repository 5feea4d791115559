// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What NVML reports of MIG: the mode of a card, its instances and their attributes.

#include <string.h>

#include "nvml_driver.h"

#define PROCESSORS_OF_A_SLICE 14

static nvmlReturn_t instance_number(nvmlDevice_t device, unsigned *to, unsigned value) {
    int index = DEVICE(device);
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (!si_is_instance(index)) return NVML_ERROR_INVALID_ARGUMENT;
    *to = value;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetMigMode)(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    int index = DEVICE(device);
    if (!current || !pending) return NVML_ERROR_INVALID_ARGUMENT;
    if (si_is_instance(index)) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = si_is_partitioned(index) ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetMaxMigDeviceCount)(nvmlDevice_t device, unsigned *count) {
    int index = DEVICE(device);
    if (!count || si_is_instance(index)) return NVML_ERROR_INVALID_ARGUMENT;
    *count = si_compute_slices(index);
    return NVML_SUCCESS;
}

API(nvmlDeviceGetMigDeviceHandleByIndex)(nvmlDevice_t device, unsigned which, nvmlDevice_t *instance) {
    int index = DEVICE(device), found[SI_DEVICES];
    if (!instance || which >= si_compute_slices(index)) return NVML_ERROR_INVALID_ARGUMENT;
    if (which >= (unsigned)si_instances(index, found)) return NVML_ERROR_NOT_FOUND;
    *instance = si_handle(found[which]);
    return NVML_SUCCESS;
}

API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(nvmlDevice_t instance, nvmlDevice_t *device) {
    int index = DEVICE(instance);
    if (!device || !si_is_instance(index)) return NVML_ERROR_INVALID_ARGUMENT;
    *device = si_handle(si_card_of(index));
    return NVML_SUCCESS;
}

API(nvmlDeviceIsMigDeviceHandle)(nvmlDevice_t device, unsigned *is_instance) {
    int index = DEVICE(device);
    if (!is_instance) return NVML_ERROR_INVALID_ARGUMENT;
    *is_instance = si_is_instance(index);
    return NVML_SUCCESS;
}

API(nvmlDeviceGetGpuInstanceId)(nvmlDevice_t device, unsigned *id) {
    int index = DEVICE(device);
    return instance_number(device, id, si_state()->instance[index].serial);
}

// Each GPU instance has one compute instance.
API(nvmlDeviceGetComputeInstanceId)(nvmlDevice_t device, unsigned *id) { return instance_number(device, id, 0); }

API(nvmlDeviceGetAttributes_v2)(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    int index = DEVICE(device);
    if (!attributes) return NVML_ERROR_INVALID_ARGUMENT;
    if (!si_is_instance(index)) return NVML_ERROR_NOT_SUPPORTED;
    unsigned slices = si_state()->instance[index].slices;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = slices * PROCESSORS_OF_A_SLICE;
    attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = slices;
    attributes->memorySizeMB = si_state()->set.memory[index] >> 20;
    return NVML_SUCCESS;
}
