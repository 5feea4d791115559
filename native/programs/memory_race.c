// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes that all allocate at the same moment, in each round: memory_race PROCESSES MIB ROUNDS. Prints the most
// bytes that the driver ever had allocated, and in how many rounds how many processes got their memory.

#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "standin.h"

#define MOST 64

struct shared {
    atomic_uint arrived, turn, holders, wrong;
    unsigned rounds_with[MOST + 1];
    uint64_t peak;
};

static struct shared *shared;
static unsigned processes;

static void meet(void) {
    unsigned turn = shared->turn;
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == processes) {
        shared->arrived = 0;
        atomic_fetch_add(&shared->turn, 1);
    }
    while (shared->turn == turn) sched_yield();
}

static void race(unsigned self, size_t bytes, unsigned rounds) {
    CUcontext context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0)) exit(3);
    CUresult cuCtxSetCurrent(CUcontext);
    cuCtxSetCurrent(context);
    for (unsigned round = 0; round < rounds; round++) {
        CUdeviceptr pointer;
        meet();
        CUresult result = cuMemAlloc_v2(&pointer, bytes);
        if (result == CUDA_SUCCESS) atomic_fetch_add(&shared->holders, 1);
        else if (result != CUDA_ERROR_OUT_OF_MEMORY) atomic_fetch_add(&shared->wrong, 1);
        meet();
        if (self == 0) shared->rounds_with[atomic_exchange(&shared->holders, 0)]++;
        if (result == CUDA_SUCCESS) cuMemFree_v2(pointer);
    }
    meet();
    if (self == 0) shared->peak = standinPeak(0);
}

int main(int count, char **words) {
    if (count != 4) return 1;
    processes = (unsigned)atoi(words[1]);
    size_t bytes = (size_t)atoi(words[2]) << 20;
    if (processes > MOST) return 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (unsigned self = 0; self < processes; self++) {
        if (fork() != 0) continue;
        race(self, bytes, (unsigned)atoi(words[3]));
        _exit(0);
    }
    int status, failed = 0;
    while (wait(&status) > 0) failed += status != 0;
    printf("peak %" PRIu64 "\nwrong %u\nfailed %d\n", shared->peak, shared->wrong, failed);
    for (unsigned holders = 0; holders <= processes; holders++)
        if (shared->rounds_with[holders]) printf("rounds_with_%u %u\n", holders, shared->rounds_with[holders]);
    return 0;
}
