// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: physical memory by handle, addresses apart from it, and mappings between the two. All that
// is physical is in one file beside the state. An exported descriptor is that file, opened anew and set to the place of
// the chunk, so what tells two of them apart is the open file and not the inode, as with the vendor's driver.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

#define GRANULE (UINT64_C(2) << 20)
#define NAME "standin-physical"

// What is at the place of a chunk in the file; its memory follows a granule later.
struct header {
    char name[sizeof NAME];
    int device;
    size_t size;
};

// Lives as long as a handle or a mapping does.
struct physical {
    size_t size;
    int device;   // of the machine; -1: the host
    int imported;   // made by another process, or by this one and imported again
    uint64_t place; // in the file
    bool exported, shared; // as a file; by the table of what processes share
    int handles;
    int mappings;
    int file;
    CUmemAllocationProp properties;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static struct physical *physical_of(CUmemGenericAllocationHandle handle) {
    return (struct physical *)(uintptr_t)handle;
}

static void lock_shares(void) {
    si_memory_lock();
    si_lock();
}

static void unlock_shares(void) {
    si_unlock();
    si_memory_unlock();
}

// Gives the machine its memory back; what was exported stays, since a file of another process may still hold it.
static void empty(const struct physical *memory) {
    off_t from = (off_t)memory->place, length = (off_t)(GRANULE + memory->size);
    fallocate(memory->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, length);
}

static void unless_used(struct physical *memory) {
    if (memory->handles || memory->mappings) return;
    if (memory->shared) {
        lock_shares();
        si_leave_share(memory->place, !memory->imported);
        unlock_shares();
    } else if (memory->device >= 0) {
        si_uncharged(memory->device, memory->size);
    }
    if (!memory->exported) empty(memory);
    close(memory->file);
    free(memory);
}

API(cuMemGetAllocationGranularity)
(size_t *granularity, const CUmemAllocationProp *properties, CUmemAllocationGranularity_flags option) {
    (void)option;
    KNOWN(granularity && properties);
    *granularity = GRANULE;
    return CUDA_SUCCESS;
}

static CUresult make(CUmemGenericAllocationHandle *handle, struct physical wanted) {
    struct physical *memory = malloc(sizeof *memory);
    *memory = wanted;
    memory->handles = 1;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

static int open_storage(void) {
    const char *state = getenv("STANDIN_STATE");
    char path[4096];
    if (!state || !*state) return memfd_create(NAME, MFD_CLOEXEC); // no other process sees this one's memory
    int length = snprintf(path, sizeof path, "%s.physical", state);
    return length < (int)sizeof path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
}

// Gives a chunk its place in the file, which no other chunk ever gets.
static bool find_place(struct physical *memory) {
    struct header header = {.name = NAME, .device = memory->device, .size = memory->size};
    if ((memory->file = open_storage()) < 0) return false;
    si_lock();
    memory->place = si_mapped->physical + GRANULE; // never 0
    si_mapped->physical = memory->place + memory->size;
    bool fits = !ftruncate(memory->file, (off_t)(si_mapped->physical + GRANULE));
    si_unlock();
    if (fits && pwrite(memory->file, &header, sizeof header, (off_t)memory->place) == sizeof header) return true;
    close(memory->file);
    return false;
}

API(cuMemCreate)
(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags) {
    KNOWN(handle && properties && !flags && size && size % GRANULE == 0);
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    int device = on_device ? si_physical(properties->location.id) : -1;
    if (on_device && device < 0) return CUDA_ERROR_INVALID_DEVICE;
    if (on_device) TRY(si_charged(device, size));
    struct physical made = {.size = size, .device = device, .properties = *properties};
    if (!find_place(&made)) {
        if (on_device) si_uncharged(device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return make(handle, made);
}

API(cuMemRelease)(CUmemGenericAllocationHandle handle) {
    KNOWN(handle);
    struct physical *memory = physical_of(handle);
    pthread_mutex_lock(&guard);
    memory->handles--;
    unless_used(memory);
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}

API(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *address) {
    struct si_block block;
    KNOWN(handle && si_find_block((uintptr_t)address, &block) && block.kind == SI_MAPPED);
    pthread_mutex_lock(&guard);
    ((struct physical *)block.owner)->handles++;
    pthread_mutex_unlock(&guard);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)block.owner;
    return CUDA_SUCCESS;
}

API(cuMemGetAllocationPropertiesFromHandle)(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    KNOWN(properties && handle);
    *properties = physical_of(handle)->properties;
    return CUDA_SUCCESS;
}

static void *unreachable(void *at, size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
    return mmap(at, size, PROT_NONE, flags, -1, 0);
}

API(cuMemAddressReserve)
(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
    (void)wish, (void)flags;
    KNOWN(pointer && size && size % GRANULE == 0);
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (alignment < GRANULE) alignment = GRANULE;
    char *room = unreachable(NULL, size + alignment);
    if (room == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t before = (alignment - (uintptr_t)room % alignment) % alignment;
    if (before) munmap(room, before);
    munmap(room + before + size, alignment - before);
    *pointer = (uintptr_t)room + before;
    return CUDA_SUCCESS;
}

API(cuMemAddressFree)(CUdeviceptr pointer, size_t size) {
    KNOWN(pointer && size && !munmap((void *)(uintptr_t)pointer, size));
    return CUDA_SUCCESS;
}

API(cuMemMap)
(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct physical *memory = physical_of(handle);
    KNOWN(pointer && size && memory && !flags && size % GRANULE == 0 && offset + size <= memory->size);
    if (si_backing && mmap((void *)(uintptr_t)pointer, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file,
                           (off_t)(memory->place + GRANULE + offset)) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&guard);
    memory->mappings++;
    pthread_mutex_unlock(&guard);
    si_name_block(&(struct si_block){.address = pointer,
                                     .size = size,
                                     .kind = SI_MAPPED,
                                     .device = memory->device,
                                     .backed = si_backing,
                                     .owner = memory});
    return CUDA_SUCCESS;
}

// A range may hold several mappings, all of them whole.
API(cuMemUnmap)(CUdeviceptr pointer, size_t size) {
    KNOWN(pointer && size);
    for (uint64_t at = pointer; at < pointer + size;) {
        struct si_block block;
        if (!si_take_block(at, 1u << SI_MAPPED, &block)) return CUDA_ERROR_INVALID_VALUE;
        if (block.backed) unreachable((void *)(uintptr_t)at, block.size);
        pthread_mutex_lock(&guard);
        struct physical *memory = block.owner;
        memory->mappings--;
        unless_used(memory);
        pthread_mutex_unlock(&guard);
        at += block.size;
    }
    return CUDA_SUCCESS;
}

API(cuMemSetAccess)(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count) {
    struct si_block block;
    KNOWN(pointer && size && access && count && si_find_block(pointer, &block) && block.kind == SI_MAPPED);
    int allowed = PROT_NONE;
    if (access->flags & CU_MEM_ACCESS_FLAGS_PROT_READ) allowed = PROT_READ;
    if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) allowed = PROT_READ | PROT_WRITE;
    bool failed = block.backed && mprotect((void *)(uintptr_t)pointer, size, allowed);
    return failed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API(cuMemGetAccess)(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer) {
    struct si_block block;
    KNOWN(flags && location && si_find_block(pointer, &block) && block.kind == SI_MAPPED);
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

// The file that is open there, opened anew.
static int reopen(int file) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return open(path, O_RDWR | O_CLOEXEC);
}

API(cuMemExportToShareableHandle)
(void *shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
    KNOWN(shared && handle && !flags);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    KNOWN(physical_of(handle)->properties.requestedHandleTypes & type);
    struct physical *memory = physical_of(handle);
    int file = reopen(memory->file);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    lseek(file, (off_t)memory->place, SEEK_SET);
    *(int *)shared = file;
    memory->exported = true;
    if (memory->shared || memory->device < 0) return CUDA_SUCCESS;
    lock_shares();
    memory->shared = si_share(memory->place, memory->size, memory->device);
    unlock_shares();
    return CUDA_SUCCESS;
}

API(cuMemImportFromShareableHandle)
(CUmemGenericAllocationHandle *handle, void *shared, CUmemAllocationHandleType type) {
    KNOWN(handle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    struct header header;
    int file = (int)(intptr_t)shared;
    off_t place = lseek(file, 0, SEEK_CUR);
    KNOWN(place > 0 && pread(file, &header, sizeof header, place) == sizeof header && !strcmp(header.name, NAME));
    int own = reopen(file), device = header.device;
    if (own < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = type,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = si_ordinal(device)}};
    struct physical found = {.size = header.size,
                             .device = device,
                             .imported = 1,
                             .place = (uint64_t)place,
                             .exported = true,
                             .file = own,
                             .properties = properties};
    if (device < 0) return make(handle, found);
    lock_shares();
    found.shared = si_join_share(found.place);
    unlock_shares();
    if (!found.shared) { // only its file was left: it counts as if it were made anew
        found.imported = 0;
        if (si_charged(device, found.size) != CUDA_SUCCESS) return close(own), CUDA_ERROR_OUT_OF_MEMORY;
    }
    return make(handle, found);
}

// A box of a sparse array (of a mip tail: a range of its bytes) and the memory behind it.
struct tile {
    const void *array;
    int type;
    unsigned level, layer;
    uint64_t from[3], to[3];
    struct physical *memory;
    struct tile *next;
};
static struct tile *tiles;

static struct tile tile_of(const CUarrayMapInfo *map) {
    struct tile tile = {.array = map->resource.array, .type = (int)map->subresourceType, .to = {1, 1, 1}};
    if (map->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        tile.layer = map->subresource.miptail.layer;
        tile.from[0] = map->subresource.miptail.offset;
        tile.to[0] = tile.from[0] + map->subresource.miptail.size;
        return tile;
    }
    __typeof__(map->subresource.sparseLevel) of = map->subresource.sparseLevel;
    uint64_t from[3] = {of.offsetX, of.offsetY, of.offsetZ};
    uint64_t extent[3] = {of.extentWidth, of.extentHeight, of.extentDepth};
    tile.level = of.level;
    tile.layer = of.layer;
    for (int i = 0; i < 3; i++) tile.from[i] = from[i], tile.to[i] = from[i] + (extent[i] ? extent[i] : 1);
    return tile;
}

static bool overlap(const struct tile *a, const struct tile *b) {
    bool any = a->array == b->array && a->type == b->type && a->level == b->level && a->layer == b->layer;
    for (int i = 0; i < 3; i++) any = any && a->from[i] < b->to[i] && b->from[i] < a->to[i];
    return any;
}

static void add_tile(struct tile tile) {
    struct tile *made = malloc(sizeof *made);
    *made = tile;
    made->memory->mappings++;
    made->next = tiles;
    tiles = made;
}

// Adds what of a tile is beside the part as tiles of their own.
static void keep_rest(struct tile tile, const struct tile *part) {
    for (int i = 0; i < 3; i++) {
        struct tile before = tile, behind = tile;
        before.to[i] = part->from[i];
        behind.from[i] = part->to[i];
        if (tile.from[i] < part->from[i]) add_tile(before), tile.from[i] = part->from[i];
        if (tile.to[i] > part->to[i]) add_tile(behind), tile.to[i] = part->to[i];
    }
}

// Unmaps an array, all of it or a part.
static void drop_tiles(const void *array, const struct tile *part) {
    for (struct tile **link = &tiles; *link;) {
        struct tile *tile = *link;
        if (tile->array != array || (part && !overlap(tile, part))) {
            link = &tile->next;
            continue;
        }
        *link = tile->next;
        if (part) keep_rest(*tile, part);
        tile->memory->mappings--;
        unless_used(tile->memory);
        free(tile);
        link = &tiles; // there may be new ones
    }
}

void si_forget_tiles(const void *array) {
    pthread_mutex_lock(&guard);
    drop_tiles(array, NULL);
    pthread_mutex_unlock(&guard);
}

// At once: the stand-in's streams order kernels only.
API(cuMemMapArrayAsync)(CUarrayMapInfo *maps, unsigned count, CUstream stream) {
    (void)stream;
    KNOWN(maps);
    TRY(si_ready());
    for (unsigned i = 0; i < count; i++) KNOWN(maps[i].memOperationType != CU_MEM_OPERATION_TYPE_MAP || maps[i].memHandle.memHandle);
    pthread_mutex_lock(&guard);
    for (unsigned i = 0; i < count; i++) {
        struct tile tile = tile_of(&maps[i]);
        drop_tiles(tile.array, &tile);
        if (maps[i].memOperationType != CU_MEM_OPERATION_TYPE_MAP) continue;
        tile.memory = physical_of(maps[i].memHandle.memHandle);
        add_tile(tile);
    }
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}
