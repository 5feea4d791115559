// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls the driver's functions that its input names, one per line: a name and numbers in, the result and numbers out.
// Handles and pointers of the driver are kept in numbered places v[n], by which later calls refer to them.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "standin.h"

#define PLACES 8192
#define PINNED 1 // CU_MEM_ALLOCATION_TYPE_PINNED

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags);
CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                               CUdeviceptr pointer);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                  CUgraph child);
CUresult cuMemsetD8_v2(CUdeviceptr pointer, unsigned char value, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);

#define INTO(place) ((void *)&v[place])

static uint64_t v[PLACES];

static void *pointer(uint64_t place) { return (void *)(uintptr_t)v[place]; }

static CUmemPoolProps pool_properties(int kind, int type, int id) {
    return (CUmemPoolProps){.allocType = kind, .location = {.type = type, .id = id}};
}

static CUresult create_chunk(CUhandle *handle, size_t bytes, int type, int id) {
    CUmemAllocationProp properties = {
        .type = 1, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .location = {.type = type, .id = id}};
    return cuMemCreate(handle, bytes, &properties, 0);
}

static CUresult add_node(uint64_t to, CUgraph graph, size_t bytes, int through_generic) {
    CUgraphNode node;
    CUgraphNodeParams generic = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    CUDA_MEM_ALLOC_NODE_PARAMS *of = &generic.as.alloc;
    of->poolProps = pool_properties(PINNED, CU_MEM_LOCATION_TYPE_DEVICE, 0);
    of->bytesize = bytes;
    CUresult result = through_generic ? cuGraphAddNode(&node, graph, NULL, 0, &generic)
                                      : cuGraphAddMemAllocNode(&node, graph, NULL, 0, of);
    v[to] = of->dptr;
    v[to + 1] = (uintptr_t)node;
    return result;
}

static CUresult add_free(CUgraph graph, uint64_t of) {
    CUgraphNode node, after = pointer(of + 1);
    return cuGraphAddMemFreeNode(&node, graph, &after, 1, v[of]);
}

static CUresult add_child(CUgraph graph, CUgraph child) {
    CUgraphNode node;
    return cuGraphAddChildGraphNode(&node, graph, NULL, 0, child);
}

static CUresult load_module(uint64_t to, uint64_t bytes) {
    char image[64];
    snprintf(image, sizeof image, "globals=%" PRIu64, bytes);
    return cuModuleLoadData(INTO(to), image);
}

// Prefetches parts of memory in places a and b of GPUs p and q, in one call of a function of CUDA 13.
static CUresult prefetch_batch(const char *name, const uint64_t *a) {
    CUresult (*batch)(CT_BATCH_ARGUMENTS) = (void *)dlsym(RTLD_DEFAULT, name);
    CUdeviceptr pointers[] = {v[a[0]], v[a[0]] + 4096, v[a[1]]};
    size_t sizes[] = {4096, 4096, 4096}, starts[] = {0, 2};
    CUmemLocation places[] = {{CU_MEM_LOCATION_TYPE_DEVICE, (int)a[2]}, {CU_MEM_LOCATION_TYPE_DEVICE, (int)a[3]}};
    return batch ? batch(pointers, sizes, 3, places, starts, 2, 0, NULL) : CUDA_ERROR_NOT_FOUND;
}

static CUresult load_library(uint64_t to, uint64_t bytes) {
    char image[64];
    snprintf(image, sizeof image, "globals=%" PRIu64, bytes);
    return cuLibraryLoadData(INTO(to), image, NULL, NULL, 0, NULL, NULL, 0);
}

// A box of a sparse array into which a chunk is mapped; handle 0: what is there is taken away.
static CUarrayMapInfo box(void *array, CUhandle handle, unsigned x, unsigned y, unsigned width, unsigned height) {
    return (CUarrayMapInfo){.resource = array,
                            .as.sparseLevel = {.offsetX = x,
                                               .offsetY = y,
                                               .extentWidth = width,
                                               .extentHeight = height,
                                               .extentDepth = 1},
                            .memOperationType = handle ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
                            .memHandle = handle};
}

static CUresult map_tile(void *array, CUhandle handle, unsigned x, unsigned y, unsigned width, unsigned height) {
    return cuMemMapArrayAsync((CUarrayMapInfo[]){box(array, handle, x, y, width, height)}, 1, NULL);
}

// Maps one chunk into many rows of an array, in one call.
static CUresult map_rows(void *array, CUhandle handle, unsigned count) {
    CUarrayMapInfo maps[64];
    if (count > 64) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) maps[i] = box(array, handle, 0, i, 1024, 1);
    return cuMemMapArrayAsync(maps, count, NULL);
}

