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
struct space {
    bool is_taken; // by a thread that asks the loader about it
    void *copy;    // NULL: there is no namespace yet
    Lmid_t id;
    char file[CT_PATH_BYTES]; // that the program opened there
};
static struct space spaces[SPACES];
static int latest = -1;

// Guards all of these; it is free while the loader is called, since the loader has a lock of its own: a constructor
// that opens another object already holds that one, and would wait here for a thread that waits for the loader.
static ct_lock choosing;

typedef void *open_function(Lmid_t space, const char *file, int flags);

// The program's loader, as functions that may be missing.
struct loader {
    open_function *open;
    int (*close)(void *object);
    int (*where)(const void *address, Dl_info *found);
    int (*ask)(void *object, int question, void *answer);
    void *(*find)(void *object, const char *symbol);
};

static struct loader find_loader(open_function *open) {
    return (struct loader){open, ct_find_in_libc("dlclose"), ct_find_in_libc("dladdr"), ct_find_in_libc("dlinfo"),
                           ct_find_in_libc("dlsym")};
}

// A new namespace that begins with a copy of this library. NULL: there is none.
static void *make_space(const struct loader *loader, Lmid_t *id) {
    Dl_info own;
    if (!loader->close || !loader->where || !loader->ask || !loader->find) return NULL;
    if (!loader->where(spaces, &own) || !own.dli_fname) return NULL;
    void *copy = loader->open(LM_ID_NEWLM, own.dli_fname, RTLD_LAZY | RTLD_LOCAL);
    if (!copy) return NULL;
    void (*inherit)(const char *) = loader->find(copy, "ct_inherit_limits");
    if (!inherit || loader->ask(copy, RTLD_DI_LMID, id)) { // the file of the library was replaced by something else
        loader->close(copy);
        return NULL;
    }
    inherit(ct_named_limits());
    return copy;
}

static bool is_in_use(const struct loader *loader, Lmid_t id, const char *file) {
    void *there = loader->open(id, file, RTLD_LAZY | RTLD_NOLOAD);
    if (there && loader->close) loader->close(there);
    return there;
}

static bool take_space(int place, struct space *found) {
    ct_acquire(&choosing);
    bool taken = !spaces[place].is_taken;
    if (taken) {
        spaces[place].is_taken = true;
        *found = spaces[place];
    }
    ct_set_free(&choosing);
    return taken;
}

static void put_space_back(int place, const struct space *changed) {
    ct_acquire(&choosing);
    spaces[place] = *changed;
    spaces[place].is_taken = false;
    if (changed->copy) latest = place;
    ct_set_free(&choosing);
}

// Whether the namespace at this place, which is made if there is none, can be given to the program.
static bool is_usable_space(struct space *space, const struct loader *loader) {
    if (space->copy) return !is_in_use(loader, space->id, space->file);
    return (space->copy = make_space(loader, &space->id)) != NULL;
}

static Lmid_t find_latest(void) {
    ct_acquire(&choosing);
    Lmid_t id = latest >= 0 ? spaces[latest].id : LM_ID_NEWLM;
    ct_set_free(&choosing);
    return id;
}

// A namespace in which this library comes first; LM_ID_NEWLM: there is none.
static Lmid_t find_space(const char *file, open_function *open) {
    struct loader loader = find_loader(open);
    struct space space;
    bool is_found = false, is_full = false;
    ct_watch_forks(); // a child must not find what another thread has taken here
    for (int place = 0; place < SPACES && !is_found && !is_full; place++) {
        if (!take_space(place, &space)) continue;
        bool is_made = space.copy;
        is_found = is_usable_space(&space, &loader);
        is_full = !is_found && !is_made;
        if (is_found && strlen(file) < sizeof space.file) strcpy(space.file, file);
        put_space_back(place, &space);
    }
    Lmid_t id = is_found ? space.id : find_latest();
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

void ct_forget_opening(void) {
    for (int i = 0; i < SPACES; i++) spaces[i].is_taken = false;
    ct_set_free(&choosing);
}

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
