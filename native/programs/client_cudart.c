// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Lets the CUDA runtime look up all functions that it needs of the driver, then searches the runtime's memory for them:
// it must contain our hooks, and no function of the driver that has a hook.
//
//   client_cudart PATH_OF_LIBCUDART     prints how many pointers of each kind were found

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HOOK(name, policy) #name,
#define USED(name)
static const char *const names[] = {
#include "hooks.def"
};
enum { NAMES = sizeof names / sizeof *names };

struct object {
    const char *part_of_name;
    uintptr_t base, from, to; // from, to: what is written to
    const ElfW(Sym) *symbols;
    const char *strings;
};

static void read_dynamic(struct object *object, const ElfW(Dyn) *entry) {
    for (; entry->d_tag; entry++) {
        uintptr_t there = entry->d_un.d_ptr < object->base ? object->base + entry->d_un.d_ptr : entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) object->symbols = (void *)there;
        if (entry->d_tag == DT_STRTAB) object->strings = (void *)there;
    }
}

static int find(struct dl_phdr_info *info, size_t size, void *with) {
    (void)size;
    struct object *object = with;
    if (!strstr(info->dlpi_name, object->part_of_name)) return 0;
    object->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_DYNAMIC) read_dynamic(object, (void *)(info->dlpi_addr + part->p_vaddr));
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_W)) continue;
        object->from = info->dlpi_addr + part->p_vaddr;
        object->to = object->from + part->p_memsz;
    }
    return 1;
}

// The address of a name in an object's own table: does not call dlsym, which may be interposed.
static uintptr_t address(const struct object *object, const char *name) {
    size_t most = ((uintptr_t)object->strings - (uintptr_t)object->symbols) / sizeof *object->symbols;
    for (size_t i = 1; i < most; i++) {
        if (object->symbols[i].st_shndx && !strcmp(object->strings + object->symbols[i].st_name, name))
            return object->base + object->symbols[i].st_value;
    }
    return 0;
}

static int count(const struct object *in, const struct object *of) {
    int found = 0;
    for (int i = 0; i < NAMES; i++) {
        uintptr_t wanted = of->symbols ? address(of, names[i]) : 0;
        for (const uintptr_t *at = (void *)in->from; wanted && (uintptr_t)(at + 1) <= in->to; at++) {
            if (*at == wanted) {
                found++;
                break;
            }
        }
    }
    return found;
}

int main(int argc, char **argv) {
    dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL); // stays loaded, even if the runtime closes it
    void *runtime = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*allocate)(void **, size_t) = runtime ? dlsym(runtime, "cudaMalloc") : NULL;
    if (!allocate) return fprintf(stderr, "%s\n", dlerror()), 1;
    void *pointer = NULL;
    printf("malloc %d\n", allocate(&pointer, 1)); // whatever it answers: by then it has looked everything up
    struct object cudart = {.part_of_name = "libcudart"}, driver = {.part_of_name = "libcuda.so"};
    struct object ours = {.part_of_name = "libcotenant"};
    dl_iterate_phdr(find, &cudart);
    dl_iterate_phdr(find, &driver);
    dl_iterate_phdr(find, &ours);
    if (!cudart.to || !driver.symbols) return fputs("the runtime or the driver is not loaded\n", stderr), 1;
    printf("drivers %d\nours %d\n", count(&cudart, &driver), count(&cudart, &ours));
    return 0;
}
