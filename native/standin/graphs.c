// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Graphs as programs build them. Kernels, allocations, frees and child graphs mean something when a graph is launched;
// other nodes are remembered and do nothing.

#include "graphs.h"

#include <stdlib.h>
#include <string.h>

CUgraph si_make_graph(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    graph->end = &graph->first;
    return graph;
}

CUresult si_add_node(CUgraphNode *node, CUgraph graph, int type, const CUgraphNode *after, size_t count) {
    KNOWN(node && graph && (after || !count));
    CUgraphNode made = calloc(1, sizeof *made);
    *made = (struct CUgraphNode_st){.type = type, .graph = graph, .after_count = count};
    made->after = calloc(count + 1, sizeof *made->after);
    if (count) memcpy(made->after, after, count * sizeof *after);
    *graph->end = made;
    graph->end = &made->next;
    graph->count++;
    *node = made;
    return CUDA_SUCCESS;
}

static CUgraphNode copy_in(CUgraph graph, CUgraphNode original) {
    CUgraphNode node = graph->first;
    while (node && node->copy_of != original) node = node->next;
    return node;
}

CUgraph si_copy_graph(CUgraph graph) {
    CUgraph copy = si_make_graph();
    for (CUgraphNode node = graph->first; node; node = node->next) {
        CUgraphNode made;
        si_add_node(&made, copy, node->type, node->after, node->after_count);
        for (size_t i = 0; i < node->after_count; i++) made->after[i] = copy_in(copy, node->after[i]);
        made->function = node->function, made->memory = node->memory, made->address = node->address;
        made->copy_of = node;
        if (node->child) made->child = si_copy_graph(node->child);
    }
    return copy;
}

API(cuGraphCreate)(CUgraph *graph, unsigned flags) {
    KNOWN(graph && !flags);
    *graph = si_make_graph();
    return CUDA_SUCCESS;
}

API(cuGraphDestroy)(CUgraph graph) {
    KNOWN(graph);
    for (CUgraphNode node = graph->first, next; node; node = next) {
        next = node->next;
        if (node->child) si_cuGraphDestroy(node->child);
        free(node->after);
        free(node);
    }
    free(graph);
    return CUDA_SUCCESS;
}

API(cuGraphClone)(CUgraph *copy, CUgraph graph) {
    KNOWN(copy && graph);
    *copy = si_copy_graph(graph);
    return CUDA_SUCCESS;
}

API(cuGraphNodeFindInClone)(CUgraphNode *node, CUgraphNode original, CUgraph copy) {
    KNOWN(node && original && copy);
    *node = copy_in(copy, original);
    return *node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                           CUfunction function) {
    KNOWN(function);
    TRY(si_add_node(node, graph, CU_GRAPH_NODE_TYPE_KERNEL, after, count));
    (*node)->function = function;
    return CUDA_SUCCESS;
}

API(cuGraphAddKernelNode_v2)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *asked) {
    KNOWN(asked);
    return add_kernel(node, graph, after, count, asked->func ? asked->func : (CUfunction)asked->kern);
}

API(cuGraphAddKernelNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *asked) {
    KNOWN(asked);
    return add_kernel(node, graph, after, count, asked->func);
}

