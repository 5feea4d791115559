// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Follows the limits file, the grants and the list of processes. A thread that calls a hook checks it, at most every 20 ms, since this library has no threads
// of its own; the same check keeps the region and our slot in it in order.

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "base.h"
#include "lock.h"

#define LOOK_NS UINT64_C(20000000)
#define REAP_NS UINT64_C(100000000)
#define SETTLED_NS 50000000
#define READINGS 4
#define INITIAL_SPACE 0xEFFFFFFCu // inode of the PID namespace in which the machine booted: PROC_PID_INIT_INO of Linux

struct ct_gpu_limits_now ct_limits_now[CT_DEVICES] = {
    [0 ... CT_DEVICES - 1] = {.memory = CT_UNLIMITED, .compute = CT_WHOLE}};
_Atomic int ct_policy_now;
_Atomic int ct_priority_now;
_Atomic bool ct_ignores_overhead;
_Atomic bool ct_limited;

// What tells one version of the file from another.
struct identity {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

// A file that is followed: its path, empty if there is none to follow, and what was read last.
struct followed {
    char path[CT_PATH_BYTES];
    struct identity last; // all zeros: there is no file
    uint64_t print;       // the same bytes are not counted as a fault again
};

static struct followed limits_file, grants_file, list_file;
static struct ct_limits limits, grants; // as they were read last
static bool has_grants;
static bool has_region;
static _Atomic uint64_t next_look;
static uint64_t next_reap;
static ct_lock looking; // guards every variable here that is not atomic
static char text[CT_LIMITS_BYTES + 1], again[CT_LIMITS_BYTES + 1];

// Which processes are of the slice; written under `looking`. A reader that finds `edition` odd, or changed after it has
// read, reads again.
static struct {
    _Atomic uint32_t edition;
    _Atomic bool is_expected; // the limits name a list
    _Atomic bool has_self; // else it is older than this process, and says nothing
    _Atomic uint32_t count;
    struct {
        _Atomic uint32_t host;
        _Atomic uint32_t own; // its ID in our PID namespace; 0: it is in another
        _Atomic bool is_self;
    } process[CT_PROCESSES];
} listed;

static struct identity identify(const struct stat *found) {
    return (struct identity){found->st_dev, found->st_ino, found->st_size, found->st_mtim};
}

static bool is_same_version(const struct identity *a, const struct identity *b) {
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

static void put_in_force(struct ct_gpu_limits_now *now, const struct ct_gpu_limits *limits) {
    now->memory = limits->memory;
    now->host = limits->host;
    now->request = limits->request;
    now->most = limits->most;
    now->compute = limits->compute;
    now->paused = limits->paused;
}

// Whether a line may be this process. A line without a namespace counts only if no second one has the same ID.
static bool is_me(const struct ct_process *one, uint64_t own_space) {
    return one->pid == (uint32_t)getpid() && (one->space == own_space || one->space == 0);
}

// No list: NULL.
static void list_processes(const struct ct_process_list *list) {
    struct stat space = {0};
    uint64_t own_space = ct_stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
    uint32_t count = list ? list->count : 0, mine = 0;
    for (uint32_t i = 0; i < count; i++) mine += is_me(&list->process[i], own_space);
    listed.edition++;
    listed.has_self = mine == 1;
    listed.count = count;
    for (uint32_t i = 0; i < count; i++) {
        bool is_here = list->process[i].space == own_space || list->process[i].space == 0;
        listed.process[i].host = list->process[i].host;
        listed.process[i].own = is_here ? list->process[i].pid : 0;
        listed.process[i].is_self = mine == 1 && is_me(&list->process[i], own_space);
    }
    listed.edition++;
}

bool ct_sees_host_pids(void) {
    struct stat space;
    return ct_stat("/proc/self/ns/pid", &space) == 0 && space.st_ino == INITIAL_SPACE;
}

bool ct_knows_processes(void) { return listed.has_self || ct_sees_host_pids(); }

bool ct_has_list(void) { return listed.is_expected; }

enum ct_relation ct_relation_of(uint32_t host_pid) {
    for (int i = 0; i < READINGS; i++) {
        uint32_t edition = listed.edition, count = listed.count;
        enum ct_relation relation = listed.has_self ? CT_STRANGER : CT_UNLISTED;
        for (uint32_t at = 0; at < count && at < CT_PROCESSES && relation == CT_STRANGER; at++)
            if (listed.process[at].host == host_pid) relation = listed.process[at].is_self ? CT_SELF : CT_SIBLING;
        if (edition % 2 == 0 && edition == listed.edition) return relation;
    }
    return CT_STRANGER;
}

uint32_t ct_listed_pid(uint32_t host_pid) {
    for (int i = 0; i < READINGS; i++) {
        uint32_t edition = listed.edition, count = listed.count, own = 0;
        for (uint32_t at = 0; at < count && at < CT_PROCESSES && !own; at++)
            if (listed.process[at].host == host_pid) own = listed.process[at].own;
        if (edition % 2 == 0 && edition == listed.edition) return own;
    }
    return 0;
}

// The limits of one GPU with what is granted there at present.
static struct ct_gpu_limits with_grant(const struct ct_gpu_limits *own) {
    struct ct_gpu_limits both = *own;
    for (uint32_t i = 0; has_grants && i < grants.gpus; i++) {
        const struct ct_gpu_limits *grant = &grants.gpu[i];
        if (strcmp(grant->uuid, own->uuid) != 0) continue;
        both.compute = grant->compute;
        if (!own->request || !grant->request) continue;
        both.memory = grant->memory;
        both.request = grant->request;
        both.most = grant->most;
    }
    return both;
}

static void apply(void) {
    bool is_named[CT_DEVICES] = {false};
    for (uint32_t i = 0; i < limits.gpus; i++) {
        int device = ct_name_device(limits.gpu[i].uuid);
        if (device < 0) continue;
        is_named[device] = true;
        struct ct_gpu_limits both = with_grant(&limits.gpu[i]);
        put_in_force(&ct_limits_now[device], &both);
    }
    for (int i = 0; i < CT_DEVICES; i++) {
        if (!is_named[i]) put_in_force(&ct_limits_now[i], &limits.fallback);
    }
    ct_policy_now = (int)limits.policy;
    ct_priority_now = (int)limits.priority;
    ct_ignores_overhead = limits.ignores_overhead;
    ct_forget_margins();
}

static ssize_t read_from_start(int file, char *to) {
    size_t length = 0;
    while (length < sizeof text) {
        ssize_t more = pread(file, to + length, sizeof text - length, (off_t)length);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) return more < 0 ? -1 : (ssize_t)length;
        length += (size_t)more;
    }
    return (ssize_t)length;
}

// Reads until two readings agree: a writer that changes the file in place is noticed here, not by the parser.
static ssize_t read_steadily(int file) {
    for (int i = 0; i < READINGS; i++) {
        ssize_t length = read_from_start(file, text);
        if (length < 0) return -1;
        if (read_from_start(file, again) == length && memcmp(text, again, (size_t)length) == 0) return length;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return -1;
}

// Two changes within one tick of the file system's clock have the same time, so a recent file may change unnoticed.
static bool may_change_unseen(const struct timespec *changed) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t age = (now.tv_sec - changed->tv_sec) * INT64_C(1000000000) + (now.tv_nsec - changed->tv_nsec);
    return age >= 0 && age < SETTLED_NS;
}

static uint64_t fingerprint(size_t length) {
    uint64_t print = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++) print = (print ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return print ^ length;
}

static bool read_grants(void);

// These put in force what they parse.
static enum ct_parsed take_limits(size_t length) {
    enum ct_parsed parsed = ct_parse_limits(text, length, &limits);
    if (parsed != CT_PARSED) return parsed;
    if (strcmp(list_file.path, limits.processes) != 0) {
        strcpy(list_file.path, limits.processes);
        listed.is_expected = *list_file.path;
        list_processes(NULL);
    }
    if (!has_region && *limits.region) ct_open_region(limits.region);
    has_region = true; // only once: what was counted in the first region would have to move
    if (strcmp(grants_file.path, limits.grants) != 0) {
        strcpy(grants_file.path, limits.grants);
        read_grants(); // before the limits are in force, which would be lower without
    }
    apply();
    return parsed;
}

static enum ct_parsed take_grants(size_t length) {
    enum ct_parsed parsed = ct_parse_limits(text, length, &grants);
    has_grants = parsed == CT_PARSED;
    return parsed;
}

static enum ct_parsed take_list(size_t length) {
    struct ct_process_list list;
    enum ct_parsed parsed = ct_parse_processes(text, length, &list);
    list_processes(parsed == CT_PARSED ? &list : NULL);
    return parsed;
}

// False: it could not be read, and is read again at the next look.
static bool read_file(struct followed *from, int file, const struct stat *found, enum ct_parsed (*take)(size_t)) {
    ssize_t length = S_ISREG(found->st_mode) ? read_steadily(file) : 0;
    if (length < 0) {
        ct_count_fault(CT_FAULT_LIMITS_CHANGING);
        return false;
    }
    from->last = identify(found);
    if (may_change_unseen(&found->st_mtim)) from->last.size = -1;
    uint64_t print = fingerprint((size_t)length);
    enum ct_parsed parsed = take((size_t)length);
    if (parsed != CT_PARSED && print != from->print)
        ct_count_fault(parsed == CT_PARSE_BAD ? CT_FAULT_LIMITS_BAD : CT_FAULT_LIMITS_VERSION);
    from->print = print;
    return true;
}

// False: there is a file, and it could not be read: the limits in force may be older, and it is read again at the next
// look. A process without free descriptors cannot open it.
static bool read_limits(void) {
    static bool is_missing;
    struct stat found;
    struct followed *from = &limits_file;
    int file = open(from->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool is_open = file >= 0 && ct_fstat(file, &found) == 0, is_read;
    if (is_open) {
        is_read = read_file(from, file, &found, take_limits);
    } else {
        if (!is_missing) ct_count_fault(CT_FAULT_LIMITS_MISSING); // counted once, not at every look
        from->last = (struct identity){0};
        is_read = ct_stat(from->path, &found) != 0;
    }
    is_missing = !is_open;
    if (file >= 0) close(file);
    return is_read;
}

static bool has_changed(const struct followed *from) {
    struct stat found;
    struct identity there = {0};
    if (ct_stat(from->path, &found) == 0) there = identify(&found);
    return !is_same_version(&there, &from->last);
}

// A file of the agent: only what root or this user has written counts. False: there is one, and it could not be read.
// That it is missing is no fault: the agent may not have looked yet.
static bool read_of_agent(struct followed *from, enum ct_parsed (*take)(size_t), void (*lack)(void)) {
    struct stat found;
    int file = open(from->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    bool is_open = file >= 0, is_read = true;
    if (is_open && ct_fstat(file, &found) == 0 && (found.st_uid == 0 || found.st_uid == geteuid()) &&
        !(found.st_mode & (S_IWGRP | S_IWOTH))) {
        is_read = read_file(from, file, &found, take);
    } else {
        is_read = is_open || ct_stat(from->path, &found) != 0;
        from->last = (struct identity){0};
        lack();
    }
    if (is_open) close(file);
    return is_read;
}

static void lack_list(void) { list_processes(NULL); }

static void read_list(void) { read_of_agent(&list_file, take_list, lack_list); }

static void lack_grants(void) { has_grants = false; }

static bool read_grants(void) {
    if (*grants_file.path) return read_of_agent(&grants_file, take_grants, lack_grants);
    has_grants = false;
    return true;
}

// False: they have changed and could not be read.
static bool confirm_grants(void) {
    if (!*grants_file.path || !has_changed(&grants_file)) return true;
    bool is_read = read_grants();
    apply();
    return is_read;
}

void ct_follow_limits(const char *from) {
    strcpy(limits_file.path, from);
    read_limits();
    if (*list_file.path) read_list();
}

void ct_forget_reading(void) {
    listed.edition = 0;
    listed.has_self = false; // it was the parent
    ct_set_free(&looking);
}

// A pause ends if the file was not touched for CT_PAUSE_SECONDS: the process that touches it may have been killed. A
// time as far in the future ends it too: the clock was set back since.
static void end_old_pause(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    int64_t age = now.tv_sec - limits_file.last.changed.tv_sec;
    if (-CT_PAUSE_SECONDS <= age && age <= CT_PAUSE_SECONDS) return;
    for (int i = 0; i < CT_DEVICES; i++) ct_limits_now[i].paused = 0;
}

static void look(uint64_t now) {
    ct_check_region(); // first of all, since the rest may write there
    ct_check_slot();
    if (has_changed(&limits_file)) read_limits();
    confirm_grants();
    if (*list_file.path && has_changed(&list_file)) read_list();
    end_old_pause();
    ct_my_slot()->beat = now;
    if (now < next_reap) return;
    next_reap = now + REAP_NS;
    ct_reap();
}

void ct_refresh_limits(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    uint64_t now = (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
    if (__builtin_expect(now < atomic_load_explicit(&next_look, memory_order_relaxed), 1) || !ct_limited) return;
    if (atomic_exchange(&looking, 1)) return;
    struct ct_thread_state before = ct_save_thread();
    next_look = now + LOOK_NS;
    look(now);
    ct_set_free(&looking);
    ct_restore_thread(before);
}

bool ct_confirm_limits(void) {
    struct ct_thread_state before = ct_save_thread();
    ct_acquire(&looking);
    bool is_read = !has_changed(&limits_file) || read_limits();
    is_read = confirm_grants() && is_read;
    ct_set_free(&looking);
    ct_restore_thread(before);
    return is_read;
}
