// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Which process has which slot of the region. A process owns a slot as long as the slot's byte of the file is locked,
// and that lock must live just as long as the process: it must not be lost if the program closes every descriptor it
// finds, nor pass to a forked child that outlives its parent. So not a descriptor holds it but a mapping of the file
// that forks do not inherit. Some file systems (overlays) map another file than the one that was opened: there a
// descriptor is kept, and checked.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "account.h"
#include "base.h"
#include "lock.h"

#define HOLDER_BYTES 4096
#define STAT_BYTES 1024

static _Atomic int owner; // the process that claimed it
static _Atomic(void *) holder;
static _Atomic int kept = -1;
static ct_lock claiming;

static void wipe(struct ct_slot *slot) {
    _Atomic uint64_t *words = (void *)slot;
    for (size_t i = 0; i < sizeof *slot / sizeof *words; i++) atomic_store_explicit(&words[i], 0, memory_order_relaxed);
}

// Field 22 of /proc/self/stat. Field 2, the name, may contain anything, so fields are counted from its closing bracket.
static uint64_t read_start_time(void) {
    char text[STAT_BYTES];
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[length > 0 ? length : 0] = 0;
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    uint64_t ticks = 0;
    for (at = at ? at + 1 : ""; *at >= '0' && *at <= '9'; at++) ticks = ticks * 10 + (uint64_t)(*at - '0');
    return ticks;
}

static void fill_in(struct ct_slot *slot) {
    struct stat space = {0};
    wipe(slot);
    for (int i = 0; i < CT_DEVICES; i++) {
        slot->memory[i] = ct_account.use[CT_DEVICE][i];
        slot->host[i] = ct_account.use[CT_HOST][i];
        slot->peak[i] = slot->memory[i] + slot->host[i];
    }
    slot->pid_space = ct_stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
    slot->started = read_start_time();
    slot->pid = (uint32_t)getpid();
    slot->state = 1;
}

static void raise_high(struct ct_region *region, uint32_t above) {
    uint32_t high = region->high;
    while (high < above && !atomic_compare_exchange_weak(&region->high, &high, above)) continue;
}

// Makes a claimed slot known. A process that was alone until now announces without a fence, so its threads execute a barrier
// before we sum for the first time.
static void join(struct ct_region *region, uint32_t index) {
    raise_high(region, index + 1);
    if (index > 0) ct_order_processes();
}

// Moves a descriptor out of the way of programs that count on low numbers, to 200 or, if few are allowed, to 64.
static int move_up(int file) {
    struct rlimit limit;
    int floor = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > 256 ? 200 : 64;
    int moved = fcntl(file, F_DUPFD_CLOEXEC, floor);
    if (moved < 0) return file;
    close(file);
    return moved;
}

static bool is_locked(int64_t byte) {
    int file = ct_open_region_again();
    if (file < 0) return true;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    bool locked = fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
    close(file);
    return locked;
}

static void *map_holder(int file) {
    void *page = mmap(NULL, HOLDER_BYTES, PROT_NONE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) return NULL;
    madvise(page, HOLDER_BYTES, MADV_DONTFORK);
    return page;
}

// Whether a mapping keeps a lock on this file system when its description is closed. It is tried with a byte that no
// other process uses, since that of a slot must not be free for a moment.
static bool do_mappings_hold(void) {
    int64_t byte = CT_LOCK_HEADER + 1 + (int64_t)(ct_noise() >> 32);
    int file = ct_open_region_again();
    if (file < 0) return false;
    void *page = ct_lock_byte(file, byte) ? map_holder(file) : NULL;
    close(file);
    bool holds = page && is_locked(byte);
    if (page) munmap(page, HOLDER_BYTES);
    return holds;
}

// Makes the lock of this file description last; the descriptor is closed, or kept if a mapping does not hold the lock.
static void hold(int file) {
    void *page = do_mappings_hold() ? map_holder(file) : NULL;
    holder = page;
    if (page) close(file);
    else kept = move_up(file);
}

// Claims the lowest free slot, so that few need to be summed. On failure *why is set.
static struct ct_slot *claim_in(struct ct_region *region, enum ct_fault *why) {
    *why = CT_FAULT_REGION;
    int file = ct_open_region_again();
    if (file < 0) return NULL;
    for (uint32_t i = 0; i < CT_SLOTS; i++) {
        if (!ct_lock_byte(file, CT_LOCK_BASE + i)) continue;
        hold(file);
        join(region, i);
        return &region->slot[i];
    }
    close(file);
    *why = CT_FAULT_SLOTS;
    return NULL;
}

