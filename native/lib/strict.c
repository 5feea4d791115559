// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The other end of the strict front-end: a libcuda.so.1 that src/cotenant/node/forwarders.py writes from the symbols of
// the node's own driver. Its functions jump through a table, which is filled here when it is loaded: with our hooks, and
// with the driver's functions where we have none. What is not filled in answers CUDA_ERROR_STUB_LIBRARY.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>

#include "base.h"
#include "hooks.h"

// As the front-end has it. The look-ups are the C library's own, because a static program hides where they are.
struct cotenant_front {
    const char *driver;
    size_t count;
    const char *const *names;
    void **table;
    void *(*open)(const char *path, int how);
    void *(*find)(void *library, const char *name);
};

__attribute__((visibility("default"))) void cotenant_strict_fill(const struct cotenant_front *front);

static struct link_map *_Atomic first_map;

static int look_at_map(const struct link_map *map, int (*look)(struct dl_phdr_info *, size_t, void *), void *with) {
    const ElfW(Ehdr) *header = (const void *)map->l_addr;
    if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return 0; // the program itself is at 0 and has nothing
    struct dl_phdr_info info = {
        .dlpi_addr = map->l_addr,
        .dlpi_name = map->l_name,
        .dlpi_phdr = (const void *)(map->l_addr + header->e_phoff),
        .dlpi_phnum = header->e_phnum,
    };
    return look(&info, sizeof info, with);
}

// In a static program that has opened the front-end, the C library that came with it knows of no objects at all; the
// loader's own list, of which the driver's handle is a part, has them.
int ct_each_object(int (*look)(struct dl_phdr_info *, size_t, void *), void *with) {
    if (!first_map) return dl_iterate_phdr(look, with);
    int found = 0;
    for (const struct link_map *map = first_map; map && !found; map = map->l_next) found = look_at_map(map, look, with);
    return found;
}

static int is_there(struct dl_phdr_info *info, size_t size, void *with) {
    (void)info, (void)size, (void)with;
    return 1;
}

static void follow_maps(struct link_map *any) {
    if (dl_iterate_phdr(is_there, NULL)) return;
    while (any->l_prev) any = any->l_prev;
    first_map = any;
}

void cotenant_strict_fill(const struct cotenant_front *front) {
    int saved = errno;
    void *driver = front->open(front->driver, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (driver) follow_maps(driver);
    CT_ENTER();
    ct_find(CT_cuInit); // learns what the driver has, or counts that it cannot be had
    for (size_t i = 0; driver && i < front->count; i++) {
        void *real = front->find(driver, front->names[i]);
        if (real) front->table[i] = ct_in_front_of(real);
    }
    errno = saved;
}
