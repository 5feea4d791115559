// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the parts of the stand-in's libcuda.so.1 share. API(name) defines what the generated entry point `name` calls.

#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL // all versions of all functions
#include <cuda.h>
#include <stddef.h>

#include "shared.h"

#define API(name) CUresult si_##name
#define TRY(call)                                 \
    do {                                          \
        CUresult failed = (call);                 \
        if (failed != CUDA_SUCCESS) return failed; \
    } while (0)
#define KNOWN(condition)                                      \
    do {                                                      \
        if (!(condition)) return CUDA_ERROR_INVALID_VALUE;    \
    } while (0)

// devices.c: how many this process sees, and which of the machine's each of them is; -1: none
extern bool si_initialised;
extern int si_visible;
int si_physical(CUdevice device);
CUresult si_known_device(CUdevice device);
CUdevice si_ordinal(int physical);

// mps.c
extern _Atomic int si_lost; // what every call answers once a client of MPS has lost its server; 0: it has not
CUresult si_join_mps(void);
bool si_is_mps_client(void);
void si_leave_mps(void); // in the child of a fork
void si_hold_share(uint64_t length);
CUresult si_fault(void);
void si_end_contexts(void); // contexts.c

// contexts.c
struct CUctx_st {
    int device; // of the machine
    int references;
    bool primary;
    _Atomic bool dead;
    unsigned flags;
    unsigned long long id;
    size_t limits[16];
    CUstream legacy;
    struct CUctx_st *next;
};
extern __thread CUcontext si_current __attribute__((tls_model("initial-exec")));

static inline CUresult si_ready(void) {
    if (SI_LIKELY(si_current && !atomic_load_explicit(&si_current->dead, memory_order_relaxed))) return CUDA_SUCCESS;
    if (!si_initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!si_current) return CUDA_ERROR_INVALID_CONTEXT;
    return si_lost ? (CUresult)si_lost : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// memory.c: every address that the driver has given out
enum si_kind { SI_DEVICE, SI_HOST, SI_REGISTERED, SI_MANAGED, SI_POOLED, SI_GRAPH, SI_IMPORTED, SI_MAPPED, SI_GLOBAL };
struct si_block {
    uint64_t address;
    size_t size;
    enum si_kind kind;
    int device; // of the machine; -1: the host's
    bool backed;
    unsigned flags;
    int resident; // of managed memory: the device that it is on, plus one; 0: the host
    CUcontext context;
    void *owner; // the pool, or the physical memory behind a mapping
    uint64_t id;
    struct si_block *next;
};
extern bool si_backing;
static inline size_t si_pages(size_t size) { return (size + 4095) & ~(size_t)4095; }
CUresult si_new_block(uint64_t *address, size_t size, enum si_kind kind, int device, void *owner);
CUresult si_prefetch(uint64_t address, int device);
bool si_take_block(uint64_t address, unsigned kinds, struct si_block *taken); // kinds: bits of si_kind
CUresult si_drop_memory(const struct si_block *block);
bool si_find_block(uint64_t address, struct si_block *found);
void si_name_block(const struct si_block *block);
void si_free_context_memory(CUcontext context);
void si_forget_memory(void);
void si_memory_lock(void);
void si_memory_unlock(void);
bool si_is_backed(uint64_t address);
CUresult si_charged(int device, uint64_t bytes); // takes the memory lock
void si_uncharged(int device, uint64_t bytes);

// pools.c: free memory goes back to the device when the program synchronises
CUresult si_free_pooled(const struct si_block *block);
void si_settle_pools(void);
bool si_is_managed(CUmemoryPool pool);

// ipc.c, arrays.c, graph_memory.c, vmm.c
void si_forget_tiles(const void *array); // of an array that is destroyed
void si_end_export(uint64_t address);
void si_free_context_arrays(CUcontext context);
CUresult si_free_graph_memory(const struct si_block *block);

// work.c: streams and events
struct CUstream_st {
    CUcontext context;
    unsigned long long id;
    unsigned flags;
    int priority;
    _Atomic uint64_t last;           // si_reference of its newest work
    uint64_t waits[SI_DEPENDENCIES]; // what its next work also comes after; the first place is for `last`
    _Atomic bool dead;
    _Atomic int capturing; // CUstreamCaptureStatus
    struct si_capture *capture;
    CUgraphNode *tips; // nodes after which the next captured one comes
    size_t tip_count;
    struct CUstream_st *next;
};
struct CUevent_st {
    unsigned flags;
    bool recorded;
    _Atomic uint64_t reference; // of the work that it waits for; 0: it has happened
    uint64_t when;
    struct lane *lane;
    struct CUevent_st *next;
    struct si_capture *captured; // recorded while a stream captured: the capture, and its position
    CUgraphNode *tips;
    size_t tip_count;
};
CUstream si_make_stream(CUcontext context, unsigned flags, int priority);
CUresult si_stream(CUstream handle, CUstream *stream);
CUresult si_enqueue(CUstream stream, uint64_t length);
CUresult si_finish_stream(CUstream stream);
CUresult si_finish_device(int device);
CUresult si_not_ready(void);
bool si_is_idle(CUstream stream);
void si_record(CUevent event, CUstream stream);
bool si_has_happened(CUevent event);
void si_forget_event(CUevent event);
void si_make_wait(CUstream stream, CUevent event);
void si_forget_work(void);
void si_free_context_streams(CUcontext context);

// capture.c: true when a capture takes it
bool si_capture_wait(CUstream stream, CUevent event);
bool si_capture_record(CUstream stream, CUevent event);
CUresult si_capture_kernel(CUstream stream, CUfunction function);
CUresult si_capture_plain(CUstream stream, int type);
CUresult si_capture_allocation(CUstream stream, uint64_t *address, size_t size);
CUresult si_capture_free(CUstream stream, uint64_t address);

// modules.c
#define SI_BY_PARAMETER UINT64_MAX // its first parameter is the length, launched as a plain kernel
#define SI_FAULT (UINT64_MAX - 1)  // it ends with a fatal exception
struct CUfunc_st {
    char *name;
    uint64_t length; // ns on the device, or SI_BY_PARAMETER
    CUmodule module;
    int attributes[32];
    struct CUfunc_st *next;
};

CUfunction si_function(CUmodule module, const char *name);
CUresult si_load_lazily(CUmodule library); // before something of it is used

#endif
