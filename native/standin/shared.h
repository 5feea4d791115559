// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What all processes that see the same stand-in GPUs share: one file, mapped by libcuda.so.1 and libnvidia-ml.so.1.
//
// A process may be killed at any instruction. One robust mutex guards all but memory; its next owner goes on from
// whatever state it finds, so nothing here is a pointer. Memory is counted without a lock (ledger.c).
// A process owns its slot as long as a mapping of it holds a lock on the file, one byte for each slot: the kernel
// drops it on exec and on any end, and closing descriptors does not.

#ifndef STANDIN_SHARED_H
#define STANDIN_SHARED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SI_DEVICES 16
#define SI_SLOTS 511
#define SI_REAPER SI_SLOTS // the slot number under which memory of the dead is given back
#define SI_NOBODY SI_SLOTS // the slot whose bytes are shared memory that its maker no longer holds
#define SI_SHARES 256
#define SI_HOLDERS 16
#define SI_LANES 512
#define SI_RING 1024
#define SI_PARTIES 1024
#define SI_RECORD 65536 // milliseconds of the past that are remembered
#define SI_STRETCHES 4096 // of the newest past, to the nanosecond
#define SI_DEPENDENCIES 4
#define SI_NAME 96 // room for what a device is called
#define SI_UUID 41
#define SI_PROFILE 24 // room for a MIG profile
#define SI_LAYOUT 256 // room for the profiles of one card
#define SI_PARTITIONS 128 // limits on the memory of cgroups
#define SI_GROUP 256      // room for the path of a cgroup
#define SI_NVLINKS 18 // of one device
#define SI_NEVER UINT64_MAX
#define SI_LIKELY(x) __builtin_expect(!!(x), 1)

// The bytes in use on a device, and the slot that changed them last: 43 bits of bytes, 12 of a sequence, 9 of a slot.
struct si_level {
    _Atomic uint64_t word;
    _Atomic uint64_t peak;
    char padding[48];
};

// A change of memory that has begun: what its owner would have to finish. Idempotent, so a process that finds the
// owner ended can finish it, or find out that it never took effect.
struct si_change {
    _Atomic uint32_t begun;  // which, and whether others have seen its mark before they overwrote it; 0: none
    _Atomic uint64_t target; // bytes of the slot once it is done
    _Atomic uint32_t slot;   // whose bytes: the owner's own, or those of a dead one
    uint32_t sequence;
};

struct si_slot {
    _Atomic uint32_t used;
    uint32_t pid;
    uint32_t unknown; // 1: `pid` is that of a namespace, until a process that sees the host's /proc has found the host's
    uint64_t started; // clock ticks since boot, by which it is found
    uint64_t mount;   // number of its outermost mount, by which it is told from another that began in the same tick
    struct si_change change;
    _Atomic uint64_t bytes[SI_DEVICES];
    _Atomic uint16_t uses[SI_DEVICES]; // it has or had a context there
    _Atomic uint16_t mps;              // it is a client of MPS
    char group[SI_GROUP];              // its cgroup, below the mount point of version 2
};

// A limit on the memory that all processes of a cgroup have together on one device.
struct si_partition {
    uint64_t inode; // of the cgroup; 0: unused
    int32_t device;
    uint32_t root; // bytes of the path that are the mount point
    char path[SI_GROUP];
    uint64_t soft, hard;
};

enum si_item_state { SI_PENDING, SI_RUNNING, SI_DONE };

// One piece of work on a device. It may run when all that it comes after is done.
struct si_item {
    uint32_t state;
    uint64_t left;   // ns
    uint64_t end;    // once done
    uint64_t ticket; // order of arrival over all processes
    uint64_t after[SI_DEPENDENCIES];
    uint64_t fence; // all of the lane before this sequence number
};

// The work of one process on one device, and the record of when the device worked for it. Outlives its process until
// it is needed for another, so that ended processes can be queried.
struct si_lane {
    uint32_t live;
    uint32_t slot;
    uint32_t pid;
    uint32_t device;
    uint64_t born;
    _Atomic uint64_t head;  // next sequence number
    _Atomic uint64_t front; // first that is not done
    _Atomic uint64_t tail;  // first that its owner has not taken note of
    struct si_item item[SI_RING];
    uint64_t busy; // ns in all
    uint32_t record_ms[SI_RECORD];
    uint32_t record_ns[SI_RECORD];
    uint64_t stretches; // how many there were
    struct si_stretch {
        uint64_t from, to;
    } stretch[SI_STRETCHES];
};

