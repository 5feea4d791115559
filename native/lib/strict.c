// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The library's side of the strict front-end: a libcuda.so.1 that src/cotenant/node/front_end.py writes from the
// symbols of the node's own driver. Its functions jump through a table, which is filled here when it is loaded: with
// our hooks, and with the driver's functions that have no hook. An entry that is not filled returns
// CUDA_ERROR_STUB_LIBRARY.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>

#include "base.h"
#include "hooks.h"

// The layout is that of front_end.py. open and find are the C library's own dlopen and dlsym, because in a static
// program they cannot be found from here.
struct ct_front_end {
    const char *driver;
    size_t count;
    const char *const *names;
    void **table;
    void *(*open)(const char *path, int how);
    void *(*find)(void *library, const char *name);
};

__attribute__((visibility("default"))) void ct_fill_front_end(const struct ct_front_end *front);

static struct link_map *_Atomic first_map;

static int look_at_map(const struct link_map *map, int (*look)(struct dl_phdr_info *, size_t, void *), void *with) {
    const ElfW(Ehdr) *header = (const void *)map->l_addr;
    if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return 0; // the program itself is at 0
    struct dl_phdr_info info = {
        .dlpi_addr = map->l_addr,
        .dlpi_name = map->l_name,
        .dlpi_phdr = (const void *)(map->l_addr + header->e_phoff),
        .dlpi_phnum = header->e_phnum,
    };
    return look(&info, sizeof info, with);
}

// In a static program that has opened the front-end, the C library that was loaded with it knows no objects at all;
// they are in the loader's own list, which the driver's handle is a part of.
int ct_for_each_object(int (*look)(struct dl_phdr_info *, size_t, void *), void *with) {
    if (!first_map) return dl_iterate_phdr(look, with);
    int found = 0;
    for (const struct link_map *map = first_map; map && !found; map = map->l_next) found = look_at_map(map, look, with);
    return found;
}

static int accept_any(struct dl_phdr_info *info, size_t size, void *with) {
    (void)info, (void)size, (void)with;
    return 1;
}

static void follow_maps(struct link_map *any) {
    if (dl_iterate_phdr(accept_any, NULL)) return;
    while (any->l_prev) any = any->l_prev;
    first_map = any;
}

void ct_fill_front_end(const struct ct_front_end *front) {
    int saved = errno;
    void *driver = front->open(front->driver, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (driver) follow_maps(driver);
    CT_ENTER();
    ct_find_function(CT_cuInit); // learns the driver's functions, or counts a fault if there is no driver
    for (size_t i = 0; driver && i < front->count; i++) {
        void *real = front->find(driver, front->names[i]);
        if (real) front->table[i] = ct_hook_for(real);
    }
    errno = saved;
}
