// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Measures the cost of calls: picoseconds of this thread's CPU time per call, the least of some repeats. Run it with
// the library in front of the stand-in, and without: memory_cost REPEATS CALLS.

#define _GNU_SOURCE
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda_abi.h"
#include "lock.h"

#define LIVE 5000

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuModuleGetFunction(CUfunction *function, void *module, const char *name);

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int alloc_and_free(void) {
    CUdeviceptr pointer;
    return cuMemAlloc_v2(&pointer, 4096) || cuMemFree_v2(pointer);
}

// A macro, so that nothing but the calls is in the loop.
#define MEASURE(name, call)                                          \
    do {                                                             \
        uint64_t least = UINT64_MAX;                                 \
        int failed = 0;                                              \
        for (unsigned repeat = 0; repeat < repeats; repeat++) {      \
            uint64_t from = now();                                   \
            for (unsigned i = 0; i < calls; i++) failed |= call;     \
            uint64_t took = (now() - from) * 1000 / calls;           \
            if (took < least) least = took;                          \
        }                                                            \
        if (failed) return 3;                                        \
        printf("%s %" PRIu64 "\n", name, least);                     \
    } while (0)

int main(int count, char **words) {
    static CUdeviceptr live[LIVE];
    CUcontext context;
    CUfunction kernel;
    CUmodule module;
    size_t free_bytes, total;
    if (count != 3) return 1;
    unsigned repeats = (unsigned)atoi(words[1]), calls = (unsigned)atoi(words[2]);
    uint64_t from = now();
    if (cuInit(0)) return 2;
    printf("init %" PRIu64 "\n", (now() - from) * 1000);
    if (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || alloc_and_free()) return 2;
    // The library begins with the first call that it is in front of.
    printf("start %" PRIu64 "\n", (now() - from) * 1000);
    if (cuModuleLoadData(&module, ".entry ns_0") || cuModuleGetFunction(&kernel, module, "ns_0")) return 2;
    // What the costs can be compared with on another machine.
    static _Atomic uint64_t counter;
    static ct_lock lock;
    struct timespec time;
    MEASURE("atomic", atomic_fetch_add(&counter, 1) == UINT64_MAX);
    MEASURE("lock", (ct_acquire(&lock), ct_set_free(&lock), 0));
    MEASURE("clock", clock_gettime(CLOCK_MONOTONIC_COARSE, &time));
    MEASURE("alloc_free", alloc_and_free());
    MEASURE("launch", cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    MEASURE("info", cuMemGetInfo_v2(&free_bytes, &total));
    for (unsigned i = 0; i < LIVE; i++)
        if (cuMemAlloc_v2(&live[i], 4096)) return 3;
    MEASURE("alloc_free_live", alloc_and_free());
    for (unsigned i = 0; i < LIVE; i++) cuMemFree_v2(live[i]);
    return 0;
}
