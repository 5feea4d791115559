// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// cotenant-smi: shows the GPUs of a slice as a program inside it sees them: memory, share of compute, processes. It asks
// NVML, whose answers the vGPU library changes to those of the slice, and reads the limits file for what NVML cannot
// say. It is mounted into containers, so it needs the C library and the driver and nothing else.

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml.h"
#include "start.h"

__asm__(".symver dlopen, dlopen@" OLDEST "\n.symver dlsym, dlsym@" OLDEST);

#define MIB (1024 * 1024)
#define WHOLE 1000
#define LIMITS_BYTES 65536
#define PROCESSES 1024
#define NOT_AVAILABLE (~0ull) // of a number that NVML cannot tell
#define NAMED "/etc/cotenant/limits"

struct gpu {
    nvmlDevice_t handle;
    char name[96], uuid[96];
    nvmlMemory_t memory;
    nvmlUtilization_t rates;
    bool knows_rates;
    unsigned long long host; // bytes of the slice's memory that are memory of the host
    unsigned compute;        // thousandths
    unsigned processes;
    nvmlProcessInfo_t process[PROCESSES];
};

static char limits[LIMITS_BYTES + 1];

static int fail(const char *text) {
    fprintf(stderr, "cotenant-smi: %s\n", text);
    return 1;
}

static void read_limits(void) {
    const char *named = getenv("COTENANT_LIMITS");
    FILE *file = fopen(NAMED, "re");
    if (!file && named) file = fopen(named, "re");
    if (!file) return;
    limits[fread(limits, 1, LIMITS_BYTES, file)] = 0;
    fclose(file);
}

// The number after a word of the line that names a GPU, or of the line for all others; `otherwise` if there is none.
static unsigned long long limit_of(const char *uuid, const char *word, unsigned long long otherwise) {
    char wanted[128];
    snprintf(wanted, sizeof wanted, "\ngpu %s ", uuid);
    const char *line = strstr(limits, wanted);
    if (!line) line = strstr(limits, "\ndefault ");
    if (!line) return otherwise;
    const char *end = strchr(line + 1, '\n'), *found = strstr(line, word);
    return found && (!end || found < end) ? strtoull(found + strlen(word), NULL, 10) : otherwise;
}

static bool read_gpu(const struct nvml *nvml, unsigned index, struct gpu *gpu) {
    if (nvml->nvmlDeviceGetHandleByIndex_v2(index, &gpu->handle) ||
        nvml->nvmlDeviceGetName(gpu->handle, gpu->name, sizeof gpu->name) ||
        nvml->nvmlDeviceGetUUID(gpu->handle, gpu->uuid, sizeof gpu->uuid) ||
        nvml->nvmlDeviceGetMemoryInfo(gpu->handle, &gpu->memory))
        return false;
    gpu->knows_rates = !nvml->nvmlDeviceGetUtilizationRates(gpu->handle, &gpu->rates);
    gpu->host = limit_of(gpu->uuid, " host=", 0);
    gpu->compute = (unsigned)limit_of(gpu->uuid, " compute=", WHOLE);
    gpu->processes = PROCESSES;
    if (nvml->nvmlDeviceGetComputeRunningProcesses_v3(gpu->handle, &gpu->processes, gpu->process)) gpu->processes = 0;
    return true;
}

static const char *command_of(unsigned pid, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(text, 1, size - 1, file) : 0;
    if (file) fclose(file);
    while (got && !text[got - 1]) got--;
    for (size_t i = 0; i < got; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == '"' || text[i] == '\\' || text[i] == 127)
            text[i] = ' ';
        else if ((unsigned char)text[i] > 127)
            text[i] = '?'; // the text may be cut within a character, and need not be UTF-8
    text[got] = 0;
    return got ? text : "-";
}

// MiB of a process, or another word if NVML does not tell it.
static const char *memory_of(const nvmlProcessInfo_t *process, const char *unknown, char *text, size_t size) {
    if (process->usedGpuMemory == NOT_AVAILABLE) return unknown;
    snprintf(text, size, "%llu", process->usedGpuMemory / MIB);
    return text;
}

