// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Physical memory apart from its addresses. A chunk made by cuMemCreate lives until all handles to it are released, all
// its mappings and tiles of sparse arrays are gone, and the files to which it was exported are closed, whichever is
// last, so it is charged as long. Chunks have numbers of our own, since the driver may give a released handle's value to
// another chunk while the first is still mapped.
//
// A file that is imported belongs to a chunk of this process if it is one to which it was exported. Otherwise another
// process made the chunk and pays for it. When that one has let go, NVML shows the chunk as memory of the process that
// imported it, and overhead.c counts it; so it counts once in a slice.
//
// Not counted: a chunk that only a multicast object holds, or a copy of a file (dup) whose original was closed. A sparse
// array that is destroyed with its context leaves its tiles charged until the process ends.

#include <sys/stat.h>

#include "base.h"
#include "hooks.h"
#include "lock.h"
#include "memory.h"
#include "region.h"

#define NO_CHUNK 0

static _Atomic uint64_t last_chunk;

static bool add_one(struct ct_entry *entry, void *unused) {
    (void)unused;
    entry->count++;
    return false;
}

// Takes one reference off, after it has copied the entry to `with`.
static bool drop_one(struct ct_entry *entry, void *with) {
    *(struct ct_entry *)with = *entry;
    return --entry->count == 0;
}

static void keep_chunk(uint64_t chunk) {
    if (chunk != NO_CHUNK) ct_edit(CT_CHUNKS, chunk, add_one, NULL);
}

static void leave_chunk(uint64_t chunk) {
    struct ct_entry entry;
    if (chunk != NO_CHUNK && ct_edit(CT_CHUNKS, chunk, drop_one, &entry) && entry.count == 1) ct_give_back(&entry);
}

static uint64_t chunk_of_handle(CUhandle handle) {
    struct ct_entry entry;
    return ct_get(CT_HANDLES, handle, &entry) ? entry.owner : NO_CHUNK;
}

static void note(enum ct_book book, uint64_t key, uint64_t bytes, uint64_t chunk) {
    struct ct_entry entry = {.key = key, .bytes = bytes, .owner = chunk, .count = 1}, before;
    if (!ct_put(book, &entry, &before)) ct_count_fault(CT_FAULT_MEMORY);
    else if (before.key) leave_chunk(before.owner);
}

CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags) {
    if (!ct_in_slice() || !handle || !properties) return CALL(cuMemCreate, handle, bytes, properties, flags);
    struct ct_entry chunk = {.bytes = bytes, .device = (int16_t)ct_device_at(&properties->location), .count = 1};
    if (chunk.device < 0) return CALL(cuMemCreate, handle, bytes, properties, flags);
    if (!ct_claim(chunk.device, bytes)) return ct_refuse(chunk.device);
    CUresult result = CALL(cuMemCreate, handle, bytes, properties, flags);
    uint64_t number = atomic_fetch_add(&last_chunk, 1) + 1;
    if (ct_book_claim(CT_CHUNKS, &chunk, result, number) == CUDA_SUCCESS) note(CT_HANDLES, *handle, 0, number);
    return result;
}

struct covering {
    uint64_t address, chunk;
};

static bool covers(struct ct_entry *entry, void *with) {
    struct covering *covering = with;
    if (covering->address - entry->key < entry->bytes) covering->chunk = entry->owner;
    return false;
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address) {
    CUresult result = CALL(cuMemRetainAllocationHandle, handle, address);
    if (result != CUDA_SUCCESS || !ct_in_slice() || ct_edit(CT_HANDLES, *handle, add_one, NULL)) return result;
    // All handles had been released: this one is not in the books, and holds the chunk that is mapped there.
    struct covering covering = {.address = (uint64_t)(uintptr_t)address, .chunk = NO_CHUNK};
    ct_edit_all(CT_MAPPINGS, covers, &covering);
    if (covering.chunk == NO_CHUNK) return result;
    keep_chunk(covering.chunk);
    note(CT_HANDLES, *handle, 0, covering.chunk);
    return result;
}

CUresult cuMemRelease(CUhandle handle) {
    struct ct_entry entry;
    bool known = ct_in_slice() && ct_edit(CT_HANDLES, handle, drop_one, &entry);
    CUresult result = CALL(cuMemRelease, handle);
    if (!known) return result;
    // The entry left the books before the driver's call, so before the driver can give the handle's value to another
    // chunk; after a failure it is added again.
    if (result == CUDA_SUCCESS && entry.count == 1) leave_chunk(entry.owner);
    if (result != CUDA_SUCCESS && !ct_edit(CT_HANDLES, handle, add_one, NULL)) note(CT_HANDLES, handle, 0, entry.owner);
    ct_forget_closed_files();
    return result;
}

