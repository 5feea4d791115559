// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a slice's region, changed while a process uses it: the process's own account must stay right, and the
// limit must apply to what it allocates, whatever the region says of other processes.

#include "../programs/base_all.h"

#include <stdio.h>

#define LIMIT UINT64_C(1000000)
#define PATH_BYTES 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char file_path[PATH_BYTES];

static void check(bool holds) {
    if (!holds) abort();
}

static void make_file(const uint8_t *data, size_t size) {
    static struct ct_region fresh;
    fresh = (struct ct_region){.magic = CT_REGION_MAGIC, .version = CT_REGION_VERSION, .header_bytes = 4096,
                               .slot_bytes = sizeof(struct ct_slot), .slots = CT_SLOTS};
    // The first bytes are the rest of the header, so that most inputs get past it; what is left is spread over slots.
    size_t header = sizeof fresh - offsetof(struct ct_region, devices);
    if (size && data[0] & 1) memcpy(&fresh.devices, data, size < header ? size : header);
    for (size_t i = 0; i < size; i++) ((uint8_t *)&fresh.slot[i % CT_SLOTS])[i * 7 % sizeof(struct ct_slot)] = data[i];
    if (size > 3 && data[1] == 0xff) ((uint8_t *)&fresh)[data[2] % 24] = data[3];
    int file = open(file_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(write(file, &fresh, sizeof fresh) == (ssize_t)sizeof fresh);
    if (size > 2 && data[1] == 0xfe) check(ftruncate(file, data[2]) == 0);
    close(file);
}

static void use(const uint8_t *data, size_t size) {
    uint64_t held = 0;
    for (size_t i = 0; i + 1 < size && i < 64; i += 2) {
        uint64_t bytes = (uint64_t)data[i + 1] * 4001;
        if (data[i] % 4 < 2 && ct_reserve(0, CT_DEVICE, bytes)) held += bytes;
        if (data[i] % 4 == 2 && held >= bytes) held -= bytes, ct_release(0, CT_DEVICE, bytes);
        if (data[i] % 4 == 3) memset((void *)&ct_region->slot[data[i] / 4], data[i + 1], sizeof(struct ct_slot));
        check(held <= LIMIT && ct_used(0, CT_DEVICE) >= held);
    }
    ct_release(0, CT_DEVICE, held);
    ct_reap();
    check(ct_account.use[CT_DEVICE][0] == 0);
}

static void name_devices(const uint8_t *data, size_t size) {
    char uuid[CT_UUID_BYTES + 1] = {0};
    memcpy(uuid, data, size < CT_UUID_BYTES ? size : CT_UUID_BYTES);
    int index = ct_device_of_uuid(uuid);
    check(index == -1 || (index < CT_DEVICES && ct_device_of_uuid(uuid) == index));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!*file_path) snprintf(file_path, sizeof file_path, "/dev/shm/cotenant-fuzz-%d", getpid());
    for (int i = 0; i < CT_DEVICES; i++) is_named[i] = false;
    ct_limits_now[0].memory = LIMIT;
    make_file(data, size);
    ct_open_region(file_path);
    struct ct_region *mapped = ct_region;
    name_devices(data, size);
    use(data, size);
    ct_use_private_region();
    if (mapped != &ct_private_region) munmap(mapped, sizeof *mapped);
    unlink(file_path);
    return 0;
}
