// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Graphs that allocate. Their nodes take nothing until the graph is launched or uploaded, and then the driver keeps the
// memory for the next launch. So each executable graph's needs are noted when it is made, what the GPU's graph memory
// lacks of them is announced before it runs, and the charge is settled to the driver's number afterwards.

#include <errno.h>
#include <stdlib.h>

#include "compute.h"
#include "hooks.h"
#include "limits.h"
#include "memory.h"

#define DEPTH 16 // of graphs within graphs; the driver allows fewer
#define NODES 64 // of a graph, up to which no memory is allocated to read them

// GPUs on which some graph of this process allocates, as bits; if it is 0, launches cost only this load.
static _Atomic uint32_t allocating;

// What this thread's launch has claimed. Thread-local, because several threads may launch one graph at a time.
static _Thread_local struct ct_draw draw[CT_DEVICES] __attribute__((tls_model("initial-exec")));

bool ct_node_fits(int device, uint64_t bytes) {
    return device < 0 || bytes <= ct_quota(device);
}

static bool fits(const CUDA_MEM_ALLOC_NODE_PARAMS *node, int *device) {
    if (!node || !ct_in_slice()) return true;
    ct_refresh_limits();
    *device = ct_device_at(&node->poolProps.location);
    return ct_node_fits(*device, node->bytesize);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    int device;
    if (!fits(parameters, &device)) return ct_refuse(device);
    return CALL(cuGraphAddMemAllocNode, node, graph, after, count, parameters);
}

#define ADD(name, parameters, ...)                                                                                \
    do {                                                                                                          \
        int device;                                                                                               \
        bool allocates = (parameters) && (parameters)->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;                     \
        if (allocates && !fits(&(parameters)->as.alloc, &device)) return ct_refuse(device);                       \
        return CALL(name, __VA_ARGS__, parameters);                                                               \
    } while (0)

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                        CUgraphNodeParams *parameters) {
    ADD(cuGraphAddNode, parameters, node, graph, after, count);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           CUgraphNodeParams *parameters) {
    ADD(cuGraphAddNode_v2, parameters, node, graph, after, edges, count);
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           CUgraphNodeParams *parameters) {
    ADD(cuGraphAddNode_v3, parameters, node, graph, after, edges, count);
}

// One GPU's part of a graph's needs.
struct need {
    uint64_t bytes;
    CUdevice ordinal;
};

static void add_needs(CUgraph graph, unsigned depth, struct need needs[CT_DEVICES]);

static void add_needs_of_node(CUgraphNode node, unsigned depth, struct need needs[CT_DEVICES]) {
    int type = 0;
    CUgraph child = 0;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && CALL(cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS)
        add_needs(child, depth + 1, needs);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return;
    if (CALL(cuGraphMemAllocNodeGetParams, node, &parameters) != CUDA_SUCCESS) return;
    int device = ct_device_at(&parameters.poolProps.location);
    if (device < 0) return;
    needs[device].bytes += parameters.bytesize;
    needs[device].ordinal = parameters.poolProps.location.id;
}

