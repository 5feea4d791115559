// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// librocm_smi64.so, AMD's management library, over the stand-in GPUs: the functions that inventories and monitors call.
// `standinBreak` makes a GPU answer with that status.

#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "observed.h"

#define FAMILY UINT64_C(0xa3d0000000000000)
#define XGMI 2
#define NO_OCCUPANCY UINT32_MAX

enum {
    SUCCESS = 0,
    INVALID_ARGS = 1,
    NOT_SUPPORTED = 2,
    INIT_ERROR = 8,
    NOT_FOUND = 10,
    INSUFFICIENT_SIZE = 11,
};

struct process_info {
    uint32_t process_id, pasid;
    uint64_t vram_usage, sdma_usage;
    uint32_t cu_occupancy;
};

static _Atomic int sessions;

// What keeps a question about a GPU from being answered; SUCCESS: nothing, and its number is in `gpu`.
static uint32_t refusal(uint32_t index, const void *answer, int *gpu) {
    if (!sessions) return INIT_ERROR;
    *gpu = si_observed_gpu(index);
    if (!answer || *gpu < 0) return INVALID_ARGS;
    return (uint32_t)si_observed_fault(*gpu);
}

static uint32_t number(uint32_t index, uint64_t *to, uint64_t (*of)(int gpu)) {
    int gpu;
    uint32_t refused = refusal(index, to, &gpu);
    if (!refused) *to = of(gpu);
    return refused;
}

EXPORTED uint32_t rsmi_init(uint64_t flags) {
    (void)flags;
    si_state();
    sessions++;
    return SUCCESS;
}

EXPORTED uint32_t rsmi_shut_down(void) {
    if (!sessions) return INIT_ERROR;
    sessions--;
    return SUCCESS;
}

EXPORTED uint32_t rsmi_status_string(uint32_t status, const char **text) {
    if (!text) return INVALID_ARGS;
    switch (status) {
    case SUCCESS: *text = "Success"; break;
    case INVALID_ARGS: *text = "Invalid arguments"; break;
    case NOT_SUPPORTED: *text = "Not supported"; break;
    case INIT_ERROR: *text = "Not initialized"; break;
    default: *text = "Unknown error";
    }
    return SUCCESS;
}

EXPORTED uint32_t rsmi_num_monitor_devices(uint32_t *count) {
    if (!sessions) return INIT_ERROR;
    if (!count) return INVALID_ARGS;
    *count = si_observed_count();
    return SUCCESS;
}

EXPORTED uint32_t rsmi_dev_name_get(uint32_t index, char *name, size_t length) {
    int gpu;
    uint32_t refused = refusal(index, name, &gpu);
    if (refused) return refused;
    int needed = snprintf(name, length, "%s", si_state()->set.name[gpu]);
    return (size_t)needed < length ? SUCCESS : INSUFFICIENT_SIZE;
}

static uint64_t unique_id(int gpu) { return FAMILY | (si_state()->set.first + (uint32_t)gpu); }
static uint64_t pci_id(int gpu) { return (uint64_t)(gpu + 1) << 8; }
static uint64_t total(int gpu) { return si_state()->set.memory[gpu]; }

EXPORTED uint32_t rsmi_dev_unique_id_get(uint32_t index, uint64_t *id) { return number(index, id, unique_id); }
EXPORTED uint32_t rsmi_dev_pci_id_get(uint32_t index, uint64_t *id) { return number(index, id, pci_id); }

EXPORTED uint32_t rsmi_dev_memory_total_get(uint32_t index, uint32_t type, uint64_t *bytes) {
    return type ? NOT_SUPPORTED : number(index, bytes, total);
}

EXPORTED uint32_t rsmi_dev_memory_usage_get(uint32_t index, uint32_t type, uint64_t *bytes) {
    return type ? NOT_SUPPORTED : number(index, bytes, si_observed_bytes);
}

EXPORTED uint32_t rsmi_dev_busy_percent_get(uint32_t index, uint32_t *percent) {
    int gpu;
    uint32_t refused = refusal(index, percent, &gpu);
    if (!refused) *percent = si_observed_percent(gpu);
    return refused;
}

// All processes on any GPU, each once; what they use is asked for each GPU.
EXPORTED uint32_t rsmi_compute_process_info_get(struct process_info *infos, uint32_t *count) {
    if (!sessions) return INIT_ERROR;
    if (!count) return INVALID_ARGS;
    uint32_t room = *count, many = 0, pids[SI_SLOTS];
    for (uint32_t index = 0; index < si_observed_count(); index++) {
        struct si_process found[SI_SLOTS];
        uint32_t here = si_observed_processes(si_observed_gpu(index), found);
        for (uint32_t place = 0; place < here; place++) {
            uint32_t same = 0;
            while (same < many && pids[same] != found[place].pid) same++;
            if (same == many && many < SI_SLOTS) pids[many++] = found[place].pid;
        }
    }
    *count = many;
    if (!infos) return SUCCESS;
    for (uint32_t place = 0; place < many && place < room; place++)
        infos[place] = (struct process_info){.process_id = pids[place]};
    return many > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORTED uint32_t rsmi_compute_process_info_by_device_get(uint32_t pid, uint32_t index, struct process_info *info) {
    int gpu;
    uint32_t refused = refusal(index, info, &gpu);
    if (refused) return refused;
    struct si_process found[SI_SLOTS];
    uint32_t many = si_observed_processes(gpu, found);
    for (uint32_t place = 0; place < many; place++)
        if (found[place].pid == pid) {
            *info = (struct process_info){
                .process_id = pid, .vram_usage = found[place].bytes, .cu_occupancy = NO_OCCUPANCY};
            return SUCCESS;
        }
    return NOT_FOUND;
}

// Two and two are linked by xGMI.
EXPORTED uint32_t rsmi_topo_get_link_type(uint32_t index, uint32_t other, uint64_t *hops, uint32_t *type) {
    int first, second;
    uint32_t refused = refusal(index, hops, &first);
    if (!refused) refused = refusal(other, type, &second);
    if (refused) return refused;
    *type = first / 2 == second / 2 ? XGMI : 1;
    *hops = *type == XGMI ? 1 : 2;
    return SUCCESS;
}
