// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// NVML makes and removes MIG instances: GPU instances with a place among the card's slices of memory, and in each at
// most one compute instance, which is what a program uses.

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_driver.h"

#define PROCESSORS_OF_A_SLICE 14

static char groups[SI_DEVICES], computes[SI_DEVICES]; // what handles point to

// The device of a GPU instance, or -1.
static int group_of(nvmlGpuInstance_t handle) {
    ptrdiff_t device = (char *)handle - groups;
    return device >= 0 && device < SI_DEVICES && si_state()->instance[device].group ? (int)device : -1;
}

static int compute_of(nvmlComputeInstance_t handle) {
    ptrdiff_t device = (char *)handle - computes;
    return device >= 0 && device < SI_DEVICES && si_state()->instance[device].serial ? (int)device : -1;
}

static const struct si_shape *shape_by_id(int card, unsigned id) {
    const struct si_shape *shape;
    for (unsigned which = 0; (shape = si_shape(si_state(), card, which)); which++)
        if (shape->id == id) return shape;
    return NULL;
}

static const struct si_shape *shape_of(const struct si_instance *instance) {
    char name[SI_PROFILE];
    const struct si_shape *shape;
    for (unsigned which = 0; (shape = si_shape(si_state(), instance->card, which)); which++) {
        si_profile_name(si_state(), instance->card, shape, name);
        if (!strcmp(name, instance->profile)) return shape;
    }
    return NULL;
}

// Leaves the function unless the caller may change the card's instances.
#define CHANGEABLE(card)                                                 \
    do {                                                                 \
        if (getenv("STANDIN_UNPRIVILEGED")) return NVML_ERROR_NO_PERMISSION; \
        if (!si_is_partitioned(card)) return NVML_ERROR_NOT_SUPPORTED;   \
    } while (0)

