// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A plug-in that is linked with the driver, as a language's CUDA package may be. It is built as a shared object, and a
// program opens it in the way that is tested.

#include <stddef.h>
#include <stdlib.h>

#include "cuda_abi.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);

// 0: the whole GPU was taken before main could do anything about it; also if it is opened in a namespace of its own.
int taken_early = -1;
int take(size_t bytes);

__attribute__((constructor)) static void take_early(void) {
    const char *bytes = getenv("PLUGIN_TAKES_EARLY");
    if (bytes) taken_early = take(strtoull(bytes, NULL, 0));
}

int early(void) { return taken_early; }

// The driver's answer to an allocation of that many bytes.
int take(size_t bytes) {
    CUcontext context;
    CUdeviceptr pointer;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return -1;
    return cuMemAlloc_v2(&pointer, bytes);
}
