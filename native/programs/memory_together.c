// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads that allocate the same amount at the same moment: memory_together THREADS MIB ROUNDS pool|graph. Prints the
// most and the fewest that got it in a round, and the most that the driver held.

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"
#include "standin.h"

#define MOST_THREADS 64

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuGraphCreate(CUgraph *graph, unsigned flags);

static CUcontext context;
static pthread_barrier_t together;
static size_t bytes;
static unsigned rounds, most, fewest = MOST_THREADS;
static int by_graph;
static atomic_uint granted, wrong;

static CUgraphExec make(CUdeviceptr *pointer) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS of = {.bytesize = bytes};
    of.poolProps = (CUmemPoolProps){.allocType = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    if (cuGraphCreate(&graph, 0) || cuGraphAddMemAllocNode(&node, graph, NULL, 0, &of) ||
        cuGraphInstantiateWithFlags(&exec, graph, 0))
        atomic_fetch_add(&wrong, 1);
    *pointer = of.dptr;
    return exec;
}

static void note(void) {
    unsigned got = atomic_exchange(&granted, 0);
    if (got > most) most = got;
    if (got < fewest) fewest = got;
}

static void *work(void *unused) {
    (void)unused;
    CUstream stream;
    CUdeviceptr pointer = 0;
    cuCtxSetCurrent(context);
    if (cuStreamCreate(&stream, 1)) atomic_fetch_add(&wrong, 1);
    CUgraphExec exec = by_graph ? make(&pointer) : NULL;
    for (unsigned round = 0; round < rounds; round++) {
        pthread_barrier_wait(&together);
        CUresult result = by_graph ? cuGraphLaunch(exec, stream) : cuMemAllocAsync(&pointer, bytes, stream);
        if (result == CUDA_SUCCESS) atomic_fetch_add(&granted, 1);
        else if (result != CUDA_ERROR_OUT_OF_MEMORY) atomic_fetch_add(&wrong, 1);
        if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD) note();
        if (result == CUDA_SUCCESS && cuMemFreeAsync(pointer, stream)) atomic_fetch_add(&wrong, 1);
        cuStreamSynchronize(stream);
        pthread_barrier_wait(&together);
    }
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread[MOST_THREADS];
    unsigned threads = count == 5 ? (unsigned)atoi(words[1]) : 0;
    if (!threads || threads > MOST_THREADS) return 1;
    bytes = (size_t)atoi(words[2]) << 20;
    rounds = (unsigned)atoi(words[3]);
    by_graph = words[4][0] == 'g';
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    pthread_barrier_init(&together, NULL, threads);
    for (unsigned i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, NULL);
    for (unsigned i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    printf("most %u\nfewest %u\npeak %" PRIu64 "\nwrong %u\n", most, fewest, standinPeak(0), wrong);
    return 0;
}
