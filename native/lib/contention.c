// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What NVML says of contention. Between two events of this process another tenant's kernel may have run, and only NVML
// knows: over some seconds, the use that it saw of this process divided by the time that its events span is the
// fraction of that time that was ours. NVML also tells whether other processes use the GPU; if none does, a share need
// not be enforced. Which of them are of this slice is what the list of processes says, or else the kernel; never the region.

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "compute.h"
#include "lock.h"
#include "region.h"

#include "hooks.h"

#define MILLISECOND UINT64_C(1000000)
#define LOOK_EVERY (200 * MILLISECOND)
#define LONG_AGO (1000 * MILLISECOND) // a longer gap without launches says nothing
#define TRY_AGAIN (60000 * MILLISECOND) // if there is no NVML, or it does not answer
#define COST_SHARE 50                 // asking NVML takes at most 1/50 of the time
#define SAMPLES 128
#define KNOWN 64
#define RECHECK (5000 * MILLISECOND)
#define BUSY 1      // per cent: less is a monitor or a rounding error
#define STAYS (2000 * MILLISECOND) // other processes count as present for so long after they were last seen
#define MEMORY 0.9  // weight of what was seen before, at each look
#define LEAST 0.02  // the smallest fraction that is ever assumed to be ours
#define ROUNDED 0.5 // per cent that NVML, which counts whole ones, leaves out on average
#define NVML_NOT_FOUND 6

enum company { UNKNOWN, CONTENDED, ALONE };

struct known {
    unsigned pid;
    bool sibling;
    uint64_t at; // clock
};

struct view {
    _Atomic uint64_t next; // clock of the next look
    _Atomic uint64_t measured; // device-nanoseconds by events since the last
    _Atomic uint32_t ours;
    _Atomic int company;
    ct_lock looking;
    nvmlDevice_t handle;
    uint64_t last;
    uint64_t fresh;  // clock at which NVML last had something new
    uint64_t met;    // clock at which others were last seen
    uint64_t joined; // clock at which siblings were last seen to be busy
    unsigned others; // number of them, at the last look
    unsigned long long stamp; // of the newest sample
    double seen, spanned;     // by NVML and by events, fading
    struct known known[KNOWN];
};

static struct view views[CT_DEVICES];

struct use {
    double mine;   // per cent; negative: unknown
    double others; // per cent; negative: unknown
    double siblings; // per cent
    unsigned processes; // that are not ours
};

void ct_note_measured(int device, uint64_t nanoseconds) {
    atomic_fetch_add_explicit(&views[device].measured, nanoseconds, memory_order_relaxed);
}

uint32_t ct_own_fraction(int device) {
    uint32_t ours = atomic_load_explicit(&views[device].ours, memory_order_relaxed);
    return ours ? ours : CT_FRACTION_ONE;
}

bool ct_is_contended(int device) { return atomic_load_explicit(&views[device].company, memory_order_relaxed) != ALONE; }

static bool open_nvml(struct view *view, int device) {
    if (view->handle) return true;
    return HAS(nvmlInit_v2) && HAS(nvmlDeviceGetHandleByUUID) && HAS(nvmlDeviceGetProcessUtilization) &&
           REAL(nvmlInit_v2)() == CUDA_SUCCESS &&
           REAL(nvmlDeviceGetHandleByUUID)(ct_uuid_of(device), &view->handle) == CUDA_SUCCESS && view->handle;
}

