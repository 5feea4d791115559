// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Uses what it gets of the GPU while the limits change: replaces the limits by each of the files in turn, and prints
// what it got in the 2 seconds that begin 0.1 s after each change. On a virtual clock.
//
//   share_steps LIMITS FILE...

#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "share.h"

#define STEP (2 * SECOND)

static CUcontext context;
static _Atomic bool over;

static void *burn(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    CUfunction function = share_kernel(5000000);
    standinJoin();
    while (!over) CHECK(share_launch(function, 864, NULL));
    standinLeave();
    return unused;
}

// Device time does not pass meanwhile. It is longer than the time after which the library checks its limits again.
static void put_in_force(const char *limits, const char *file) {
    struct timespec moment = {.tv_nsec = 50000000};
    if (rename(file, limits) != 0) perror(file), exit(1);
    nanosleep(&moment, NULL);
}

int main(int argc, char **argv) {
    pthread_t burner;
    context = share_start();
    standinJoin();
    if (argc < 3 || pthread_create(&burner, NULL, burn, NULL) || pthread_detach(burner)) return 2;
    standinSleepUntil(standinNow() + SECOND);
    for (int i = 2; i < argc; i++) {
        uint64_t began = standinNow();
        put_in_force(argv[1], argv[i]);
        standinSleepUntil(began + STEP);
        printf("step%d %llu\n", i - 1, share_of((unsigned)getpid(), began + SECOND / 10, began + STEP));
    }
    over = true;
    standinLeave();
    _exit(fflush(stdout)); // the burner may be paused for good
}