enum si_party_state { SI_ABSENT, SI_AWAKE, SI_WAITING };

// A thread that takes part in the virtual clock.
struct si_party {
    uint32_t state;
    uint32_t slot;
    uint64_t joined; // order of joining: if several may wake, the first one does
    uint64_t when;
    uint64_t item; // si_reference; 0: only the time counts
    _Atomic uint32_t word;
};

struct si_engine {
    uint32_t holder; // lane + 1 that may run now; 0: none
    uint64_t turn_end;
};

struct si_settings {
    uint32_t devices;
    uint32_t parties;
    bool virtual_clock;
    bool round_robin;
    bool overlap;
    uint32_t first; // number in the UUID of the first device
    char name[SI_DEVICES][SI_NAME];
    uint64_t memory[SI_DEVICES];
    int8_t numa[SI_DEVICES];                // -1: unknown
    int8_t capability[SI_DEVICES][2];       // compute capability
    int8_t nvlink[SI_DEVICES][SI_NVLINKS];  // what is at the far end: card + 1, or minus (switch + 1); 0: no link
    uint64_t quantum;
    uint64_t kernel;
    uint64_t jitter;
    uint64_t nvml_window;
    uint64_t nvml_lag;
};

// A MIG instance, by its number as a device. The cards come first.
struct si_instance {
    uint32_t group;  // number of the GPU instance; 0: there is none
    uint32_t serial; // in its UUID; 0: the GPU instance has no compute instance, so no device is there
    int32_t card;
    uint32_t slices; // of the card's compute
    uint32_t start, size; // slices of the card's memory; size 0: its profile is none of the card's, so it has no place
    char profile[SI_PROFILE];
};

// A kind of instance.
struct si_shape {
    unsigned number;  // by which NVML is asked for it
    unsigned id;      // by which NVML knows it
    unsigned slices;  // of compute
    unsigned size;    // slices of memory
    unsigned starts;  // bits: the slices of memory at which one can begin
    bool media;       // with media extensions
};

// Physical memory that was exported as a file. It counts for its maker as long as that one holds it, and then for the
// first of the others that do. Slots are stored plus one; 0 is none.
struct si_share {
    uint64_t place; // in the file of physical memory; 0: unused
    uint64_t size;
    int device;
    uint32_t maker;
    uint32_t holder[SI_HOLDERS]; // one for each handle and mapping of its own
};

struct si_state {
    _Atomic uint64_t magic;
    struct si_settings set;
    pthread_mutex_t lock;
    struct si_level level[SI_DEVICES];
    _Atomic int broken[SI_DEVICES]; // what NVML answers about a device that is; 0: it works
    _Atomic uint32_t partitioned[SI_DEVICES]; // cards in MIG mode
    struct si_instance instance[SI_DEVICES];
    uint32_t serials; // instances that were ever made
    uint32_t all;     // no device at or above this was ever used: the cards, and behind them the instances
    _Atomic int mode[SI_DEVICES];   // nvmlComputeMode_t: 0 any process, 2 none, 3 one process, or the clients of MPS
    _Atomic uint64_t now; // of the virtual clock
    uint64_t served;      // the engines have been worked up to this time
    uint64_t tickets;
    uint64_t physical; // bytes of the file of physical memory that chunks have had
    uint32_t lanes;          // no lane at or above this was ever used
    _Atomic uint32_t slots;  // nor such a slot
    _Atomic uint32_t living; // slots in use
    uint32_t parties;
    uint32_t awake;
    uint32_t taking_part;
    bool started; // as many have joined as must
    uint64_t joins;
    uint64_t switched; // real time at which a party last woke or waited
    struct si_engine engine[SI_DEVICES];
    struct si_change reaping;
    struct si_slot slot[SI_SLOTS + 1];
    struct si_share share[SI_SHARES];
    _Atomic uint32_t partitions; // no partition at or above this was ever used
    struct si_partition partition[SI_PARTITIONS];
    struct si_party party[SI_PARTIES];
    struct si_lane lane[SI_LANES];
};

