// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Physical memory apart from its addresses. A chunk made by cuMemCreate lives until all handles to it are released, all
// its mappings and tiles of sparse arrays are gone, and the files to which it was exported are closed, whichever is
// last, so it is charged as long. Chunks have numbers of our own, since the driver may give a released handle's value to
// another chunk while the first is still mapped.
//
// A file that is imported belongs to a chunk of this process if it certainly is one to which it was exported. Otherwise
// another process made the chunk and pays for it. When that one has let go, NVML shows the chunk as memory of the process that
// imported it, and overhead.c counts it; so it counts once in a slice.
//
// Not counted: a chunk that only a multicast object holds, or a copy of a file (dup) whose original was closed, or a file
// whose owner (F_SETOWN) the program has changed. A sparse array that is destroyed with its context leaves its tiles
// charged until the process ends.

#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"
#include "hooks.h"
#include "lock.h"
#include "memory.h"
#include "region.h"

#define NO_CHUNK 0
#define MARKS 64 // signals
#define FEW 8    // tiles that one call may map without memory of their own

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
    CUresult result;
    CT_ASK_DRIVER(result, chunk.device, 0, CALL(cuMemCreate, handle, bytes, properties, flags));
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

// The driver may export all chunks to files of one inode, and a number may be given to another file after it was closed.
// So a file to which a chunk is exported is marked as ours: by the process and the signal that would be told of its
// input, which nobody is unless the program sets O_ASYNC. The mark belongs to what is open, not to its number or inode.
static void mark(int file) {
    static _Atomic unsigned last;
    struct ct_thread_state before = ct_save_thread();
    fcntl(file, F_SETOWN, getpid());
    fcntl(file, F_SETSIG, (int)(atomic_fetch_add(&last, 1) % MARKS) + 1);
    ct_restore_thread(before);
}

// 0: not marked by this process.
static int mark_of(int file) { return fcntl(file, F_GETOWN) == getpid() ? fcntl(file, F_GETSIG) : 0; }

// What tells one open file from another of the same number. False: it is closed.
static bool identify(int file, uint64_t *identity, bool *is_marked) {
    struct stat found;
    struct ct_thread_state before = ct_save_thread();
    bool is_open = ct_fstat(file, &found) == 0;
    uint64_t marked = is_open ? (uint64_t)mark_of(file) : 0;
    ct_restore_thread(before);
    *identity = is_open ? (uint64_t)found.st_ino ^ (uint64_t)found.st_dev << 32 ^ (uint64_t)found.st_rdev << 48 : 0;
    *identity ^= marked << 40;
    *is_marked = marked != 0;
    return is_open;
}

static uint64_t key_of_file(int file) { return (uint64_t)(unsigned)file + 1; }

// Takes out one file that was closed, and copies it to `with`.
static bool take_closed(struct ct_entry *entry, void *with) {
    struct ct_entry *taken = with;
    uint64_t identity;
    bool is_marked;
    if (taken->key || (identify((int)(entry->key - 1), &identity, &is_marked) && identity == entry->bytes)) return false;
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
    bool is_marked;
    mark(file);
    if (!identify(file, &identity, &is_marked)) return result;
    keep_chunk(chunk);
    note(CT_FILES, key_of_file(file), identity, chunk);
    return result;
}

