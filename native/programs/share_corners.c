// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Launches in odd circumstances; each must do what the driver alone would do, and end.
//
//   share_corners contexts | crowded | capture | endless | behind | nowhere | fork | devices

#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "share.h"

// Contexts come and go with launches still under way in them.
static void contexts(void) {
    for (int i = 0; i < 200; i++) {
        CUcontext context;
        CHECK(cuCtxCreate_v2(&context, 0, 0));
        CUfunction function = share_kernel(20000);
        for (int k = 0; k < 20; k++) CHECK(share_launch(function, 1, NULL));
        CHECK(cuCtxDestroy_v2(context));
    }
}

// More contexts at a time than a program should have: the share applies to the last one as to the first.
static void crowded(void) {
    CUcontext context;
    for (int i = 0; i < 100; i++) {
        CHECK(cuCtxCreate_v2(&context, 0, 0));
        CHECK(share_launch(share_kernel(1000), 1, NULL));
    }
    CUfunction function = share_kernel(1000000);
    uint64_t began = standinNow(), end = began + 4 * SECOND;
    while (standinNow() < end) CHECK(share_launch(function, 1, NULL));
    printf("share %llu\n", share_of_device(0, 0, began + SECOND, end));
}

// One stream records a graph, in the strictest mode, while another works.
static void capture(void) {
    CUfunction function = share_kernel(20000);
    CUstream recorded, working;
    CUgraph graph;
    size_t nodes = 0;
    CHECK(cuStreamCreate(&recorded, 1));
    CHECK(cuStreamCreate(&working, 1));
    for (int k = 0; k < 50; k++) CHECK(share_launch(function, 1, recorded));
    uint64_t began = standinNow();
    CHECK(cuStreamBeginCapture_v2(recorded, 0));
    for (int k = 0; k < 300; k++) {
        CHECK(share_launch(function, 1, recorded));
        if (k % 3 == 0) CHECK(share_launch(function, 1, working));
    }
    CHECK(cuStreamEndCapture(recorded, &graph));
    CHECK(cuGraphGetNodes(graph, NULL, &nodes));
    printf("nodes %zu\nus %llu\n", nodes, (unsigned long long)(standinNow() - began) / 1000);
}

// A kernel that never ends must not keep others from being launched beside it.
static void endless(void) {
    CUstream busy, other;
    CHECK(cuStreamCreate(&busy, 1));
    CHECK(cuStreamCreate(&other, 1));
    CHECK(share_launch(share_kernel(1000000000000000), 1, busy));
    CUfunction function = share_kernel(100000);
    uint64_t began = standinNow();
    for (int k = 0; k < 1000; k++) CHECK(share_launch(function, 1, other));
    printf("ms %llu\n", (unsigned long long)(standinNow() - began) / 1000000);
    fflush(stdout);
    _exit(0);
}

// Nor may it keep a thread for ever that launches behind it: the kernel may be waiting for that thread.
static void behind(void) {
    CHECK(share_launch(share_kernel(1000000000000000), 1, NULL));
    CUfunction function = share_kernel(100000);
    uint64_t began = standinNow();
    for (int k = 0; k < 4; k++) CHECK(share_launch(function, 1, NULL));
    printf("ms %llu\n", (unsigned long long)(standinNow() - began) / 1000000);
    fflush(stdout);
    _exit(0);
}

static void *launch_nowhere(void *function) {
    return (void *)(intptr_t)share_launch(function, 1, NULL);
}

// A thread without a context, and a launch of nothing: the driver's answers.
static void nowhere(void) {
    pthread_t thread;
    void *answer;
    if (pthread_create(&thread, NULL, launch_nowhere, share_kernel(1000)) || pthread_join(thread, &answer)) exit(2);
    printf("thread %d\n", (int)(intptr_t)answer);
    printf("null %d\nconfig %d\n", share_launch(NULL, 1, NULL), cuLaunchKernelEx(NULL, NULL, NULL, NULL));
    printf("graph %d\n", cuGraphLaunch(NULL, NULL));
}

// A child has the parent's books and none of its GPU.
static void forked(void) {
    CUfunction function = share_kernel(1000000);
    for (int k = 0; k < 20; k++) CHECK(share_launch(function, 1, NULL));
    pid_t child = fork();
    if (child == 0) {
        for (int k = 0; k < 20; k++) share_launch(function, 1, NULL);
        _exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    for (int k = 0; k < 20; k++) CHECK(share_launch(function, 1, NULL));
}

// One launch on two GPUs is paid for on both.
static void devices(void) {
    CUDA_LAUNCH_PARAMS both[2];
    CUcontext context[2];
    for (int i = 0; i < 2; i++) {
        CHECK(cuCtxCreate_v2(&context[i], 0, i));
        both[i] = (CUDA_LAUNCH_PARAMS){.function = share_kernel(1000000), .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                       .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
        CHECK(cuStreamCreate(&both[i].hStream, 1));
    }
    uint64_t began = standinNow(), end = began + 4 * SECOND;
    while (standinNow() < end) CHECK(cuLaunchCooperativeKernelMultiDevice(both, 2, 0));
    printf("first %llu\n", share_of_device(0, 0, began + SECOND, end));
    printf("second %llu\n", share_of_device(1, 0, began + SECOND, end));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } corners[] = {{"contexts", contexts}, {"crowded", crowded}, {"capture", capture}, {"endless", endless},
                   {"behind", behind},
                   {"nowhere", nowhere},   {"fork", forked},     {"devices", devices}};
    share_start();
    standinJoin();
    for (size_t i = 0; i < sizeof corners / sizeof *corners; i++) {
        if (argc < 2 || strcmp(argv[1], corners[i].name)) continue;
        corners[i].run();
        printf("ended 1\n");
        return 0;
    }
    return 2;
}
