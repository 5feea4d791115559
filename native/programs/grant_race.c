// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A tenant whose limit is above its request: grant_race REQUEST_MIB LIMIT_MIB CHUNK_MIB ROUNDS SEED. In each round it
// grows to its request, in every third as far as it gets up to its limit, and frees most of it again; if its seed is
// odd, it frees all of it, and others have time to borrow that. Ends with 3 if it is refused within its request. Prints
// how often it was above its request, and the longest time that an allocation within its request took.

#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "share.h"

#define MIB (UINT64_C(1) << 20)
#define CHUNKS 4096

static CUdeviceptr chunks[CHUNKS];
static unsigned held;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

int main(int count, char **words) {
    if (count != 6) return 1;
    unsigned chunk = (unsigned)atoi(words[3]), rounds = (unsigned)atoi(words[4]);
    int seed = atoi(words[5]);
    unsigned request = (unsigned)atoi(words[1]) / chunk, limit = (unsigned)atoi(words[2]) / chunk, above = 0;
    uint64_t longest = 0;
    if (limit > CHUNKS) return 1;
    srand((unsigned)seed);
    share_start();
    for (unsigned round = 0; round < rounds; round++) {
        unsigned goal = round % 3 ? request : limit;
        while (held < goal) {
            uint64_t began = now();
            CUresult result = cuMemAlloc_v2(&chunks[held], chunk * MIB);
            uint64_t took = now() - began;
            if (result != CUDA_SUCCESS && held >= request) break;
            if (result != CUDA_SUCCESS) {
                printf("refused_with %u\nround %u\nlimit_ms %" PRIu64 "\n", held * chunk, round, took / 1000000);
                return 3;
            }
            if (held < request && took > longest) longest = took;
            held++;
        }
        above += held > request;
        nanosleep(&(struct timespec){.tv_nsec = rand() % 3000000}, NULL);
        unsigned keep = seed % 2 ? 0 : (unsigned)rand() % (request + 1);
        while (held > keep) CHECK(cuMemFree_v2(chunks[--held]));
        if (seed % 2) nanosleep(&(struct timespec){.tv_nsec = rand() % 100000000}, NULL);
    }
    printf("above %u\nlongest_us %" PRIu64 "\n", above, longest / 1000);
    return 0;
}
