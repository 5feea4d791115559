// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds or makes the shared state, gives each process its slot, and takes back what ended processes have left.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared.h"

#define MAGIC (UINT64_C(0x53544e4400000000) | sizeof(struct si_state))
#define LOCK_BASE (INT64_C(1) << 40)
#define VIRTUAL_EPOCH UINT64_C(1000000000000)
#define ANCHOR_BYTES 4096
#define PROC_BYTES 4096
#define HOST_SPACE 0xEFFFFFFCu // inode of the PID namespace in which the machine booted

struct si_state *si_mapped;
void (*si_after_fork)(void);

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int own_slot = -1;
static pid_t owner; // the process that claimed it
static void *anchor; // its mapping keeps the lock on the slot

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static bool setting_is(const char *name, const char *word) {
    const char *text = getenv(name);
    return text && !strcmp(text, word);
}

static void make(struct si_state *state) {
    uint64_t devices = setting("STANDIN_DEVICES", 1), ms = 1000000;
    state->set = (struct si_settings){
        .devices = devices < 1 ? 1 : devices > SI_DEVICES ? SI_DEVICES : (uint32_t)devices,
        .parties = (uint32_t)setting("STANDIN_PARTIES", 1),
        .virtual_clock = setting_is("STANDIN_CLOCK", "virtual"),
        .round_robin = setting_is("STANDIN_ENGINE", "round-robin"),
        .overlap = setting("STANDIN_OVERLAP", 0) != 0,
        .quantum = setting("STANDIN_QUANTUM_NS", 2000000),
        .kernel = setting("STANDIN_KERNEL_NS", 0),
        .jitter = setting("STANDIN_JITTER_NS", 0),
        .nvml_window = setting("STANDIN_NVML_WINDOW_MS", 200) * ms,
        .nvml_lag = setting("STANDIN_NVML_LAG_MS", 0) * ms,
    };
    si_make_cards(&state->set);
    si_make_instances(state);
    if (!state->set.quantum) state->set.quantum = 1;
    if (!state->set.nvml_window) state->set.nvml_window = ms;
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &shared);
    pthread_mutexattr_destroy(&shared);
    state->now = VIRTUAL_EPOCH;
    state->served = state->set.virtual_clock ? VIRTUAL_EPOCH : si_real_now();
    state->magic = MAGIC;
}

static void fail(const char *what) {
    fprintf(stderr, "standin: %s: %s\n", what, strerror(errno));
    abort();
}

static int open_file(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) fail(path);
    return file;
}

static struct si_state *map(int file, int sharing) {
    void *at = mmap(NULL, sizeof(struct si_state), PROT_READ | PROT_WRITE, sharing | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) fail("the state cannot be mapped");
    return at;
}

static struct si_state *open_shared(const char *path) {
    int file = open_file(path);
    while (flock(file, LOCK_EX) && errno == EINTR)
        ; // held for the time it takes to make the state; a killed maker has left no magic
    struct stat found;
    if (!fstat(file, &found) && (size_t)found.st_size < sizeof(struct si_state) &&
        ftruncate(file, sizeof(struct si_state)))
        fail(path);
    struct si_state *state = map(file, MAP_SHARED);
    if (state->magic != MAGIC) make(state);
    flock(file, LOCK_UN); // closing would not: the mapping keeps what was opened
    close(file);
    return state;
}

// Private state is a private mapping with a name, so that both libraries of one process find the same.
static struct si_state *open_private(void) {
    char name[64], line[512];
    snprintf(name, sizeof name, "standin-%d-", (int)getpid());
    struct si_state *state = NULL;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !state && fgets(line, sizeof line, maps))
        if (strstr(line, name)) state = (struct si_state *)(uintptr_t)strtoull(line, NULL, 16);
    if (maps) fclose(maps);
    if (state) return state;
    int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(struct si_state))) fail("no memory for the state");
    state = map(file, MAP_PRIVATE);
    close(file);
    make(state);
    return state;
}

static void in_child(void) {
    const char *path = getenv("STANDIN_STATE");
    if (!path || !*path) si_mapped = NULL; // the parent's own; this process makes its own
    own_slot = -1;
    anchor = NULL; // not inherited
    pthread_mutex_init(&opening, NULL);
    si_clock_forked();
    if (si_after_fork) si_after_fork();
}

struct si_state *si_open(void) {
    static bool watching;
    pthread_mutex_lock(&opening);
    if (!si_mapped) {
        const char *path = getenv("STANDIN_STATE");
        if (!watching) watching = !pthread_atfork(NULL, NULL, in_child);
        struct si_state *state = path && *path ? open_shared(path) : open_private();
        __atomic_store_n(&si_mapped, state, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&opening);
    return si_mapped;
}

void si_lock(void) {
    struct si_state *state = si_state();
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&state->lock);
        si_reap_locked();
    }
}

void si_unlock(void) { pthread_mutex_unlock(&si_mapped->lock); }

static struct flock byte_of(unsigned slot) {
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + slot, .l_len = 1};
}

static void free_slot(struct si_state *state, unsigned slot) {
    si_finish_change(state, &state->slot[slot].change, slot);
    si_drop_shares(state, slot);
    si_give_back(state, slot);
    si_drop_parties(slot);
    for (unsigned lane = 0; lane < state->lanes; lane++) {
        struct si_lane *found = &state->lane[lane];
        if (!found->live || found->slot != slot) continue;
        found->front = found->tail = found->head;
        found->live = 0;
    }
    if (state->slot[slot].used) state->living--;
    state->slot[slot].used = 0;
}