// A file that could not be marked may be another one by now.
static uint64_t chunk_of_file(int file) {
    struct ct_entry entry;
    uint64_t identity;
    bool is_marked, known = ct_get(CT_FILES, key_of_file(file), &entry) && identify(file, &identity, &is_marked);
    return known && is_marked && identity == entry.bytes ? entry.owner : NO_CHUNK;
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

// A part of a sparse array: a box of elements in one layer of one level, or a range of bytes in the mip tail of a layer.
struct box {
    uint64_t from[3], to[3];
    uint16_t kind, layer; // the level is in the upper bits
};

// Bits of the three numbers in a tile's entry, by kind: arrays are at most 131,072 elements wide and high.
static const uint8_t widths[2][3] = {{17, 17, 14}, {48, 0, 0}};

static bool is_tail(int kind) { return kind == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL; }

// Of an array that is mapped as a whole (CUDA_ARRAY3D_DEFERRED_MAPPING) the driver reads no box: an empty one counts as
// one element, so that unmapping it finds what mapping it has added.
static struct box box_of_map(const CUarrayMapInfo *map) {
    bool tail = is_tail(map->subresourceType);
    uint64_t from[3] = {map->as.sparseLevel.offsetX, map->as.sparseLevel.offsetY, map->as.sparseLevel.offsetZ};
    uint64_t extent[3] = {map->as.sparseLevel.extentWidth, map->as.sparseLevel.extentHeight, map->as.sparseLevel.extentDepth};
    unsigned layer = (map->as.sparseLevel.level & 0x1f) << 11 | (map->as.sparseLevel.layer & 0x7ff);
    struct box box = {.kind = (uint16_t)map->subresourceType, .layer = (uint16_t)(tail ? map->as.miptail.layer : layer)};
    if (tail) from[0] = map->as.miptail.offset, extent[0] = map->as.miptail.size;
    for (int i = 0; i < 3; i++) {
        uint64_t end = UINT64_C(1) << widths[tail][i];
        box.from[i] = from[i] & (end - 1);
        box.to[i] = extent[i] >= end - box.from[i] ? end : box.from[i] + (extent[i] ? extent[i] : 1);
    }
    return box;
}

static struct box box_of_tile(const struct ct_entry *tile) {
    struct box box = {.kind = tile->kind, .layer = (uint16_t)(tile->bytes >> 48)};
    uint64_t extents = (uint64_t)(uint16_t)tile->device << 32 | tile->count;
    for (int i = 0, shift = 0; i < 3; shift += widths[is_tail(box.kind)][i++]) {
        uint64_t mask = (UINT64_C(1) << widths[is_tail(box.kind)][i]) - 1;
        box.from[i] = tile->bytes >> shift & mask;
        box.to[i] = box.from[i] + (extents >> shift & mask) + 1;
    }
    return box;
}

// The tile has a reference to the chunk already.
static void add_tile(uint64_t array, uint64_t chunk, const struct box *box) {
    static _Atomic uint64_t last_tile;
    uint64_t begin = (uint64_t)box->layer << 48, extents = 0;
    for (int i = 0, shift = 0; i < 3; shift += widths[is_tail(box->kind)][i++]) {
        begin |= box->from[i] << shift;
        extents |= (box->to[i] - box->from[i] - 1) << shift;
    }
    struct ct_entry before, tile = {.key = atomic_fetch_add(&last_tile, 1) + 1,
                                    .bytes = begin,
                                    .host = array,
                                    .owner = chunk,
                                    .device = (int16_t)(extents >> 32),
                                    .kind = box->kind,
                                    .count = (uint32_t)extents};
    if (!ct_put(CT_TILES, &tile, &before)) ct_count_fault(CT_FAULT_MEMORY);
}

static bool overlap(const struct box *a, const struct box *b) {
    bool any = a->kind == b->kind && a->layer == b->layer;
    for (int i = 0; i < 3; i++) any = any && a->from[i] < b->to[i] && b->from[i] < a->to[i];
    return any;
}

struct tile_search {
    uint64_t array;
    const struct box *part; // NULL: all of the array
    struct ct_entry found;  // its key is 0 if there is none
};

// Takes out one tile of the array that has something in common with the part.
static bool take_tile(struct ct_entry *entry, void *with) {
    struct tile_search *search = with;
    if (search->found.key || entry->host != search->array) return false;
    struct box box = box_of_tile(entry);
    if (search->part && !overlap(&box, search->part)) return false;
    search->found = *entry;
    return true;
}

static void keep_piece(const struct ct_entry *tile, const struct box *piece) {
    keep_chunk(tile->owner);
    add_tile(tile->host, tile->owner, piece);
}

// Adds what of a tile is outside the part, as tiles of their own.
static void keep_rest(const struct ct_entry *tile, const struct box *part) {
    struct box rest = box_of_tile(tile);
    for (int i = 0; i < 3; i++) {
        struct box below = rest, above = rest;
        below.to[i] = part->from[i];
        above.from[i] = part->to[i];
        if (rest.from[i] < part->from[i]) keep_piece(tile, &below), rest.from[i] = part->from[i];
        if (rest.to[i] > part->to[i]) keep_piece(tile, &above), rest.to[i] = part->to[i];
    }
}

static void drop_tiles(uint64_t array, const struct box *part) {
    struct tile_search search = {.array = array, .part = part};
    do {
        search.found.key = 0;
        ct_edit_all(CT_TILES, take_tile, &search);
        if (search.found.key && part) keep_rest(&search.found, part);
        if (search.found.key) leave_chunk(search.found.owner);
    } while (search.found.key);
}

struct renaming {
    uint64_t from, to;
    bool any;
};

static bool rename_array(struct ct_entry *entry, void *with) {
    struct renaming *renaming = with;
    if (entry->host != renaming->from) return false;
    entry->host = renaming->to;
    renaming->any = true;
    return false;
}

uint64_t ct_set_tiles_aside(const void *array) {
    static _Atomic uint64_t last;
    struct renaming renaming = {.from = (uint64_t)(uintptr_t)array, .to = UINT64_C(1) << 63 | atomic_fetch_add(&last, 1)};
    ct_edit_all(CT_TILES, rename_array, &renaming);
    return renaming.any ? renaming.to : 0;
}

void ct_end_tiles(uint64_t aside, const void *array, CUresult destroyed) {
    struct renaming renaming = {.from = aside, .to = (uint64_t)(uintptr_t)array};
    if (aside && destroyed == CUDA_SUCCESS) drop_tiles(aside, NULL);
    else if (aside) ct_edit_all(CT_TILES, rename_array, &renaming);
}

static uint64_t chunk_of_map(const CUarrayMapInfo *map) {
    return map->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? chunk_of_handle(map->memHandle) : NO_CHUNK;
}

typedef CUresult map_function(CUarrayMapInfo *maps, unsigned count, CUstream stream);

// A tile holds its chunk as a mapping does. Another thread may release the handles during the driver's call.
static CUresult map_all(map_function *real, CUarrayMapInfo *maps, unsigned count, CUstream stream, uint64_t *chunks) {
    for (unsigned i = 0; i < count; i++) keep_chunk(chunks[i] = chunk_of_map(&maps[i]));
    CUresult result = real(maps, count, stream);
    for (unsigned i = 0; i < count; i++) {
        struct box box = box_of_map(&maps[i]);
        uint64_t array = (uint64_t)(uintptr_t)maps[i].resource;
        if (result == CUDA_SUCCESS) drop_tiles(array, &box);
        if (result != CUDA_SUCCESS) leave_chunk(chunks[i]);
        else if (chunks[i] != NO_CHUNK) add_tile(array, chunks[i], &box);
    }
    return result;
}

static CUresult map_array(map_function *real, CUarrayMapInfo *maps, unsigned count, CUstream stream) {
    uint64_t few[FEW];
    if (!real) return CUDA_ERROR_NOT_SUPPORTED;
    if (!ct_in_slice() || !maps) return real(maps, count, stream);
    if (count <= FEW) return map_all(real, maps, count, stream, few);
    size_t size = count * sizeof *few;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = map_all(real, maps, count, stream, memory);
    munmap(memory, size);
    return result;
}

#define MAP_ARRAY(name)                                                    \
    CUresult name(CUarrayMapInfo *maps, unsigned count, CUstream stream) { \
        CT_ENTER();                                                        \
        return map_array(REAL(name), maps, count, stream);                 \
    }
MAP_ARRAY(cuMemMapArrayAsync)
MAP_ARRAY(cuMemMapArrayAsync_ptsz)