// state.c
extern struct si_state *si_mapped;
struct si_state *si_open(void);
void si_lock(void);
void si_unlock(void);
void si_reap_locked(void);
void si_reap(void);
void si_find_host_pids_locked(void);
int si_claim_slot(void); // the calling process's, taken on first use
extern void (*si_after_fork)(void); // in the child

static inline struct si_state *si_state(void) { return SI_LIKELY(si_mapped != 0) ? si_mapped : si_open(); }

// cards.c
void si_make_cards(struct si_settings *set);
void si_uuid(int card, char text[SI_UUID]);
int si_present(int cards[SI_DEVICES]); // those that this process can see, in order
bool si_sees(int device);

// mig.c; a layout has the profiles of a card's instances, separated by slashes, NULL: the card is not partitioned
void si_make_instances(struct si_state *state);
void si_partition(struct si_state *state, int card, const char *layout); // the lock is held
unsigned si_compute_slices(int card); // the most instances that it can have
const struct si_shape *si_shape(const struct si_state *state, int card, unsigned which); // NULL: it has no more
void si_profile_name(const struct si_state *state, int card, const struct si_shape *shape, char name[SI_PROFILE]);
bool si_fits(const struct si_state *state, int card, const struct si_shape *shape, unsigned start); // beside the others
int si_add_group(struct si_state *state, int card, const char *profile, unsigned start, unsigned size); // -1: no room
bool si_is_partitioned(int card);
bool si_is_instance(int device);
int si_card_of(int device); // of an instance; a card is its own
int si_instances(int card, int found[SI_DEVICES]); // those that this process can see

// partitions.c; the lock is held
void si_own_group(char path[SI_GROUP]); // of the calling process
bool si_has_room(struct si_state *state, unsigned slot, int device, uint64_t bytes);
// The limit on a cgroup, or NULL; if it is `wanted`, it is made, or NULL if the path is no cgroup.
struct si_partition *si_group_limit(struct si_state *state, int device, const char *path, bool wanted);
uint64_t si_partition_used(struct si_state *state, const struct si_partition *partition);
// What the calling process is told of a device: all of it, or its part.
void si_visible_memory(int device, uint64_t *total, uint64_t *used); // takes the lock

// ledger.c
extern uint64_t si_most[SI_DEVICES]; // bytes that this process may use; 0: no limit
bool si_charge(int device, uint64_t bytes);
void si_uncharge(int device, uint64_t bytes);
void si_give_back(struct si_state *state, unsigned slot);
void si_finish_change(struct si_state *state, struct si_change *change, unsigned slot);
uint64_t si_used(int device, uint32_t pid);

// ledger.c: shared memory; the lock is held. The caller of the first three is the only one of its process.
bool si_share(uint64_t place, uint64_t size, int device); // by its maker
bool si_join_share(uint64_t place); // false: nobody holds it any more
void si_leave_share(uint64_t place, bool is_maker);
void si_drop_shares(struct si_state *state, unsigned slot); // of an ended process
uint64_t si_inherited(int device, unsigned slot); // bytes of others that it is the first to hold

#define SI_BYTES ((UINT64_C(1) << 43) - 1) // of a level's word
static inline uint64_t si_level(int device) { return si_state()->level[device].word & SI_BYTES; }

// engine.c; the lock is held
static inline uint64_t si_reference(unsigned lane, uint64_t sequence) { return (uint64_t)(lane + 1) << 48 | sequence; }
#define SI_SEQUENCE ((UINT64_C(1) << 48) - 1)
bool si_is_done(uint64_t reference);
uint64_t si_ticket(uint64_t reference);
void si_serve(uint64_t until);
uint64_t si_next_completion(void);
uint64_t si_earliest_end(uint64_t reference);
int si_claim_lane(int device);
uint64_t si_push(unsigned lane, uint64_t length, const uint64_t after[SI_DEPENDENCIES], uint64_t fence);
uint64_t si_busy(int device, uint32_t pid, uint64_t from, uint64_t to);

// clock.c
uint64_t si_real_now(void);
uint64_t si_now(void);
void si_wait(uint64_t when, uint64_t reference);
void si_poll(void); // the caller has looked and found nothing done
void si_join(void);
void si_leave(void);
void si_drop_parties(unsigned slot);
void si_clock_forked(void);

#endif
