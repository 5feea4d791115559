// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The usage region of one slice: what its processes use, seen by each of them and by the monitor outside.
//
// The agent makes the file, and the tenant can write to it, so it is telemetry and nothing in it can raise a limit. A
// process owns one slot as long as it holds a lock on that slot's byte of the file (open-file-description lock, byte
// CT_LOCK_BASE + slot): the kernel drops the lock however the process ends, so a slot whose byte is not locked is free,
// whatever its content. Slots never move. The layout is fixed; src/cotenant/node/region.py reads the same one and a
// test compares the two.

#ifndef COTENANT_REGION_H
#define COTENANT_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CT_REGION_MAGIC UINT64_C(0x31544e4e45544f43) // "COTENNT1" as little-endian bytes
#define CT_REGION_VERSION 1
#define CT_DEVICES 16
#define CT_SLOTS 256
#define CT_UUID_BYTES 48 // "GPU-" and 36 more, a zero, room for MIG names
#define CT_LOCK_BASE (INT64_C(1) << 40) // far behind the contents
#define CT_LOCK_HEADER (CT_LOCK_BASE + CT_SLOTS) // held while a uuid is added to the header

// What did not work; counted, never printed.
enum ct_fault {
    CT_FAULT_LIMITS_MISSING,   // no limits file
    CT_FAULT_LIMITS_BAD,       // empty, truncated, huge, malformed
    CT_FAULT_LIMITS_VERSION,   // another version
    CT_FAULT_LIMITS_CHANGING,  // changed at every reading
    CT_FAULT_REGION,           // missing, of the wrong size or owner, no space
    CT_FAULT_SLOTS,            // more processes than slots
    CT_FAULT_NVML,             // no NVML, or it does not answer
    CT_FAULT_DRIVER,           // the driver lacks a function we need
    CT_FAULT_MEMORY,           // no memory for our own books: some allocation is not counted
    CT_FAULT_UNKNOWN_DEVICE,   // a GPU that the limits do not name
    CT_FAULT_EVENTS,           // an event could not be timed
    CT_FAULT_CLOSED,           // the program closed our file; it was opened again
    CT_FAULTS = 16
};

// What one process uses of each GPU; the index is that of the header's uuid. 1,152 bytes.
struct ct_slot {
    _Atomic uint32_t state;      // 1: in use
    _Atomic uint32_t pid;        // as the process sees itself
    _Atomic uint64_t pid_space;  // inode of its pid namespace
    _Atomic uint64_t started;    // field 22 of /proc/self/stat: identifies the process together with its pid
    _Atomic uint64_t beat;       // CLOCK_MONOTONIC ns of its last call that was counted
    _Atomic uint64_t faults[CT_FAULTS];
    _Atomic uint64_t memory[CT_DEVICES];    // bytes on the device, announced ones included
    _Atomic uint64_t host[CT_DEVICES];      // bytes beyond the quota that became managed memory
    _Atomic uint64_t peak[CT_DEVICES];      // most of memory + host
    _Atomic uint64_t refused[CT_DEVICES];   // allocations refused for lack of quota
    _Atomic uint64_t launches[CT_DEVICES];  // kernels and graphs
    _Atomic uint64_t busy[CT_DEVICES];      // device-nanoseconds charged
    _Atomic uint64_t waited[CT_DEVICES];    // nanoseconds that launches were held back
    _Atomic uint32_t wanted[CT_DEVICES];    // MiB for which allocations wait, beyond what memory of the slice says
    uint64_t reserved[4];
};

// Device-nanoseconds that the processes of a slice may still take of one GPU, together; negative is debt.
struct ct_bucket {
    _Atomic int64_t tokens;
    _Atomic uint64_t filled; // clock ns of the last refill
};

// 4,096 bytes, then CT_SLOTS slots.
struct ct_region {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint32_t slot_bytes;
    uint32_t slots;
    uint32_t devices;          // of uuid[] that are in use
    _Atomic uint32_t high;     // no slot at or above this is in use
    uint64_t created;          // CLOCK_REALTIME ns
    _Atomic uint64_t faults[CT_FAULTS]; // of processes without a slot, and of those that ended
    char uuid[CT_DEVICES][CT_UUID_BYTES];
    struct ct_bucket bucket[CT_DEVICES];
    _Atomic int64_t spilled[CT_DEVICES]; // device-nanoseconds that came in when the bucket was full
    char reserved[4096 - 40 - 8 * CT_FAULTS - CT_DEVICES * CT_UUID_BYTES - 24 * CT_DEVICES];
    struct ct_slot slot[CT_SLOTS];
};

_Static_assert(sizeof(struct ct_slot) == 1152, "the monitor reads slots of this size");
_Static_assert(sizeof(struct ct_region) == 4096 + CT_SLOTS * 1152, "the monitor reads a region of this size");

// The region of this process; never NULL after ct_start: if the file cannot be used it is private memory.
extern struct ct_region *_Atomic ct_region;

enum ct_where { CT_DEVICE, CT_HOST };

// Reserves bytes: announces, sums, and rolls back if the sum exceeds the limit. True: this process now has the bytes.
// CT_DEVICE counts against the device quota, CT_HOST against the host budget. A negative device has no limit.
bool ct_reserve(int device, enum ct_where where, uint64_t bytes);

// Counts one allocation that failed with out of memory. ct_reserve does not count: what it refuses may be tried again
// after pools were trimmed, or become managed memory.
void ct_count_refusal(int device);

// Gives back what ct_reserve gave; never goes below zero.
void ct_release(int device, enum ct_where where, uint64_t bytes);

// Charges without a check, for what has already happened (a pool that took more than was announced).
void ct_charge(int device, enum ct_where where, uint64_t bytes);

// By NVML's last answer about a GPU: what the processes of the slice hold beyond their account, and what they hold
// beyond the account of this process alone. overhead.c writes it.
struct ct_measured {
    _Atomic uint64_t uncounted;
    _Atomic uint64_t by_others;
};
extern struct ct_measured ct_measured[CT_DEVICES];

// The account: what the processes of the slice have counted on a GPU.
uint64_t ct_counted(int device);

// What all live processes of the slice hold, with what they have not counted.
uint64_t ct_used(int device, enum ct_where where);

// Frees the slots of processes that have ended; called before anything is refused.
void ct_reap(void);

// This process's slot; claimed on first use and again after a fork. If none is free, one in private memory.
struct ct_slot *ct_my_slot(void);

// Counts a fault in this process's slot, or in the header if it has none.
void ct_count_fault(enum ct_fault fault);

#endif
