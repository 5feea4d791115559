// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Every way to start work on a GPU. A process without a compute limit and with high priority pays for a few loads and a
// counter.

#include "compute.h"
#include "limits.h"
#include "region.h"

#include "hooks.h"
#include "memory.h"

#define REFRESH_EVERY 4 // launches of a thread, so that changed limits take effect soon

static inline bool is_managed(int device) {
    return atomic_load_explicit(&ct_limits_now[device].paused, memory_order_relaxed) ||
           atomic_load_explicit(&ct_priority_now, memory_order_relaxed) == CT_LOW ||
           (atomic_load_explicit(&ct_limits_now[device].compute, memory_order_relaxed) < CT_WHOLE &&
            atomic_load_explicit(&ct_policy_now, memory_order_relaxed) != CT_NEVER);
}

static inline void count(int device) {
    static _Thread_local __attribute__((tls_model("initial-exec"))) unsigned launches;
    struct ct_slot *slot = ct_my_slot();
    if (slot) atomic_fetch_add_explicit(&slot->launches[device], 1, memory_order_relaxed);
    if (++launches % REFRESH_EVERY == 0) ct_refresh_limits();
}

// True: ct_finish_launch must be called after the driver's own launch.
static inline bool begin(struct ct_launch *launch, CUstream stream, uint64_t key) {
    int device = ct_device_here();
    if (device < 0) return false;
    count(device);
    return __builtin_expect(is_managed(device), 0) && ct_admit(launch, device, stream, key);
}

static inline uint64_t key_of(const void *what, uint64_t blocks, uint64_t threads) {
    uint64_t key = (uint64_t)(uintptr_t)what ^ blocks * UINT64_C(0x9e3779b97f4a7c15) ^ threads << 48;
    return key ? key : 1;
}

#define KERNEL key_of(function, (uint64_t)gridX *gridY *gridZ, (uint64_t)blockX *blockY *blockZ)

// Functions of the per-thread family (_ptsz) take handle 0 for another stream.
static inline CUstream legacy(CUstream stream) { return stream == CU_STREAM_LEGACY ? NULL : stream; }
static inline CUstream per_thread(CUstream stream) { return stream ? legacy(stream) : CU_STREAM_PER_THREAD; }

#define LAUNCH(on, key, name, ...)                        \
    struct ct_launch launch;                              \
    bool measured = begin(&launch, on, key);              \
    CUresult result = CALL(name, __VA_ARGS__);            \
    if (__builtin_expect(measured, 0)) ct_finish_launch(&launch); \
    return result

#define LAUNCH_KERNEL(on, name, ...)                                                                       \
    LAUNCH(on, KERNEL, name, function, gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes, stream, \
           parameters, ##__VA_ARGS__)

#define LAUNCH_CONFIGURED(on, name)                                                                                    \
    if (!config) return CALL(name, config, function, parameters, extra);                                              \
    LAUNCH(on(config->hStream),                                                                                       \
           key_of(function, (uint64_t)config->gridDimX *config->gridDimY *config->gridDimZ,                           \
                  (uint64_t)config->blockDimX *config->blockDimY *config->blockDimZ),                                 \
           name, config, function, parameters, extra)

CUresult cuLaunchKernel(CT_LAUNCH_ARGUMENTS, void **extra) { LAUNCH_KERNEL(legacy(stream), cuLaunchKernel, extra); }

CUresult cuLaunchKernel_ptsz(CT_LAUNCH_ARGUMENTS, void **extra) {
    LAUNCH_KERNEL(per_thread(stream), cuLaunchKernel_ptsz, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    LAUNCH_CONFIGURED(legacy, cuLaunchKernelEx);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    LAUNCH_CONFIGURED(per_thread, cuLaunchKernelEx_ptsz);
}

CUresult cuLaunchCooperativeKernel(CT_LAUNCH_ARGUMENTS) { LAUNCH_KERNEL(legacy(stream), cuLaunchCooperativeKernel); }

CUresult cuLaunchCooperativeKernel_ptsz(CT_LAUNCH_ARGUMENTS) {
    LAUNCH_KERNEL(per_thread(stream), cuLaunchCooperativeKernel_ptsz);
}

CUresult cuLaunch(CUfunction function) { LAUNCH(NULL, key_of(function, 1, 0), cuLaunch, function); }

CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    LAUNCH(NULL, key_of(function, (uint64_t)width * (uint64_t)height, 0), cuLaunchGrid, function, width, height);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    LAUNCH(legacy(stream), key_of(function, (uint64_t)width * (uint64_t)height, 0), cuLaunchGridAsync, function, width,
           height, stream);
}

static CUresult launch_graph(CUgraphExec exec, CUstream stream, CUstream on, CUresult (*real)(CUgraphExec, CUstream)) {
    if (!real) return CUDA_ERROR_NOT_SUPPORTED;
    struct ct_launch launch;
    bool measured = begin(&launch, on, key_of(exec, 0, 0));
    bool limited = atomic_load_explicit(&ct_limited, memory_order_relaxed);
    int device = limited ? ct_current_device() : -1;
    CUresult result = device < 0 ? CUDA_SUCCESS : ct_reserve_graph(exec);
    if (result == CUDA_SUCCESS) {
        CT_ASK_DRIVER(result, device, 0, real(exec, stream));
        if (device >= 0) ct_settle_graph(exec);
    }
    if (measured) ct_finish_launch(&launch);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return launch_graph(exec, stream, legacy(stream), REAL(cuGraphLaunch));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return launch_graph(exec, stream, per_thread(stream), REAL(cuGraphLaunch_ptsz));
}

// Makes the stream's context current until cuCtxPopCurrent. False: nothing has changed.
static bool enter_context_of(CUstream stream) {
    CUcontext context = NULL;
    return CALL(cuStreamGetCtx, stream, &context) == CUDA_SUCCESS && context && HAS(cuCtxPopCurrent_v2) &&
           CALL(cuCtxPushCurrent_v2, context) == CUDA_SUCCESS;
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count_of, unsigned flags) {
    struct ct_launch under_way[CT_DEVICES];
    bool measured[CT_DEVICES] = {false};
    CUcontext context;
    for (unsigned i = 0; launches && i < count_of && i < CT_DEVICES; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        if (!enter_context_of(one->hStream)) continue;
        uint64_t blocks = (uint64_t)one->gridDimX * one->gridDimY * one->gridDimZ;
        uint64_t threads = (uint64_t)one->blockDimX * one->blockDimY * one->blockDimZ;
        measured[i] = begin(&under_way[i], one->hStream, key_of(one->function, blocks, threads));
        REAL(cuCtxPopCurrent_v2)(&context);
    }
    CUresult result = CALL(cuLaunchCooperativeKernelMultiDevice, launches, count_of, flags);
    for (unsigned i = 0; i < CT_DEVICES; i++) {
        if (!measured[i]) continue;
        bool there = enter_context_of(launches[i].hStream);
        ct_finish_launch(&under_way[i]);
        if (there) REAL(cuCtxPopCurrent_v2)(&context);
    }
    return result;
}