static struct ct_slot *claim(void) {
    struct ct_thread_state before = ct_save_thread();
    ct_acquire(&claiming);
    if (!ct_account.slot) {
        struct ct_region *region = ct_region;
        enum ct_fault why;
        struct ct_slot *slot = region == &ct_private_region ? NULL : claim_in(region, &why);
        if (!slot && region != &ct_private_region) {
            if (why == CT_FAULT_SLOTS) ct_count_fault(why); // in the header, so that the others see it
            ct_use_private_region();
            if (why != CT_FAULT_SLOTS) ct_count_fault(why);
        }
        if (!slot) slot = &ct_private_region.slot[0];
        fill_in(slot);
        owner = getpid();
        ct_account.slot = slot;
    }
    ct_set_free(&claiming);
    ct_restore_thread(before);
    return ct_account.slot;
}

struct ct_slot *ct_my_slot(void) {
    struct ct_slot *slot = atomic_load_explicit(&ct_account.slot, memory_order_acquire);
    return __builtin_expect(slot != NULL, 1) ? slot : claim();
}

static bool is_any_locked(int file, int64_t from, int64_t to) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = to - from};
    return to > from && fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool ct_has_siblings(void) {
    struct ct_slot *slot = ct_my_slot();
    int file = ct_region == &ct_private_region ? -1 : ct_open_region_again();
    if (file < 0) return false;
    int64_t own = CT_LOCK_BASE + (slot - ct_region->slot);
    bool found = is_any_locked(file, CT_LOCK_BASE, own) || is_any_locked(file, own + 1, CT_LOCK_BASE + CT_SLOTS);
    close(file);
    return found;
}

void ct_leave_slot(void) {
    void *page = atomic_exchange(&holder, NULL);
    int file = atomic_exchange(&kept, -1);
    ct_account.slot = NULL;
    ct_forget_margins();
    if (page) munmap(page, HOLDER_BYTES);
    if (file >= 0) close(file);
}

// The parent keeps its lock; the child does not inherit it, or gives up its part of it here.
void ct_forget_slot(void) {
    int file = atomic_exchange(&kept, -1);
    if (file >= 0) close(file);
    holder = NULL;
    ct_account.slot = NULL;
    ct_set_free(&claiming);
}

void ct_check_slot(void) {
    if (ct_account.slot && owner != getpid()) ct_restart_after_fork(); // forked without the C library, which calls our handler
    int file = kept;
    struct ct_slot *slot = ct_account.slot;
    if (file < 0 || !slot || ct_is_region(file)) return;
    // The program closed our descriptor: other processes may have reaped our slot already.
    kept = -1;
    ct_account.slot = NULL;
    ct_forget_margins();
    ct_my_slot();
    ct_count_fault(CT_FAULT_CLOSED);
}

static void reap_slot(struct ct_region *region, int file, uint32_t index) {
    struct ct_slot *slot = &region->slot[index];
    int64_t byte = CT_LOCK_BASE + index;
    if (slot == ct_account.slot || !ct_lock_byte(file, byte)) return;
    for (int i = 0; i < CT_FAULTS; i++) region->faults[i] += slot->faults[i];
    wipe(slot);
    uint32_t top = index + 1;
    atomic_compare_exchange_strong(&region->high, &top, index);
    ct_unlock_byte(file, byte);
}

void ct_reap(void) {
    struct ct_region *region = ct_region;
    uint32_t high = region->high < CT_SLOTS ? region->high : CT_SLOTS;
    if (region == &ct_private_region || high < 2) return;
    struct ct_thread_state before = ct_save_thread();
    int file = ct_open_region_again();
    for (uint32_t i = high; file >= 0 && i-- > 0;) reap_slot(region, file, i);
    if (file >= 0) close(file);
    ct_restore_thread(before);
}

static void count(_Atomic uint64_t *counter) {
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

void ct_count_fault(enum ct_fault fault) {
    struct ct_slot *slot = ct_account.slot;
    count(slot ? &slot->faults[fault] : &ct_region->faults[fault]);
}

void ct_count_refusal(int device) {
    if (device >= 0 && device < CT_DEVICES) count(&ct_my_slot()->refused[device]);
}
