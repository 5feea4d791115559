// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of standin.h.

#include "standin.h"

#include "entries.h"
#include "shared.h"

#define PUBLIC __attribute__((visibility("default")))

PUBLIC uint64_t standinNow(void) { return si_now(); }

PUBLIC void standinSleepUntil(uint64_t when) { si_wait(when, 0); }

PUBLIC void standinJoin(void) { si_join(); }

PUBLIC void standinLeave(void) { si_leave(); }

PUBLIC uint64_t standinBusy(int device, uint32_t pid, uint64_t from, uint64_t to) {
    if (device < 0 || device >= SI_DEVICES) return 0;
    uint64_t now = si_now();
    si_lock();
    si_reap_locked();
    si_serve(now);
    uint64_t busy = si_busy(device, pid, from, to);
    si_unlock();
    return busy;
}

PUBLIC uint64_t standinUsed(int device, uint32_t pid) {
    if (device < 0 || device >= SI_DEVICES) return 0;
    si_reap();
    return si_used(device, pid);
}

PUBLIC uint64_t standinPeak(int device) {
    return device < 0 || device >= SI_DEVICES ? 0 : atomic_load(&si_state()->level[device].peak);
}

PUBLIC void standinBreak(int device, int answer) {
    if (device >= 0 && device < SI_DEVICES) atomic_store(&si_state()->broken[device], answer);
}

PUBLIC void standinPartition(int card, const char *layout) {
    if (card < 0 || card >= (int)si_state()->set.devices) return;
    si_lock();
    si_partition(si_mapped, card, layout);
    si_unlock();
}

PUBLIC uint64_t standinCalls(const char *name) { return si_calls(name); }

PUBLIC void standinAfter(const char *name, void (*function)(void)) { si_set_after(name, function); }
