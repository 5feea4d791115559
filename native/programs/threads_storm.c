// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Many threads that allocate, free, launch and query at the same time: the books must be empty afterwards.
//
//   threads_storm THREADS ROUNDS plain|pooled     prints the number of errors, what is left, and the peak

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"
#include "standin.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuModuleGetFunction(CUfunction *function, void *module, const char *name);

static CUcontext context;
static CUfunction kernel;
static int rounds, pooled;
static atomic_int wrong, refused;

static void expect(CUresult result) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) atomic_fetch_add(&refused, 1);
    else if (result != CUDA_SUCCESS) atomic_fetch_add(&wrong, 1);
}

static void *work(void *seed) {
    unsigned state = (unsigned)(uintptr_t)seed * 2654435761u;
    CUdeviceptr held[8] = {0};
    expect(cuCtxSetCurrent(context));
    for (int i = 0; i < rounds; i++) {
        state = state * 1664525 + 1013904223;
        CUdeviceptr *one = &held[state >> 8 & 7];
        if (*one) {
            expect(cuMemFree_v2(*one));
            *one = 0;
        } else {
            size_t bytes = (size_t)(state >> 12 & 0xff) << 16;
            CUresult result = pooled && state & 1 << 11 ? cuMemAllocAsync(one, bytes + 1, NULL) : cuMemAlloc_v2(one, bytes + 1);
            if (result != CUDA_SUCCESS) *one = 0;
            expect(result);
        }
        size_t left, total;
        expect(cuMemGetInfo_v2(&left, &total));
        if (left > total) atomic_fetch_add(&wrong, 1);
        if (i % 4 == 0) expect(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    }
    for (int i = 0; i < 8; i++) {
        if (held[i]) expect(cuMemFree_v2(held[i]));
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) return 1;
    int count = atoi(argv[1]);
    rounds = atoi(argv[2]);
    pooled = argv[3][1] == 'o';
    CUmodule module;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    if (cuModuleLoadData(&module, "kernels") || cuModuleGetFunction(&kernel, module, "ns_1000")) return 3;
    pthread_t threads[64];
    for (int i = 0; i < count && i < 64; i++) pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < count && i < 64; i++) pthread_join(threads[i], NULL);
    expect(cuCtxSynchronize());
    CUmemoryPool pool;
    if (cuDeviceGetMemPool(&pool, 0) == CUDA_SUCCESS) expect(cuMemPoolTrimTo(pool, 0));
    size_t left, total;
    expect(cuMemGetInfo_v2(&left, &total));
    printf("wrong %d\nrefused %d\nleft %zu\n", wrong, refused, total - left);
    printf("peak %llu\nheld %llu\n", (unsigned long long)standinPeak(0), (unsigned long long)standinUsed(0, 0));
    return 0;
}
