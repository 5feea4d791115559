// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Takes what it can get while the limits change: puts each of the files in the place of the limits in turn, and prints
// what it got of the GPU from a tenth of a second after that on, for two seconds each. On a virtual clock.
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

// Time stands still for the device meanwhile: longer than the library goes without looking at its limits.
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
