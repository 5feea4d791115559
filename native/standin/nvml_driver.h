// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the stand-in's libnvidia-ml.so.1 share. API(name) defines what the generated entry point `name`
// calls.

#ifndef STANDIN_NVML_DRIVER_H
#define STANDIN_NVML_DRIVER_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS // all versions of all functions
#include <nvml.h>

#include "shared.h"

#define API(name) nvmlReturn_t si_##name

// Its index; leaves the function when there is no such device, or it is broken.
#define DEVICE(device)                                                       \
    ({                                                                       \
        int found = si_index(device);                                        \
        if (found < 0) return NVML_ERROR_INVALID_ARGUMENT;                   \
        int broken = atomic_load(&si_state()->broken[si_card_of(found)]);    \
        if (broken) return (nvmlReturn_t)broken;                             \
        found;                                                               \
    })

int si_index(nvmlDevice_t device);
nvmlDevice_t si_handle(int index);
nvmlReturn_t si_text(char *to, unsigned length, const char *text);

#endif
