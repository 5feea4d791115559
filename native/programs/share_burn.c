// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Uses as much of a GPU as it gets, and prints how much that was after the first moments.
//
//   share_burn [NAME=VALUE ...]     names and what they are without: see `given`

#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "share.h"

static struct {
    char mode[16];         // kernel, graph, cooperative, per-thread, variable
    unsigned long long ns; // device time of one launch
    unsigned grid;
    unsigned sync;    // launches between two synchronisations; 0: none
    unsigned streams;
    unsigned seconds;
    unsigned settle; // seconds that are not measured
    unsigned die;    // seconds until it kills itself in mid-work; 0: never
    unsigned queue;  // launches of 100 ms just before that
    unsigned idle;   // 1: it has a context and launches nothing
    char wait[512];  // a file: begins when it exists
} given = {"kernel", 1000000, 864, 0, 1, 12, 2, 0, 0, 0, ""};

static void take(const char *argument) {
    const char *value = strchr(argument, '=');
    size_t length = value ? (size_t)(value - argument) : 0;
    if (!value++) exit(2);
    unsigned long long number = strtoull(value, NULL, 0);
#define NUMBER(name) \
    if (length == sizeof #name - 1 && !memcmp(argument, #name, length)) given.name = number
    NUMBER(ns);
    NUMBER(grid);
    NUMBER(sync);
    NUMBER(streams);
    NUMBER(seconds);
    NUMBER(settle);
    NUMBER(die);
    NUMBER(queue);
    NUMBER(idle);
    if (length == 4 && !memcmp(argument, "wait", 4)) snprintf(given.wait, sizeof given.wait, "%s", value);
    if (length == 4 && !memcmp(argument, "mode", 4)) snprintf(given.mode, sizeof given.mode, "%s", value);
}

static bool is(const char *mode) { return strcmp(given.mode, mode) == 0; }

static CUfunction function;
static CUgraphExec graph;
static CUstream streams[STREAMS];

static CUresult launch(CUstream stream) {
    static uint32_t random = 1;
    uint64_t cost = given.ns / 10 + (random = random * 1664525 + 1013904223) % (given.ns * 18 / 10); // its mean is ns
    void *parameters[] = {&cost};
    if (is("graph")) return cuGraphLaunch(graph, stream);
    if (is("cooperative")) return cuLaunchCooperativeKernel(function, given.grid, 1, 1, 128, 1, 1, 0, stream, NULL);
    if (is("per-thread")) return cuLaunchKernel_ptsz(function, given.grid, 1, 1, 128, 1, 1, 0, stream, NULL, NULL);
    if (is("variable")) return cuLaunchKernel(function, given.grid, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
    return share_launch(function, given.grid, stream);
}

static void prepare(void) {
    share_start();
    uint64_t each = given.ns / (is("graph") ? GRAPH_KERNELS : 1);
    function = is("variable") ? share_function("ns_parameter") : share_kernel(each);
    if (is("graph")) graph = share_graph(function, given.grid);
    if (given.streams > 1)
        for (unsigned i = 0; i < given.streams && i < STREAMS; i++) CHECK(cuStreamCreate(&streams[i], 1));
}

static void die(void) {
    CUfunction slow = share_kernel(100000000);
    for (unsigned i = 0; i < given.queue; i++) CHECK(share_launch(slow, 1, NULL));
    kill(getpid(), SIGKILL);
}

static void wait_for_file(void) {
    size_t available, total;
    if (!*given.wait) return;
    CHECK(cuMemGetInfo_v2(&available, &total)); // the library begins its work, and maps the region
    while (access(given.wait, F_OK) != 0) usleep(5000);
    usleep(50000); // longer than the library keeps what it has read of the limits
}

// As the stand-in knows this process.
static unsigned own_pid(void) {
    char text[32] = {0};
    if (!getenv("STANDIN_HOST_PIDS") || readlink("/proc/self", text, sizeof text - 1) <= 0) return (unsigned)getpid();
    return (unsigned)strtoul(text, NULL, 10);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) take(argv[i]);
    prepare();
    wait_for_file();
    standinJoin();
    uint64_t began = standinNow(), end = began + given.seconds * SECOND, longest = 0;
    unsigned long long launches = 0;
    for (uint64_t before; (before = standinNow()) < end;) {
        if (given.idle) {
            standinSleepUntil(end);
            break;
        }
        CHECK(launch(streams[launches % given.streams]));
        if (standinNow() - before > longest) longest = standinNow() - before;
        launches++;
        if (given.sync && launches % given.sync == 0) CHECK(cuCtxSynchronize());
        if (given.die && before > began + given.die * SECOND) die();
    }
    standinLeave();
    unsigned pid = own_pid();
    printf("share %llu\n", share_of(pid, began + given.settle * SECOND, end));
    printf("first %llu\n", share_of(pid, began, began + SECOND));
    printf("launches %llu\nlongest %llu\n", launches, (unsigned long long)longest);
    return 0;
}