// The same for a range of bytes of the mip tail.
static CUresult map_tail(void *array, CUhandle handle, uint64_t offset, uint64_t bytes) {
    CUarrayMapInfo map = box(array, handle, 0, 0, 0, 0);
    map.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    map.as.miptail.layer = 0;
    map.as.miptail.offset = offset;
    map.as.miptail.size = bytes;
    return cuMemMapArrayAsync(&map, 1, NULL);
}

static CUresult export_chunk(int *file, CUhandle handle) {
    return cuMemExportToShareableHandle(file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

// What another process has opened, under a number of this one.
static int take_file(int file, int pid) {
    int process = (int)syscall(SYS_pidfd_open, pid, 0), own = (int)syscall(SYS_pidfd_getfd, process, file, 0);
    close(process);
    return own;
}

static CUresult receive(int number, int file, int pid) {
    int own = take_file(file, pid), moved = own == number ? own : dup2(own, number);
    if (own != number) close(own);
    return moved == number ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// A file of this process, or (of another one) the same file there.
static CUresult import_chunk(CUhandle *handle, int file, int pid) {
    int own = pid ? take_file(file, pid) : file;
    CUresult result =
        cuMemImportFromShareableHandle(handle, (void *)(intptr_t)own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (pid) close(own);
    return result;
}

// What another thread does before a call of this one has returned: numbers of places.
static struct {
    uint64_t array, chunk;
} meanwhile;

static void drop_meanwhile(void) { cuMemRelease(v[meanwhile.chunk]); }

static void reuse_meanwhile(void) {
    CUDA_ARRAY3D_DESCRIPTOR of = {1024, 1024, 0, 0x20, 1, 0x40}; // floats, sparse
    cuArray3DCreate_v2(INTO(meanwhile.array), &of);
    map_tile(pointer(meanwhile.array), v[meanwhile.chunk], 0, 0, 1024, 1);
}

static CUresult set_meanwhile(const char *name, void (*function)(void), const uint64_t *a) {
    meanwhile.array = a[0], meanwhile.chunk = a[1];
    standinAfter(name, function);
    return CUDA_SUCCESS;
}

static CUresult update_graph(CUgraphExec exec, CUgraph graph) {
    char answer[64];
    return cuGraphExecUpdate_v2(exec, graph, answer);
}

// Writes and reads the last byte: whether there is memory behind a pointer.
static CUresult touch(CUdeviceptr at, size_t bytes) {
    unsigned char byte = 0;
    CUresult result = cuMemsetD8_v2(at, 0x5a, bytes);
    if (result == CUDA_SUCCESS) result = cuMemcpyDtoH_v2(&byte, at + bytes - 1, 1);
    return result != CUDA_SUCCESS ? result : byte == 0x5a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult memory_info(uint64_t *out, int second) {
    static nvmlDevice_t device;
    nvmlMemory_t one;
    nvmlMemory_v2_t two = {.version = sizeof two | 2u << 24};
    if (!device && (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device))) return -1;
    CUresult result = second ? nvmlDeviceGetMemoryInfo_v2(device, &two) : nvmlDeviceGetMemoryInfo(device, &one);
    if (result) return result;
    out[0] = second ? two.total : one.total;
    out[1] = second ? two.free : one.free;
    out[2] = second ? two.used : one.used;
    return result;
}

#define ARRAY(w, h, d, f, c, flags) &(CUDA_ARRAY3D_DESCRIPTOR){w, h, d, (int)(f), (unsigned)(c), (unsigned)(flags)}
// name, call; a: numbers of the line, out: numbers of the answer
#define CALLS                                                                                                          \
    X(init, cuInit(0))                                                                                                 \
    X(retain, cuDevicePrimaryCtxRetain(INTO(a[0]), (int)a[1]))                                                         \
    X(release, cuDevicePrimaryCtxRelease_v2((int)a[0]))                                                                \
    X(reset, cuDevicePrimaryCtxReset_v2((int)a[0]))                                                                    \
    X(context, cuCtxCreate_v2(INTO(a[0]), 0, (int)a[1]))                                                               \
    X(destroy, cuCtxDestroy_v2(pointer(a[0])))                                                                         \
    X(current, cuCtxSetCurrent(pointer(a[0])))                                                                         \
    X(heap, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, a[0]))                                                            \
    X(limit, cuCtxSetLimit((int)a[0], a[1]))                                                                           \
    X(module, load_module(a[0], a[1]))                                                                                 \
    X(unload, cuModuleUnload(pointer(a[0])))                                                                           \
    X(prefetch, cuMemPrefetchAsync(v[a[0]] + a[1], 4096, (int)a[2], NULL))                                             \
    X(prefetch_2, cuMemPrefetchAsync_v2(v[a[0]], 4096, (CUmemLocation){(int)a[1], (int)a[2]}, 0, NULL))                \
    X(prefetch_batch, prefetch_batch("cuMemPrefetchBatchAsync", a))                                                    \
    X(discard_batch, prefetch_batch("cuMemDiscardAndPrefetchBatchAsync", a))                                           \
    X(update, update_graph(pointer(a[0]), pointer(a[1])))                                                              \
    X(none, cuCtxSetCurrent(NULL))                                                                                     \
    X(alloc, cuMemAlloc_v2(INTO(a[0]), a[1]))                                                                          \
    X(alloc_null, cuMemAlloc_v2(NULL, a[0]))                                                                           \
    X(alloc_old, cuMemAlloc(INTO(a[0]), (unsigned)a[1]))                                                               \
    X(pitch, cuMemAllocPitch_v2(INTO(a[0]), &out[0], a[1], a[2], 4))                                                   \
    X(pitch_old, cuMemAllocPitch(INTO(a[0]), (unsigned *)&out[0], (unsigned)a[1], (unsigned)a[2], 4))                  \
    X(managed, cuMemAllocManaged(INTO(a[0]), a[1], 1))                                                                 \
    X(free, cuMemFree_v2(v[a[0]]))                                                                                     \
    X(free_old, cuMemFree((CUdeviceptr_v1)v[a[0]]))                                                                    \
    X(stream, cuStreamCreate(INTO(a[0]), 1))                                                                           \
    X(wait, cuStreamSynchronize(pointer(a[0])))                                                                        \
    X(wait_all, cuCtxSynchronize())                                                                                    \
    X(async, cuMemAllocAsync(INTO(a[0]), a[1], pointer(a[2])))                                                         \
    X(async_ptsz, cuMemAllocAsync_ptsz(INTO(a[0]), a[1], NULL))                                                        \
    X(from_pool, cuMemAllocFromPoolAsync(INTO(a[0]), a[1], pointer(a[2]), pointer(a[3])))                              \
    X(from_pool_ptsz, cuMemAllocFromPoolAsync_ptsz(INTO(a[0]), a[1], pointer(a[2]), NULL))                             \
    X(free_async, cuMemFreeAsync(v[a[0]], pointer(a[1])))                                                              \
    X(free_async_ptsz, cuMemFreeAsync_ptsz(v[a[0]], NULL))                                                             \
    X(pool, cuMemPoolCreate(INTO(a[0]), (CUmemPoolProps[]){pool_properties(PINNED, (int)a[1], (int)a[2])}))        \
    X(pool_managed, cuMemPoolCreate(INTO(a[0]), (CUmemPoolProps[]){pool_properties(2, (int)a[1], (int)a[2])}))     \
    X(pool_destroy, cuMemPoolDestroy(pointer(a[0])))                                                                   \
    X(pool_trim, cuMemPoolTrimTo(pointer(a[0]), a[1]))                                                                 \
    X(pool_keep, cuMemPoolSetAttribute(pointer(a[0]), 4, &a[1]))                                                       \
    X(pool_held, cuMemPoolGetAttribute(pointer(a[0]), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &out[0]))                  \
    X(pool_default, cuDeviceGetDefaultMemPool(INTO(a[0]), (int)a[1]))                                                  \
    X(pool_use, cuDeviceSetMemPool((int)a[1], pointer(a[0])))                                                          \
    X(create, create_chunk(INTO(a[0]), a[1], (int)a[2], (int)a[3]))                                                    \
    X(drop, cuMemRelease(v[a[0]]))                                                                                     \
    X(hold, cuMemRetainAllocationHandle(INTO(a[0]), pointer(a[1])))                                                    \
    X(reserve, cuMemAddressReserve(INTO(a[0]), a[1], 0, 0, 0))                                                         \
    X(map, cuMemMap(v[a[0]] + a[1], a[2], 0, v[a[3]], 0))                                                              \
    X(unmap, cuMemUnmap(v[a[0]] + a[1], a[2]))                                                                         \
    X(export, export_chunk((int *)&out[0], v[a[0]]))                                                                   \
    X(import, import_chunk(INTO(a[0]), (int)a[1], (int)a[2]))                                                          \
    X(close, close((int)a[0]))                                                                                         \
    X(receive, receive((int)a[0], (int)a[1], (int)a[2]))                                                               \
    X(tile, map_tile(pointer(a[0]), v[a[2]], 0, (unsigned)a[1], 1024, 1))                                              \
    X(untile, map_tile(pointer(a[0]), 0, 0, (unsigned)a[1], 1024, (unsigned)a[2]))                                     \
    X(box, map_tile(pointer(a[0]), v[a[1]], (unsigned)a[2], (unsigned)a[3], (unsigned)a[4], (unsigned)a[5]))           \
    X(rows, map_rows(pointer(a[0]), v[a[1]], (unsigned)a[2]))                                                          \
    X(tail, map_tail(pointer(a[0]), v[a[1]], a[2], a[3]))                                                              \
    X(drop_meanwhile, set_meanwhile("cuMemMapArrayAsync", drop_meanwhile, a))                                          \
    X(reuse_meanwhile, set_meanwhile("cuArrayDestroy", reuse_meanwhile, a))                                            \
    X(library, load_library(a[0], a[1]))                                                                               \
    X(library_unload, cuLibraryUnload(pointer(a[0])))                                                                  \
    X(library_kernel, cuLibraryGetKernel(INTO(a[0]), pointer(a[1]), "kernel"))                                         \
    X(library_module, cuLibraryGetModule(INTO(a[0]), pointer(a[1])))                                                   \
    X(library_global, cuLibraryGetGlobal(INTO(a[0]), &out[0], pointer(a[1]), "global"))                                \
    X(library_function, cuKernelGetFunction(INTO(a[0]), pointer(a[1])))                                                \
    X(array, cuArrayCreate_v2(INTO(a[0]), &(CUDA_ARRAY_DESCRIPTOR){a[1], a[2], (int)a[3], (unsigned)a[4]}))            \
    X(array_3d, cuArray3DCreate_v2(INTO(a[0]), ARRAY(a[1], a[2], a[3], a[4], a[5], a[6])))                             \
    X(mipmapped, cuMipmappedArrayCreate(INTO(a[0]), ARRAY(a[1], a[2], a[3], a[4], a[5], a[6]), (unsigned)a[7]))        \
    X(array_destroy, cuArrayDestroy(pointer(a[0])))                                                                    \
    X(mipmapped_destroy, cuMipmappedArrayDestroy(pointer(a[0])))                                                       \
    X(graph, cuGraphCreate(INTO(a[0]), 0))                                                                             \
    X(node, add_node(a[0], pointer(a[1]), a[2], 0))                                                                    \
    X(node_generic, add_node(a[0], pointer(a[1]), a[2], 1))                                                            \
    X(node_free, add_free(pointer(a[0]), a[1]))                                                                        \
    X(node_child, add_child(pointer(a[0]), pointer(a[1])))                                                             \
    X(capture, cuStreamBeginCapture_v2(pointer(a[0]), (int)a[1]))                                                      \
    X(capture_end, cuStreamEndCapture(pointer(a[0]), INTO(a[1])))                                                      \
    X(instantiate, cuGraphInstantiateWithFlags(INTO(a[0]), pointer(a[1]), a[2]))                                       \
    X(launch, cuGraphLaunch(pointer(a[0]), pointer(a[1])))                                                             \
    X(upload, cuGraphUpload(pointer(a[0]), pointer(a[1])))                                                             \
    X(exec_destroy, cuGraphExecDestroy(pointer(a[0])))                                                                 \
    X(graph_trim, cuDeviceGraphMemTrim((int)a[0]))                                                                     \
    X(info, cuMemGetInfo_v2(&out[0], &out[1]))                                                                         \
    X(info_old, cuMemGetInfo((unsigned *)&out[0], (unsigned *)&out[1]))                                                \
    X(total, cuDeviceTotalMem_v2(&out[0], (int)a[0]))                                                                  \
    X(total_old, cuDeviceTotalMem((unsigned *)&out[0], (int)a[0]))                                                     \
    X(nvml, memory_info(out, 0))                                                                                       \
    X(nvml_2, memory_info(out, 1))                                                                                     \
    X(is_managed, cuPointerGetAttribute(&out[0], 8, v[a[0]]))                                                          \
    X(touch, touch(v[a[0]], a[1]))                                                                                     \
    X(same, v[a[0]] == v[a[1]] ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)                                              \
    X(taken, (out[0] = standinUsed((int)a[0], 0), CUDA_SUCCESS))

enum call {
#define X(name, call) CALL_##name,
    CALLS
#undef X
};

static const char *const names[] = {
#define X(name, call) #name,
    CALLS
#undef X
};

static CUresult run(enum call call, uint64_t *a, uint64_t *out) {
    switch (call) {
#define X(name, call) case CALL_##name: return call;
        CALLS
#undef X
    }
    return -1;
}

int main(void) {
    char line[512];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t a[8] = {0}, out[3] = {0};
        char *word = strtok(line, " \n");
        int count = 0, call = 0, calls = sizeof names / sizeof *names;
        for (char *next; count < 8 && (next = strtok(NULL, " \n"));) a[count++] = strtoull(next, NULL, 0);
        while (word && call < calls && strcmp(word, names[call])) call++;
        CUresult result = word && call < calls ? run((enum call)call, a, out) : -1;
        printf("%d %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", result, out[0], out[1], out[2]);
        fflush(stdout);
    }
    return 0;
}
