// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What the files of the base share: where symbols are, how the region's file is locked, what happens at the start,
// every 20 ms and after a fork. Hooks need none of it.

#ifndef COTENANT_BASE_H
#define COTENANT_BASE_H

#include <stdbool.h>
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
void *ct_find_symbol(const struct ct_object *object, const char *symbol);
// The first object of that name that does not define `without`; "" in place of a name: this library.
bool ct_find_object(const char *name, const char *without, struct ct_object *found);
// A function of the C library (of libdl, if the C library is older).
void *ct_find_in_libc(const char *symbol);
// The first definition in the objects behind the one that contains `caller`, as RTLD_NEXT finds it.
void *ct_find_next_symbol(const void *caller, const char *symbol);

// lookup.c: our hook for a function of the driver, if there is one and this process has limits; else `real` itself.
void *ct_hook_for(void *real);

// opening.c: in a forked child. Whether this is the copy of the library in the program's own namespace.
void ct_forget_opening(void);
bool ct_is_in_base_space(void);

// strict.c: dl_iterate_phdr, which also works in a static program, whose C library does not know its objects.
struct dl_phdr_info;
int ct_for_each_object(int (*look)(struct dl_phdr_info *, size_t, void *), void *with);

// region.c
extern struct ct_region ct_private_region; // used if the file cannot be
void ct_open_region(const char *path);
void ct_check_region(void);       // stops using the file if it has become shorter than the mapping
int ct_open_region_again(void);   // a new file description, for locks; -1: the file is gone
bool ct_is_region(int file);
bool ct_describe_region(char *text, size_t size); // as it is in a line of /proc/PID/maps; false: it is private memory
bool ct_lock_byte(int file, int64_t byte);
void ct_unlock_byte(int file, int64_t byte);
void ct_use_private_region(void);
void ct_forget_changing(void); // in a forked child
uint64_t ct_noise(void); // differs between any two threads; the upper half is the better one

// slots.c
void ct_leave_slot(void);  // the next use claims one, in the region of that moment
void ct_check_slot(void);  // claims it again if the program closed our file, or forked without the C library
void ct_forget_slot(void); // in a forked child
bool ct_has_siblings(void); // whether another process has a slot, by the kernel's locks

// limits.c
void ct_follow_limits(const char *path); // reads it for the first time
void ct_forget_reading(void);            // in a forked child

// devices.c
int ct_name_device(const char *uuid); // its index, which it gets if it has none; -1: none is left
void ct_forget_devices(void);         // in a forked child

// start.c
const char *ct_named_limits(void); // path of the limits file that the environment named, or ""
bool ct_has_limits(void); // whether the process is in a slice; reads nothing but what names the limits file
void ct_watch_forks(void); // from now on a forked child is restarted
void ct_restart_after_fork(void); // in a forked child: forgets all that belongs to the parent
int ct_stat(const char *path, struct stat *found); // fstatat and fstat, which an older C library does not export
int ct_fstat(int file, struct stat *found);

#endif
