// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// A client that finds the driver by itself, in one of the ways that programs use, and allocates memory. It is not
// linked with the driver, so that it can be a static program too.
//
//   bypass_lookup WAY WITHIN_MIB BEYOND_MIB     WAY: dlsym, default, procaddr, dlmopen or walk

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER "libcuda.so.1"

static void *handle;
static int (*get_proc)(const char *name, void **function, int version, uint64_t flags, int *status);
static const ElfW(Sym) *symbols;
static const char *strings;
static uint32_t count;
static uintptr_t base;

// The tables of the first loaded object of the driver's name, read as the loader reads them.
static int take_tables(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    if (!strstr(info->dlpi_name, "libcuda.so")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        base = info->dlpi_addr;
        for (const ElfW(Dyn) *entry = (void *)(base + info->dlpi_phdr[i].p_vaddr); entry->d_tag; entry++) {
            uintptr_t there = entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr;
            if (entry->d_tag == DT_SYMTAB) symbols = (void *)there;
            if (entry->d_tag == DT_STRTAB) strings = (void *)there;
            if (entry->d_tag == DT_HASH) count = ((const uint32_t *)there)[1];
        }
    }
    return symbols != NULL;
}

// Without DT_HASH: the symbols end at the strings, in every file that a linker writes.
static void *walk(const char *name) {
    uint32_t most = count ? count : ((uintptr_t)strings - (uintptr_t)symbols) / sizeof *symbols;
    for (uint32_t i = 1; i < most; i++) {
        if (symbols[i].st_shndx && !strcmp(strings + symbols[i].st_name, name)) return (void *)(base + symbols[i].st_value);
    }
    return NULL;
}

static void *find(const char *way, const char *name, const char *base_name) {
    if (!strcmp(way, "walk")) return walk(name);
    if (!strcmp(way, "default")) return dlsym(RTLD_DEFAULT, name);
    if (!strcmp(way, "procaddr")) {
        void *found = NULL;
        return get_proc(base_name, &found, 12000, 0, NULL) == 0 ? found : NULL;
    }
    return dlsym(handle, name);
}

static int open_driver(const char *way) {
    if (!strcmp(way, "dlmopen")) handle = dlmopen(LM_ID_NEWLM, DRIVER, RTLD_NOW);
    else handle = dlopen(DRIVER, RTLD_NOW | (strcmp(way, "default") ? RTLD_LOCAL : RTLD_GLOBAL));
    if (!handle) return fprintf(stderr, "%s\n", dlerror()), 1;
    if (!strcmp(way, "walk") && !dl_iterate_phdr(take_tables, NULL)) return fputs("no driver is loaded\n", stderr), 1;
    if (!strcmp(way, "procaddr")) get_proc = dlsym(handle, "cuGetProcAddress_v2");
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4 || open_driver(argv[1])) return 2;
    const char *way = argv[1];
    int (*init)(unsigned) = find(way, "cuInit", "cuInit");
    int (*retain)(void **, int) = find(way, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = find(way, "cuCtxSetCurrent", "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, size_t) = find(way, "cuMemAlloc_v2", "cuMemAlloc");
    int (*info)(size_t *, size_t *) = find(way, "cuMemGetInfo_v2", "cuMemGetInfo");
    if (!init || !retain || !set || !allocate || !info) return fputs("a function is missing\n", stderr), 2;
    void *context = NULL;
    unsigned long long pointer;
    size_t left = 0, total = 0;
    printf("init %d\n", init(0) || retain(&context, 0) || set(context));
    printf("within %d\n", allocate(&pointer, strtoull(argv[2], NULL, 0) << 20));
    printf("beyond %d\n", allocate(&pointer, strtoull(argv[3], NULL, 0) << 20));
    printf("info %d\n", info(&left, &total));
    printf("total %zu\nfree %zu\n", total, left);
    return 0;
}
