// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Objects that a program opens, and that are linked with the driver, must find our hooks before they find the driver's
// functions. RTLD_DEEPBIND would reverse that order, so in a slice it is dropped. In a namespace of its own (dlmopen) an
// object finds nothing that was preloaded; but what is loaded first into a namespace comes first for all others in it,
// so a new namespace gets a copy of this library before what the program opens there. That copy has its own slot in the
// region and its own books, as another process of the slice would have.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#include "base.h"
#include "hooks.h"
#include "lock.h"

#define SPACES 16 // as many as the loader has

// Namespaces with a copy of this library. The loader has few, and memory for fewer, so one in which the program has
// closed what it opened is used again; if there is no other, it gets another object beside its first.
static struct {
    void *copy;
    Lmid_t id;
    char file[CT_PATH_BYTES]; // that the program opened there
} spaces[SPACES];
static int latest;
static ct_lock choosing;

typedef void *open_function(Lmid_t space, const char *file, int flags);

static bool make_space(int place, open_function *open) {
    int (*where)(const void *, Dl_info *) = ct_find_in_libc("dladdr");
    int (*ask)(void *, int, void *) = ct_find_in_libc("dlinfo");
    void *(*find)(void *, const char *) = ct_find_in_libc("dlsym");
    Dl_info own;
    if (!where || !ask || !find || !where(spaces, &own) || !own.dli_fname) return false;
    void *copy = open(LM_ID_NEWLM, own.dli_fname, RTLD_LAZY | RTLD_LOCAL);
    void (*inherit)(const char *) = copy ? find(copy, "ct_inherit_limits") : NULL;
    if (!inherit || ask(copy, RTLD_DI_LMID, &spaces[place].id)) return false;
    inherit(ct_named_limits());
    spaces[place].copy = copy;
    return true;
}

static bool is_in_use(int place, open_function *open) {
    int (*close)(void *) = ct_find_in_libc("dlclose");
    void *there = open(spaces[place].id, spaces[place].file, RTLD_LAZY | RTLD_NOLOAD);
    if (there && close) close(there);
    return there;
}

// A namespace in which this library comes first; LM_ID_NEWLM: there is none.
static Lmid_t find_space(const char *file, open_function *open) {
    int place = 0;
    ct_acquire(&choosing);
    while (place < SPACES && spaces[place].copy && is_in_use(place, open)) place++;
    if (place == SPACES || (!spaces[place].copy && !make_space(place, open))) place = latest;
    latest = place;
    Lmid_t id = spaces[place].copy ? spaces[place].id : LM_ID_NEWLM;
    size_t length = strlen(file);
    if (length < sizeof spaces[place].file) memcpy(spaces[place].file, file, length + 1);
    ct_set_free(&choosing);
    if (id == LM_ID_NEWLM) ct_count_fault(CT_FAULT_DRIVER);
    return id;
}

static int is_program(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    return *(bool *)found |= (uintptr_t)info->dlpi_phdr == getauxval(AT_PHDR);
}

bool ct_is_in_base_space(void) {
    bool found = false;
    ct_for_each_object(is_program, &found);
    return found;
}

void ct_forget_opening(void) { ct_set_free(&choosing); }

// The parameters of dlmopen, as dlsym.S has them on the stack.
struct opening {
    Lmid_t space;
    const char *file;
    uintptr_t flags;
};

// What dlsym.S calls before it jumps to the loader's dlopen or dlmopen: returns that function, and adjusts the parameters.
__attribute__((used)) void *ct_before_open(struct opening *opening, int in_space);
void *ct_before_open(struct opening *opening, int in_space) {
    static _Atomic(void *) real[2];
    struct ct_thread_state before = ct_save_thread();
    if (!real[in_space]) real[in_space] = ct_find_in_libc(in_space ? "dlmopen" : "dlopen");
    if (real[in_space] && ct_has_limits()) {
        opening->flags &= ~(uintptr_t)RTLD_DEEPBIND;
        if (in_space && opening->space == LM_ID_NEWLM && opening->file && !(opening->flags & RTLD_NOLOAD))
            opening->space = find_space(opening->file, (open_function *)real[in_space]);
    }
    ct_restore_thread(before);
    return real[in_space];
}
