// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the protocol by which the processes of a slice reserve memory in every order that their accesses to the region
// can take: base_interleave SCENARIO LIMIT, both as `scenarios` and a number of bytes. Prints the most bytes that were
// granted at once, the states that were seen, and how many accesses to the accounts were not sequentially consistent.
//
// The C is that of the library. The compiler puts a call in front of each of its accesses to memory (it believes that
// it instruments for its thread sanitizer, whose functions are defined here); an access to the region hands over to
// the scheduler below. Each process of the model is a coroutine with its own copy of the variables that are private to
// a process. What a process does next depends only on what it has read, so a state is the region and, of each process,
// the hash of its readings: a state that was seen before is not continued again.
//
// A store to an account that is not sequentially consistent goes to a buffer, as in a processor, until the process executes
// a fence or a read-modify-write operation, until another process makes it execute a barrier, or at any time before. The first
// process reserves as if it were alone, until it sees the others.

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PLAIN __attribute__((no_sanitize_thread))

// A process that sleeps in the model lets others run at its next access.
PLAIN static int skip_sleep(void) { return 0; }
#define nanosleep(time, rest) ((void)(time), skip_sleep())
static int retries; // one in the first scenario: a further one is the same again; none in the others, which have too many orders
#define RESERVE_TRIES retries
static int order_all(int command);
#define MEMBARRIER(command) order_all(command)
#pragma GCC diagnostic ignored "-Wtsan" // fences: the model knows them, unlike the real sanitizer
#include "base_all.h"

#include <ucontext.h>

#define PROCESSES 3
#define STACK_BYTES 65536
#define STEPS 4096
#define STATES (1 << 22)

struct process {
    ucontext_t context;
    char stack[STACK_BYTES];
    uint64_t read; // hash of what it has read
    bool done;
    struct ct_account account;
    struct ct_thread thread;
    uint64_t *stored_at, stored; // what is in its buffer; NULL: nothing
};

struct action {
    bool release;
    uint64_t bytes;
};

// What each process does, in order; a release gives back what was granted before, if anything was.
static const struct {
    const char *name;
    unsigned processes;
    struct action actions[PROCESSES][4];
} scenarios[] = {
    {"two", 2, {{{false, 600}}, {{false, 600}}}},
    {"three", 3, {{{false, 400}}, {{false, 400}}, {{false, 400}}}},
    {"unlike", 3, {{{false, 900}}, {{false, 200}}, {{false, 100}}}},
    {"again", 2, {{{false, 600}, {true, 600}, {false, 500}}, {{false, 500}, {true, 500}, {false, 600}}}},
};

static struct ct_region shared;
static struct process processes[PROCESSES];
static ucontext_t scheduler;
static int running = -1;
static unsigned scenario, parties;
static uint64_t granted, most, states, executions, weak;
static uint64_t seen[STATES];
static struct { unsigned char choice, untried; } choices[STEPS]; // untried: processes that were not chosen yet, as bits

PLAIN static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

PLAIN static bool in_region(const volatile void *address) {
    return (uintptr_t)address - (uintptr_t)&shared < sizeof shared;
}

// Statistics (peak, beat, ...) are never read by another process: in which order they are written does not matter.
PLAIN static bool is_shared(const volatile void *address) {
    size_t at = (uintptr_t)address - (uintptr_t)shared.slot;
    return in_region(address) &&
           (at >= sizeof shared.slot || at % sizeof(struct ct_slot) < offsetof(struct ct_slot, peak));
}

PLAIN static bool in_account(const volatile void *address) {
    size_t at = (uintptr_t)address - (uintptr_t)shared.slot;
    size_t field = at % sizeof(struct ct_slot);
    return in_region(address) && at < sizeof shared.slot && field >= offsetof(struct ct_slot, memory) &&
           field < offsetof(struct ct_slot, peak);
}

PLAIN static void write_back(struct process *one) {
    if (one->stored_at) __atomic_store_n(one->stored_at, one->stored, __ATOMIC_SEQ_CST);
    one->stored_at = NULL;
}

// Before a fence or a read-modify-write operation: others may go on before what was stored is written back.
PLAIN static void drain(void) {
    if (running < 0 || !processes[running].stored_at) return;
    swapcontext(&processes[running].context, &scheduler);
    write_back(&processes[running]);
}

// As the kernel does it for another process.
PLAIN static int order_all(int command) {
    for (int i = 0; i < PROCESSES; i++) write_back(&processes[i]);
    return (void)command, 0;
}

// Before an access to the region, and before an account is read or changed with an order that is too weak.
PLAIN static void step(const volatile void *address, int order) {
    if (running < 0 || !is_shared(address)) return;
    weak += in_account(address) && order != __ATOMIC_SEQ_CST;
    swapcontext(&processes[running].context, &scheduler);
}

