// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Cancels a thread while it allocates, waits for a line of input, goes on for a while and prints how much memory there
// is. The driver's functions are no cancellation points, so the thread ends at one of its own.

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "cuda_abi.h"

#define MIB (1 << 20)

CUresult cuCtxSetCurrent(CUcontext context);

static CUcontext context;
static atomic_bool stop;

static void take_and_give(void) {
    CUdeviceptr pointer;
    if (cuMemAlloc_v2(&pointer, MIB) == CUDA_SUCCESS) cuMemFree_v2(pointer);
}

static void *work(void *unused) {
    cuCtxSetCurrent(context);
    while (!stop) take_and_give();
    return unused;
}

int main(void) {
    pthread_t thread;
    void *ended;
    size_t available, total;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    pthread_create(&thread, NULL, work, NULL);
    pthread_cancel(thread);
    usleep(300000); // the library looks at its files every 20 ms, and for the dead every 100
    stop = true;
    pthread_join(thread, &ended);
    printf("cancelled %d\n", ended == PTHREAD_CANCELED);
    fflush(stdout);
    getchar();
    for (int i = 0; i < 100; i++, usleep(1000)) take_and_give();
    if (cuMemGetInfo_v2(&available, &total)) return 3;
    printf("total %zu\n", total / MIB);
    return 0;
}
