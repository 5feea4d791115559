// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Many processes in one slice at once, with the base of the library in them and no driver.
//
//   base_crowd full N        N children take 1 MiB each and stay; prints how many are in the region, and what is used
//   base_crowd storm N       N children are killed while they allocate; prints what is left of them
//   base_crowd threads N R   N threads of one process allocate and free, R times each; prints the rest, and the peak
//   base_crowd race N R B    N children want B bytes each, R times; prints the most and fewest that had them at once

#include "base_all.h"

#include <pthread.h>
#include <signal.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>

#define MOST 512
#define MIB (UINT64_C(1) << 20)

static pid_t children[MOST];

static void end(int number) {
    kill(children[number], SIGKILL);
    waitpid(children[number], NULL, 0);
}

static int full(int count) {
    int answers[2], shared = 0, granted = 0;
    if (count > MOST || pipe(answers) != 0) return 2;
    ct_my_slot();
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            char answer[2] = {(char)ct_reserve(0, CT_DEVICE, MIB), ct_region != &ct_private_region};
            if (write(answers[1], answer, sizeof answer) < 0) _exit(1);
            for (;;) pause();
        }
        char answer[2] = {0};
        if (read(answers[0], answer, sizeof answer) != sizeof answer) return 2;
        granted += answer[0];
        shared += answer[1];
    }
    printf("granted %d\nshared %d\nused %llu\n", granted, shared, (unsigned long long)ct_used(0, CT_DEVICE));
    printf("slots_faults %llu\n", (unsigned long long)ct_region->faults[CT_FAULT_SLOTS]);
    for (int i = 0; i < count; i++) end(i);
    ct_reap();
    printf("left %llu\nhigh %u\n", (unsigned long long)ct_used(0, CT_DEVICE), ct_region->high);
    return 0;
}

static _Noreturn void take_and_give(unsigned seed) {
    for (;;) {
        seed = seed * 1103515245 + 12345;
        uint64_t bytes = (seed >> 16 & 63) * MIB;
        if (ct_reserve(0, CT_DEVICE, bytes) && seed & 1 << 8) ct_release(0, CT_DEVICE, bytes);
    }
}

static int storm(int kills) {
    enum { TOGETHER = 6 };
    unsigned hit = 0;
    for (int i = 0; i < kills + TOGETHER; i++) {
        int number = i % TOGETHER;
        if (i >= TOGETHER) end(number);
        if (i >= kills) continue;
        children[number] = fork();
        if (children[number] == 0) take_and_give((unsigned)i);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        hit += ct_used(0, CT_DEVICE) > 0;
    }
    ct_reap();
    printf("hit %u\nleft %llu\n", hit, (unsigned long long)ct_used(0, CT_DEVICE));
    printf("whole %d\n", ct_reserve(0, CT_DEVICE, ct_limits_now[0].memory));
    return 0;
}

static struct {
    _Atomic int at[3]; // how many have come to each of three points of a round; one is cleared while another fills
    _Atomic int holding, most, fewest;
} *course;

static void meet(int point, int count) {
    atomic_fetch_add(&course->at[point], 1);
    while (course->at[point] % count != 0) sched_yield();
}

static void run_race(int number, int count, int rounds, uint64_t bytes) {
    for (int i = 0; i < rounds; i++) {
        meet(0, count);
        bool has = ct_reserve(0, CT_DEVICE, bytes);
        int holding = has ? atomic_fetch_add(&course->holding, 1) + 1 : 0, most = course->most;
        while (holding > most && !atomic_compare_exchange_weak(&course->most, &most, holding)) continue;
        meet(1, count);
        if (number == 0 && course->holding < course->fewest) course->fewest = course->holding;
        meet(2, count);
        if (has) atomic_fetch_sub(&course->holding, 1);
        if (has) ct_release(0, CT_DEVICE, bytes);
    }
}

static int race(int count, int rounds, uint64_t bytes) {
    course = mmap(NULL, sizeof *course, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    course->fewest = count;
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            run_race(i, count, rounds, bytes);
            _exit(0);
        }
    }
    for (int i = 0; i < count; i++) waitpid(children[i], NULL, 0);
    printf("most %d\nfewest %d\n", course->most, course->fewest);
    return 0;
}

static _Atomic uint64_t granted; // on the first GPU

static void *take_in_thread(void *rounds) {
    char uuid[] = "GPU-x";
    for (int i = 0; i < *(int *)rounds; i++) {
        ct_refresh_limits();
        uuid[4] = (char)('a' + i % 4);
        bool has = ct_reserve(ct_device_of_uuid(uuid), CT_DEVICE, MIB) && ct_reserve(0, CT_DEVICE, MIB);
        // What was granted counts: ct_used also has what others only announce and are about to take back.
        if (has && atomic_fetch_add(&granted, MIB) + MIB > ct_limits_now[0].memory) abort();
        sched_yield();
        if (has) atomic_fetch_sub(&granted, MIB);
        if (has) ct_release(0, CT_DEVICE, MIB);
        if (has) ct_release(ct_device_of_uuid(uuid), CT_DEVICE, MIB);
    }
    return NULL;
}

static int run_threads(int count, int rounds) {
    pthread_t threads[MOST];
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, take_in_thread, &rounds);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    printf("left %llu\n", (unsigned long long)ct_used(0, CT_DEVICE));
    printf("peak %llu\n", (unsigned long long)ct_my_slot()->peak[0]);
    return 0;
}

int main(int argc, char **argv) {
    ct_start();
    if (argc == 3 && !strcmp(argv[1], "full")) return full(atoi(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "storm")) return storm(atoi(argv[2]));
    if (argc == 4 && !strcmp(argv[1], "threads")) return run_threads(atoi(argv[2]), atoi(argv[3]));
    if (argc == 5 && !strcmp(argv[1], "race")) return race(atoi(argv[2]), atoi(argv[3]), strtoull(argv[4], NULL, 0));
    return 2;
}
