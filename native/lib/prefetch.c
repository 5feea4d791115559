// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Managed memory that is prefetched: its charge goes with it, to another GPU, from the host budget to the quota of the
// GPU, or back. A part of an allocation counts as all of it, since the rest may follow by itself. Until the driver has
// answered, both places are charged.

#include <sys/mman.h>

#include "memory.h"

#include "region.h"

#define FEW 8 // moves that need no memory of their own

// A change of the books: the entry before and after, what is charged besides, and what no longer is once it has moved.
struct move {
    struct ct_entry before, after, added, left;
};

// Where memory is prefetched to: a GPU of the slice, the host, or (-1, false) something that has no limit.
struct place {
    int device;
    bool is_host;
};

static struct place at(const CUmemLocation *location) {
    int type = location->type;
    bool is_host = type >= CU_MEM_LOCATION_TYPE_HOST && type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
    return (struct place){ct_device_at(location), is_host};
}

// The books know an allocation by its first address; the program may name any within it.
static CUdeviceptr start_of(CUdeviceptr pointer) {
    CUdeviceptr start = 0;
    bool known = CALL(cuPointerGetAttribute, &start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer) == CUDA_SUCCESS;
    return known && start ? start : pointer;
}

static struct ct_entry charge(int device, uint64_t bytes, uint64_t host) {
    return (struct ct_entry){.bytes = bytes, .host = host, .device = (int16_t)device};
}

static int device_of_pool(uint64_t pool) {
    struct ct_entry entry;
    return ct_get(CT_POOLS, pool, &entry) ? entry.device : -1;
}

// The pool stays charged on its own GPU, since it keeps what it holds; elsewhere the pointer is charged too.
static bool plan_pooled(struct move *move, int to) {
    const struct ct_entry *from = &move->before;
    bool is_home = to == device_of_pool(from->owner);
    if (from->device == to) return false;
    move->left = charge(from->device, from->kind == CT_POOLED_ELSEWHERE ? from->bytes : 0, 0);
    move->added = charge(to, is_home ? 0 : from->bytes, 0);
    move->after.kind = is_home ? CT_POOLED : CT_POOLED_ELSEWHERE;
    return true;
}

static bool plan_for_gpu(struct move *move, int to) {
    const struct ct_entry *from = &move->before;
    move->after.device = (int16_t)to;
    if (ct_is_pooled(from)) return plan_pooled(move, to);
    bool stays = from->device == to;
    move->left = charge(from->device, stays ? from->host : from->bytes, from->host);
    move->added = charge(to, stays ? from->host : from->bytes, 0);
    move->after.host = 0;
    return !stays || from->host;
}

// What does not fit into the host budget stays charged to the GPU, to which it may come back.
static bool plan_for_host(struct move *move) {
    const struct ct_entry *from = &move->before;
    uint64_t bytes = from->bytes - from->host;
    if (ct_is_pooled(from) || !bytes || !ct_reserve(from->device, CT_HOST, bytes)) return false;
    move->left = charge(from->device, bytes, 0);
    move->added = charge(from->device, bytes, bytes);
    move->after.host = from->bytes;
    return true;
}

static bool is_same(const struct ct_entry *a, const struct ct_entry *b) {
    return a->bytes == b->bytes && a->host == b->host && a->device == b->device && a->kind == b->kind;
}

static bool put_after(struct ct_entry *entry, void *with) {
    struct move *move = with;
    if (is_same(entry, &move->before)) *entry = move->after;
    else move->after.key = 0;
    return false;
}

static bool put_before(struct ct_entry *entry, void *with) {
    struct move *move = with;
    if (is_same(entry, &move->after)) *entry = move->before;
    else move->after.key = 0;
    return false;
}

// Charges where the memory goes and enters that into the books. move->before.key is 0 if nothing changes.
static CUresult begin_move(struct move *move, CUdeviceptr pointer, struct place to) {
    struct ct_entry before;
    *move = (struct move){0};
    if ((to.device < 0 && !to.is_host) || !ct_get(CT_POINTERS, start_of(pointer), &before)) return CUDA_SUCCESS;
    move->before = move->after = before;
    bool moves = to.is_host ? plan_for_host(move) : plan_for_gpu(move, to.device);
    bool fits = !moves || to.is_host || ct_claim(to.device, move->added.bytes);
    if (moves && fits && ct_edit(CT_POINTERS, before.key, put_after, move) && move->after.key) return CUDA_SUCCESS;
    if (moves && fits) ct_give_back(&move->added); // freed, or moved by another thread
    move->before.key = 0;
    return fits ? CUDA_SUCCESS : ct_refuse(to.device);
}

