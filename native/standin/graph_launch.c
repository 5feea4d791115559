// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Graphs that can be launched. A launch is one piece of work as long as all its kernels together; its allocations are
// made before and its frees after, in the order in which the nodes were added.

#include <stdlib.h>

#include "graphs.h"

struct CUgraphExec_st {
    CUgraph graph; // a copy
    unsigned long long flags;
};

API(cuGraphInstantiateWithFlags)(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    KNOWN(exec && graph);
    TRY(si_ready());
    *exec = calloc(1, sizeof **exec);
    **exec = (struct CUgraphExec_st){si_copy_graph(graph), flags};
    return CUDA_SUCCESS;
}

API(cuGraphInstantiate_v2)(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    if (error) *error = NULL;
    if (log && size) *log = 0;
    return si_cuGraphInstantiateWithFlags(exec, graph, 0);
}

API(cuGraphInstantiateWithParams)(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *asked) {
    KNOWN(asked);
    asked->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    asked->hErrNode_out = NULL;
    return si_cuGraphInstantiateWithFlags(exec, graph, asked->flags);
}

API(cuGraphExecGetFlags)(CUgraphExec exec, cuuint64_t *flags) {
    KNOWN(exec && flags);
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

API(cuGraphExecDestroy)(CUgraphExec exec) {
    CUresult si_cuGraphDestroy(CUgraph);
    KNOWN(exec);
    TRY(si_cuGraphDestroy(exec->graph));
    free(exec);
    return CUDA_SUCCESS;
}

API(cuGraphExecUpdate_v2)(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *answer) {
    CUresult si_cuGraphDestroy(CUgraph);
    KNOWN(exec && graph && answer);
    *answer = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
    CUgraph before = exec->graph;
    exec->graph = si_copy_graph(graph);
    return si_cuGraphDestroy(before);
}

API(cuGraphExecKernelNodeSetParams_v2)(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *asked) {
    KNOWN(exec && node && asked && (asked->func || asked->kern));
    for (CUgraphNode own = exec->graph->first; own; own = own->next)
        if (own->copy_of == node) own->function = asked->func ? asked->func : (CUfunction)asked->kern;
    return CUDA_SUCCESS;
}

static uint64_t length_of(CUgraph graph) {
    uint64_t sum = 0;
    for (CUgraphNode node = graph->first; node; node = node->next) {
        if (node->function) sum += node->function->length;
        if (node->child) sum += length_of(node->child);
    }
    return sum;
}

static void let_go(CUgraph graph, CUgraphNode before) {
    for (CUgraphNode node = graph->first; node && node != before; node = node->next) {
        if (node->child) let_go(node->child, NULL);
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) si_let_go_graph_memory(node->memory);
    }
}

static CUresult hold(CUgraph graph) {
    for (CUgraphNode node = graph->first; node; node = node->next) {
        CUresult result = CUDA_SUCCESS;
        if (node->child) result = hold(node->child);
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) result = si_hold_graph_memory(node->memory);
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && node->memory) si_let_go_graph_memory(node->memory);
        if (result == CUDA_SUCCESS) continue;
        if (result == CUDA_ERROR_OUT_OF_MEMORY) let_go(graph, node);
        return result;
    }
    return CUDA_SUCCESS;
}

API(cuGraphUpload)(CUgraphExec exec, CUstream handle) {
    CUstream stream;
    KNOWN(exec);
    return si_stream(handle, &stream);
}

API(cuGraphLaunch)(CUgraphExec exec, CUstream handle) {
    CUstream stream;
    KNOWN(exec);
    TRY(si_stream(handle, &stream));
    if (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) let_go(exec->graph, NULL);
    TRY(hold(exec->graph));
    return si_enqueue(stream, length_of(exec->graph));
}
