// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The index of a GPU in the slice. Limits and the account go by UUID, since an ordinal means another GPU under another
// CUDA_VISIBLE_DEVICES; the region's header gives each UUID its index for all processes of the slice. This process
// keeps what it has once read there, so that a later change of the header cannot change what an index means.

#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "hooks.h"
#include "lock.h"

#define ORDINALS 64
#define UNKNOWN INT32_MIN
#define SEVERAL (INT32_MIN + 1)
#define LOCK_TRIES 50

static char uuids[CT_DEVICES][CT_UUID_BYTES];
static _Atomic bool is_named[CT_DEVICES];
static ct_lock naming;
static _Atomic int index_of[ORDINALS] = {[0 ... ORDINALS - 1] = UNKNOWN};
_Atomic int ct_only_device = UNKNOWN;

static char lower(char letter) {
    return letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
}

// Compares up to the terminating zero or the end of the field, since the header's may have no zero. The prefix (GPU-,
// MIG-) is skipped, because the driver's 16 bytes do not contain it.
static bool is_same_uuid(const char *a, const char *b) {
    for (size_t at = a[3] == '-' && b[3] == '-' ? 3 : 0; at < CT_UUID_BYTES; at++) {
        if (lower(a[at]) != lower(b[at])) return false;
        if (a[at] == 0) return true;
    }
    return true;
}

static int find_named(const char *uuid) {
    for (int i = 0; i < CT_DEVICES; i++) {
        if (is_named[i] && is_same_uuid(uuids[i], uuid)) return i;
    }
    return -1;
}

const char *ct_uuid_of(int device) {
    return uuids[device];
}

// Its index in the header, or the first that is free there and here.
static int find_in_header(const struct ct_region *region, const char *uuid, bool *is_new) {
    uint32_t devices = region->devices < CT_DEVICES ? region->devices : CT_DEVICES;
    for (uint32_t i = 0; i < devices; i++) {
        *is_new = false;
        if (!is_named[i] && is_same_uuid(region->uuid[i], uuid)) return (int)i;
    }
    for (uint32_t i = devices; i < CT_DEVICES; i++) {
        *is_new = true;
        if (!is_named[i]) return (int)i;
    }
    return -1;
}

static void lock_header(int file) {
    for (int i = 0; i < LOCK_TRIES && !ct_lock_byte(file, CT_LOCK_HEADER); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    } // a process of the tenant that never unlocks it spoils only the tenant's own account
}

static int find_or_add(struct ct_region *region, const char *uuid) {
    bool is_new;
    int index = find_in_header(region, uuid, &is_new);
    if (index < 0 || !is_new) return index;
    int file = region == &ct_private_region ? -1 : ct_open_region_again();
    if (file >= 0) lock_header(file);
    index = find_in_header(region, uuid, &is_new);
    if (index >= 0 && is_new) {
        memcpy(region->uuid[index], uuid, CT_UUID_BYTES);
        region->devices = (uint32_t)index + 1;
    }
    if (file >= 0) {
        ct_unlock_byte(file, CT_LOCK_HEADER);
        close(file);
    }
    return index;
}

static int name_device(const char *text, bool is_expected) {
    char uuid[CT_UUID_BYTES] = {0};
    strncpy(uuid, text, sizeof uuid - 1);
    int index = find_named(uuid);
    if (index >= 0 || !*uuid) return index;
    struct ct_thread_state before = ct_save_thread();
    ct_acquire(&naming);
    index = find_named(uuid);
    if (index < 0) {
        if (!is_expected) ct_count_fault(CT_FAULT_UNKNOWN_DEVICE);
        index = find_or_add(ct_region, uuid);
        if (index < 0 && ct_region != &ct_private_region) { // the header is full of other names
            ct_count_fault(CT_FAULT_REGION);
            ct_use_private_region();
            index = find_or_add(ct_region, uuid);
        }
        if (index >= 0) {
            memcpy(uuids[index], uuid, sizeof uuid);
            is_named[index] = true;
        }
    }
    ct_set_free(&naming);
    ct_restore_thread(before);
    return index;
}

int ct_name_device(const char *uuid) {
    return name_device(uuid, true);
}

int ct_device_of_uuid(const char *uuid) {
    return name_device(uuid, false);
}

static void write_uuid(const CUuuid *uuid, char text[CT_UUID_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    char *at = text;
    memcpy(at, "GPU", 3);
    at += 3;
    for (int i = 0; i < 16; i++) {
        if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
        *at++ = digits[(unsigned char)uuid->bytes[i] >> 4];
        *at++ = digits[(unsigned char)uuid->bytes[i] & 15];
    }
    *at = 0;
}

static int ask_for_uuid(CUdevice ordinal) {
    CUuuid uuid;
    char text[CT_UUID_BYTES];
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (HAS(cuDeviceGetUuid_v2)) result = REAL(cuDeviceGetUuid_v2)(&uuid, ordinal);
    else if (HAS(cuDeviceGetUuid)) result = REAL(cuDeviceGetUuid)(&uuid, ordinal);
    else ct_count_fault(CT_FAULT_DRIVER);
    if (result != CUDA_SUCCESS) return -1;
    write_uuid(&uuid, text);
    int index = ct_device_of_uuid(text);
    index_of[ordinal] = index;
    return index;
}

int ct_device_of(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= ORDINALS) return -1;
    int index = atomic_load_explicit(&index_of[ordinal], memory_order_relaxed);
    return index == UNKNOWN ? ask_for_uuid(ordinal) : index;
}

// Before cuInit the driver has no devices: nothing is remembered until it answers.
static void count_devices(void) {
    int count = 0;
    if (!HAS(cuDeviceGetCount) || REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count == 0) return;
    if (count > 1) ct_only_device = SEVERAL;
    else if (ct_device_of(0), index_of[0] != UNKNOWN) ct_only_device = index_of[0];
}

int ct_current_device(void) {
    int index = atomic_load_explicit(&ct_only_device, memory_order_relaxed);
    if (__builtin_expect(index >= -1, 1)) return index;
    if (index == UNKNOWN) count_devices();
    if (ct_only_device >= -1) return ct_only_device;
    CUdevice ordinal;
    if (!HAS(cuCtxGetDevice) || REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS) return -1;
    return ct_device_of(ordinal);
}

// The child may see other GPUs under the same ordinals, if it sets CUDA_VISIBLE_DEVICES.
void ct_forget_devices(void) {
    for (int i = 0; i < ORDINALS; i++) index_of[i] = UNKNOWN;
    ct_only_device = UNKNOWN;
    ct_set_free(&naming);
}
