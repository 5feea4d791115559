// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: physical memory by handle, addresses apart from it, and mappings between the two. What is
// physical is a memory file, so that other processes can import it by descriptor.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"

#define GRANULE (UINT64_C(2) << 20)
#define NAME "standin-physical"

// Lives as long as a handle or a mapping does.
struct physical {
    size_t size;
    int device;   // of the machine; -1: the host
    int imported;   // made by another process, or by this one and imported again
    uint64_t inode; // of its file, if it is shared
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

static void unless_used(struct physical *memory) {
    if (memory->handles || memory->mappings) return;
    if (memory->inode) {
        lock_shares();
        si_leave_share(memory->inode, !memory->imported);
        unlock_shares();
    } else if (memory->device >= 0) {
        si_uncharged(memory->device, memory->size);
    }
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

API(cuMemCreate)
(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags) {
    KNOWN(handle && properties && !flags && size && size % GRANULE == 0);
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    int device = on_device ? si_physical(properties->location.id) : -1;
    if (on_device && device < 0) return CUDA_ERROR_INVALID_DEVICE;
    if (on_device) TRY(si_charged(device, size));
    char name[64];
    snprintf(name, sizeof name, NAME "-%d", device);
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size)) {
        if (file >= 0) close(file);
        if (on_device) si_uncharged(device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return make(handle, (struct physical){.size = size, .device = device, .file = file, .properties = *properties});
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
                           (off_t)offset) == MAP_FAILED)
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

static uint64_t inode_of(int file) {
    struct stat found;
    return fstat(file, &found) ? 0 : found.st_ino;
}

API(cuMemExportToShareableHandle)
(void *shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
    KNOWN(shared && handle && !flags);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    KNOWN(physical_of(handle)->properties.requestedHandleTypes & type);
    struct physical *memory = physical_of(handle);
    int file = fcntl(memory->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)shared = file;
    if (memory->inode || memory->device < 0) return CUDA_SUCCESS;
    lock_shares();
    if (si_share(inode_of(file), memory->size, memory->device)) memory->inode = inode_of(file);
    unlock_shares();
    return CUDA_SUCCESS;
}

// The file's name says which device it is of.
static int device_of_file(int file) {
    char path[64], name[128] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    ssize_t length = readlink(path, name, sizeof name - 1);
    const char *found = length > 0 ? strstr(name, NAME "-") : NULL;
    return found ? atoi(found + sizeof NAME) : -2;
}

API(cuMemImportFromShareableHandle)
(CUmemGenericAllocationHandle *handle, void *shared, CUmemAllocationHandleType type) {
    KNOWN(handle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    int file = (int)(intptr_t)shared, device = device_of_file(file);
    KNOWN(device > -2);
    int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = type,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = si_ordinal(device)}};
    size_t size = (size_t)lseek(own, 0, SEEK_END);
    struct physical found = {.size = size, .device = device, .imported = 1, .file = own, .properties = properties};
    if (device < 0) return make(handle, found);
    found.inode = inode_of(own);
    lock_shares();
    bool is_held = si_join_share(found.inode);
    unlock_shares();
    if (!is_held) { // only its file was left: it counts as if it were made anew
        found.inode = found.imported = 0;
        if (si_charged(device, size) != CUDA_SUCCESS) return close(own), CUDA_ERROR_OUT_OF_MEMORY;
    }
    return make(handle, found);
}

// A part of a sparse array and the memory behind it.
struct tile {
    CUarrayMapInfo map;
    struct physical *memory;
    struct tile *next;
};
static struct tile *tiles;

static bool is_within(const CUarrayMapInfo *inner, const CUarrayMapInfo *outer) {
    if (inner->resource.array != outer->resource.array || inner->subresourceType != outer->subresourceType) return false;
    if (outer->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
        return inner->subresource.miptail.layer == outer->subresource.miptail.layer &&
               inner->subresource.miptail.offset - outer->subresource.miptail.offset < outer->subresource.miptail.size;
    __typeof__(inner->subresource.sparseLevel) a = inner->subresource.sparseLevel, b = outer->subresource.sparseLevel;
    return a.level == b.level && a.layer == b.layer && a.offsetX - b.offsetX < b.extentWidth &&
           a.offsetY - b.offsetY < b.extentHeight && a.offsetZ - b.offsetZ < b.extentDepth;
}

// Frees the tiles of one array, all or those that begin within a part of it.
static void drop_tiles(const void *array, const CUarrayMapInfo *part) {
    for (struct tile **link = &tiles; *link;) {
        struct tile *tile = *link;
        if (tile->map.resource.array != array || (part && !is_within(&tile->map, part))) {
            link = &tile->next;
            continue;
        }
        *link = tile->next;
        tile->memory->mappings--;
        unless_used(tile->memory);
        free(tile);
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
        drop_tiles(maps[i].resource.array, &maps[i]);
        if (maps[i].memOperationType != CU_MEM_OPERATION_TYPE_MAP) continue;
        struct tile *tile = malloc(sizeof *tile);
        *tile = (struct tile){maps[i], physical_of(maps[i].memHandle.memHandle), tiles};
        tile->memory->mappings++;
        tiles = tile;
    }
    pthread_mutex_unlock(&guard);
    return CUDA_SUCCESS;
}