PLAIN static void note_read(const volatile void *address, uint64_t value) {
    if (running >= 0 && in_region(address)) processes[running].read = mix(processes[running].read + 1, value);
}

// The functions that the compiler calls; it knows them with pointers to void.
#pragma GCC diagnostic ignored "-Wbuiltin-declaration-mismatch"
void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
PLAIN void __tsan_atomic_thread_fence(int order) {
    if (order == __ATOMIC_SEQ_CST) drain();
}
void __tsan_atomic_signal_fence(int order) { (void)order; }

#define ACCESSES(bytes, type)                                                                                   \
    PLAIN void __tsan_read##bytes(const type *address) {                                                        \
        step(address, __ATOMIC_RELAXED);                                                                        \
        note_read(address, *address);                                                                           \
    }                                                                                                           \
    PLAIN void __tsan_unaligned_read##bytes(const type *address) { __tsan_read##bytes(address); }               \
    PLAIN void __tsan_volatile_read##bytes(const type *address) { __tsan_read##bytes(address); }                \
    PLAIN void __tsan_write##bytes(type *address) { step(address, __ATOMIC_RELAXED); }                          \
    PLAIN void __tsan_unaligned_write##bytes(type *address) { step(address, __ATOMIC_RELAXED); }                \
    PLAIN void __tsan_volatile_write##bytes(type *address) { step(address, __ATOMIC_RELAXED); }

#define CHANGE(bits, type, name, operation)                                                                     \
    PLAIN type __tsan_atomic##bits##_##name(volatile type *address, type value, int order) {                    \
        drain();                                                                                                \
        step(address, order);                                                                                   \
        type before = operation(address, value, __ATOMIC_SEQ_CST);                                              \
        note_read(address, before);                                                                             \
        return before;                                                                                          \
    }

#define ATOMICS(bits, type)                                                                                     \
    PLAIN type __tsan_atomic##bits##_load(const volatile type *address, int order) {                            \
        step(address, order);                                                                                   \
        type value = __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                \
        note_read(address, value);                                                                              \
        return value;                                                                                           \
    }                                                                                                           \
    PLAIN void __tsan_atomic##bits##_store(volatile type *address, type value, int order) {                     \
        if (running >= 0 && in_account(address) && order != __ATOMIC_SEQ_CST) {                                 \
            step(address, __ATOMIC_SEQ_CST);                                                                    \
            write_back(&processes[running]);                                                                    \
            processes[running].stored_at = (uint64_t *)address;                                                 \
            processes[running].stored = (uint64_t)value;                                                        \
            return;                                                                                             \
        }                                                                                                       \
        step(address, order);                                                                                   \
        __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                     \
    }                                                                                                           \
    CHANGE(bits, type, exchange, __atomic_exchange_n)                                                           \
    CHANGE(bits, type, fetch_add, __atomic_fetch_add)                                                           \
    CHANGE(bits, type, fetch_sub, __atomic_fetch_sub)                                                           \
    CHANGE(bits, type, fetch_or, __atomic_fetch_or)                                                             \
    CHANGE(bits, type, fetch_and, __atomic_fetch_and)                                                           \
    PLAIN int __tsan_atomic##bits##_compare_exchange_strong(volatile type *address, type *expected, type value, \
                                                            int order, int failed) {                            \
        (void)failed;                                                                                           \
        drain();                                                                                                \
        step(address, order);                                                                                   \
        bool same = __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST,              \
                                                __ATOMIC_SEQ_CST);                                              \
        note_read(address, *expected);                                                                          \
        return same;                                                                                            \
    }                                                                                                           \
    PLAIN int __tsan_atomic##bits##_compare_exchange_weak(volatile type *address, type *expected, type value,   \
                                                          int order, int failed) {                              \
        return __tsan_atomic##bits##_compare_exchange_strong(address, expected, value, order, failed);          \
    }

ACCESSES(1, uint8_t)
ACCESSES(2, uint16_t)
ACCESSES(4, uint32_t)
ACCESSES(8, uint64_t)
PLAIN void __tsan_read16(const void *address) { step(address, __ATOMIC_RELAXED); }
PLAIN void __tsan_write16(void *address) { step(address, __ATOMIC_RELAXED); }
PLAIN void __tsan_read_range(const void *address, size_t bytes) { (void)bytes, step(address, __ATOMIC_RELAXED); }
PLAIN void __tsan_write_range(void *address, size_t bytes) { (void)bytes, step(address, __ATOMIC_RELAXED); }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