static void print_table(const struct gpu *gpu, unsigned index) {
    char share[16] = "-", rate[16] = "-";
    if (gpu->compute && gpu->compute < WHOLE) snprintf(share, sizeof share, "%u %%", gpu->compute / 10);
    if (gpu->knows_rates) snprintf(rate, sizeof rate, "%u %%", gpu->rates.gpu);
    printf("%-4u %-28.28s %10llu %10llu %10llu %8s %8s  %s\n", index, gpu->name, gpu->memory.used / MIB,
           gpu->memory.total / MIB, gpu->host / MIB, share, rate, gpu->uuid);
}

static void print_processes(const struct gpu *gpu, unsigned index) {
    char text[256], memory[32];
    for (unsigned i = 0; i < gpu->processes; i++)
        printf("%-10u %-4u %10s  %.80s\n", gpu->process[i].pid, index,
               memory_of(&gpu->process[i], "-", memory, sizeof memory),
               command_of(gpu->process[i].pid, text, sizeof text));
}

static void print_json(const struct gpu *gpu, unsigned index) {
    char text[256], memory[32];
    printf("%s{\"index\":%u,\"uuid\":\"%s\",\"name\":\"%s\",\"used_mib\":%llu,\"total_mib\":%llu,\"host_mib\":%llu,",
           index ? "," : "", index, gpu->uuid, gpu->name, gpu->memory.used / MIB, gpu->memory.total / MIB,
           gpu->host / MIB);
    printf("\"compute_percent\":%u,\"processes\":[", gpu->compute / 10);
    for (unsigned i = 0; i < gpu->processes; i++)
        printf("%s{\"pid\":%u,\"used_mib\":%s,\"command\":\"%s\"}", i ? "," : "", gpu->process[i].pid,
               memory_of(&gpu->process[i], "null", memory, sizeof memory), command_of(gpu->process[i].pid, text, sizeof text));
    printf("]}");
}

static int show(const struct nvml *nvml, bool json) {
    unsigned count = 0;
    if (nvml->nvmlInit_v2()) return fail("the NVIDIA driver does not answer");
    if (nvml->nvmlDeviceGetCount_v2(&count)) return fail("the NVIDIA driver does not list GPUs");
    struct gpu *gpus = calloc(count ? count : 1, sizeof *gpus);
    if (!gpus) return fail("out of memory");
    for (unsigned i = 0; i < count; i++)
        if (!read_gpu(nvml, i, &gpus[i])) return fail("the NVIDIA driver does not describe a GPU");
    if (json) {
        printf("{\"gpus\":[");
        for (unsigned i = 0; i < count; i++) print_json(&gpus[i], i);
        printf("]}\n");
        return 0;
    }
    printf("%-4s %-28s %10s %10s %10s %8s %8s  %s\n", "GPU", "NAME", "USED MiB", "TOTAL MiB", "HOST MiB", "COMPUTE",
           "UTIL", "UUID");
    for (unsigned i = 0; i < count; i++) print_table(&gpus[i], i);
    printf("\n%-10s %-4s %10s  %s\n", "PID", "GPU", "USED MiB", "COMMAND");
    for (unsigned i = 0; i < count; i++) print_processes(&gpus[i], i);
    if (!*limits) fprintf(stderr, "cotenant-smi: there is no limits file, so this is the whole GPU\n");
    return 0;
}

static const char HELP[] = "Usage: cotenant-smi [--json]\n\n"
                           "Shows the GPUs of this container as its programs see them: memory of its slice (HOST is the part of\n"
                           "TOTAL that is memory of the host), share of compute, and the processes of the slice.\n\n"
                           "Example:\n  kubectl exec trainer -- /usr/local/lib/cotenant/cotenant-smi\n";

int main(int count, char **words) {
    bool json = count == 2 && strcmp(words[1], "--json") == 0;
    if (count == 2 && (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0)) return fputs(HELP, stdout) < 0;
    if (count > 1 && !json) {
        fprintf(stderr, "cotenant-smi: unknown argument %.60s; expected --json or --help\n", words[1]);
        return 2;
    }
    struct nvml nvml;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail("no NVIDIA driver here (libnvidia-ml.so.1): this container has no GPU");
    if (!find_functions(library, &nvml)) return fail("the NVIDIA driver is too old");
    read_limits();
    return show(&nvml, json);
}