void si_reap_locked(void) {
    struct si_state *state = si_state();
    const char *path = getenv("STANDIN_STATE");
    int file = path && *path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    si_finish_change(state, &state->reaping, SI_REAPER);
    for (unsigned slot = 0; slot < state->slots; slot++) {
        struct flock held = byte_of(slot);
        if (state->slot[slot].used && (int)slot != own_slot && !fcntl(file, F_OFD_GETLK, &held) &&
            held.l_type == F_UNLCK)
            free_slot(state, slot);
    }
    close(file);
}

void si_reap(void) {
    si_lock();
    si_reap_locked();
    si_unlock();
}

static bool hold(unsigned slot) {
    const char *path = getenv("STANDIN_STATE");
    if (!path || !*path) return true;
    struct flock lock = byte_of(slot);
    int file = open_file(path);
    bool held = !fcntl(file, F_OFD_SETLK, &lock);
    if (held) {
        anchor = mmap(NULL, ANCHOR_BYTES, PROT_READ, MAP_SHARED, file, 0);
        held = anchor != MAP_FAILED && !madvise(anchor, ANCHOR_BYTES, MADV_DONTFORK);
    }
    close(file);
    return held;
}

static void at_exit(void) {
    if (own_slot < 0) return;
    si_lock();
    free_slot(si_mapped, (unsigned)own_slot);
    own_slot = -1;
    si_unlock();
    if (anchor) munmap(anchor, ANCHOR_BYTES);
}

static bool is_on_host(void) {
    struct stat space;
    uint64_t host = setting("STANDIN_HOST_PIDS", 1);
    return !stat("/proc/self/ns/pid", &space) && space.st_ino == (host > 1 ? host : HOST_SPACE);
}

// Reads a file of a process.
static bool read_proc(const char *pid, const char *name, char text[PROC_BYTES]) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/%s", pid, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, PROC_BYTES - 1);
    if (file >= 0) close(file);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

static uint64_t start_time(const char *pid) {
    char text[PROC_BYTES];
    const char *at = read_proc(pid, "stat", text) ? strrchr(text, ')') : NULL;
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

// The number of a process's outermost mount, which no process of another container has.
static uint64_t first_mount(const char *pid) {
    char text[PROC_BYTES];
    return read_proc(pid, "mountinfo", text) ? strtoull(text, NULL, 10) : 0;
}

// The innermost of a process's numbers.
static uint32_t innermost_pid(const char *pid) {
    char text[PROC_BYTES];
    char *line = read_proc(pid, "status", text) ? strstr(text, "\nNSpid:") : NULL;
    if (!line) return 0;
    line[1 + strcspn(line + 1, "\n")] = 0;
    return (uint32_t)strtoul(strrchr(line, '\t') + 1, NULL, 10);
}

// In a PID namespace of its own a process still finds the host's number for it, if /proc is the host's. Otherwise a
// process of the host finds it later: `unknown` until then.
static void name_slot(struct si_slot *slot) {
    char text[32] = {0};
    slot->pid = (uint32_t)getpid();
    slot->unknown = 0;
    if (!setting("STANDIN_HOST_PIDS", 0) || is_on_host() || readlink("/proc/self", text, sizeof text - 1) <= 0) return;
    slot->unknown = strtoul(text, NULL, 10) == slot->pid;
    slot->started = start_time(text);
    slot->mount = first_mount(text);
    if (!slot->unknown) slot->pid = (uint32_t)strtoul(text, NULL, 10);
}

static void rename_slot(unsigned slot, uint32_t pid) {
    for (unsigned lane = 0; lane < si_mapped->lanes; lane++)
        if (si_mapped->lane[lane].live && si_mapped->lane[lane].slot == slot) si_mapped->lane[lane].pid = pid;
    si_mapped->slot[slot].pid = pid;
    si_mapped->slot[slot].unknown = 0;
}

static void find_slots_of(const char *pid) {
    uint32_t inner = innermost_pid(pid);
    uint64_t started = inner ? start_time(pid) : 0;
    for (unsigned slot = 0; inner && slot < si_mapped->slots; slot++) {
        struct si_slot *one = &si_mapped->slot[slot];
        bool meant = one->used && one->unknown && one->pid == inner && one->started == started;
        // Containers that start together have processes of the same number and, in clock ticks, the same age.
        if (meant && one->mount == first_mount(pid)) rename_slot(slot, (uint32_t)strtoul(pid, NULL, 10));
    }
}

void si_find_host_pids_locked(void) {
    bool any = false;
    for (unsigned slot = 0; slot < si_mapped->slots; slot++)
        any = any || (si_mapped->slot[slot].used && si_mapped->slot[slot].unknown);
    DIR *proc = any && is_on_host() ? opendir("/proc") : NULL;
    for (struct dirent *entry; proc && (entry = readdir(proc));)
        if (*entry->d_name >= '1' && *entry->d_name <= '9') find_slots_of(entry->d_name);
    if (proc) closedir(proc);
}

int si_claim_slot(void) {
    if (SI_LIKELY(own_slot >= 0)) return own_slot;
    si_lock();
    struct si_state *state = si_mapped;
    si_reap_locked();
    for (unsigned slot = 0; own_slot < 0 && slot < SI_SLOTS; slot++) {
        if (state->slot[slot].used || !hold(slot)) continue;
        struct si_slot *mine = &state->slot[slot];
        name_slot(mine);
        si_own_group(mine->group);
        owner = getpid();
        memset((void *)mine->uses, 0, sizeof mine->uses);
        mine->mps = 0;
        mine->used = 1;
        state->living++;
        if (slot >= state->slots) state->slots = slot + 1;
        own_slot = (int)slot;
    }
    si_unlock();
    if (own_slot < 0) fail("more processes than slots");
    return own_slot;
}

__attribute__((destructor)) static void leave(void) {
    if (si_mapped && own_slot >= 0 && owner == getpid()) at_exit();
}
