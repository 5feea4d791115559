// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads of one tenant that announce at the same moment: grant_threads THREADS CHUNK_MIB ROUNDS LEAST. In each round every
// thread allocates one chunk, all at once, and then frees it. Ends with 3 if fewer than LEAST of them got theirs.

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
static unsigned rounds, least;
static atomic_uint got, short_rounds;

static void *work(void *unused) {
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    for (unsigned round = 0; round < rounds; round++) {
        CUdeviceptr chunk;
        pthread_barrier_wait(&together);
        CUresult result = cuMemAlloc_v2(&chunk, bytes);
        if (result == CUDA_SUCCESS) atomic_fetch_add(&got, 1);
        if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD && atomic_exchange(&got, 0) < least)
            atomic_fetch_add(&short_rounds, 1);
        if (result == CUDA_SUCCESS) CHECK(cuMemFree_v2(chunk));
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 5) return 1;
    unsigned threads = (unsigned)atoi(words[1]);
    bytes = (size_t)atoi(words[2]) * MIB;
    rounds = (unsigned)atoi(words[3]);
    least = (unsigned)atoi(words[4]);
    if (!threads || threads > MOST_THREADS) return 1;
    share_start();
    CHECK(cuCtxGetCurrent(&context));
    pthread_t thread[MOST_THREADS];
    pthread_barrier_init(&together, NULL, threads);
    for (unsigned i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, NULL);
    for (unsigned i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    printf("short_rounds %u\n", short_rounds);
    return short_rounds ? 3 : 0;
}
