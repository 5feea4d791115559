// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What a launch is expected to take: the moving average of earlier launches of the same kind.

#include "meter_parts.h"

#define FIRST_GUESS (1 * MILLISECOND) // for a kind that was never measured

struct ct_launch_kind *ct_find_kind(struct ct_meter *meter, uint64_t key) {
    struct ct_launch_kind *oldest = NULL;
    size_t first = ct_hash(key, KINDS);
    for (size_t i = 0; i < PROBES; i++) {
        struct ct_launch_kind *kind = &meter->kinds[(first + i) % KINDS];
        if (kind->key == key) return kind;
        if (!oldest || kind->key == 0 || (oldest->key && kind->measured < oldest->measured)) oldest = kind;
        if (kind->key == 0) break;
    }
    *oldest = (struct ct_launch_kind){.key = key, .estimate = FIRST_GUESS};
    return oldest;
}

void ct_learn_kind(struct ct_meter *meter, const struct ct_batch *batch, uint64_t took) {
    if (batch->kind == 0) return;
    // Other work (a copy, a wait) may have run between the launches of one batch, so one batch can raise the estimate
    // only to about four times what it was. What is paid for is not bounded.
    if (batch->launches > 1 && took > 4 * batch->estimate + LONG_BATCH) took = 4 * batch->estimate + LONG_BATCH;
    struct ct_launch_kind *kind = ct_find_kind(meter, batch->kind);
    int64_t each = (int64_t)(took / batch->launches), known = (int64_t)kind->estimate;
    kind->estimate = (uint64_t)(kind->measured ? known + (each - known) / 4 : each);
    kind->measured += kind->measured < UINT32_MAX;
    kind->since = 0;
}