// What another thread has freed meanwhile was given back as it is after the move.
static void end_move(struct move *move, CUresult result) {
    bool undone = result != CUDA_SUCCESS && ct_edit(CT_POINTERS, move->before.key, put_before, move) && move->after.key;
    ct_give_back(undone ? &move->added : &move->left);
}

#define PREFETCH(name, location, pointer, ...)                                        \
    do {                                                                              \
        struct move move;                                                             \
        if (!ct_in_slice()) return CALL(name, pointer, __VA_ARGS__);                  \
        CUresult result = begin_move(&move, pointer, at(location));                   \
        if (result != CUDA_SUCCESS) return result;                                    \
        result = CALL(name, pointer, __VA_ARGS__);                                    \
        if (move.before.key) end_move(&move, result);                                 \
        return result;                                                                \
    } while (0)

#define LOCATED(device) \
    &(CUmemLocation) { (device) < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, device }

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    PREFETCH(cuMemPrefetchAsync, LOCATED(device), pointer, bytes, device, stream);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    PREFETCH(cuMemPrefetchAsync_ptsz, LOCATED(device), pointer, bytes, device, stream);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream) {
    PREFETCH(cuMemPrefetchAsync_v2, &location, pointer, bytes, location, flags, stream);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream) {
    PREFETCH(cuMemPrefetchAsync_v2_ptsz, &location, pointer, bytes, location, flags, stream);
}

// Many prefetches in one call: the places are for those from their start on, up to the start of the next place.
struct batch {
    CUdeviceptr *pointers;
    size_t *sizes, count;
    CUmemLocation *places;
    size_t *starts, place_count;
    unsigned long long flags;
    CUstream stream;
};

typedef CUresult batch_function(CT_BATCH_ARGUMENTS);

static CUresult call(batch_function *real, const struct batch *of) {
    if (!real) return CUDA_ERROR_NOT_SUPPORTED;
    return real(of->pointers, of->sizes, of->count, of->places, of->starts, of->place_count, of->flags, of->stream);
}

static CUresult move_all(batch_function *real, const struct batch *of, struct move *moves) {
    size_t place = 0, begun = 0;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < of->count && result == CUDA_SUCCESS; i++) {
        while (place + 1 < of->place_count && of->starts[place + 1] <= i) place++;
        result = begin_move(&moves[begun], of->pointers[i], at(&of->places[place]));
        begun += moves[begun].before.key != 0;
    }
    if (result == CUDA_SUCCESS) result = call(real, of);
    for (; begun > 0; begun--) end_move(&moves[begun - 1], result); // the latest first: it may have moved one again
    return result;
}

static CUresult prefetch_batch(batch_function *real, const struct batch *of) {
    struct move few[FEW + 1]; // one more: begin_move also writes what turns out not to move
    bool is_complete = of->pointers && of->places && of->starts && of->place_count;
    if (!ct_in_slice() || !real || !is_complete) return call(real, of);
    if (of->count <= FEW) return move_all(real, of, few);
    if (of->count > SIZE_MAX / sizeof *few - 1) return CUDA_ERROR_INVALID_VALUE;
    size_t size = (of->count + 1) * sizeof *few;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = move_all(real, of, memory);
    munmap(memory, size);
    return result;
}

#define BATCH(name)                                                                                                    \
    CUresult name(CT_BATCH_ARGUMENTS) {                                                                                \
        CT_ENTER();                                                                                                    \
        return prefetch_batch(REAL(name),                                                                              \
                              &(struct batch){pointers, sizes, count, places, starts, place_count, flags, stream});    \
    }
BATCH(cuMemPrefetchBatchAsync)
BATCH(cuMemPrefetchBatchAsync_ptsz)
BATCH(cuMemDiscardAndPrefetchBatchAsync)
BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)
