// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Opens the slice's region and keeps the account in it. Whatever is wrong with the file, the job goes on: the account
// is then private to the process, and the limits apply to each process alone.
//
// A tenant that truncates its own file while it is mapped can have its processes killed by the kernel (SIGBUS), if they
// use it before ct_check_region notices: within 20 ms of the last check. Only a handler for that signal would help, and
// signal handlers belong to the program.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "base.h"
#include "lock.h"

#ifndef RESERVE_TRIES
#define RESERVE_TRIES 6
#endif
#define LARGEST (UINT64_C(1) << 60) // no GPU has so much; sums of larger numbers would wrap

struct ct_measured ct_measured[CT_DEVICES];
struct ct_region ct_private_region;
struct ct_region *_Atomic ct_region = &ct_private_region;
struct ct_account ct_account;
static ct_lock margins; // guards changes of ct_account.margin

static struct {
    char path[CT_PATH_BYTES];
    dev_t device;
    ino_t inode;
} file;

static bool is_usable(int descriptor, struct stat *found) {
    if (ct_fstat(descriptor, found) != 0 || !S_ISREG(found->st_mode)) return false;
    if (found->st_size != sizeof(struct ct_region)) return false;
    if (found->st_uid != 0 && found->st_uid != geteuid()) return false;
    struct ct_region head;
    size_t length = offsetof(struct ct_region, created);
    if (pread(descriptor, &head, length, 0) != (ssize_t)length) return false;
    if (head.magic != CT_REGION_MAGIC || head.version != CT_REGION_VERSION || head.header_bytes != 4096) return false;
    if (head.slot_bytes != sizeof(struct ct_slot) || head.slots != CT_SLOTS) return false;
    // A hole in the file is filled when it is first written to, and on a full disk that kills the process.
    if (found->st_blocks * 512 >= found->st_size) return true;
    return fallocate(descriptor, 0, 0, found->st_size) == 0 || errno == EOPNOTSUPP;
}

static struct ct_region *map(const char *path) {
    int descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) return NULL;
    struct stat found;
    void *there = MAP_FAILED;
    if (is_usable(descriptor, &found)) {
        there = mmap(NULL, sizeof(struct ct_region), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        file.device = found.st_dev;
        file.inode = found.st_ino;
    }
    close(descriptor);
    return there == MAP_FAILED ? NULL : there;
}

void ct_open_region(const char *path) {
    struct ct_region *region = map(path);
    if (!region) {
        ct_count_fault(CT_FAULT_REGION);
        return;
    }
    strcpy(file.path, path);
    for (int i = 0; i < CT_FAULTS; i++) region->faults[i] += ct_private_region.faults[i];
    ct_region = region;
    ct_leave_slot();
}

static bool is_same(const struct stat *found) {
    return found->st_dev == file.device && found->st_ino == file.inode && found->st_size == sizeof(struct ct_region);
}

bool ct_is_region(int descriptor) {
    struct stat found;
    return ct_fstat(descriptor, &found) == 0 && is_same(&found);
}

bool ct_describe_region(char *text, size_t size) {
    if (ct_region == &ct_private_region) return false;
    snprintf(text, size, " %02x:%02x %llu ", major(file.device), minor(file.device), (unsigned long long)file.inode);
    return true;
}

int ct_open_region_again(void) {
    int descriptor = open(file.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0 || ct_is_region(descriptor)) return descriptor;
    close(descriptor);
    return -1;
}

void ct_use_private_region(void) {
    ct_region = &ct_private_region;
    ct_leave_slot();
}

void ct_check_region(void) {
    struct stat found;
    if (ct_region == &ct_private_region || ct_stat(file.path, &found) != 0) return;
    bool is_shorter = found.st_size < (off_t)sizeof(struct ct_region);
    if (!is_shorter || found.st_dev != file.device || found.st_ino != file.inode) return;
    ct_use_private_region();
    ct_count_fault(CT_FAULT_REGION);
}

static int set_lock(int descriptor, int64_t byte, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &lock);
}

bool ct_lock_byte(int descriptor, int64_t byte) {
    return set_lock(descriptor, byte, F_WRLCK) == 0;
}

void ct_unlock_byte(int descriptor, int64_t byte) {
    set_lock(descriptor, byte, F_UNLCK);
}