// What tells one open file from another of the same number.
static bool identify(int file, uint64_t *identity) {
    struct stat found;
    struct ct_thread_state before = ct_save_thread();
    bool is_open = ct_fstat(file, &found) == 0;
    ct_restore_thread(before);
    *identity = is_open ? (uint64_t)found.st_ino ^ (uint64_t)found.st_dev << 32 ^ (uint64_t)found.st_rdev << 48 : 0;
    return is_open;
}

static uint64_t key_of_file(int file) { return (uint64_t)(unsigned)file + 1; }

// Takes out one file that was closed, and copies it to `with`.
static bool take_closed(struct ct_entry *entry, void *with) {
    struct ct_entry *taken = with;
    uint64_t identity;
    if (taken->key || (identify((int)(entry->key - 1), &identity) && identity == entry->bytes)) return false;
    *taken = *entry;
    return true;
}

bool ct_forget_closed_files(void) {
    bool any = false;
    for (struct ct_entry taken = {.key = 1}; taken.key; any |= taken.key != 0) {
        taken.key = 0;
        ct_edit_all(CT_FILES, take_closed, &taken);
        if (taken.key) leave_chunk(taken.owner);
    }
    return any;
}

CUresult cuMemExportToShareableHandle(void *shared, CUhandle handle, int type, unsigned long long flags) {
    uint64_t identity, chunk = ct_in_slice() ? chunk_of_handle(handle) : NO_CHUNK;
    CUresult result = CALL(cuMemExportToShareableHandle, shared, handle, type, flags);
    if (chunk == NO_CHUNK) return result;
    ct_forget_closed_files();
    if (result != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return result;
    int file = *(int *)shared;
    if (!identify(file, &identity)) return result;
    keep_chunk(chunk);
    note(CT_FILES, key_of_file(file), identity, chunk);
    return result;
}

static uint64_t chunk_of_file(int file) {
    struct ct_entry entry;
    uint64_t identity;
    bool known = ct_get(CT_FILES, key_of_file(file), &entry) && identify(file, &identity) && identity == entry.bytes;
    return known ? entry.owner : NO_CHUNK;
}

// Of another process: whether it fits is seen by NVML's figures, if that process has let go of it.
static CUresult accept_foreign(CUhandle handle) {
    CUmemAllocationProp properties = {0};
    if (CALL(cuMemGetAllocationPropertiesFromHandle, &properties, handle) != CUDA_SUCCESS) return CUDA_SUCCESS;
    int device = ct_device_at(&properties.location);
    if (device < 0 || ct_may_keep(device, ct_measured[device].uncounted)) return CUDA_SUCCESS;
    CALL(cuMemRelease, handle);
    ct_measure_overhead(device);
    return ct_refuse(device);
}

CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shared, int type) {
    bool is_file = ct_in_slice() && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    uint64_t chunk = is_file ? chunk_of_file((int)(intptr_t)shared) : NO_CHUNK;
    keep_chunk(chunk);
    CUresult result = CALL(cuMemImportFromShareableHandle, handle, shared, type);
    if (result != CUDA_SUCCESS || !ct_in_slice()) {
        leave_chunk(chunk);
        return result;
    }
    if (ct_edit(CT_HANDLES, *handle, add_one, NULL)) leave_chunk(chunk); // the same value as before: it holds the chunk
    else if (chunk != NO_CHUNK) note(CT_HANDLES, *handle, 0, chunk);
    else return accept_foreign(*handle);
    return result;
}

// Mappings of imported chunks are noted too, so that the range of a cuMemUnmap has no gaps in the books.
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags) {
    uint64_t chunk = ct_in_slice() ? chunk_of_handle(handle) : NO_CHUNK;
    keep_chunk(chunk);
    CUresult result = CALL(cuMemMap, address, bytes, offset, handle, flags);
    if (result != CUDA_SUCCESS) leave_chunk(chunk);
    else if (ct_in_slice()) note(CT_MAPPINGS, address, bytes, chunk);
    return result;
}

