// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Fills of memory with a byte, a half-word or a word, in one piece or row by row.

#include <string.h>

#include "driver.h"

static void fill_row(char *to, unsigned value, size_t width, size_t count) {
    if (width == 1) memset(to, (int)value, count);
    for (size_t i = 0; width == 2 && i < count; i++) ((uint16_t *)to)[i] = (uint16_t)value;
    for (size_t i = 0; width == 4 && i < count; i++) ((uint32_t *)to)[i] = value;
}

static CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t count, size_t rows,
                     CUstream handle) {
    CUstream stream;
    KNOWN(to || !count);
    TRY(si_stream(handle, &stream));
    if (stream->capturing) return si_capture_plain(stream, CU_GRAPH_NODE_TYPE_MEMSET);
    if (!count || !si_is_backed(to)) return CUDA_SUCCESS;
    for (size_t row = 0; row < rows; row++) fill_row((char *)(uintptr_t)to + row * pitch, value, width, count);
    return CUDA_SUCCESS;
}

API(cuMemsetD8_v2)(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, 0, value, 1, count, 1, NULL); }

API(cuMemsetD16_v2)(CUdeviceptr to, unsigned short value, size_t count) {
    return fill(to, 0, value, 2, count, 1, NULL);
}

API(cuMemsetD32_v2)(CUdeviceptr to, unsigned value, size_t count) { return fill(to, 0, value, 4, count, 1, NULL); }

API(cuMemsetD8Async)(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill(to, 0, value, 1, count, 1, stream);
}

API(cuMemsetD16Async)(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return fill(to, 0, value, 2, count, 1, stream);
}

API(cuMemsetD32Async)(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill(to, 0, value, 4, count, 1, stream);
}

API(cuMemsetD2D8_v2)(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
    return fill(to, pitch, value, 1, width, height, NULL);
}

API(cuMemsetD2D16_v2)(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
    return fill(to, pitch, value, 2, width, height, NULL);
}

API(cuMemsetD2D32_v2)(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
    return fill(to, pitch, value, 4, width, height, NULL);
}

API(cuMemsetD2D8Async)
(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
    return fill(to, pitch, value, 1, width, height, stream);
}

API(cuMemsetD2D16Async)
(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) {
    return fill(to, pitch, value, 2, width, height, stream);
}

API(cuMemsetD2D32Async)
(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) {
    return fill(to, pitch, value, 4, width, height, stream);
}
