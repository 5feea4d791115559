// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that other processes open by a handle. An allocation whose handle is exported moves into a memory file at the
// same address; the other process opens that file through /proc, which works as long as the maker has it.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

// The content of a CUipcMemHandle.
struct handle {
    int pid;
    int file;
    int device;
    uint64_t address;
    uint64_t size;
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "it has 64 bytes");

// Both what this process has given out and what it has opened.
struct share {
    struct handle handle;
    uint64_t address; // here
    int opened;       // times; 0: it is ours
    struct share *next;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct share *shares;

static struct share *share_at(uint64_t address, bool opened) {
    struct share *one = shares;
    while (one && (one->address != address || (one->opened > 0) != opened)) one = one->next;
    return one;
}

static struct share *add(struct handle handle, uint64_t address, int opened) {
    struct share *fresh = malloc(sizeof *fresh);
    *fresh = (struct share){handle, address, opened, shares};
    shares = fresh;
    return fresh;
}

static void take_out(struct share *share) {
    struct share **link = &shares;
    while (*link != share) link = &(*link)->next;
    *link = share->next;
    free(share);
}

static int move_into_file(const struct si_block *block) {
    int file = memfd_create("standin-ipc", MFD_CLOEXEC);
    size_t size = si_pages(block->size);
    void *at = (void *)(uintptr_t)block->address;
    if (file < 0 || ftruncate(file, (off_t)size)) return -1;
    if (!block->backed) return file;
    for (size_t done = 0; done < size;) {
        ssize_t wrote = pwrite(file, (char *)at + done, size - done, (off_t)done);
        if (wrote <= 0) return -1;
        done += (size_t)wrote;
    }
    return mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED ? -1 : file;
}

API(cuIpcGetMemHandle)(CUipcMemHandle *handle, CUdeviceptr pointer) {
    struct si_block block;
    KNOWN(handle && si_find_block(pointer, &block) && block.kind == SI_DEVICE);
    TRY(si_ready());
    pthread_mutex_lock(&guard);
    struct share *share = share_at(block.address, false);
    int file = share ? share->handle.file : move_into_file(&block);
    if (!share && file >= 0)
        share = add((struct handle){getpid(), file, block.device, block.address, block.size}, block.address, 0);
    if (share) {
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &share->handle, sizeof share->handle);
    }
    pthread_mutex_unlock(&guard);
    return share ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult map_foreign(const struct handle *handle, uint64_t *address) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return CUDA_ERROR_INVALID_HANDLE;
    size_t size = si_pages(handle->size);
    // without backing an address only has to differ from others
    int access = si_backing ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *at = mmap(NULL, size, access, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = (uintptr_t)at;
    si_name_block(&(struct si_block){.address = *address,
                                     .size = handle->size,
                                     .kind = SI_IMPORTED,
                                     .device = handle->device,
                                     .backed = si_backing});
    return CUDA_SUCCESS;
}

API(cuIpcOpenMemHandle_v2)(CUdeviceptr *pointer, CUipcMemHandle given, unsigned flags) {
    (void)flags;
    struct handle handle;
    uint64_t address = 0;
    CUresult result = CUDA_SUCCESS;
    KNOWN(pointer);
    TRY(si_ready());
    memcpy(&handle, &given, sizeof handle);
    if (handle.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&guard);
    struct share *known = shares;
    while (known && (!known->opened || memcmp(&known->handle, &handle, sizeof handle))) known = known->next;
    if (known) {
        known->opened++;
        address = known->address;
    } else {
        result = map_foreign(&handle, &address);
        if (result == CUDA_SUCCESS) add(handle, address, 1);
    }
    pthread_mutex_unlock(&guard);
    *pointer = address;
    return result;
}

API(cuIpcCloseMemHandle)(CUdeviceptr pointer) {
    TRY(si_ready());
    pthread_mutex_lock(&guard);
    struct share *share = share_at(pointer, true);
    struct si_block block;
    bool known = share;
    if (share && --share->opened == 0) {
        if (si_take_block(pointer, 1u << SI_IMPORTED, &block)) munmap((void *)(uintptr_t)pointer, si_pages(block.size));
        take_out(share);
    }
    pthread_mutex_unlock(&guard);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void si_end_export(uint64_t address) {
    if (!__atomic_load_n(&shares, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&guard);
    struct share *share = share_at(address, false);
    if (share) {
        close(share->handle.file);
        take_out(share);
    }
    pthread_mutex_unlock(&guard);
}