static _Atomic uint64_t *account(struct ct_slot *slot, enum ct_where where) {
    return where == CT_DEVICE ? slot->memory : slot->host;
}

static inline uint64_t counted_by_others(const struct ct_slot *mine, int device, enum ct_where where, uint64_t sum) {
    struct ct_region *region = ct_region;
    uint32_t high = region->high < CT_SLOTS ? region->high : CT_SLOTS;
    for (uint32_t i = 0; i < high; i++) {
        struct ct_slot *slot = &region->slot[i];
        uint64_t bytes = slot == mine ? 0 : account(slot, where)[device];
        if (__builtin_add_overflow(sum, bytes, &sum)) return UINT64_MAX;
    }
    return sum;
}

// The others' use is what the region says and what no account has, and at least what NVML last said; our own is what
// this process knows, whatever the region says.
static inline uint64_t used_by_others(const struct ct_slot *mine, int device, enum ct_where where) {
    if (where == CT_HOST) return counted_by_others(mine, device, where, 0);
    const struct ct_measured *measured = &ct_measured[device];
    uint64_t uncounted = atomic_load_explicit(&measured->uncounted, memory_order_relaxed);
    uint64_t least = atomic_load_explicit(&measured->by_others, memory_order_relaxed);
    uint64_t sum = counted_by_others(mine, device, where, uncounted);
    return sum > least ? sum : least;
}

// The slot is read inside, since the region may just have become private.
static uint64_t raise_use(int device, enum ct_where where, uint64_t bytes) {
    struct ct_thread *keeper = ct_enter(&ct_account.lock);
    uint64_t mine = ct_own_bytes(device, where) + bytes;
    ct_show_use(ct_my_slot(), device, where, mine);
    ct_leave(&ct_account.lock, keeper);
    return mine;
}

// What is shown a moment late is only too much, so this needs no fence.
static void lower_use(int device, enum ct_where where, uint64_t bytes) {
    struct ct_thread *keeper = ct_enter(&ct_account.lock);
    uint64_t mine = ct_own_bytes(device, where);
    ct_show_use(ct_my_slot(), device, where, mine > bytes ? mine - bytes : 0);
    ct_leave(&ct_account.lock, keeper);
}

// `granted` is the use when the bytes were granted: a moment later another thread may have announced bytes that it will
// not get. True: there was as much before.
static bool note_peak(struct ct_slot *slot, int device, enum ct_where where, uint64_t granted) {
    uint64_t now = granted + ct_own_bytes(device, where == CT_DEVICE ? CT_HOST : CT_DEVICE);
    uint64_t peak = atomic_load_explicit(&slot->peak[device], memory_order_relaxed);
    if (now <= peak) return true;
    while (now > peak && !atomic_compare_exchange_weak(&slot->peak[device], &peak, now)) continue;
    return false;
}

void ct_charge(int device, enum ct_where where, uint64_t bytes) {
    if (device < 0 || device >= CT_DEVICES) return;
    uint64_t mine = raise_use(device, where, bytes);
    if (where == CT_HOST) ct_forget_margins();
    note_peak(ct_my_slot(), device, where, mine);
}

void ct_release(int device, enum ct_where where, uint64_t bytes) {
    if (device >= 0 && device < CT_DEVICES) lower_use(device, where, bytes);
}

uint64_t ct_used(int device, enum ct_where where) {
    if (device < 0 || device >= CT_DEVICES) return 0;
    uint64_t others = used_by_others(ct_my_slot(), device, where), sum;
    return __builtin_add_overflow(others, ct_own_bytes(device, where), &sum) ? UINT64_MAX : sum;
}

uint64_t ct_counted(int device) {
    return counted_by_others(ct_my_slot(), device, CT_DEVICE, ct_own_bytes(device, CT_DEVICE));
}

static uint64_t limit_of(int device, enum ct_where where) {
    _Atomic uint64_t *limit = where == CT_DEVICE ? &ct_limits_now[device].memory : &ct_limits_now[device].host;
    return atomic_load_explicit(limit, memory_order_relaxed);
}

static bool can_change(int device) {
    return atomic_load_explicit(&ct_limits_now[device].request, memory_order_relaxed) != 0;
}

