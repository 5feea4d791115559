// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The clock by which compute shares are measured: that of the machine, or that of the driver if it has its own. The
// stand-in driver has one, so that tests can let hours pass in a moment.

#include <time.h>

#include "compute.h"
#include "region.h"

#include "hooks.h"

#define SECOND UINT64_C(1000000000)

uint64_t ct_monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

uint64_t ct_clock(void) { return HAS(standinNow) ? REAL(standinNow)() : ct_monotonic(); }

void ct_sleep_until(uint64_t when) {
    if (HAS(standinSleepUntil)) {
        REAL(standinSleepUntil)(when);
        return;
    }
    struct timespec until = {.tv_sec = (time_t)(when / SECOND), .tv_nsec = (long)(when % SECOND)};
    // A signal may end it early: callers check the time again.
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}
