// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Contexts: the primary one of each device, those that programs create, and each thread's stack of them. One that is
// destroyed takes its memory, arrays and streams with it; its handle stays known as that of a dead one.

#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { PROHIBITED = 2, EXCLUSIVE = 3 }; // compute modes

__thread CUcontext si_current __attribute__((tls_model("initial-exec")));

// What lies below the current context of a thread.
struct below {
    CUcontext context;
    struct below *next;
};
static __thread struct below *stack __attribute__((tls_model("initial-exec")));

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static unsigned primary_flags[SI_DEVICES];
static CUcontext primary_of[SI_DEVICES];
static CUcontext everything;
static unsigned long long ids;

static CUcontext make(int device, unsigned flags, bool is_primary) {
    CUcontext made = calloc(1, sizeof *made);
    *made = (struct CUctx_st){.device = device, .references = 1, .primary = is_primary, .flags = flags, .id = ++ids};
    made->limits[CU_LIMIT_STACK_SIZE] = 1024;
    made->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    made->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    made->next = everything;
    everything = made;
    return made;
}

static uint64_t limit_bytes(CUlimit limit, uint64_t value);

static void end(CUcontext context) {
    context->dead = true;
    for (int limit = 0; limit < 16; limit++) si_uncharge(context->device, limit_bytes(limit, context->limits[limit]));
    si_free_context_streams(context);
    si_free_context_arrays(context);
    si_free_context_memory(context);
}

void si_end_contexts(void) {
    pthread_mutex_lock(&guard);
    for (CUcontext one = everything; one; one = one->next) one->dead = true;
    pthread_mutex_unlock(&guard);
}

static void in_child(void) {
    pthread_mutex_init(&guard, NULL);
    si_leave_mps();
    for (CUcontext one = everything; one; one = one->next) one->dead = true;
    memset(primary_of, 0, sizeof primary_of);
    si_current = NULL;
    stack = NULL;
    si_initialised = false;
    si_forget_memory();
    si_forget_work();
}

// In exclusive-process mode, all who use the device are clients of MPS, or it is one process alone.
static CUresult may_use(CUdevice device) {
    int mode = si_state()->mode[si_physical(device)], me = si_claim_slot(), result = CUDA_SUCCESS;
    if (si_lost) return (CUresult)si_lost;
    if (mode == EXCLUSIVE) {
        si_lock();
        si_reap_locked();
        for (int slot = 0; slot < (int)si_mapped->slots; slot++) {
            struct si_slot *one = &si_mapped->slot[slot];
            bool other = slot != me && one->used && one->uses[si_physical(device)];
            if (other && !(one->mps && si_is_mps_client())) result = CUDA_ERROR_DEVICE_UNAVAILABLE;
        }
        si_unlock();
    }
    return mode == PROHIBITED ? CUDA_ERROR_DEVICE_UNAVAILABLE : (CUresult)result;
}

// Returns the GPU, or -1 if it has no memory for a context.
static int begin(CUdevice device) {
    si_after_fork = in_child;
    int slot = si_claim_slot();
    const char *context = getenv("STANDIN_CONTEXT_MIB");
    if (context && !si_mapped->slot[slot].uses[si_physical(device)] && // until the process ends
        !si_charge(si_physical(device), strtoull(context, NULL, 0) << 20))
        return -1;
    si_mapped->slot[slot].uses[si_physical(device)] = 1;
    return si_physical(device);
}

API(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device) {
    KNOWN(context);
    TRY(si_known_device(device));
    TRY(may_use(device));
    int which = begin(device);
    if (which < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&guard);
    if (primary_of[which]) {
        primary_of[which]->references++;
    } else {
        primary_of[which] = make(which, primary_flags[which], true);
    }
    *context = primary_of[which];
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}

static CUresult let_go(CUdevice device, bool at_once) {
    TRY(si_known_device(device));
    int which = si_physical(device);
    pthread_mutex_lock(&guard);
    CUcontext found = primary_of[which];
    bool last = found && (at_once || --found->references == 0);
    if (last) primary_of[which] = NULL;
    pthread_mutex_unlock(&guard);
    if (last) end(found);
    return found || at_once ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API(cuDevicePrimaryCtxRelease_v2)(CUdevice device) { return let_go(device, false); }

API(cuDevicePrimaryCtxReset_v2)(CUdevice device) { return let_go(device, true); }

API(cuDevicePrimaryCtxSetFlags_v2)(CUdevice device, unsigned flags) {
    TRY(si_known_device(device));
    primary_flags[si_physical(device)] = flags;
    return CUDA_SUCCESS;
}

API(cuDevicePrimaryCtxGetState)(CUdevice device, unsigned *flags, int *active) {
    TRY(si_known_device(device));
    if (flags) *flags = primary_flags[si_physical(device)];
    if (active) *active = primary_of[si_physical(device)] != NULL;
    return CUDA_SUCCESS;
}

static void push(CUcontext context) {
    struct below *entry = malloc(sizeof *entry);
    *entry = (struct below){si_current, stack};
    stack = entry;
    si_current = context;
}

static CUcontext pop(void) {
    CUcontext top = si_current;
    struct below *entry = stack;
    si_current = entry ? entry->context : NULL;
    if (entry) stack = entry->next;
    free(entry);
    return top;
}

API(cuCtxCreate_v2)(CUcontext *context, unsigned flags, CUdevice device) {
    KNOWN(context);
    TRY(si_known_device(device));
    TRY(may_use(device));
    int which = begin(device);
    if (which < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&guard);
    *context = make(which, flags, false);
    pthread_mutex_unlock(&guard);
    push(*context);
    return CUDA_SUCCESS;
}

API(cuCtxCreate_v3)(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice device) {
    (void)affinity, (void)count;
    return si_cuCtxCreate_v2(context, flags, device);
}

API(cuCtxCreate_v4)(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device) {
    (void)parameters;
    return si_cuCtxCreate_v2(context, flags, device);
}

API(cuCtxDestroy_v2)(CUcontext context) {
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || context->dead || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (si_current == context) pop();
    end(context);
    return CUDA_SUCCESS;
}

API(cuCtxAttach)(CUcontext *context, unsigned flags) {
    KNOWN(context && !flags);
    TRY(si_ready());
    *context = si_current;
    return CUDA_SUCCESS;
}

API(cuCtxDetach)(CUcontext context) { return context == si_current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }

API(cuCtxPushCurrent_v2)(CUcontext context) {
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || context->dead) return CUDA_ERROR_INVALID_CONTEXT;
    push(context);
    return CUDA_SUCCESS;
}