// Whether the process has mapped our region: then it is of this slice. What the region says of it could be false, but no
// process of another slice can be made to map it. False also if this cannot be found out.
static bool maps_region(unsigned pid) {
    char path[32], text[4096], wanted[64];
    if (!ct_sees_host_pids() || !ct_describe_region(wanted, sizeof wanted)) return false;
    snprintf(path, sizeof path, "/proc/%u/maps", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    bool found = false;
    size_t kept = 0;
    for (ssize_t more; !found && (more = read(file, text + kept, sizeof text - 1 - kept)) > 0;) {
        size_t length = kept + (size_t)more;
        text[length] = 0;
        found = strstr(text, wanted) != NULL;
        kept = length < sizeof wanted ? length : sizeof wanted; // the words may continue in the next part
        memmove(text, text + length - kept, kept);
    }
    close(file);
    return found;
}

bool ct_is_in_slice(uint32_t pid) {
    enum ct_relation relation = ct_relation_of(pid);
    if (relation != CT_UNLISTED) return relation != CT_STRANGER;
    return ct_sees_host_pids() && (pid == (uint32_t)getpid() || maps_region(pid));
}

// The answers of maps_region, which takes some microseconds, for the processes of one GPU.
static bool is_sibling(struct view *view, unsigned pid, uint64_t now) {
    struct known *known = &view->known[pid % KNOWN];
    if (known->pid != pid || now - known->at > RECHECK) {
        struct ct_thread_state before = ct_save_thread();
        *known = (struct known){.pid = pid, .at = now, .sibling = maps_region(pid)};
        ct_restore_thread(before);
    }
    return known->sibling;
}

// In a container NVML may name processes by the host's process IDs, none of which is known here. Then the use of the
// whole GPU bounds our own. This process is one of those that are busy, so if there are two, one of them is not: it may
// be of this slice, but what could tell that is written by the slice itself.
static void estimate_use(struct view *view, unsigned busy_processes, struct use *use) {
    nvmlUtilization_t rates;
    use->mine = -1;
    if (HAS(nvmlDeviceGetUtilizationRates) && REAL(nvmlDeviceGetUtilizationRates)(view->handle, &rates) == CUDA_SUCCESS)
        use->mine = rates.gpu;
    use->others = busy_processes > 1 ? 100 : busy_processes == 1 ? 0 : -1;
}

enum answer { NEW_SAMPLES, NO_SAMPLES, NO_ANSWER };

static enum answer read_use(struct view *view, uint64_t now, double spanned, struct use *use) {
    nvmlProcessUtilizationSample_t samples[SAMPLES];
    unsigned count = SAMPLES, busy = 0, self = ct_sees_host_pids() ? (unsigned)getpid() : 0;
    int answer = REAL(nvmlDeviceGetProcessUtilization)(view->handle, samples, &count, view->stamp);
    if (answer == NVML_NOT_FOUND) count = 0;
    else if (answer != CUDA_SUCCESS || count > SAMPLES) return NO_ANSWER;
    if (count > 0) view->fresh = now;
    if (now - view->fresh < STAYS && count == 0) return NO_SAMPLES;
    bool found = false;
    *use = (struct use){0};
    for (unsigned i = 0; i < count; i++) {
        if (samples[i].timeStamp > view->stamp) view->stamp = samples[i].timeStamp;
        busy += samples[i].smUtil > BUSY;
        enum ct_relation relation = ct_relation_of(samples[i].pid);
        if (relation == CT_SELF || (relation == CT_UNLISTED && samples[i].pid == self)) {
            use->mine += samples[i].smUtil + ROUNDED;
            found = true;
        } else if (relation == CT_STRANGER || (relation == CT_UNLISTED && !is_sibling(view, samples[i].pid, now))) {
            use->others += samples[i].smUtil;
            use->processes++;
        } else {
            use->siblings += samples[i].smUtil;
        }
    }
    if (!found && spanned > BUSY) estimate_use(view, busy, use);
    return NEW_SAMPLES;
}

// False: NVML does not answer.
static bool learn(struct view *view, uint64_t now) {
    double time = (double)(now - view->last), spanned = (double)atomic_exchange(&view->measured, 0);
    struct use use;
    bool recent = view->last != 0 && now - view->last < LONG_AGO;
    view->last = now;
    enum answer answer = read_use(view, now, 100 * spanned / time, &use);
    if (answer != NEW_SAMPLES) return answer == NO_SAMPLES;
    // A process that has just come counts before it is busy: it must not be starved.
    if (use.others > BUSY || use.processes > view->others) view->met = now;
    view->others = use.processes;
    bool alone = use.others >= 0 && (view->met == 0 || now - view->met > STAYS);
    atomic_store(&view->company, use.others < 0 ? UNKNOWN : alone ? ALONE : CONTENDED);
    // Siblings are no company, and yet their kernels run between our events, each of which its own process pays for.
    if (use.siblings > BUSY) view->joined = now;
    if (view->joined && now - view->joined <= STAYS) alone = false;
    if (!recent || use.mine < 0) return true;
    view->seen = view->seen * MEMORY + use.mine / 100 * time;
    view->spanned = view->spanned * MEMORY + spanned;
    double ours = alone || view->spanned <= 0 ? 1 : view->seen / view->spanned;
    atomic_store(&view->ours, (uint32_t)(CT_FRACTION_ONE * (ours > 1 ? 1 : ours < LEAST ? LEAST : ours)));
    return true;
}

void ct_watch_device(int device, uint64_t now) {
    struct view *view = &views[device];
    if (now < atomic_load_explicit(&view->next, memory_order_relaxed)) return;
    if (atomic_exchange(&view->looking, 1)) return;
    uint64_t pause = LOOK_EVERY;
    if (open_nvml(view, device) && learn(view, now)) {
        uint64_t cost = (ct_clock() - now) * COST_SHARE;
        if (cost > pause) pause = cost;
    } else {
        ct_count_fault(CT_FAULT_NVML);
        atomic_store(&view->company, UNKNOWN);
        pause = TRY_AGAIN;
    }
    atomic_store(&view->next, now + pause);
    ct_set_free(&view->looking);
}

void ct_forget_views(void) {
    for (int i = 0; i < CT_DEVICES; i++) views[i] = (struct view){0};
}
