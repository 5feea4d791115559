// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Physical memory apart from its addresses. A chunk made by cuMemCreate lives until all handles to it are released and
// all its mappings are gone, whichever is last, so it is charged as long. Chunks have numbers of our own, since the
// driver may give a released handle's value to another chunk while the first is still mapped. Imported handles belong
// to the process that made the chunk: they have no chunk here, and their mappings are not counted.
//
// Not counted: a chunk that only a file descriptor (cuMemExportToShareableHandle), a multicast object or a sparse array
// still holds. The monitor's comparison with NVML shows it.

#include "hooks.h"
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

CUresult cuMemRelease(CUhandle handle) {
    struct ct_entry entry;
    bool known = ct_in_slice() && ct_edit(CT_HANDLES, handle, drop_one, &entry);
    CUresult result = CALL(cuMemRelease, handle);
    if (!known) return result;
    // The entry left the books before the driver's call, so before the driver can give the handle's value to another
    // chunk; after a failure it is added again.
    if (result == CUDA_SUCCESS && entry.count == 1) leave_chunk(entry.owner);
    if (result != CUDA_SUCCESS && !ct_edit(CT_HANDLES, handle, add_one, NULL)) note(CT_HANDLES, handle, 0, entry.owner);
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
