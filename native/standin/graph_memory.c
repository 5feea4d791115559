// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory of graphs on each device: what allocation nodes hold comes from a store that grows when a graph is
// launched and keeps what is freed until it is trimmed.

#include <stdlib.h>
#include <string.h>

#include "graphs.h"

static struct store {
    uint64_t reserved, used, reserved_high, used_high;
} stores[SI_DEVICES];

struct known {
    struct si_graph_memory *memory;
    struct known *next;
};
static struct known *everything;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

struct si_graph_memory *si_make_graph_memory(const CUDA_MEM_ALLOC_NODE_PARAMS *asked, int device) {
    struct si_graph_memory *memory = calloc(1, sizeof *memory);
    struct si_block block;
    *memory = (struct si_graph_memory){.size = asked->bytesize, .device = device, .asked = *asked};
    // an address of its own, known as allocated only while it is live
    if (si_new_block(&memory->address, memory->size, SI_GRAPH, device, memory) != CUDA_SUCCESS ||
        !si_take_block(memory->address, 1u << SI_GRAPH, &block)) {
        free(memory);
        return NULL;
    }
    memory->asked.dptr = memory->address;
    struct known *entry = malloc(sizeof *entry);
    pthread_mutex_lock(&guard);
    *entry = (struct known){memory, everything};
    everything = entry;
    pthread_mutex_unlock(&guard);
    return memory;
}

struct si_graph_memory *si_graph_memory_at(uint64_t address) {
    pthread_mutex_lock(&guard);
    struct known *entry = everything;
    while (entry && entry->memory->address != address) entry = entry->next;
    pthread_mutex_unlock(&guard);
    return entry ? entry->memory : NULL;
}

static CUresult grow(struct store *store, int device, size_t size) {
    uint64_t needed = store->used + size;
    if (needed > store->reserved) {
        TRY(si_charged(device, needed - store->reserved));
        store->reserved = needed;
    }
    store->used = needed;
    if (store->used > store->used_high) store->used_high = store->used;
    if (store->reserved > store->reserved_high) store->reserved_high = store->reserved;
    return CUDA_SUCCESS;
}

CUresult si_hold_graph_memory(struct si_graph_memory *memory) {
    KNOWN(!memory->live);
    pthread_mutex_lock(&guard);
    CUresult result = grow(&stores[memory->device], memory->device, memory->size);
    if (result == CUDA_SUCCESS) memory->live = true;
    pthread_mutex_unlock(&guard);
    TRY(result);
    si_name_block(&(struct si_block){.address = memory->address,
                                     .size = memory->size,
                                     .kind = SI_GRAPH,
                                     .device = memory->device,
                                     .owner = memory});
    return CUDA_SUCCESS;
}

CUresult si_free_graph_memory(const struct si_block *block) {
    struct si_graph_memory *memory = block->owner;
    pthread_mutex_lock(&guard);
    stores[memory->device].used -= memory->size;
    memory->live = false;
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}

void si_let_go_graph_memory(struct si_graph_memory *memory) {
    struct si_block block;
    if (memory->live && si_take_block(memory->address, 1u << SI_GRAPH, &block)) si_free_graph_memory(&block);
}

API(cuDeviceGraphMemTrim)(CUdevice device) {
    int which = si_physical(device);
    if (which < 0) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&guard);
    struct store *store = &stores[which];
    si_uncharged(which, store->reserved - store->used);
    store->reserved = store->used;
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}

static uint64_t *figure(CUdevice device, CUgraphMem_attribute attribute) {
    struct store *store = si_physical(device) < 0 ? NULL : &stores[si_physical(device)];
    switch (store ? (int)attribute : -1) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: return &store->used;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: return &store->used_high;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: return &store->reserved;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: return &store->reserved_high;
    default: return NULL;
    }
}

API(cuDeviceGetGraphMemAttribute)(CUdevice device, CUgraphMem_attribute attribute, void *value) {
    uint64_t *found = figure(device, attribute);
    KNOWN(found && value);
    *(cuuint64_t *)value = *found;
    return CUDA_SUCCESS;
}

API(cuDeviceSetGraphMemAttribute)(CUdevice device, CUgraphMem_attribute attribute, void *value) {
    uint64_t *found = figure(device, attribute);
    KNOWN(found && value && !*(cuuint64_t *)value);
    KNOWN(attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
    *found = *figure(device, attribute - 1); // a high mark can only be set back
    return CUDA_SUCCESS;
}
