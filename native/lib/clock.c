// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The clock that shares are kept by. A driver that brings a clock of its own runs its device by it (the stand-in does,
// so that tests can let hours pass in a moment); everywhere else it is the machine's.

#include <time.h>

#include "compute.h"
#include "region.h"

#include "hooks.h"

#define SECOND UINT64_C(1000000000)

uint64_t ct_clock(void) {
    if (HAS(standinNow)) return REAL(standinNow)();
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

void ct_sleep_until(uint64_t when) {
    if (HAS(standinSleepUntil)) {
        REAL(standinSleepUntil)(when);
        return;
    }
    struct timespec until = {.tv_sec = (time_t)(when / SECOND), .tv_nsec = (long)(when % SECOND)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL); // a signal ends it early; callers look again anyway
}
