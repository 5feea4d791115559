// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What a graph and its nodes are: made in graphs.c and capture.c, run in graph_launch.c.

#ifndef STANDIN_GRAPHS_H
#define STANDIN_GRAPHS_H

#include "driver.h"

// The memory of an allocation node: its address never changes, and it is allocated while the node is live.
struct si_graph_memory {
    uint64_t address;
    size_t size;
    int device;
    bool live;
    CUDA_MEM_ALLOC_NODE_PARAMS asked;
};

struct CUgraphNode_st {
    int type;
    CUgraph graph;
    CUgraphNode *after;
    size_t after_count;
    CUfunction function; // of a kernel
    CUgraph child;
    struct si_graph_memory *memory; // of an allocation, and of its free
    uint64_t address;               // of a free
    CUgraphNode copy_of;
    CUgraphNode next;
};

struct CUgraph_st {
    CUgraphNode first, *end;
    size_t count;
};

CUgraph si_make_graph(void);
CUgraph si_copy_graph(CUgraph graph);
CUresult si_add_node(CUgraphNode *node, CUgraph graph, int type, const CUgraphNode *after, size_t count);
CUresult si_add_allocation(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                           CUDA_MEM_ALLOC_NODE_PARAMS *asked);
CUresult si_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, uint64_t address);

// graph_memory.c: for one run, the most that is live at once and what stays; true if the device has it
CUresult si_hold_graph_memory(struct si_graph_memory *memory);
void si_let_go_graph_memory(struct si_graph_memory *memory);
struct si_graph_memory *si_make_graph_memory(const CUDA_MEM_ALLOC_NODE_PARAMS *asked, int device);
struct si_graph_memory *si_graph_memory_at(uint64_t address);

#endif
