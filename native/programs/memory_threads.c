// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads that allocate and free at random by every route, on one GPU: memory_threads THREADS STEPS. Prints what the
// driver still holds afterwards, the most that it held, and how often it was out of memory.

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"
#include "standin.h"

#define HELD 16
#define MOST_THREADS 64

CUresult cuCtxSetCurrent(CUcontext context);

enum kind { NOTHING, PLAIN, POOLED, ARRAY, CHUNK, KINDS };

struct thing {
    enum kind kind;
    uint64_t value;
};

static CUcontext context;
static unsigned steps;
static atomic_uint refused, wrong;

static CUresult take(struct thing *thing, enum kind kind, size_t bytes) {
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 1 << 20, .Height = 1 + (bytes >> 20), .Format = 1, .NumChannels = 1};
    CUmemAllocationProp properties = {.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    switch (kind) {
    case PLAIN: return cuMemAlloc_v2((CUdeviceptr *)&thing->value, bytes);
    case POOLED: return cuMemAllocAsync((CUdeviceptr *)&thing->value, bytes, NULL);
    case ARRAY: return cuArrayCreate_v2((CUarray *)&thing->value, &flat);
    case CHUNK: return cuMemCreate((CUhandle *)&thing->value, (bytes | 0x1fffff) + 1, &properties, 0);
    default: return CUDA_SUCCESS;
    }
}

static CUresult give(const struct thing *thing) {
    switch (thing->kind) {
    case PLAIN: return cuMemFree_v2(thing->value);
    case POOLED: return cuMemFreeAsync(thing->value, NULL);
    case ARRAY: return cuArrayDestroy((CUarray)(uintptr_t)thing->value);
    case CHUNK: return cuMemRelease(thing->value);
    default: return CUDA_SUCCESS;
    }
}

static void *work(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    struct thing things[HELD] = {{0}};
    cuCtxSetCurrent(context);
    for (unsigned step = 0; step < steps; step++) {
        struct thing *thing = &things[(unsigned)rand_r(&seed) % HELD];
        if (give(thing)) atomic_fetch_add(&wrong, 1);
        thing->kind = (enum kind)((unsigned)rand_r(&seed) % KINDS);
        CUresult result = take(thing, thing->kind, 1 + (size_t)rand_r(&seed) % (64u << 20));
        if (result == CUDA_SUCCESS) continue;
        thing->kind = NOTHING;
        atomic_fetch_add(result == CUDA_ERROR_OUT_OF_MEMORY ? &refused : &wrong, 1);
    }
    for (unsigned i = 0; i < HELD; i++)
        if (give(&things[i])) atomic_fetch_add(&wrong, 1);
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread[MOST_THREADS];
    unsigned threads = count == 3 ? (unsigned)atoi(words[1]) : 0;
    if (!threads || threads > MOST_THREADS) return 1;
    steps = (unsigned)atoi(words[2]);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    for (unsigned i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1));
    for (unsigned i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    size_t free_bytes, total;
    cuCtxSynchronize();
    if (cuMemGetInfo_v2(&free_bytes, &total)) return 3;
    printf("taken %" PRIu64 "\npeak %" PRIu64 "\nbooked %zu\n", standinUsed(0, 0), standinPeak(0), total - free_bytes);
    printf("refused %u\nwrong %u\n", refused, wrong);
    return 0;
}
