// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions that this library hooks, and the driver's own behind them. hooks.def lists them:
//
//   HOOK(name, policy)   the library defines a function `name` with the driver's signature and exports it
//   USED(name)           the library calls the driver's `name` and does not hook it
//
// The coverage test reads the policy: ALLOCATES, FREES, MOVES, LOADS, SYNCHRONISES, LAUNCHES, REPORTS, LOOKS_UP, CONTEXT or
// GRAPH.
// declined.def lists functions that look as if they needed a hook, with the reason why not: DECLINED(name, "why").

#ifndef COTENANT_HOOKS_H
#define COTENANT_HOOKS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda_abi.h"

enum ct_function {
#define HOOK(name, policy) CT_##name,
#define USED(name) CT_##name,
#include "hooks.def"
#undef HOOK
#undef USED
    CT_FUNCTIONS
};

// The driver's function, or NULL if this driver has none. Costs one load once it has been found.
void *ct_find_function(enum ct_function function);
extern _Atomic(void *) ct_real_functions[CT_FUNCTIONS];

static inline void *ct_real(enum ct_function function) {
    void *known = atomic_load_explicit(&ct_real_functions[function], memory_order_relaxed);
    return __builtin_expect(known != 0, 1) ? known : ct_find_function(function);
}

// REAL(cuMemFree_v2)(pointer): the driver's own; check HAS first if an older driver may lack it.
#define REAL(name) ((__typeof__(&name))ct_real(CT_##name))
#define HAS(name) (ct_real(CT_##name) != 0)

// CALL(cuMemFree_v2, pointer): the driver's answer, or CUDA_ERROR_NOT_SUPPORTED if it has no such function.
#define CALL(name, ...)                                             \
    ({                                                              \
        __typeof__(&name) real_one = REAL(name);                    \
        real_one ? real_one(__VA_ARGS__) : CUDA_ERROR_NOT_SUPPORTED; \
    })

// NVML_CALL(nvmlInit_v2): the same of NVML.
#define NVML_CALL(name, ...) (HAS(name) ? REAL(name)(__VA_ARGS__) : NVML_ERROR_FUNCTION_NOT_FOUND)

// Every hook begins with this, directly or through ct_in_slice: it starts the library on the first call.
#define CT_ENTER()                                                             \
    do {                                                                       \
        if (__builtin_expect(!ct_started, 0)) ct_start();                      \
    } while (0)
extern _Atomic bool ct_started;
void ct_start(void);

// The slice's index of a GPU: of the calling thread's context, of a device ordinal, of an NVML handle. -1: not limited.
int ct_current_device(void);
extern _Atomic int ct_only_device; // below 0: not known, not limited, or there are several; not before the library has started
int ct_device_of(CUdevice ordinal);
int ct_device_of_uuid(const char *uuid);
// As it was when this process learned it: the region's header says the same, unless the tenant has overwritten it.
const char *ct_uuid_of(int device);

#endif
