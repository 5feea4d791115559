// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A process with the base of the library in it and no driver. It reads commands, one per line, that call limits,
// region, slots and devices, and answers each with numbers. After `fork` and `clone` a child reads on; the parent
// answers again when the child has read `leave`.

#include "base_all.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static void fork_and_wait(pid_t child) {
    if (child > 0) waitpid(child, NULL, 0);
}

// As if another thread of this process had begun to start the library.
static void go_half_way(void) {
    starter = (uint64_t)getpid() << 32 | 1;
    ct_started = ct_limited = false;
    naming = claiming = 1;
}

static void close_all(void) {
    for (int i = 3; i < 1024; i++) close(i);
}

// Lets enough time pass for the next look; errno must come out of it as it went in.
static uint64_t refresh(void) {
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    errno = 12345;
    ct_refresh_limits();
    return errno == 12345;
}

static uint64_t count_descriptors(void) {
    uint64_t open = 0;
    for (int i = 0; i < 1024; i++) open += fcntl(i, F_GETFD) >= 0;
    return open;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// A signal handler that has interrupted its own thread inside a biased lock, and asks for the same lock: 1 if it never gets
// in. Before this thread keeps the lock, at the moment when it becomes the keeper, and after it.
static uint64_t is_nested_refused(void) {
    static struct ct_biased lock;
    uint64_t kept_times = 0;
    for (int i = 0; i < 2000; i++) {
        struct ct_thread *keeper = ct_enter(&lock);
        if (ct_enter_as_keeper(&lock)) return 2;
        kept_times += keeper != NULL;
        ct_leave(&lock, keeper);
    }
    pid_t child = (pid_t)syscall(SYS_clone, 17, 0, 0, 0, 0); // 17: SIGCHLD; keeps what the parent keeps
    if (child == 0) {
        ct_enter(&lock);
        alarm(1); // ends it if it waits
        ct_enter(&lock);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return kept_times > 1000 ? 1 : 3;
    return 4;
}

#define BURSTS 40
static struct ct_biased busy;
static uint64_t plain_count; // changed without an atomic operation, inside `busy`

// Long bursts make a thread the keeper, short ones make the others take the lock away from it.
static void *burst(void *seed) {
    uint64_t done = 0, noise = (uintptr_t)seed;
    for (int i = 0; i < BURSTS; i++) {
        noise = noise * UINT64_C(6364136223846793005) + 1442695040888963407;
        for (uint64_t left = i % 2 ? 20000 : noise >> 60; left; left--, done++) {
            struct ct_thread *keeper = ct_enter(&busy);
            plain_count++;
            ct_leave(&busy, keeper);
            if (ct_reserve_quickly(0, 4096) || ct_reserve(0, CT_DEVICE, 4096))
                (void)(ct_release_quickly(0, 4096) || (ct_release(0, CT_DEVICE, 4096), true));
        }
    }
    return (void *)(uintptr_t)done;
}

// 1 if no change was lost between threads that take the locks from one another.
static uint64_t are_bursts_counted(void) {
    pthread_t threads[4];
    uint64_t expected = plain_count = 0, before = ct_own_bytes(0, CT_DEVICE);
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, burst, (void *)(i + 1));
    for (int i = 0; i < 4; i++) {
        void *done;
        pthread_join(threads[i], &done);
        expected += (uintptr_t)done;
    }
    return plain_count == expected && ct_own_bytes(0, CT_DEVICE) == before;
}

#define PICOSECONDS_OF(statement, out)                                       \
    for (int round = 0; round < 30; round++) {                               \
        uint64_t from = now_ns();                                            \
        for (int i = 0; i < 10000; i++) { statement; }                       \
        uint64_t one = (now_ns() - from) / 10;                               \
        if (round == 0 || one < (out)) (out) = one;                          \
    }

static uint64_t call(const char *word, const uint64_t *a, uint64_t *out) {
    int device = (int)a[0];
    if (!strcmp(word, "start")) return ct_start(), ct_limited;
    if (!strcmp(word, "reserve")) return ct_reserve(device, (enum ct_where)a[1], a[2]);
    if (!strcmp(word, "release")) return ct_release(device, (enum ct_where)a[1], a[2]), 1;
    if (!strcmp(word, "charge")) return ct_charge(device, (enum ct_where)a[1], a[2]), 1;
    if (!strcmp(word, "used")) return ct_used(device, (enum ct_where)a[1]);
    if (!strcmp(word, "refresh")) return refresh();
    if (!strcmp(word, "reap")) return ct_reap(), 1;
    if (!strcmp(word, "slot")) return (uint64_t)(ct_my_slot() - ct_region->slot);
    if (!strcmp(word, "private")) return ct_region == &ct_private_region;
    if (!strcmp(word, "faults")) return (ct_account.slot ? ct_account.slot->faults[a[0]] : 0) + ct_region->faults[a[0]];
    if (!strcmp(word, "fork")) return fork_and_wait(fork()), 1;
    if (!strcmp(word, "clone")) return fork_and_wait((pid_t)syscall(SYS_clone, 17, 0, 0, 0, 0)), 1; // 17: SIGCHLD
    if (!strcmp(word, "bursts")) return are_bursts_counted();
    if (!strcmp(word, "nested")) return is_nested_refused();
    if (!strcmp(word, "exec")) return (uint64_t)execl("/proc/self/exe", "again", NULL);
    if (!strcmp(word, "halfway")) return go_half_way(), 1;
    if (!strcmp(word, "closeall")) return close_all(), 1;
    if (!strcmp(word, "kept")) return kept >= 0;
    if (!strcmp(word, "descriptors")) return count_descriptors();
    if (!strcmp(word, "limits")) {
        out[1] = ct_limits_now[device].host;
        out[2] = (uint64_t)ct_limits_now[device].compute << 32 | ct_limits_now[device].paused << 16;
        out[2] |= (uint64_t)ct_policy_now << 8 | (uint64_t)ct_priority_now;
        return ct_limits_now[device].memory;
    }
    if (!strcmp(word, "cost")) {
        PICOSECONDS_OF((ct_reserve(0, CT_DEVICE, 4096), ct_release(0, CT_DEVICE, 4096)), out[0]);
        PICOSECONDS_OF(ct_refresh_limits(), out[1]);
        PICOSECONDS_OF(ct_used(0, CT_DEVICE), out[2]);
        return out[0];
    }
    return UINT64_MAX;
}

int main(void) {
    char line[256];
    setvbuf(stdin, NULL, _IONBF, 0); // a child must not find what its parent has read already
    while (fgets(line, sizeof line, stdin)) {
        char *word = strtok(line, " \n"), *next;
        if (!word || !strcmp(word, "leave")) _exit(0);
        if (!strcmp(word, "named")) {
            printf("%d 0 0\n", ct_device_of_uuid(strtok(NULL, " \n")));
        } else {
            uint64_t a[4] = {0}, out[3] = {0};
            for (int i = 0; i < 4 && (next = strtok(NULL, " \n")); i++) a[i] = strtoull(next, NULL, 0);
            out[0] = call(word, a, out);
            printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", out[0], out[1], out[2]);
        }
        fflush(stdout);
    }
    return 0;
}
