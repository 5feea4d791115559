// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Every address that the driver has allocated, and the plain ways to allocate one. With STANDIN_BACKING=real there is
// memory behind each; with `none` there are addresses only, which makes an allocation cheap enough to measure hooks
// against.

#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>

#include "driver.h"

#define BUCKETS 65536
#define BLOCKS_AT_ONCE 512
#define ALIGNED 512
#ifndef MAP_32BIT
#define MAP_32BIT 0 // only x86-64 has programs old enough to need it
#endif
#define UNBACKED_FROM UINT64_C(0x100000000000)
#define UNBACKED_LOW UINT64_C(0x10000000) // for the old functions with 32-bit addresses

bool si_backing;

static struct si_block *buckets[BUCKETS];
static struct si_block *unused;
static uint64_t next_address = UNBACKED_FROM, next_low = UNBACKED_LOW, next_id;
static _Atomic bool held;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("STANDIN_BACKING");
    si_backing = !text || strcmp(text, "none");
}

// Held for some tens of nanoseconds; a killed process takes it along, a forked one resets it.
void si_memory_lock(void) {
    if (__libc_single_threaded) return; // there is no other thread, and that cannot change before the lock is released
    while (__builtin_expect(atomic_exchange_explicit(&held, true, memory_order_acquire), 0)) sched_yield();
}

void si_memory_unlock(void) { atomic_store_explicit(&held, false, memory_order_release); }

static struct si_block **bucket_of(uint64_t address) {
    return &buckets[(address / ALIGNED * UINT64_C(0x9e3779b97f4a7c15)) >> 48];
}

static struct si_block *unused_block(void) {
    if (!unused) {
        struct si_block *fresh = calloc(BLOCKS_AT_ONCE, sizeof *fresh);
        for (int i = 0; fresh && i < BLOCKS_AT_ONCE; i++) fresh[i].next = unused, unused = &fresh[i];
    }
    struct si_block *block = unused;
    if (block) unused = block->next;
    return block;
}

static void put_in(struct si_block *block) {
    struct si_block **bucket = bucket_of(block->address);
    block->next = *bucket;
    *bucket = block;
}

// The address of the block that was freed last is used again if the size fits, as drivers do.
static uint64_t unbacked_address(const struct si_block *last, size_t size, bool low) {
    if (last->address && last->size == size && !last->backed && (last->address < UNBACKED_FROM) == low)
        return last->address;
    uint64_t *next = low ? &next_low : &next_address, address = *next;
    *next += (size + ALIGNED - 1) / ALIGNED * ALIGNED;
    return address;
}

static void *map_memory(size_t size, int flags) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

// The driver gives multiples of this.
static uint64_t given(size_t size) { return ((uint64_t)size + ALIGNED - 1) / ALIGNED * ALIGNED; }

