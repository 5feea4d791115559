// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the files of the base tell each other: where symbols are, how the region's file is locked, what happens at the
// start, every 20 ms and after a fork. Hooks need none of it.

#ifndef COTENANT_BASE_H
#define COTENANT_BASE_H

#include <stdint.h>
#include <sys/stat.h>

#include "limits.h"

// elf.c: symbols found in the tables of loaded objects, without the loader's own look-up.
struct ct_object {
    uintptr_t base;
    uintptr_t from, to; // where it is in memory
    const char *name;   // its DT_SONAME, or ""
    const void *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *hash;
};
void *ct_symbol_of(const struct ct_object *object, const char *symbol);
// The first object of that name that does not define `without`; "" in place of a name: this library.
_Bool ct_find_object(const char *name, const char *without, struct ct_object *found);
// What the C library (or libdl, in an older one) defines under a name.
void *ct_of_libc(const char *symbol);
// The first definition in the objects behind the one that `caller` is in, as RTLD_NEXT has it.
void *ct_next_symbol(const void *caller, const char *symbol);

// lookup.c: our hook, where that is the driver's function and this process is held to limits; else the same again.
void *ct_in_front_of(void *real);

// strict.c: dl_iterate_phdr, also where a static program keeps the C library from knowing its objects.
struct dl_phdr_info;
int ct_each_object(int (*look)(struct dl_phdr_info *, size_t, void *), void *with);

// region.c
extern struct ct_region ct_private; // what is used where the file cannot be
void ct_open_region(const char *path);
void ct_check_region(void);       // whether the file is still as long as what is mapped of it
int ct_open_region_again(void);   // a description of its own, for locks; -1 where the file is not to be had any more
_Bool ct_is_region(int file);
_Bool ct_lock_byte(int file, int64_t byte);
void ct_unlock_byte(int file, int64_t byte);
void ct_use_private_region(void);
uint64_t ct_noise(void); // not the same for any two threads; its upper half is the better one

// slots.c: mine is what this process uses, slot what the others see of it.
extern _Atomic uint64_t ct_mine[2][CT_DEVICES];
void ct_leave_slot(void);  // the next use claims one, in whatever region it is then
void ct_check_slot(void);  // whether the program closed our file, or is a fork that we were not told of
void ct_forget_slot(void); // in a forked child

// limits.c
void ct_follow_limits(const char *path); // reads it for the first time
void ct_forget_reading(void);            // in a forked child

// devices.c
int ct_name_device(const char *uuid); // its index, given to it if it has none; -1: there is none left
void ct_forget_devices(void);         // in a forked child

// start.c
void ct_forked(void);
int ct_stat(const char *path, struct stat *found); // fstatat and fstat, which older C libraries do not export
int ct_fstat(int file, struct stat *found);

#endif
