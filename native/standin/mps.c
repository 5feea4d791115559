// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A process as a client of MPS: it finds the control daemon (mps_control.py) when it initialises, is told its share and
// its memory limits by the server, and stays connected. If the server ends, or tells it an error, all its contexts die.

#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "driver.h"

#define PATIENCE_S 20
#define LONGEST 4096
#define WHOLE 100.0

_Atomic int si_lost;
static int server = -1;
static double percent = WHOLE;
static _Atomic uint64_t not_before; // when the next kernel may be launched

static int connected_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    if (strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (line < 0) return -1;
    setsockopt(line, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (!connect(line, (struct sockaddr *)&address, sizeof address)) return line;
    close(line);
    return -1;
}

static bool ask(int line, const char *question, char answer[LONGEST]) {
    ssize_t length = send(line, question, strlen(question), MSG_NOSIGNAL) < 0 ? -1 : recv(line, answer, LONGEST - 1, 0);
    answer[length > 0 ? length : 0] = 0;
    return length > 0;
}

static void lose(int error) {
    si_lost = error;
    si_end_contexts();
}

static void *watch(void *unused) {
    char said[LONGEST];
    ssize_t length;
    while ((length = recv(server, said, sizeof said - 1, 0)) < 0)
        ; // it only times out: nothing to say
    said[length] = 0;
    lose(length && !strncmp(said, "error ", 6) ? atoi(said + 6) : CUDA_ERROR_MPS_RPC_FAILURE);
    return unused;
}

// "0=1048576,1=2097152": bytes by ordinal.
static void take_limits(char *text) {
    for (char *word; (word = strsep(&text, ","));) {
        char *amount = strchr(word, '=');
        int device = amount ? si_physical(atoi(word)) : -1;
        if (device >= 0) si_most[device] = strtoull(amount + 1, NULL, 10);
    }
}

static CUresult join(const char *path) {
    char said[LONGEST], hello[LONGEST];
    const char *share = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *most = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    server = connected_to(path);
    if (server < 0) return CUDA_ERROR_MPS_CONNECTION_FAILED;
    snprintf(hello, sizeof hello, "hello %s %s", share ? share : "", most ? most : "");
    if (!ask(server, hello, said)) return CUDA_ERROR_MPS_RPC_FAILURE;
    if (strncmp(said, "ok ", 3)) return (CUresult)atoi(said + sizeof "error");
    char *limits = strchr(said + 3, ' ');
    percent = atof(said + 3);
    if (limits) take_limits(limits + 1);
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the program's own threads
    bool watched = !pthread_create(&thread, NULL, watch, NULL) && !pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    si_mapped->slot[si_claim_slot()].mps = 1;
    return watched ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Without a control daemon the program goes on without MPS.
CUresult si_join_mps(void) {
    char path[LONGEST], said[LONGEST];
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!folder || !*folder || server >= 0) return CUDA_SUCCESS;
    snprintf(path, sizeof path, "%s/control", folder);
    int control = connected_to(path);
    if (control < 0) return CUDA_SUCCESS;
    bool answered = ask(control, "connect", said);
    close(control);
    if (!answered) return CUDA_ERROR_MPS_CONNECTION_FAILED;
    CUresult result = !strncmp(said, "error ", 6) ? (CUresult)atoi(said + 6) : join(said);
    if (result != CUDA_SUCCESS && server >= 0) close(server), server = -1;
    return result;
}

bool si_is_mps_client(void) { return server >= 0; }

void si_leave_mps(void) {
    if (server >= 0) close(server);
    server = -1;
    si_lost = 0;
    percent = WHOLE;
    memset(si_most, 0, sizeof si_most);
}

// A kernel of a client with half of the threads keeps it busy for twice as long, while others can run.
void si_hold_share(uint64_t length) {
    if (SI_LIKELY(percent >= WHOLE)) return;
    uint64_t now = si_now(), begin = not_before;
    if (begin > now) si_wait(begin, 0);
    not_before = (begin > now ? begin : now) + (uint64_t)((double)length * WHOLE / percent);
}

CUresult si_fault(void) {
    if (server >= 0) send(server, "fault", 5, MSG_NOSIGNAL);
    lose(CUDA_ERROR_LAUNCH_FAILED);
    return CUDA_ERROR_LAUNCH_FAILED;
}
