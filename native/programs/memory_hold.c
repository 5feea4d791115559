// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes that each take as much as they get, one after the other: memory_hold PROCESSES MIB [wipe REGION
// [SIGNALS]]. With `wipe`, each overwrites the whole account of its slice before it takes anything, and gets so many
// signals a second. Prints how many MiB each one got, and what the driver has allocated in the end.

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "region.h"
#include "standin.h"

CUresult cuCtxSetCurrent(CUcontext context);

static void wipe(const char *path) {
    static char zeros[sizeof(struct ct_slot)];
    int file = open(path, O_RDWR);
    if (file < 0) exit(3);
    for (int slot = 0; slot < CT_SLOTS; slot++) // memory and what follows; the processes stay
        if (pwrite(file, zeros, 7 * 8 * CT_DEVICES, 4096 + slot * (off_t)sizeof zeros + 160) < 0) exit(3);
    close(file);
}

static void ignore(int signal) { (void)signal; }

static void signal_often(int times) {
    struct timeval pause = {.tv_usec = times ? 1000000 / times : 0};
    if (sigaction(SIGALRM, &(struct sigaction){.sa_handler = ignore, .sa_flags = SA_RESTART}, NULL) ||
        setitimer(ITIMER_REAL, &(struct itimerval){pause, pause}, NULL))
        exit(3);
}

static unsigned take(size_t bytes, const char *region) {
    CUcontext context;
    CUdeviceptr pointer;
    unsigned got = 0;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) exit(3);
    if (region) wipe(region);
    while (cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS) got++;
    return got;
}

int main(int count, char **words) {
    if (count < 3) return 1;
    int answers[2], processes = atoi(words[1]);
    size_t bytes = (size_t)atoi(words[2]) << 20;
    if (pipe(answers)) return 1;
    for (int i = 0; i < processes; i++) {
        unsigned got = 0;
        if (fork() == 0) {
            if (count > 5) signal_often(atoi(words[5]));
            got = take(bytes, count > 4 ? words[4] : NULL);
            signal_often(0);
            if (write(answers[1], &got, sizeof got) < 0) return 1;
            for (;;) pause();
        }
        if (read(answers[0], &got, sizeof got) != sizeof got) return 1;
        printf("got_%d %u\n", i, got * (unsigned)atoi(words[2]));
    }
    if (cuInit(0)) return 1;
    printf("peak %llu\n", (unsigned long long)standinPeak(0) >> 20);
    fflush(stdout);
    kill(0, 9);
    return 0;
}
