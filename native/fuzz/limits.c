// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a limits file, and as a list of processes: limits that are accepted must be within their bounds, and a file that is refused must not
// change anything.

#include "parse.c"

#include <stdlib.h>

#define HEAD "cotenant-limits 2\n"
#define LIST_HEAD "cotenant-processes 1\n"
#define TAIL "\nend\n"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds) {
    if (!holds) abort();
}

static void check_gpu(const struct ct_gpu_limits *gpu) {
    check(gpu->compute >= 1 && gpu->compute <= CT_WHOLE && gpu->paused <= 1 && gpu->host != CT_UNLIMITED);
    check(memchr(gpu->uuid, 0, sizeof gpu->uuid) != NULL);
}

static void check_path(const char path[CT_PATH_BYTES]) {
    check(path[0] == 0 || path[0] == '/');
    check(memchr(path, 0, CT_PATH_BYTES) != NULL);
}

static void check_list(const uint8_t *data, size_t size) {
    struct ct_process_list list, untouched;
    memset(&list, 0x5a, sizeof list);
    untouched = list;
    char *exact = malloc(sizeof LIST_HEAD + size + sizeof TAIL);
    size_t head = sizeof LIST_HEAD - 1, tail = sizeof TAIL - 1;
    memcpy(exact, LIST_HEAD, head);
    if (size) memcpy(exact + head, data, size);
    memcpy(exact + head + size, TAIL, tail);
    if (ct_parse_processes(exact, head + size + tail, &list) == CT_PARSED) check(list.count <= CT_PROCESSES);
    else check(memcmp(&list, &untouched, sizeof list) == 0);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ct_limits limits, untouched;
    memset(&limits, 0x5a, sizeof limits);
    untouched = limits;
    // Every second input gets a valid first and last line, which the fuzzer would take long to find.
    size_t head = size && data[0] & 1 ? sizeof HEAD - 1 : 0, tail = head ? sizeof TAIL - 1 : 0;
    char *exact = malloc(head + size + tail); // so that a byte read too many is seen
    memcpy(exact, HEAD, head);
    if (size) memcpy(exact + head, data, size);
    memcpy(exact + head + size, TAIL, tail);
    enum ct_parsed parsed = ct_parse_limits(exact, head + size + tail, &limits);
    free(exact);
    check_list(data, size);
    if (parsed != CT_PARSED) {
        check(memcmp(&limits, &untouched, sizeof limits) == 0);
        return 0;
    }
    check(limits.gpus <= CT_DEVICES && limits.policy <= CT_NEVER && limits.priority <= CT_LOW);
    check_path(limits.region);
    check_path(limits.processes);
    check_gpu(&limits.fallback);
    for (uint32_t i = 0; i < limits.gpus; i++) check_gpu(&limits.gpu[i]);
    return 0;
}