// If the limit can change while the slice runs, it is read after the bytes are announced. The process that lowers it reads
// the region afterwards, so one of the two sees what the other did.
// If it cannot be read, it may have been lowered: nothing more fits.
static uint64_t limit_in_force(int device, enum ct_where where) {
    return where == CT_DEVICE && can_change(device) && !ct_confirm_limits() ? 0 : limit_of(device, where);
}

static uint64_t less(uint64_t from, uint64_t bytes) { return from > bytes ? from - bytes : 0; }

// Under the lock, so that a thread that changes what is read here sets the margin to 0 afterwards.
static void learn_margin(const struct ct_slot *slot, int device) {
    ct_acquire(&margins);
    const struct ct_measured *measured = &ct_measured[device];
    uint64_t others = measured->uncounted > measured->by_others ? measured->uncounted : measured->by_others;
    uint64_t within = less(limit_of(device, CT_DEVICE), others);
    uint64_t below_peak = less(slot->peak[device], ct_own_bytes(device, CT_HOST));
    bool is_first = slot == ct_account.slot && slot == ct_region->slot && ct_can_be_ordered;
    ct_account.margin[device] = !is_first || can_change(device) ? 0 : within < below_peak ? within : below_peak;
    ct_set_free(&margins);
}

void ct_forget_margins(void) {
    ct_acquire(&margins);
    for (int i = 0; i < CT_DEVICES; i++) ct_account.margin[i] = 0;
    ct_set_free(&margins);
}

void ct_forget_changing(void) {
    ct_reset(&ct_account.lock);
    ct_set_free(&margins);
    for (int i = 0; i < CT_DEVICES; i++) ct_account.margin[i] = 0;
    memset((void *)ct_account.use, 0, sizeof ct_account.use);
}

// Announced first, then summed: if two processes want the same bytes, at least one of them sees the other's. So the limit is
// never exceeded; both may be refused, which reserve_slowly resolves.
static bool decide(int device, enum ct_where where, uint64_t bytes, uint64_t mine) {
    struct ct_slot *slot = ct_my_slot();
    atomic_thread_fence(memory_order_seq_cst);
    uint64_t limit = limit_in_force(device, where);
    if (limit == CT_UNLIMITED || (mine <= limit && used_by_others(slot, device, where) <= limit - mine)) {
        bool has_been_higher = note_peak(slot, device, where, mine);
        if (where == CT_HOST) ct_forget_margins();
        else if (has_been_higher) learn_margin(slot, device);
        return true;
    }
    lower_use(device, where, bytes);
    return false;
}

static bool announce(int device, enum ct_where where, uint64_t bytes) {
    return decide(device, where, bytes, raise_use(device, where, bytes));
}

uint64_t ct_noise(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t noise = (uint64_t)now.tv_nsec ^ (uintptr_t)&now ^ (uint64_t)getpid() << 20;
    return noise * UINT64_C(0x9e3779b97f4a7c15);
}

// Sleeps for up to 4 microseconds times 2^attempt.
static void back_off(int attempt) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(ct_noise() >> 32 & 0xfff) << attempt}, NULL);
}

// Tries again before a refusal: slots of ended processes are freed first, and another process that has announced too
// much gets time to take it back.
__attribute__((noinline, cold)) static bool reserve_slowly(int device, enum ct_where where, uint64_t bytes) {
    struct ct_thread_state before = ct_save_thread();
    bool reserved = false;
    for (int attempt = 0; attempt < RESERVE_TRIES && !reserved && bytes <= limit_of(device, where); attempt++) {
        if (attempt == 0) ct_reap();
        else back_off(attempt);
        uint64_t used = ct_used(device, where), limit = limit_of(device, where);
        if (used <= limit && bytes <= limit - used) reserved = announce(device, where, bytes);
    }
    ct_restore_thread(before);
    return reserved;
}

bool ct_decide(int device, enum ct_where where, uint64_t bytes, uint64_t mine) {
    return decide(device, where, bytes, mine) || reserve_slowly(device, where, bytes);
}

bool ct_reserve(int device, enum ct_where where, uint64_t bytes) {
    if (device < 0 || device >= CT_DEVICES) return true;
    if (bytes > LARGEST || bytes > limit_of(device, where)) return false;
    return announce(device, where, bytes) || reserve_slowly(device, where, bytes);
}