API(cuGraphKernelNodeGetParams_v2)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *answer) {
    KNOWN(node && answer && node->function);
    *answer = (CUDA_KERNEL_NODE_PARAMS){.func = node->function,
                                        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                        .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    return CUDA_SUCCESS;
}

API(cuGraphKernelNodeSetParams_v2)(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *asked) {
    KNOWN(node && asked && node->function && (asked->func || asked->kern));
    node->function = asked->func ? asked->func : (CUfunction)asked->kern;
    return CUDA_SUCCESS;
}

API(cuGraphAddEmptyNode)(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count) {
    return si_add_node(node, graph, CU_GRAPH_NODE_TYPE_EMPTY, after, count);
}

API(cuGraphAddHostNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_HOST_NODE_PARAMS *asked) {
    KNOWN(asked);
    return si_add_node(node, graph, CU_GRAPH_NODE_TYPE_HOST, after, count);
}

API(cuGraphAddMemcpyNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMCPY3D *asked,
 CUcontext context) {
    (void)context;
    KNOWN(asked);
    return si_add_node(node, graph, CU_GRAPH_NODE_TYPE_MEMCPY, after, count);
}

API(cuGraphAddMemsetNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMSET_NODE_PARAMS *asked,
 CUcontext context) {
    (void)context;
    KNOWN(asked);
    return si_add_node(node, graph, CU_GRAPH_NODE_TYPE_MEMSET, after, count);
}

API(cuGraphAddEventRecordNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUevent event) {
    KNOWN(event);
    return si_add_node(node, graph, CU_GRAPH_NODE_TYPE_EVENT_RECORD, after, count);
}

API(cuGraphAddEventWaitNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUevent event) {
    KNOWN(event);
    return si_add_node(node, graph, CU_GRAPH_NODE_TYPE_WAIT_EVENT, after, count);
}

API(cuGraphAddChildGraphNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child) {
    KNOWN(child);
    TRY(si_add_node(node, graph, CU_GRAPH_NODE_TYPE_GRAPH, after, count));
    (*node)->child = si_copy_graph(child);
    return CUDA_SUCCESS;
}

API(cuGraphChildGraphNodeGetGraph)(CUgraphNode node, CUgraph *graph) {
    KNOWN(node && graph && node->child);
    *graph = node->child;
    return CUDA_SUCCESS;
}

CUresult si_add_allocation(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                           CUDA_MEM_ALLOC_NODE_PARAMS *asked) {
    KNOWN(asked && asked->bytesize);
    bool on_device = asked->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    int device = on_device ? si_physical(asked->poolProps.location.id) : -1;
    KNOWN(device >= 0);
    struct si_graph_memory *memory = si_make_graph_memory(asked, device);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(si_add_node(node, graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, after, count));
    (*node)->memory = memory;
    asked->dptr = memory->address;
    return CUDA_SUCCESS;
}

API(cuGraphAddMemAllocNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *asked) {
    return si_add_allocation(node, graph, after, count, asked);
}

API(cuGraphMemAllocNodeGetParams)(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *answer) {
    KNOWN(node && answer && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    *answer = node->memory->asked;
    return CUDA_SUCCESS;
}

CUresult si_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, uint64_t address) {
    KNOWN(address);
    TRY(si_add_node(node, graph, CU_GRAPH_NODE_TYPE_MEM_FREE, after, count));
    (*node)->address = address;
    (*node)->memory = si_graph_memory_at(address);
    return CUDA_SUCCESS;
}

API(cuGraphAddMemFreeNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address) {
    return si_add_free(node, graph, after, count, address);
}

API(cuGraphMemFreeNodeGetParams)(CUgraphNode node, CUdeviceptr *address) {
    KNOWN(node && address && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE);
    *address = node->address;
    return CUDA_SUCCESS;
}

API(cuGraphAddNode_v2)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
 CUgraphNodeParams *asked) {
    (void)edges;
    KNOWN(asked);
    switch (asked->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return add_kernel(node, graph, after, count,
                          asked->kernel.func ? asked->kernel.func : (CUfunction)asked->kernel.kern);
    case CU_GRAPH_NODE_TYPE_GRAPH: return si_cuGraphAddChildGraphNode(node, graph, after, count, asked->graph.graph);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return si_add_allocation(node, graph, after, count, (CUDA_MEM_ALLOC_NODE_PARAMS *)&asked->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return si_add_free(node, graph, after, count, asked->free.dptr);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return si_add_node(node, graph, (int)asked->type, after, count);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API(cuGraphAddNode)
(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *asked) {
    return si_cuGraphAddNode_v2(node, graph, after, NULL, count, asked);
}

API(cuGraphAddDependencies)(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    KNOWN(graph && (!count || (from && to)));
    for (size_t i = 0; i < count; i++) {
        CUgraphNode node = to[i];
        node->after = realloc(node->after, (node->after_count + 2) * sizeof *node->after);
        node->after[node->after_count++] = from[i];
    }
    return CUDA_SUCCESS;
}

API(cuGraphAddDependencies_v2)
(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count) {
    (void)edges;
    return si_cuGraphAddDependencies(graph, from, to, count);
}

static CUresult list(CUgraph graph, bool roots, CUgraphNode *nodes, size_t *count) {
    KNOWN(graph && count);
    size_t found = 0;
    for (CUgraphNode node = graph->first; node; node = node->next) {
        if (roots && node->after_count) continue;
        if (nodes && found < *count) nodes[found] = node;
        found++;
    }
    *count = found;
    return CUDA_SUCCESS;
}

API(cuGraphGetNodes)(CUgraph graph, CUgraphNode *nodes, size_t *count) { return list(graph, false, nodes, count); }

API(cuGraphGetRootNodes)(CUgraph graph, CUgraphNode *nodes, size_t *count) { return list(graph, true, nodes, count); }

API(cuGraphNodeGetType)(CUgraphNode node, CUgraphNodeType *type) {
    KNOWN(node && type);
    *type = (CUgraphNodeType)node->type;
    return CUDA_SUCCESS;
}

API(cuGraphNodeGetDependencies)(CUgraphNode node, CUgraphNode *after, size_t *count) {
    KNOWN(node && count);
    for (size_t i = 0; after && i < *count && i < node->after_count; i++) after[i] = node->after[i];
    *count = node->after_count;
    return CUDA_SUCCESS;
}
