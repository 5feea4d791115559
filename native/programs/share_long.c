// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Launches that take long, or longer than they took before, in ways that are hard to measure. Prints the share of the
// GPU's time that they got, in thousandths of a per cent, from the first one until the last one is paid for.
//
//   share_long MODE NANOSECONDS LAUNCHES
//
//   synced   each launch is waited for
//   queued   launches follow each other without a wait
//   tiny     while a long launch runs, tiny ones run on another stream
//   riding   a kind of launch that was always short is long now, behind short ones and with a wait after it
//   contexts each long launch in a context that is destroyed right after
//   idle     each launch is waited for, and a minute later its context, the primary one, is released
//   streams  each long launch on a stream of its own, of a kind that was always short

#define _GNU_SOURCE
#include <string.h>

#include "share.h"

#define SHORT UINT64_C(2000)
#define KEPT 32

static CUstream streams[KEPT];
static CUfunction function;

static void launch(CUstream stream, uint64_t cost) {
    void *parameters[] = {&cost};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
}

static void launch_short(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        launch(NULL, SHORT);
        CHECK(cuCtxSynchronize());
    }
}

// One long launch, as the mode has it.
static void take(const char *mode, uint64_t cost, unsigned number) {
    if (!strcmp(mode, "riding")) {
        launch_short(3);
        launch(NULL, SHORT);
        launch(NULL, cost);
        CHECK(cuCtxSynchronize());
        standinSleepUntil(standinNow() + 10000000);
    } else if (!strcmp(mode, "contexts")) {
        CUcontext context, before;
        CHECK(cuCtxGetCurrent(&before));
        CHECK(cuCtxCreate_v2(&context, 0, 0));
        CHECK(share_launch(share_kernel(cost), 1, NULL));
        CHECK(cuCtxDestroy_v2(context));
        CHECK(cuCtxSetCurrent(before));
    } else if (!strcmp(mode, "idle")) {
        launch(NULL, cost);
        CHECK(cuCtxSynchronize());
        standinSleepUntil(standinNow() + UINT64_C(60000000000));
        CHECK(cuDevicePrimaryCtxRelease_v2(0));
        share_start();
        function = share_function("ns_parameter");
    } else if (!strcmp(mode, "streams")) {
        launch(streams[number % KEPT], cost);
    } else {
        CHECK(share_launch(share_kernel(cost), 1, streams[0]));
        if (!strcmp(mode, "synced")) CHECK(cuCtxSynchronize());
        for (uint64_t until = standinNow() + cost; !strcmp(mode, "tiny") && standinNow() < until;) {
            launch(streams[1], SHORT);
            standinSleepUntil(standinNow() + 100000000);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint64_t cost = strtoull(argv[2], NULL, 0);
    unsigned launches = (unsigned)atoi(argv[3]);
    share_start();
    function = share_function("ns_parameter");
    for (int i = 0; i < KEPT; i++) CHECK(cuStreamCreate(&streams[i], 1));
    standinJoin();
    launch_short(100);
    uint64_t began = standinNow();
    for (unsigned i = 0; i < launches; i++) take(argv[1], cost, i);
    CHECK(cuCtxSynchronize());
    launch(NULL, SHORT); // waits until the last one is paid for
    uint64_t took = standinNow() - began;
    printf("share %llu\n", (unsigned long long)(launches * cost * 100 / (took / 1000)));
    standinLeave();
    return 0;
}
