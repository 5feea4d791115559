// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What tests and demos may ask of the stand-in driver beyond CUDA and NVML. Exported by its libcuda.so.1.
//
// Set up by the environment, read once by the first process that makes the state file; later ones find it made:
//   STANDIN_STATE        file shared by all processes that see the same GPUs (needed for more than one process;
//                        without it the state is private memory); physical memory is in another file of that name with
//                        .physical behind it
//   STANDIN_DEVICES      number of GPUs (1 to 16; 1)      UUIDs are GPU-00000000-0000-0000-0000-00000000000N, N from 1
//   STANDIN_FIRST        another N for the first: machines of one cluster have no UUID in common (1)
//   STANDIN_MEMORY_MIB   of each (24576), or a list with commas, whose last counts for all further ones
//   STANDIN_NAMES        what they are called ("Stand-in GPU"), or a list likewise
//   STANDIN_NUMA         NUMA node of each, as NVML tells it (unknown), or a list likewise
//   STANDIN_NVLINKS      far ends of the NVLinks of each (none), or a list likewise: 1+1 is two links to GPU 1, s0 a link to
//                        NVSwitch 0
//   STANDIN_MIG          MIG instances of each, as profiles with slashes between them: 1g.5gb/3g.20gb is two instances (not in
//                        MIG mode, also written -), or a list likewise. Cards and instances together are 16 at most; UUIDs
//                        of instances are MIG-00000000-0000-0000-MMMM-00000000000N, M from 1 for each that was ever made
//   STANDIN_CAPABILITY   compute capability of each (8.0), or a list likewise
//   STANDIN_CLOCK        real (default) or virtual: time passes only when every thread that takes part waits
//   STANDIN_PARTIES      with a virtual clock: threads (of all processes) that must have joined before time passes (1)
//   STANDIN_ENGINE       fifo (default) or round-robin: the unit of turns between processes on one GPU
//   STANDIN_QUANTUM_NS   of round-robin (2000000)
//   STANDIN_OVERLAP      1: streams of one process run side by side; 0 (default): one after the other
//   STANDIN_KERNEL_NS    device time of a kernel whose name says nothing (0); one named ns_1000000 takes that many,
//                        one named ns_parameter as many as its first parameter (a uint64_t) says, and one named
//                        fault ends with a fatal exception
//   STANDIN_CONTEXT_MIB  memory that the driver takes for itself in each process that uses a GPU (0)
//   STANDIN_HOST_PIDS    1, or the inode of the host's PID namespace if it has one of its own: NVML names processes by the
//                        process IDs of the host, in a container too (0); one whose /proc is not the host's is named as
//                        soon as a process of the host has asked NVML
//   STANDIN_JITTER_NS    events read up to this much off, up or down (0), by a seeded generator
//   STANDIN_NVML_WINDOW_MS, STANDIN_NVML_LAG_MS   of utilisation samples (200, 0)
// Read by each process for itself:
//   STANDIN_VISIBLE      indices and UUIDs of the only GPUs that exist for it, as in a container that was given some of
//                        the machine's; those it sees are numbered anew, their minor numbers are the machine's
//   CUDA_VISIBLE_DEVICES indices and UUIDs, as the driver reads them: a process sees one MIG instance at most, and no GPU
//                        beside it
//   CUDA_MPS_PIPE_DIRECTORY   folder of the MPS control daemon (mps_control.py); without one, the process is no client
//   CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT   limits of a client of MPS
//   STANDIN_BACKING      real (default: allocations are memory that can be copied) or none (addresses only, fast)
//   STANDIN_DRIVER       CUDA version that is claimed (12090); from 13040 on, NVML limits the memory of cgroups
//   STANDIN_FAULTS       "cuMemAlloc_v2=2@3,cuLaunchKernel=719": from its third call on cuMemAlloc_v2 answers 2, ...;
//                        "...@3-5": only from the third to the fifth
//   STANDIN_UNPRIVILEGED NVML refuses to change compute modes, memory limits and MIG instances, as it does for all but root
//   STANDIN_UNTOLD       from so many answers on NVML does not tell the memory of processes
//   STANDIN_MISSING      "cuMemAllocAsync,...": cuGetProcAddress does not know these
//   STANDIN_LOG          file to which each call of a function that is not implemented is written, a line each

#ifndef STANDIN_H
#define STANDIN_H

#include <stdint.h>

uint64_t standinNow(void);                 // ns of the device clock
void standinSleepUntil(uint64_t when);     // the calling thread takes part in a virtual clock from its first wait on
void standinJoin(void);                    // takes part from now on
void standinLeave(void);                   // takes part no more: a thread that computes or waits elsewhere
uint64_t standinBusy(int device, uint32_t pid, uint64_t from, uint64_t to); // ns the engine worked for it; pid 0: all
uint64_t standinUsed(int device, uint32_t pid); // bytes on the device (by index, not as made visible); pid 0: all
uint64_t standinPeak(int device);          // most bytes ever on the device at once
void standinBreak(int device, int answer); // NVML answers this to everything about the device; 0: it works again
// Other MIG instances for a card, as in STANDIN_MIG; NULL: it leaves MIG mode. Instances of equal profiles stay.
void standinPartition(int card, const char *layout);
uint64_t standinCalls(const char *name);   // of a driver function by this process; only of those in STANDIN_COUNT
// Calls a function once, when the next call of a driver function is done and has not returned: what another thread does
// at that moment.
void standinAfter(const char *name, void (*function)(void));

#endif