// One call may cover several adjacent mappings. The program reserves the addresses, so nothing else is mapped there
// before this returns.
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    CUresult result = CALL(cuMemUnmap, address, bytes);
    struct ct_entry entry;
    if (result != CUDA_SUCCESS || !ct_in_slice()) return result;
    for (uint64_t done = 0; done < bytes && ct_take(CT_MAPPINGS, address + done, &entry); done += entry.bytes)
        leave_chunk(entry.owner);
    return result;
}

// Where a tile begins: unique for all tiles of an array, since arrays are at most 131,072 elements wide and high.
static uint64_t position(const CUarrayMapInfo *map) {
    if (map->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
        return (uint64_t)map->as.miptail.layer << 53 | (map->as.miptail.offset & ((UINT64_C(1) << 53) - 1));
    uint64_t x = map->as.sparseLevel.offsetX & 0x1ffff, y = map->as.sparseLevel.offsetY & 0x1ffff;
    uint64_t z = map->as.sparseLevel.offsetZ & 0x3fff, layer = map->as.sparseLevel.layer & 0x7ff;
    return (uint64_t)(map->as.sparseLevel.level & 0x1f) << 59 | layer << 48 | z << 34 | y << 17 | x;
}

static bool is_in_level(uint64_t tile, const CUarrayMapInfo *map) {
    uint64_t x = (tile & 0x1ffff) - map->as.sparseLevel.offsetX, y = (tile >> 17 & 0x1ffff) - map->as.sparseLevel.offsetY;
    uint64_t z = (tile >> 34 & 0x3fff) - map->as.sparseLevel.offsetZ;
    return tile >> 48 == position(map) >> 48 && x < map->as.sparseLevel.extentWidth &&
           y < map->as.sparseLevel.extentHeight && z < map->as.sparseLevel.extentDepth;
}

struct tile_search {
    const void *array;
    const CUarrayMapInfo *part; // NULL: all of the array
    struct ct_entry found;      // its key is 0 if there is none
};

// Takes out one tile of the array that begins within the part.
static bool take_tile(struct ct_entry *entry, void *with) {
    struct tile_search *search = with;
    const CUarrayMapInfo *part = search->part;
    if (search->found.key || entry->host != (uint64_t)(uintptr_t)search->array) return false;
    if (part && entry->kind != (uint16_t)part->subresourceType) return false;
    bool is_tail = part && part->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    if (is_tail && entry->bytes - position(part) >= part->as.miptail.size) return false;
    if (part && !is_tail && !is_in_level(entry->bytes, part)) return false;
    search->found = *entry;
    return true;
}

static void drop_tiles(const void *array, const CUarrayMapInfo *part) {
    struct tile_search search = {.array = array, .part = part};
    do {
        search.found.key = 0;
        ct_edit_all(CT_TILES, take_tile, &search);
        if (search.found.key) leave_chunk(search.found.owner);
    } while (search.found.key);
}

void ct_forget_tiles(const void *array) { drop_tiles(array, NULL); }

static uint64_t chunk_of_map(const CUarrayMapInfo *map) {
    return map->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? chunk_of_handle(map->memHandle) : NO_CHUNK;
}

static void note_map(const CUarrayMapInfo *map) {
    static _Atomic uint64_t last_tile;
    struct ct_entry before, tile = {.key = atomic_fetch_add(&last_tile, 1) + 1,
                                    .bytes = position(map),
                                    .host = (uint64_t)(uintptr_t)map->resource,
                                    .owner = chunk_of_map(map),
                                    .kind = (uint16_t)map->subresourceType};
    drop_tiles(map->resource, map);
    if (tile.owner != NO_CHUNK && !ct_put(CT_TILES, &tile, &before)) ct_count_fault(CT_FAULT_MEMORY);
}

// A tile holds its chunk as a mapping does.
#define MAP_ARRAY(name)                                                                             \
    CUresult name(CUarrayMapInfo *maps, unsigned count, CUstream stream) {                          \
        if (!ct_in_slice() || !maps) return CALL(name, maps, count, stream);                        \
        for (unsigned i = 0; i < count; i++) keep_chunk(chunk_of_map(&maps[i]));                    \
        CUresult result = CALL(name, maps, count, stream);                                          \
        for (unsigned i = 0; i < count && result != CUDA_SUCCESS; i++) leave_chunk(chunk_of_map(&maps[i])); \
        for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) note_map(&maps[i]);          \
        return result;                                                                              \
    }
MAP_ARRAY(cuMemMapArrayAsync)
MAP_ARRAY(cuMemMapArrayAsync_ptsz)
