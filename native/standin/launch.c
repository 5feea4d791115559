// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Launches of kernels: work of the length that the kernel's name says, or a node of the graph that a stream captures.

#include "driver.h"

static inline CUresult launch(CUfunction function, CUstream handle) {
    TRY(si_ready());
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    CUstream stream;
    TRY(si_stream(handle, &stream));
    if (__builtin_expect(stream->capturing, 0)) return si_capture_kernel(stream, function);
    return SI_LIKELY(!function->length) ? CUDA_SUCCESS : si_enqueue(stream, function->length);
}

static CUresult launch_by_parameter(CUstream handle, void **parameters) {
    CUstream stream;
    KNOWN(parameters && parameters[0]);
    TRY(si_ready());
    TRY(si_stream(handle, &stream));
    return stream->capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : si_enqueue(stream, *(uint64_t *)parameters[0]);
}

static bool is_shape(unsigned x, unsigned y, unsigned z) { return x && y && z; }

API(cuLaunchKernel)
(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra) {
    (void)shared, (void)extra;
    KNOWN(is_shape(grid_x, grid_y, grid_z) && is_shape(block_x, block_y, block_z));
    if (function && __builtin_expect(function->length == SI_BY_PARAMETER, 0))
        return launch_by_parameter(stream, parameters);
    return launch(function, stream);
}

API(cuLaunchCooperativeKernel)
(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
 unsigned block_z, unsigned shared, CUstream stream, void **parameters) {
    return si_cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters,
                             NULL);
}

API(cuLaunchKernelEx)(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    KNOWN(config);
    return launch(function, config->hStream);
}

API(cuLaunchKernelEx_ptsz)(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    KNOWN(config);
    return launch(function, config->hStream ? config->hStream : CU_STREAM_PER_THREAD);
}

// Each on its own stream, whose context need not be the current one.
API(cuLaunchCooperativeKernelMultiDevice)(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags) {
    (void)flags;
    KNOWN(launches && count);
    for (unsigned i = 0; i < count; i++) TRY(launch(launches[i].function, launches[i].hStream));
    return CUDA_SUCCESS;
}

API(cuLaunch)(CUfunction function) { return launch(function, NULL); }

API(cuLaunchGrid)(CUfunction function, int width, int height) {
    KNOWN(width > 0 && height > 0);
    return launch(function, NULL);
}

API(cuLaunchGridAsync)(CUfunction function, int width, int height, CUstream stream) {
    KNOWN(width > 0 && height > 0);
    return launch(function, stream);
}

API(cuFuncSetBlockShape)(CUfunction function, int x, int y, int z) {
    KNOWN(function && x > 0 && y > 0 && z > 0);
    return CUDA_SUCCESS;
}

API(cuParamSetSize)(CUfunction function, unsigned bytes) {
    (void)bytes;
    KNOWN(function);
    return CUDA_SUCCESS;
}
