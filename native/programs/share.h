// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the programs that burn device time share: a context, streams, kernels that take a given time, a graph of them.

#ifndef SHARE_H
#define SHARE_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"
#include "standin.h"

#define SECOND UINT64_C(1000000000)
#define STREAMS 1024
#define GRAPH_KERNELS 10

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxSynchronize(void);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);

#define CHECK(call)                                                      \
    do {                                                                 \
        CUresult answer = (call);                                        \
        if (answer != CUDA_SUCCESS) {                                    \
            fprintf(stderr, "%s: %d\n", #call, answer);                  \
            exit(1);                                                     \
        }                                                                \
    } while (0)

static inline CUcontext share_start(void) {
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    return context;
}

static inline CUfunction share_function(const char *name) {
    CUmodule module;
    CUfunction function;
    CHECK(cuModuleLoadData(&module, ".version 8.0\n.target sm_80\n.address_size 64\n"));
    CHECK(cuModuleGetFunction(&function, module, name));
    return function;
}

// A kernel of that many device-nanoseconds.
static inline CUfunction share_kernel(uint64_t nanoseconds) {
    char name[32];
    snprintf(name, sizeof name, "ns_%llu", (unsigned long long)nanoseconds);
    return share_function(name);
}

static inline CUresult share_launch(CUfunction function, unsigned grid, CUstream stream) {
    return cuLaunchKernel(function, grid, 1, 1, 128, 1, 1, 0, stream, NULL, NULL);
}

// Kernels one after the other, recorded from a stream.
static inline CUgraphExec share_graph(CUfunction function, unsigned grid) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    for (int i = 0; i < GRAPH_KERNELS; i++) CHECK(share_launch(function, grid, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

// Thousandths of a per cent of the time that the device worked for this process (pid 0: for any).
static inline unsigned long long share_of_device(int device, unsigned pid, uint64_t from, uint64_t to) {
    return standinBusy(device, pid, from, to) * 100000 / (to - from);
}

static inline unsigned long long share_of(unsigned pid, uint64_t from, uint64_t to) {
    return share_of_device(0, pid, from, to);
}

#endif
