// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The limits of one slice: a small text file that the tenant can read and not write. It is replaced as a whole (rename)
// and read again when it has changed. One item per line, in any order after the first; one space between words:
//
//   cotenant-limits 2
//   region /run/cotenant/slices/abc/usage
//   policy conserving            (conserving, always or never: when the share is enforced; conserving if absent)
//   priority low                 (high or low; high if absent)
//   overhead ignored             (counted or ignored: memory that the driver takes uncounted; counted if absent)
//   default memory=0 compute=1000
//   gpu GPU-8f… memory=2147483648 host=0 compute=300 paused=0
//   gpu GPU-9a… memory=1073741824 request=2147483648 most=3221225472 host=0 compute=300 paused=0
//   processes /run/cotenant/slices/abc/processes   (the list of its processes; which they are is unknown if absent)
//   grants /run/cotenant-processes/grants   (a file with the present grants; those of this file count if absent)
//   end
//
// memory and host are bytes; memory=none is no limit. compute is thousandths of the GPU, 1 to 1000; 1000 is no limit.
// request is there if the limit on memory changes while the slice runs: memory is what it may use now, request
// what it is guaranteed, most what it could be granted at present. Then an allocation beyond memory and within request or
// most waits until memory is raised, at most CT_REQUEST_SECONDS or CT_GRANT_SECONDS; and each allocation reads the file again after it is
// announced, so a process that lowers memory and then reads the region knows all that was allocated before. A slice has request
// from its start or never.
// In a container another program writes the grants than the limits, and must be quicker than what brings the limits there. So
// the grants have a file of their own, which the line `grants` names. It has the same format, and only its gpu lines count:
// compute replaces that of the limits; memory, request and most do if the limits have request for that GPU. Without the
// file, or without a line in it, what the limits say counts.
// paused=1 holds launches back on that GPU while the file was written or touched in the last CT_PAUSE_SECONDS: the
// agent touches it every second, so that no tenant waits for ever if the agent is killed. `default` applies to GPUs
// that no line names; without it they are unlimited. A file without its `end` line is truncated. Unknown lines and
// unknown words of known lines are ignored, so that a later writer of the same version may add some. At most
// CT_LIMITS_BYTES long, with at most CT_DEVICES gpu lines.
//
// The list of processes is a file of its own, since it changes as processes come and go, and in a container another
// program writes it than the limits. It is replaced and read in the same way:
//
//   cotenant-processes 1
//   process 40213 17 4026532281
//   end
//
// A line has the process ID by which NVML knows the process (the host's), its ID in its own PID namespace, and the inode
// of that namespace, or 0 if the writer cannot tell. Only the writer can know which processes on a GPU are of this slice:
// what they say of themselves in the region could be a neighbour's ID. Without the file it is unknown; of more than
// CT_PROCESSES lines the rest is ignored, so those processes count as other tenants.

#ifndef COTENANT_LIMITS_H
#define COTENANT_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "region.h"

#define CT_LIMITS_VERSION 2
#define CT_LIST_VERSION 1
#define CT_LIMITS_BYTES 65536
#define CT_PATH_BYTES 1024
#define CT_UNLIMITED UINT64_MAX
#define CT_WHOLE 1000
#define CT_PAUSE_SECONDS 3
#define CT_PROCESSES 256
#define CT_REQUEST_SECONDS 30
#define CT_GRANT_SECONDS 10
#define CT_DRIVER_SECONDS 10

enum ct_policy { CT_CONSERVING, CT_ALWAYS, CT_NEVER };
enum ct_priority { CT_HIGH, CT_LOW };

struct ct_gpu_limits {
    char uuid[CT_UUID_BYTES];
    uint64_t memory;
    uint64_t host;
    uint64_t request; // 0: memory is fixed
    uint64_t most;
    uint32_t compute;
    uint32_t paused;
};

struct ct_process {
    uint32_t host;  // process ID as NVML reports it
    uint32_t pid;   // in its own namespace
    uint64_t space; // 0: unknown
};

struct ct_process_list {
    uint32_t count;
    struct ct_process process[CT_PROCESSES];
};

struct ct_limits {
    char region[CT_PATH_BYTES];    // empty: none
    char processes[CT_PATH_BYTES]; // empty: none
    char grants[CT_PATH_BYTES];    // empty: none
    enum ct_policy policy;
    enum ct_priority priority;
    bool ignores_overhead;
    uint32_t gpus;
    struct ct_gpu_limits fallback;
    struct ct_gpu_limits gpu[CT_DEVICES];
};

enum ct_parsed { CT_PARSED, CT_PARSE_BAD, CT_PARSE_VERSION };

// Pure: they read no file, keep nothing, and leave the result alone unless they return CT_PARSED.
enum ct_parsed ct_parse_limits(const char *text, size_t length, struct ct_limits *limits);
enum ct_parsed ct_parse_processes(const char *text, size_t length, struct ct_process_list *list);

// The limits in force. Each word is valid by itself: a reader needs no lock. The index is that of the region's header.
struct ct_gpu_limits_now {
    _Atomic uint64_t memory;
    _Atomic uint64_t host;
    _Atomic uint64_t request;
    _Atomic uint64_t most;
    _Atomic uint32_t compute;
    _Atomic uint32_t paused;
};
extern struct ct_gpu_limits_now ct_limits_now[CT_DEVICES];
// Bytes that the slice is guaranteed or has: what a program may count on.
static inline uint64_t ct_quota(int device) {
    uint64_t memory = atomic_load_explicit(&ct_limits_now[device].memory, memory_order_relaxed);
    uint64_t request = atomic_load_explicit(&ct_limits_now[device].request, memory_order_relaxed);
    return memory > request ? memory : request;
}
extern _Atomic int ct_policy_now;   // enum ct_policy
extern _Atomic int ct_priority_now; // enum ct_priority
extern _Atomic bool ct_ignores_overhead;

// What a process that NVML names is to this one, by the list of processes.
enum ct_relation { CT_UNLISTED, CT_SELF, CT_SIBLING, CT_STRANGER }; // unlisted: no list names this process
enum ct_relation ct_relation_of(uint32_t host_pid);

// The ID in this process's own PID namespace of a process that NVML names, by the list alone; 0: the list does not name
// it, or it is in another namespace. The list may be older than this process, so this is only good for what is displayed.
uint32_t ct_listed_pid(uint32_t host_pid);

// Whether it is known which processes are of this slice; and whether a list is to tell, though it may not name this
// process yet.
bool ct_knows_processes(void);
bool ct_has_list(void);

// Whether process IDs mean the same here as to NVML. In another PID namespace any of ours can equal a neighbour's.
bool ct_sees_host_pids(void);

// Whether this process is in a slice; false: every hook passes its call through.
extern _Atomic bool ct_limited;

// Reads the file again if it has changed, at most every 20 ms; otherwise costs one reading of a coarse clock.
void ct_refresh_limits(void);

// Reads the limits and the grants again if they have changed, now; false: they have, and cannot be read.
bool ct_confirm_limits(void);

#endif
