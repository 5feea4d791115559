// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the generated entry points do before and after they call what is written for them.

#ifndef STANDIN_ENTRIES_H
#define STANDIN_ENTRIES_H

#include <stdbool.h>
#include <stdint.h>

// Set when STANDIN_FAULTS, STANDIN_COUNT or standinAfter name anything.
extern bool si_gated;

// The answer that is to be given instead, or 0.
int si_gate(const char *name);

// Calls what standinAfter has set for that function.
void si_set_after(const char *name, void (*function)(void));
void si_after(const char *name);

uint64_t si_calls(const char *name);

// The answer of what is not there, after it was written down in STANDIN_LOG.
void si_log(const char *name);
int si_not_supported(const char *name);
int si_nvml_not_supported(const char *name);

#define GATE(result, name)                                     \
    do {                                                       \
        if (__builtin_expect(si_gated, 0)) {                   \
            int instead = si_gate(name);                       \
            if (instead) si_after(name);                       \
            if (instead) return (result)instead;               \
        }                                                      \
    } while (0)

#define ANSWER(result, name, call)                             \
    do {                                                       \
        result answer = call;                                  \
        if (__builtin_expect(si_gated, 0)) si_after(name);     \
        return answer;                                         \
    } while (0)

#define PER_THREAD(stream) ((stream) ? (stream) : (CUstream)2)

struct si_address {
    const char *name;
    int version;
    int per_thread;
    void *function;
};
extern const struct si_address si_addresses[]; // sorted
extern const unsigned si_address_count;

#endif
