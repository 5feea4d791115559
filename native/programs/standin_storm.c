// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes that allocate, launch and are killed at any moment: standin_storm KILLS PROCESSES. Prints what is left of
// them on the device, and the time that the work of a surviving process took.

#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "share.h"

#define MIB (UINT64_C(1) << 20)
#define OWN_KERNELS 20

static CUfunction start_up(const char *kernel) {
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, "any"));
    CHECK(cuModuleGetFunction(&function, module, kernel));
    return function;
}

static void launch(CUfunction function) { CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)); }

// Until it is killed: mostly inside of an allocation, now and then inside of the engine.
static void work(void) {
    CUfunction kernel = start_up("ns_50000");
    for (unsigned round = 0;; round++) {
        CUdeviceptr some, more;
        if (!cuMemAlloc_v2(&some, 3 * MIB) && !cuMemAlloc_v2(&more, 5 * MIB)) cuMemFree_v2(more);
        cuMemFree_v2(some);
        if (round % 64 == 0) launch(kernel);
    }
}

static pid_t start_one(void) {
    pid_t child = fork();
    if (child == 0) work();
    return child;
}

int main(int count, char **words) {
    if (count != 3) return 1;
    int kills = atoi(words[1]), processes = atoi(words[2]);
    pid_t *children = calloc((size_t)processes, sizeof *children);
    for (int i = 0; i < processes; i++) children[i] = start_one();
    srand(1);
    for (int i = 0; i < kills; i++) {
        pid_t *victim = &children[rand() % processes];
        usleep((useconds_t)(rand() % 6000));
        kill(*victim, SIGKILL);
        waitpid(*victim, NULL, 0);
        *victim = start_one();
    }
    for (int i = 0; i < processes; i++) kill(children[i], SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    printf("left %" PRIu64 "\n", standinUsed(0, 0));
    CUfunction kernel = start_up("ns_1000000");
    uint64_t from = standinNow();
    for (int i = 0; i < OWN_KERNELS; i++) launch(kernel);
    CHECK(cuStreamSynchronize(NULL));
    printf("busy %" PRIu64 "\n", standinBusy(0, (uint32_t)getpid(), from, standinNow()));
    return 0;
}
