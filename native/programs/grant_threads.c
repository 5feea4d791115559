// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads of one tenant that announce at the same moment: grant_threads THREADS CHUNK_MIB ROUNDS. In each round every
// thread allocates one chunk, all at once, and frees it; together that is the tenant's request. Ends with 3 if one of
// them is refused.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "share.h"

#define MIB (UINT64_C(1) << 20)
#define MOST_THREADS 64

CUresult cuCtxSetCurrent(CUcontext context);

static pthread_barrier_t together;
static CUcontext context;
static size_t bytes;
static unsigned rounds;
static atomic_uint refused;

static void *work(void *unused) {
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    for (unsigned round = 0; round < rounds; round++) {
        CUdeviceptr chunk;
        pthread_barrier_wait(&together);
        CUresult result = cuMemAlloc_v2(&chunk, bytes);
        if (result != CUDA_SUCCESS) atomic_fetch_add(&refused, 1);
        pthread_barrier_wait(&together);
        if (result == CUDA_SUCCESS) CHECK(cuMemFree_v2(chunk));
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 4) return 1;
    unsigned threads = (unsigned)atoi(words[1]);
    bytes = (size_t)atoi(words[2]) * MIB;
    rounds = (unsigned)atoi(words[3]);
    if (!threads || threads > MOST_THREADS) return 1;
    share_start();
    CHECK(cuCtxGetCurrent(&context));
    pthread_t thread[MOST_THREADS];
    pthread_barrier_init(&together, NULL, threads);
    for (unsigned i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, NULL);
    for (unsigned i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    printf("refused %u\n", refused);
    return refused ? 3 : 0;
}