static void add_needs(CUgraph graph, unsigned depth, struct need needs[CT_DEVICES]) {
    CUgraphNode few[NODES], *nodes = few;
    size_t count = 0;
    if (depth > DEPTH || REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS) return;
    int saved = errno;
    if (count > NODES) nodes = malloc(count * sizeof *nodes);
    errno = saved;
    if (!nodes) {
        ct_count_fault(CT_FAULT_MEMORY);
        return;
    }
    if (REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
    for (size_t i = 0; i < count; i++) add_needs_of_node(nodes[i], depth, needs);
    if (nodes != few) free(nodes);
}

// An executable graph has an entry for each GPU it allocates on.
static uint64_t key_of(CUgraphExec exec, int device) { return (uint64_t)(uintptr_t)exec << 4 | (uint64_t)device; }

static CUresult note_needs(CUgraph graph, CUgraphExec *exec, CUresult result) {
    if (result != CUDA_SUCCESS || !ct_in_slice() || !HAS(cuGraphGetNodes) || !HAS(cuGraphNodeGetType)) return result;
    struct need needs[CT_DEVICES] = {{0}};
    add_needs(graph, 0, needs);
    for (int device = 0; device < CT_DEVICES; device++) {
        if (!needs[device].bytes) continue;
        struct ct_entry before, entry = {.key = key_of(*exec, device),
                                         .bytes = needs[device].bytes,
                                         .device = (int16_t)device,
                                         .count = (uint32_t)needs[device].ordinal};
        if (!ct_put(CT_EXECS, &entry, &before)) ct_count_fault(CT_FAULT_MEMORY);
        atomic_fetch_or(&allocating, 1u << device);
        // It may have been uploaded at once.
        ct_settle(ct_learn_graph_memory(needs[device].ordinal, device), (struct ct_draw){0});
    }
    return result;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t bytes) {
    return note_needs(graph, exec, CALL(cuGraphInstantiate, exec, graph, error, log, bytes));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t bytes) {
    return note_needs(graph, exec, CALL(cuGraphInstantiate_v2, exec, graph, error, log, bytes));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return note_needs(graph, exec, CALL(cuGraphInstantiateWithFlags, exec, graph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *parameters) {
    return note_needs(graph, exec, CALL(cuGraphInstantiateWithParams, exec, graph, parameters));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *parameters) {
    return note_needs(graph, exec, CALL(cuGraphInstantiateWithParams_ptsz, exec, graph, parameters));
}

// The graph may allocate more than the one that it replaces.
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *answer) {
    return note_needs(graph, &exec, CALL(cuGraphExecUpdate, exec, graph, error, answer));
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *answer) {
    return note_needs(graph, &exec, CALL(cuGraphExecUpdate_v2, exec, graph, answer));
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct ct_entry entry;
    uint32_t devices = atomic_load_explicit(&allocating, memory_order_relaxed);
    for (int device = 0; devices >> device; device++) ct_take(CT_EXECS, key_of(exec, device), &entry);
    CUresult result = CALL(cuGraphExecDestroy, exec);
    if (devices) ct_expect_shrink();
    return result;
}

// The graph memory of a GPU, if this graph allocates there: its key, or 0.
static uint64_t find_memory_on(CUgraphExec exec, int device, uint64_t *bytes) {
    struct ct_entry entry;
    if (!ct_get(CT_EXECS, key_of(exec, device), &entry)) return 0;
    *bytes = entry.bytes;
    return ct_learn_graph_memory((CUdevice)entry.count, device);
}

// A graph may allocate on other GPUs than the one it is launched on.
CUresult ct_reserve_graph(CUgraphExec exec) {
    uint32_t devices = atomic_load_explicit(&allocating, memory_order_relaxed);
    for (int device = 0; devices >> device; device++) {
        uint64_t bytes, key = find_memory_on(exec, device, &bytes);
        if (!key || ct_take_part(key, device, bytes, &draw[device])) continue;
        ct_settle_graph(exec);
        return ct_refuse(device);
    }
    return CUDA_SUCCESS;
}

void ct_settle_graph(CUgraphExec exec) {
    uint32_t devices = atomic_load_explicit(&allocating, memory_order_relaxed);
    for (int device = 0; devices >> device; device++) {
        uint64_t bytes, key = find_memory_on(exec, device, &bytes);
        if (key) ct_settle(key, draw[device]);
        draw[device] = (struct ct_draw){0};
    }
}

// Uploading maps the memory ahead of the first launch.
#define UPLOAD(name, exec, stream)                                         \
    do {                                                                   \
        CUresult result = ct_reserve_graph(exec);                          \
        if (result != CUDA_SUCCESS) return result;                         \
        CT_ASK_DRIVER(result, ct_current_device(), 0, CALL(name, exec, stream)); \
        ct_settle_graph(exec);                                             \
        return result;                                                     \
    } while (0)

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) { UPLOAD(cuGraphUpload, exec, stream); }

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) { UPLOAD(cuGraphUpload_ptsz, exec, stream); }

CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
    CUresult result = CALL(cuDeviceGraphMemTrim, ordinal);
    bool known = atomic_load_explicit(&allocating, memory_order_relaxed);
    if (known) ct_settle((uint64_t)ordinal + 1, (struct ct_draw){0});
    return result;
}
