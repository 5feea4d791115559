// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A plug-in that is linked with the driver, as a language's CUDA package may be. It is built as a shared object, and a
// program opens it in the way that is tested.

#include <stddef.h>

#include "cuda_abi.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);

// The driver's answer to an allocation of that many bytes.
int take(size_t bytes) {
    CUcontext context;
    CUdeviceptr pointer;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return -1;
    return cuMemAlloc_v2(&pointer, bytes);
}
