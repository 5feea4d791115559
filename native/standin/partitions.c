// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory partitions: limits on what all processes of a cgroup have together on one device, as drivers of CUDA 13.4 and
// later enforce them. The nearest cgroup with a limit counts; limits do not nest. A cgroup that is removed takes its
// limits along.

#define _GNU_SOURCE
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "shared.h"

// Of cgroup v2; empty if the process is in none, or its root.
void si_own_group(char path[SI_GROUP]) {
    char line[SI_GROUP + 8];
    FILE *file = fopen("/proc/self/cgroup", "re");
    *path = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(path, SI_GROUP, "%.*s", SI_GROUP - 1, strcmp(line + 3, "/") ? line + 3 : "");
    }
    if (file) fclose(file);
}

static bool is_group(const char *path) {
    struct statfs found;
    return !statfs(path, &found) && found.f_type == CGROUP2_SUPER_MAGIC;
}

static uint64_t inode_of(const char *path) {
    struct stat found;
    return stat(path, &found) ? 0 : found.st_ino;
}

static bool is_within(const char *group, const struct si_partition *one) {
    const char *limited = one->path + one->root;
    size_t length = strlen(limited);
    return !strncmp(group, limited, length) && (!group[length] || group[length] == '/');
}

static bool exists(const struct si_partition *one) { return one->inode && one->inode == inode_of(one->path); }

// The limit that counts for a cgroup; NULL: none.
static struct si_partition *limit_of(struct si_state *state, const char *group, int device) {
    struct si_partition *nearest = NULL;
    for (uint32_t i = 0; i < state->partitions; i++) {
        struct si_partition *one = &state->partition[i];
        if (!one->inode || one->device != device || !is_within(group, one) || !exists(one)) continue;
        if (!nearest || strlen(one->path) > strlen(nearest->path)) nearest = one;
    }
    return nearest;
}

uint64_t si_partition_used(struct si_state *state, const struct si_partition *partition) {
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < state->slots; slot++) {
        struct si_slot *one = &state->slot[slot];
        if (one->used && limit_of(state, one->group, partition->device) == partition)
            sum += one->bytes[partition->device];
    }
    return sum;
}

bool si_has_room(struct si_state *state, unsigned slot, int device, uint64_t bytes) {
    const struct si_partition *limit = limit_of(state, state->slot[slot].group, device);
    return !limit || si_partition_used(state, limit) + bytes <= limit->hard;
}

static struct si_partition *made(struct si_state *state, int device, const char *path) {
    char above[SI_GROUP];
    uint32_t place = 0, root = (uint32_t)strlen(path);
    if (root >= SI_GROUP || !is_group(path)) return NULL;
    snprintf(above, sizeof above, "%s", path);
    while (is_group(above) && strrchr(above, '/')) {
        root = (uint32_t)strlen(above);
        *strrchr(above, '/') = 0;
    }
    while (place < SI_PARTITIONS && exists(&state->partition[place])) place++;
    if (place == SI_PARTITIONS) return NULL;
    struct si_partition *one = &state->partition[place];
    *one = (struct si_partition){.inode = inode_of(path), .device = device, .root = root, .hard = SI_NEVER};
    snprintf(one->path, sizeof one->path, "%s", path);
    if (place >= state->partitions) state->partitions = place + 1;
    return one;
}

struct si_partition *si_group_limit(struct si_state *state, int device, const char *path, bool wanted) {
    for (uint32_t i = 0; i < state->partitions; i++) {
        struct si_partition *one = &state->partition[i];
        if (one->device == device && !strcmp(one->path, path) && exists(one)) return one;
    }
    return wanted ? made(state, device, path) : NULL;
}

void si_visible_memory(int device, uint64_t *total, uint64_t *used) {
    struct si_state *state = si_state();
    *total = state->set.memory[device], *used = si_level(device);
    if (SI_LIKELY(!state->partitions)) return;
    char group[SI_GROUP];
    si_own_group(group);
    si_lock();
    const struct si_partition *limit = limit_of(state, group, device);
    uint64_t left = *total - *used;
    if (limit && limit->hard < *total) {
        uint64_t taken = si_partition_used(state, limit), most = limit->hard > taken ? limit->hard - taken : 0;
        *total = limit->hard;
        *used = *total - (most < left ? most : left);
    }
    si_unlock();
}