API(nvmlDeviceGetGpuInstanceProfileInfoV)
(nvmlDevice_t device, unsigned profile, nvmlGpuInstanceProfileInfo_v2_t *info) {
    int card = DEVICE(device);
    if (!info || profile >= NVML_GPU_INSTANCE_PROFILE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    const struct si_shape *shape;
    for (unsigned which = 0; (shape = si_shape(si_state(), card, which)) && shape->number != profile;) which++;
    if (!shape) return NVML_ERROR_NOT_SUPPORTED;
    char name[SI_PROFILE];
    si_profile_name(si_state(), card, shape, name);
    unsigned version = info->version;
    *info = (nvmlGpuInstanceProfileInfo_v2_t){
        .version = version,
        .id = shape->id,
        .sliceCount = shape->slices,
        .instanceCount = shape->media ? 1 : (unsigned)__builtin_popcount(shape->starts),
        .multiprocessorCount = shape->slices * PROCESSORS_OF_A_SLICE,
    };
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    return NVML_SUCCESS;
}

API(nvmlDeviceGetGpuInstancePossiblePlacements_v2)
(nvmlDevice_t device, unsigned id, nvmlGpuInstancePlacement_t *placements, unsigned *count) {
    const struct si_shape *shape = shape_by_id(DEVICE(device), id);
    if (!shape || !count) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count, found = 0;
    for (unsigned start = 0; start < 8; start++) {
        if (!(shape->starts >> start & 1)) continue;
        if (placements && found < room) placements[found] = (nvmlGpuInstancePlacement_t){start, shape->size};
        found++;
    }
    *count = found;
    return placements && room < found ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API(nvmlDeviceCreateGpuInstanceWithPlacement)
(nvmlDevice_t device, unsigned id, const nvmlGpuInstancePlacement_t *place, nvmlGpuInstance_t *instance) {
    int card = DEVICE(device), made = -1;
    const struct si_shape *shape = shape_by_id(card, id);
    if (!shape || !place || !instance || place->size != shape->size) return NVML_ERROR_INVALID_ARGUMENT;
    CHANGEABLE(card);
    char name[SI_PROFILE];
    si_profile_name(si_state(), card, shape, name);
    si_lock();
    if (place->start < 8 && si_fits(si_mapped, card, shape, place->start))
        made = si_add_group(si_mapped, card, name, place->start, shape->size);
    si_unlock();
    if (made < 0) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *instance = (nvmlGpuInstance_t)&groups[made];
    return NVML_SUCCESS;
}

API(nvmlGpuInstanceDestroy)(nvmlGpuInstance_t instance) {
    int device = group_of(instance);
    if (device < 0) return NVML_ERROR_INVALID_ARGUMENT;
    CHANGEABLE(si_state()->instance[device].card);
    if (si_state()->instance[device].serial) return NVML_ERROR_IN_USE;
    si_state()->instance[device].group = 0;
    return NVML_SUCCESS;
}

API(nvmlDeviceGetGpuInstances)(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *found, unsigned *count) {
    int card = DEVICE(device);
    const struct si_shape *shape = shape_by_id(card, id);
    if (!shape || !found || !count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (int one = (int)si_state()->set.devices; one < SI_DEVICES; one++) {
        const struct si_instance *instance = &si_state()->instance[one];
        if (instance->group && instance->card == card && shape_of(instance) == shape)
            found[(*count)++] = (nvmlGpuInstance_t)&groups[one];
    }
    return NVML_SUCCESS;
}

API(nvmlGpuInstanceGetInfo)(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info) {
    int device = group_of(handle);
    if (device < 0 || !info) return NVML_ERROR_INVALID_ARGUMENT;
    const struct si_instance *one = &si_state()->instance[device];
    const struct si_shape *shape = shape_of(one);
    *info = (nvmlGpuInstanceInfo_t){
        .device = si_handle(one->card),
        .id = one->group,
        .profileId = shape ? shape->id : 0,
        .placement = {one->start, one->size},
    };
    return NVML_SUCCESS;
}

// A compute instance has all slices of its GPU instance.
API(nvmlGpuInstanceGetComputeInstanceProfileInfoV)
(nvmlGpuInstance_t handle, unsigned profile, unsigned engine, nvmlComputeInstanceProfileInfo_v2_t *info) {
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    int device = group_of(handle);
    if (device < 0 || !info || engine) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned own = si_state()->instance[device].slices;
    if (profile >= sizeof slices / sizeof *slices || slices[profile] != own) return NVML_ERROR_NOT_SUPPORTED;
    unsigned version = info->version;
    *info = (nvmlComputeInstanceProfileInfo_v2_t){
        .version = version,
        .id = profile,
        .sliceCount = own,
        .instanceCount = 1,
        .multiprocessorCount = own * PROCESSORS_OF_A_SLICE,
    };
    snprintf(info->name, sizeof info->name, "MIG %s", si_state()->instance[device].profile);
    return NVML_SUCCESS;
}

API(nvmlGpuInstanceGetComputeInstances)
(nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *found, unsigned *count) {
    int device = group_of(handle);
    (void)id;
    if (device < 0 || !found || !count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = si_state()->instance[device].serial != 0;
    if (*count) *found = (nvmlComputeInstance_t)&computes[device];
    return NVML_SUCCESS;
}

API(nvmlGpuInstanceCreateComputeInstance)(nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *made) {
    int device = group_of(handle);
    (void)id;
    if (device < 0 || !made) return NVML_ERROR_INVALID_ARGUMENT;
    struct si_instance *one = &si_state()->instance[device];
    CHANGEABLE(one->card);
    if (one->serial) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    one->serial = one->group;
    *made = (nvmlComputeInstance_t)&computes[device];
    return NVML_SUCCESS;
}

API(nvmlComputeInstanceDestroy)(nvmlComputeInstance_t handle) {
    int device = compute_of(handle);
    if (device < 0) return NVML_ERROR_INVALID_ARGUMENT;
    CHANGEABLE(si_state()->instance[device].card);
    bool used = false;
    si_reap();
    si_lock();
    for (unsigned slot = 0; slot < si_mapped->slots; slot++)
        used = used || (si_mapped->slot[slot].used && si_mapped->slot[slot].uses[device]);
    if (!used) si_mapped->instance[device].serial = 0;
    si_unlock();
    return used ? NVML_ERROR_IN_USE : NVML_SUCCESS;
}