static CUresult add(uint64_t *address, size_t size, enum si_kind kind, int device, void *owner, bool low) {
    bool backed = si_backing || kind == SI_HOST || kind == SI_MANAGED;
    void *memory = backed ? map_memory(si_pages(size), low ? MAP_32BIT : 0) : NULL;
    if (backed && !memory) return CUDA_ERROR_OUT_OF_MEMORY;
    si_memory_lock();
    struct si_block *block = kind == SI_DEVICE && !si_charge(device, given(size)) ? NULL : unused_block();
    if (!block) {
        si_memory_unlock();
        if (memory) munmap(memory, si_pages(size));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->address = backed ? (uint64_t)(uintptr_t)memory : unbacked_address(block, size, low);
    block->size = size, block->kind = kind, block->device = device, block->backed = backed;
    block->flags = 0, block->resident = 0, block->owner = owner, block->context = si_current, block->id = ++next_id;
    *address = block->address;
    put_in(block);
    si_memory_unlock();
    return CUDA_SUCCESS;
}

CUresult si_new_block(uint64_t *address, size_t size, enum si_kind kind, int device, void *owner) {
    return add(address, size, kind, device, owner, false);
}

// An address that something else has made.
void si_name_block(const struct si_block *named) {
    si_memory_lock();
    struct si_block *block = unused_block();
    if (block) {
        *block = *named;
        block->context = si_current, block->id = ++next_id;
        put_in(block);
    }
    si_memory_unlock();
}

// Leaves the memory itself alone.
bool si_take_block(uint64_t address, unsigned kinds, struct si_block *taken) {
    si_memory_lock();
    struct si_block **link = bucket_of(address), *block;
    while ((block = *link) && (block->address != address || !(kinds >> block->kind & 1))) link = &block->next;
    if (block) {
        *link = block->next;
        *taken = *block;
        if (block->kind == SI_DEVICE) si_uncharge(block->device, given(block->size));
        if (block->resident) si_uncharge(block->resident - 1, block->size);
        block->next = unused;
        unused = block;
    }
    si_memory_unlock();
    return block;
}

CUresult si_drop_memory(const struct si_block *block) {
    if (block->backed) munmap((void *)(uintptr_t)block->address, si_pages(block->size));
    return CUDA_SUCCESS;
}

static struct si_block *containing(uint64_t address);

// Managed memory is on the device that it was last prefetched to, all of it; -1: the host.
CUresult si_prefetch(uint64_t address, int device) {
    si_memory_lock();
    struct si_block *block = containing(address);
    bool fits = block && (device < 0 || block->resident == device + 1 || si_charge(device, block->size));
    if (fits && block->resident != device + 1) {
        if (block->resident) si_uncharge(block->resident - 1, block->size);
        block->resident = device + 1;
    }
    si_memory_unlock();
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct si_block *containing(uint64_t address) {
    for (struct si_block *block = *bucket_of(address); block; block = block->next)
        if (block->address == address) return block;
    for (int i = 0; i < BUCKETS; i++)
        for (struct si_block *block = buckets[i]; block; block = block->next)
            if (address >= block->address && address - block->address < block->size) return block;
    return NULL;
}

bool si_find_block(uint64_t address, struct si_block *found) {
    si_memory_lock();
    struct si_block *block = containing(address);
    if (block) *found = *block;
    si_memory_unlock();
    return block;
}

bool si_is_backed(uint64_t address) {
    struct si_block block;
    return si_backing || !si_find_block(address, &block) || block.backed;
}

CUresult si_charged(int device, uint64_t bytes) {
    si_memory_lock();
    bool fits = !bytes || si_charge(device, bytes);
    si_memory_unlock();
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void si_uncharged(int device, uint64_t bytes) {
    si_memory_lock();
    if (bytes) si_uncharge(device, bytes);
    si_memory_unlock();
}

static bool next_of_context(CUcontext context, unsigned kinds, struct si_block *found) {
    bool any = false;
    si_memory_lock();
    for (int i = 0; !any && i < BUCKETS; i++)
        for (struct si_block *block = buckets[i]; block && !any; block = block->next)
            if (block->context == context && kinds >> block->kind & 1) *found = *block, any = true;
    si_memory_unlock();
    return any;
}

void si_free_context_memory(CUcontext context) {
    unsigned kinds = 1u << SI_DEVICE | 1u << SI_MANAGED | 1u << SI_HOST | 1u << SI_GLOBAL;
    for (struct si_block block; next_of_context(context, kinds, &block);)
        if (si_take_block(block.address, kinds, &block)) si_drop_memory(&block);
}

void si_forget_memory(void) {
    atomic_store(&held, false);
    memset(buckets, 0, sizeof buckets);
    unused = NULL;
}

static CUresult allocate(uint64_t *address, size_t size, enum si_kind kind, bool low) {
    TRY(si_ready());
    KNOWN(size);
    return add(address, size, kind, si_current->device, NULL, low);
}

API(cuMemAlloc_v2)(CUdeviceptr *pointer, size_t size) {
    KNOWN(pointer);
    uint64_t address;
    TRY(allocate(&address, size, SI_DEVICE, false));
    *pointer = address;
    return CUDA_SUCCESS;
}

API(cuMemAlloc)(CUdeviceptr_v1 *pointer, unsigned size) {
    KNOWN(pointer);
    uint64_t address;
    TRY(allocate(&address, size, SI_DEVICE, true));
    *pointer = (CUdeviceptr_v1)address;
    return CUDA_SUCCESS;
}

API(cuMemAllocPitch_v2)(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    KNOWN(pointer && pitch && height && (element == 4 || element == 8 || element == 16));
    *pitch = (width + ALIGNED - 1) / ALIGNED * ALIGNED;
    return si_cuMemAlloc_v2(pointer, *pitch * height);
}

API(cuMemAllocPitch)(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    KNOWN(pointer && pitch && height && (element == 4 || element == 8 || element == 16));
    *pitch = (width + ALIGNED - 1) / ALIGNED * ALIGNED;
    return si_cuMemAlloc(pointer, *pitch * height);
}

// Lies with the host until a device touches it, which this one never does.
API(cuMemAllocManaged)(CUdeviceptr *pointer, size_t size, unsigned flags) {
    KNOWN(pointer && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST));
    uint64_t address;
    TRY(allocate(&address, size, SI_MANAGED, false));
    *pointer = address;
    return CUDA_SUCCESS;
}

static CUresult free_block(uint64_t address) {
    struct si_block block;
    unsigned kinds = 1u << SI_DEVICE | 1u << SI_MANAGED | 1u << SI_POOLED | 1u << SI_GRAPH;
    if (!si_take_block(address, kinds, &block)) return CUDA_ERROR_INVALID_VALUE;
    if (block.kind == SI_DEVICE) si_end_export(address);
    if (block.kind == SI_POOLED) return si_free_pooled(&block);
    if (block.kind == SI_GRAPH) return si_free_graph_memory(&block);
    return si_drop_memory(&block);
}

API(cuMemFree_v2)(CUdeviceptr pointer) {
    TRY(si_ready());
    return pointer ? free_block(pointer) : CUDA_SUCCESS;
}

API(cuMemFree)(CUdeviceptr_v1 pointer) { return si_cuMemFree_v2(pointer); }

API(cuMemGetInfo_v2)(size_t *free, size_t *total) {
    TRY(si_ready());
    struct si_state *state = si_mapped;
    if (__builtin_expect(atomic_load_explicit(&state->living, memory_order_relaxed) > 1, 0)) si_reap();
    uint64_t used, all;
    si_visible_memory(si_current->device, &all, &used);
    if (free) *free = all - used;
    if (total) *total = all;
    return CUDA_SUCCESS;
}

API(cuMemGetInfo)(unsigned *free, unsigned *total) {
    size_t left, all;
    TRY(si_cuMemGetInfo_v2(&left, &all));
    if (free) *free = left > UINT32_MAX ? UINT32_MAX : (unsigned)left;
    if (total) *total = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
    return CUDA_SUCCESS;
}

API(cuMemHostAlloc)(void **pointer, size_t size, unsigned flags) {
    KNOWN(pointer);
    (void)flags;
    uint64_t address;
    TRY(allocate(&address, size, SI_HOST, false));
    *pointer = (void *)(uintptr_t)address;
    return CUDA_SUCCESS;
}

API(cuMemAllocHost_v2)(void **pointer, size_t size) { return si_cuMemHostAlloc(pointer, size, 0); }

API(cuMemFreeHost)(void *pointer) {
    struct si_block block;
    TRY(si_ready());
    return si_take_block((uintptr_t)pointer, 1u << SI_HOST, &block) ? si_drop_memory(&block) : CUDA_ERROR_INVALID_VALUE;
}

API(cuMemHostRegister_v2)(void *pointer, size_t size, unsigned flags) {
    KNOWN(pointer && size);
    TRY(si_ready());
    struct si_block known;
    if (si_find_block((uintptr_t)pointer, &known)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    si_name_block(&(struct si_block){
        .address = (uintptr_t)pointer, .size = size, .kind = SI_REGISTERED, .device = -1, .flags = flags});
    return CUDA_SUCCESS;
}

API(cuMemHostUnregister)(void *pointer) {
    struct si_block block;
    TRY(si_ready());
    return si_take_block((uintptr_t)pointer, 1u << SI_REGISTERED, &block) ? CUDA_SUCCESS
                                                                            : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

API(cuMemHostGetDevicePointer_v2)(CUdeviceptr *pointer, void *host, unsigned flags) {
    (void)flags;
    KNOWN(pointer && host);
    *pointer = (CUdeviceptr)(uintptr_t)host;
    return si_ready();
}

API(cuMemHostGetFlags)(unsigned *flags, void *host) {
    struct si_block block;
    KNOWN(flags && si_find_block((uintptr_t)host, &block));
    *flags = block.flags;
    return CUDA_SUCCESS;
}

API(cuMemGetAddressRange_v2)(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    struct si_block block;
    TRY(si_ready());
    if (!si_find_block(pointer, &block)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = block.address;
    if (size) *size = block.size;
    return CUDA_SUCCESS;
}
