// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Copies. Kernels write nothing, so memory may be copied at once; a copy that the caller waits for comes after what
// its stream has to do, and takes no time of the device.

#include <string.h>

#include "arrays.h"

static CUresult before_copy(CUstream handle, bool waits, bool *captured, int type) {
    CUstream stream;
    TRY(si_stream(handle, &stream));
    *captured = !waits && stream->capturing;
    if (*captured) return si_capture_plain(stream, type);
    return waits ? si_finish_stream(stream) : CUDA_SUCCESS;
}

static CUresult copy(uint64_t to, uint64_t from, size_t size, CUstream stream, bool waits) {
    bool captured;
    KNOWN(!size || (to && from));
    TRY(before_copy(stream, waits, &captured, CU_GRAPH_NODE_TYPE_MEMCPY));
    if (!captured && size && si_is_backed(to) && si_is_backed(from))
        memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    return CUDA_SUCCESS;
}

API(cuMemcpy)(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy(to, from, size, NULL, true); }

API(cuMemcpyAsync)(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    return copy(to, from, size, stream, false);
}

API(cuMemcpyHtoD_v2)(CUdeviceptr to, const void *from, size_t size) {
    return copy(to, (uintptr_t)from, size, NULL, true);
}

API(cuMemcpyHtoDAsync_v2)(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    return copy(to, (uintptr_t)from, size, stream, false);
}

API(cuMemcpyDtoH_v2)(void *to, CUdeviceptr from, size_t size) { return copy((uintptr_t)to, from, size, NULL, true); }

API(cuMemcpyDtoHAsync_v2)(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    return copy((uintptr_t)to, from, size, stream, false);
}

API(cuMemcpyDtoD_v2)(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy(to, from, size, NULL, true); }

API(cuMemcpyDtoDAsync_v2)(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    return copy(to, from, size, stream, false);
}

API(cuMemcpyPeer)(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t size) {
    KNOWN(there && here);
    return copy(to, from, size, NULL, true);
}

API(cuMemcpyPeerAsync)
(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t size, CUstream stream) {
    KNOWN(there && here);
    return copy(to, from, size, stream, false);
}

// One side of a copy of rows: its first byte, and the distances of rows and layers. NULL data: there is none.
struct side {
    char *data;
    size_t pitch;
    size_t layer;
};

static CUresult side_of(struct side *side, int type, const void *host, CUdeviceptr device, CUarray array, size_t pitch,
                        size_t height, size_t x, size_t y, size_t z) {
    size_t rows = height;
    if (type == CU_MEMORYTYPE_ARRAY) {
        KNOWN(array);
        pitch = array->pitch, rows = array->rows;
        *side = (struct side){array->data, pitch, pitch * rows};
    } else {
        uint64_t at = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device;
        KNOWN(at);
        *side = (struct side){si_is_backed(at) ? (char *)(uintptr_t)at : NULL, pitch, pitch * rows};
    }
    if (side->data) side->data += x + y * pitch + z * side->layer;
    return CUDA_SUCCESS;
}

static void copy_rows(struct side to, struct side from, size_t width, size_t height, size_t depth) {
    if (!to.data || !from.data) return;
    for (size_t layer = 0; layer < depth; layer++, to.data += to.layer, from.data += from.layer)
        for (size_t row = 0; row < height; row++)
            memmove(to.data + row * to.pitch, from.data + row * from.pitch, width);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *asked, CUstream stream, bool waits) {
    struct side to, from;
    bool captured;
    KNOWN(asked);
    TRY(before_copy(stream, waits, &captured, CU_GRAPH_NODE_TYPE_MEMCPY));
    if (captured) return CUDA_SUCCESS;
    TRY(side_of(&from, (int)asked->srcMemoryType, asked->srcHost, asked->srcDevice, asked->srcArray, asked->srcPitch,
                asked->srcHeight, asked->srcXInBytes, asked->srcY, asked->srcZ));
    TRY(side_of(&to, (int)asked->dstMemoryType, asked->dstHost, asked->dstDevice, asked->dstArray, asked->dstPitch,
                asked->dstHeight, asked->dstXInBytes, asked->dstY, asked->dstZ));
    copy_rows(to, from, asked->WidthInBytes, asked->Height, asked->Depth);
    return CUDA_SUCCESS;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *asked, CUstream stream, bool waits) {
    KNOWN(asked);
    CUDA_MEMCPY3D deep = {.srcXInBytes = asked->srcXInBytes,
                          .srcY = asked->srcY,
                          .srcMemoryType = asked->srcMemoryType,
                          .srcHost = asked->srcHost,
                          .srcDevice = asked->srcDevice,
                          .srcArray = asked->srcArray,
                          .srcPitch = asked->srcPitch ? asked->srcPitch : asked->WidthInBytes,
                          .dstXInBytes = asked->dstXInBytes,
                          .dstY = asked->dstY,
                          .dstMemoryType = asked->dstMemoryType,
                          .dstHost = asked->dstHost,
                          .dstDevice = asked->dstDevice,
                          .dstArray = asked->dstArray,
                          .dstPitch = asked->dstPitch ? asked->dstPitch : asked->WidthInBytes,
                          .WidthInBytes = asked->WidthInBytes,
                          .Height = asked->Height,
                          .Depth = 1};
    return copy_3d(&deep, stream, waits);
}

API(cuMemcpy2D_v2)(const CUDA_MEMCPY2D *asked) { return copy_2d(asked, NULL, true); }

API(cuMemcpy2DUnaligned_v2)(const CUDA_MEMCPY2D *asked) { return copy_2d(asked, NULL, true); }

API(cuMemcpy2DAsync_v2)(const CUDA_MEMCPY2D *asked, CUstream stream) { return copy_2d(asked, stream, false); }

API(cuMemcpy3D_v2)(const CUDA_MEMCPY3D *asked) { return copy_3d(asked, NULL, true); }

API(cuMemcpy3DAsync_v2)(const CUDA_MEMCPY3D *asked, CUstream stream) { return copy_3d(asked, stream, false); }

static CUresult copy_array(CUarray array, size_t offset, void *other, size_t size, bool into) {
    bool captured;
    KNOWN(array && other && offset + size <= array->size);
    TRY(before_copy(NULL, true, &captured, CU_GRAPH_NODE_TYPE_MEMCPY));
    if (array->data && into) memcpy(array->data + offset, other, size);
    if (array->data && !into) memcpy(other, array->data + offset, size);
    return CUDA_SUCCESS;
}

API(cuMemcpyHtoA_v2)(CUarray to, size_t offset, const void *from, size_t size) {
    return copy_array(to, offset, (void *)from, size, true);
}

API(cuMemcpyAtoH_v2)(void *to, CUarray from, size_t offset, size_t size) {
    return copy_array(from, offset, to, size, false);
}

API(cuMemcpyDtoA_v2)(CUarray to, size_t offset, CUdeviceptr from, size_t size) {
    return si_is_backed(from) ? copy_array(to, offset, (void *)(uintptr_t)from, size, true) : CUDA_SUCCESS;
}

API(cuMemcpyAtoD_v2)(CUdeviceptr to, CUarray from, size_t offset, size_t size) {
    return si_is_backed(to) ? copy_array(from, offset, (void *)(uintptr_t)to, size, false) : CUDA_SUCCESS;
}