PLAIN static void act(int self) {
    uint64_t held = 0;
    join(&shared, (uint32_t)self);
    for (const struct action *one = scenarios[scenario].actions[self]; one->bytes; one++) {
        if (one->release) {
            granted -= held; // from here on another process may have it
            if (held) ct_release(0, CT_DEVICE, held);
            held = 0;
        } else if (ct_reserve_quickly(0, one->bytes) || ct_reserve(0, CT_DEVICE, one->bytes)) {
            held += one->bytes;
            granted += one->bytes;
            if (granted > most) most = granted;
        }
    }
    processes[self].done = true;
    swapcontext(&processes[self].context, &scheduler);
}

PLAIN static void begin(void) {
    memset(&shared, 0, 4096 + parties * sizeof(struct ct_slot)); // the rest stays zero
    granted = 0;
    for (unsigned i = 0; i < parties; i++) {
        struct process *one = &processes[i];
        one->read = one->done = 0;
        memset((void *)&one->account, 0, sizeof one->account);
        memset((void *)&one->thread, 0, sizeof one->thread); // an order that was given up may have ended inside a lock
        one->account.slot = &shared.slot[i];
        one->account.lock.keeper = &one->thread;
        one->account.margin[0] = i == 0 ? ct_limits_now[0].memory : 0;
        one->stored_at = NULL;
        getcontext(&one->context);
        one->context.uc_stack.ss_sp = one->stack;
        one->context.uc_stack.ss_size = STACK_BYTES;
        makecontext(&one->context, (void (*)(void))act, 1, (int)i);
    }
}

// Lets one process go on to just before its next access to the region, or writes its buffer back.
PLAIN static void run(int self) {
    if (self >= PROCESSES) {
        write_back(&processes[self - PROCESSES]);
        return;
    }
    running = self;
    ct_self = &processes[self].thread;
    memcpy((void *)&ct_account, (void *)&processes[self].account, sizeof ct_account);
    swapcontext(&scheduler, &processes[self].context);
    memcpy((void *)&processes[self].account, (void *)&ct_account, sizeof ct_account);
    running = -1;
}

PLAIN static bool is_new_state(void) {
    uint64_t hash = mix(granted, parties);
    const uint64_t *words = (const void *)&shared;
    for (size_t i = 0; i < (4096 + parties * sizeof(struct ct_slot)) / sizeof *words; i++) hash = mix(hash, words[i]);
    for (unsigned i = 0; i < parties; i++) {
        const struct process *one = &processes[i];
        hash = mix(mix(mix(hash, one->read), one->done), one->stored_at ? one->stored + 1 : 0);
    }
    hash += hash == 0;
    for (size_t at = hash % STATES;; at = (at + 1) % STATES) {
        if (seen[at] == hash) return false;
        if (seen[at]) continue;
        seen[at] = hash;
        if (++states > STATES / 2) abort();
        return true;
    }
}

PLAIN static unsigned char list_ready(void) {
    unsigned char ready = 0;
    for (unsigned i = 0; i < parties; i++) {
        ready |= (unsigned char)(!processes[i].done << i);
        ready |= (unsigned char)((processes[i].stored_at != NULL) << (i + PROCESSES));
    }
    return ready;
}

// Runs once, with the choices already made up to `depth` and the first process that is ready after that.
PLAIN static unsigned execute(unsigned depth) {
    unsigned at = 0;
    executions++;
    begin();
    for (unsigned i = 0; i < parties; i++) run((int)i); // to the first access of each
    for (unsigned char ready; (ready = list_ready()) != 0; at++) {
        if (at == STEPS) abort();
        if (at >= depth) {
            if (!is_new_state()) return at;
            choices[at].choice = (unsigned char)__builtin_ctz(ready);
            choices[at].untried = ready & (unsigned char)(ready - 1);
        }
        run(choices[at].choice);
    }
    return at;
}

PLAIN static void explore(void) {
    for (unsigned depth = 0;;) {
        unsigned at = execute(depth);
        while (at > 0 && !choices[at - 1].untried) at--;
        if (at == 0) return;
        choices[at - 1].choice = (unsigned char)__builtin_ctz(choices[at - 1].untried);
        choices[at - 1].untried &= (unsigned char)(choices[at - 1].untried - 1);
        depth = at;
    }
}

PLAIN int main(int argc, char **argv) {
    if (argc != 3) return 2;
    while (strcmp(scenarios[scenario].name, argv[1]))
        if (++scenario == sizeof scenarios / sizeof *scenarios) return 2;
    parties = scenarios[scenario].processes;
    retries = scenario == 0;
    ct_region = &shared;
    ct_limits_now[0].memory = strtoull(argv[2], NULL, 0);
    ct_can_be_ordered = true;
    explore();
    printf("most %llu\nstates %llu\n", (unsigned long long)most, (unsigned long long)states);
    printf("executions %llu\nweak %llu\n", (unsigned long long)executions, (unsigned long long)weak);
    return 0;
}
