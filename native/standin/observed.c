// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0

#include "observed.h"

#define ALL 100

int si_observed_gpu(uint32_t index) {
    int gpus[SI_DEVICES];
    int count = si_present(gpus);
    return index < (uint32_t)count ? gpus[index] : -1;
}

uint32_t si_observed_count(void) {
    int gpus[SI_DEVICES];
    return (uint32_t)si_present(gpus);
}

int si_observed_fault(int gpu) { return atomic_load(&si_state()->broken[gpu]); }

uint64_t si_observed_bytes(int gpu) {
    si_reap();
    return si_level(gpu);
}

uint32_t si_observed_percent(int gpu) {
    uint64_t now = si_now(), window = si_state()->set.nvml_window;
    si_lock();
    si_serve(now);
    uint64_t percent = si_busy(gpu, 0, now > window ? now - window : 0, now) * ALL / window;
    si_unlock();
    return percent > ALL ? ALL : (uint32_t)percent;
}

uint32_t si_observed_processes(int gpu, struct si_process found[SI_SLOTS]) {
    uint32_t count = 0;
    si_state();
    si_lock();
    si_reap_locked();
    for (unsigned slot = 0; slot < si_mapped->slots; slot++) {
        struct si_slot *one = &si_mapped->slot[slot];
        uint32_t same = 0;
        if (!one->used || !one->uses[gpu]) continue;
        while (same < count && found[same].pid != one->pid) same++;
        if (same == count) found[count++] = (struct si_process){.pid = one->pid};
        found[same].bytes += one->bytes[gpu];
    }
    si_unlock();
    return count;
}