API(cuCtxPopCurrent_v2)(CUcontext *context) {
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!si_current) return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext top = pop();
    if (context) *context = top;
    return CUDA_SUCCESS;
}

API(cuCtxSetCurrent)(CUcontext context) {
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (context && context->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context && !si_current) {
        push(context);
    } else if (context) {
        si_current = context;
    } else if (si_current) {
        pop();
    }
    return CUDA_SUCCESS;
}

API(cuCtxGetCurrent)(CUcontext *context) {
    KNOWN(context);
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    *context = si_current;
    return CUDA_SUCCESS;
}

API(cuCtxGetDevice)(CUdevice *device) {
    KNOWN(device);
    TRY(si_ready());
    *device = si_ordinal(si_current->device);
    return CUDA_SUCCESS;
}

API(cuCtxGetDevice_v2)(CUdevice *device, CUcontext context) {
    KNOWN(device);
    if (!context) return si_cuCtxGetDevice(device);
    *device = si_ordinal(context->device);
    return context->dead ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

API(cuCtxGetId)(CUcontext context, unsigned long long *id) {
    KNOWN(id);
    if (!context) TRY(si_ready());
    *id = (context ? context : si_current)->id;
    return CUDA_SUCCESS;
}

API(cuCtxGetApiVersion)(CUcontext context, unsigned *version) {
    (void)context;
    KNOWN(version);
    *version = 3020;
    return CUDA_SUCCESS;
}

API(cuCtxGetFlags)(unsigned *flags) {
    KNOWN(flags);
    TRY(si_ready());
    *flags = si_current->flags;
    return CUDA_SUCCESS;
}

API(cuCtxSetFlags)(unsigned flags) {
    TRY(si_ready());
    si_current->flags = flags;
    return CUDA_SUCCESS;
}

API(cuCtxGetLimit)(size_t *value, CUlimit limit) {
    KNOWN(value && (unsigned)limit < 16);
    TRY(si_ready());
    *value = si_current->limits[limit];
    return CUDA_SUCCESS;
}

// Memory that a context takes for a limit, beyond what it takes for the default.
static uint64_t limit_bytes(CUlimit limit, uint64_t value) {
    int processors = 0, threads = 0;
    if (limit == CU_LIMIT_STACK_SIZE) {
        si_cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
        si_cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0);
        return (value > 1024 ? value - 1024 : 0) * (uint64_t)processors * (uint64_t)threads;
    }
    if (limit == CU_LIMIT_PRINTF_FIFO_SIZE) return value > 1 << 20 ? value - (1 << 20) : 0;
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) return value > 8 << 20 ? value - (8 << 20) : 0;
    if (limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT) return value > 2048 ? (value - 2048) * 512 : 0;
    return 0;
}

API(cuCtxSetLimit)(CUlimit limit, size_t value) {
    KNOWN((unsigned)limit < 16);
    TRY(si_ready());
    uint64_t before = limit_bytes(limit, si_current->limits[limit]), now = limit_bytes(limit, value);
    if (now > before && !si_charge(si_current->device, now - before)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (now < before) si_uncharge(si_current->device, before - now);
    si_current->limits[limit] = value;
    return CUDA_SUCCESS;
}

API(cuCtxGetCacheConfig)(CUfunc_cache *config) {
    KNOWN(config);
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return si_ready();
}

API(cuCtxSetCacheConfig)(CUfunc_cache config) {
    (void)config;
    return si_ready();
}

API(cuCtxGetSharedMemConfig)(CUsharedconfig *config) {
    KNOWN(config);
    *config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
    return si_ready();
}

API(cuCtxSetSharedMemConfig)(CUsharedconfig config) {
    (void)config;
    return si_ready();
}

API(cuCtxGetStreamPriorityRange)(int *least, int *greatest) {
    TRY(si_ready());
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

API(cuCtxResetPersistingL2Cache)(void) { return si_ready(); }

API(cuCtxEnablePeerAccess)(CUcontext peer, unsigned flags) {
    KNOWN(!flags);
    TRY(si_ready());
    return peer && !peer->dead ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API(cuCtxDisablePeerAccess)(CUcontext peer) {
    TRY(si_ready());
    return peer && !peer->dead ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
