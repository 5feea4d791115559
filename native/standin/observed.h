// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the management libraries of other vendors report of the stand-in GPUs: cndev.c and rocm_smi.c read them here.

#ifndef STANDIN_OBSERVED_H
#define STANDIN_OBSERVED_H

#include "shared.h"

#define EXPORTED __attribute__((visibility("default")))

struct si_process {
    uint32_t pid;
    uint64_t bytes;
};

// The GPU at this index among those that the process can see; -1 if there is none.
int si_observed_gpu(uint32_t index);
// Number of GPUs that the process can see.
uint32_t si_observed_count(void);
// What `standinBreak` made the GPU answer; 0: it works.
int si_observed_fault(int gpu);
// Bytes in use on the GPU, without those of processes that have ended.
uint64_t si_observed_bytes(int gpu);
// Percent of the last window in which the GPU worked.
uint32_t si_observed_percent(int gpu);
// The processes on the GPU, each once; returns their number.
uint32_t si_observed_processes(int gpu, struct si_process found[SI_SLOTS]);

#endif
