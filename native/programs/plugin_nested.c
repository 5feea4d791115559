// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// An object whose constructor opens others in namespaces of their own while another thread does so too. The loader's
// lock is held while a constructor runs, so the other thread cannot go on before it ends. Built as a shared object.
//
//   NESTED_PLUGIN   what is opened
//   NESTED_FORKS    if it is set, a child of the constructor opens it, not the constructor itself

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int opened = -1;

static void *open_plugin(void *unused) {
    (void)unused;
    return dlmopen(LM_ID_NEWLM, getenv("NESTED_PLUGIN"), RTLD_NOW);
}

static int open_in_child(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(open_plugin(NULL) ? 0 : 1);
    }
    return waitpid(child, &status, 0) == child && status == 0;
}

__attribute__((constructor)) static void open_twice(void) {
    pthread_t other;
    pthread_create(&other, NULL, open_plugin, NULL);
    pthread_detach(other);
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL); // until the other thread waits for the loader
    opened = getenv("NESTED_FORKS") ? open_in_child() : open_plugin(NULL) != NULL;
}

int answer(void) { return opened; }
