// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// How a program's calls reach our hooks. Symbols that a program is linked with bind to ours by themselves. What it
// looks up (dlsym, dlvsym, cuGetProcAddress) is first looked up by the real function and then swapped by address: if
// the answer is the driver's function it becomes our hook, and every other answer stays. So versions, per-thread-stream
// variants, other wrappers and a program's own functions of the same name come out right without a table of names and
// versions.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base.h"
#include "hooks.h"
#include "lock.h"

// A front-end in the place of libcuda.so.1 has the real driver's path under this symbol.
#define FRONT_END "ct_front_end_driver"
#define SWAPS 512 // more than twice as many as there are hooks

static const char *const names[] = {
#define HOOK(name, policy) #name,
#define USED(name) #name,
#include "hooks.def"
#undef HOOK
#undef USED
};

static const bool hooked[] = {
#define HOOK(name, policy) true,
#define USED(name) false,
#include "hooks.def"
#undef HOOK
#undef USED
};

_Atomic(void *) ct_real_functions[CT_FUNCTIONS];

struct library {
    const char *name;
    char initial; // of its functions
    enum ct_fault missing;
    _Atomic bool known;   // its functions are in ct_real_functions and in the swaps
    _Atomic bool refused; // it could not be loaded
    _Atomic uintptr_t from, to;
};

static struct library cuda = {.name = "libcuda.so.1", .initial = 'c', .missing = CT_FAULT_DRIVER};
static struct library nvml = {.name = "libnvidia-ml.so.1", .initial = 'n', .missing = CT_FAULT_NVML};

static struct library *library_of(const char *function) {
    return *function == nvml.initial ? &nvml : &cuda;
}

// From the address of a real function to our hook. Entries are only added, and adding one twice is harmless, so there
// is no lock that a fork could leave closed.
static struct {
    _Atomic uintptr_t real;
    _Atomic(void *) hook;
} swaps[SWAPS];

static unsigned place(uintptr_t real) {
    return (unsigned)((uint64_t)real * UINT64_C(0x9e3779b97f4a7c15) >> 55);
}

static void add_swap(void *real, void *hook) {
    for (unsigned at = place((uintptr_t)real);; at = (at + 1) % SWAPS) {
        uintptr_t there = 0;
        bool free = atomic_compare_exchange_strong(&swaps[at].real, &there, (uintptr_t)real);
        if (!free && there != (uintptr_t)real) continue;
        swaps[at].hook = hook; // if one function has two names, the later one in the list is the newer
        return;
    }
}

static void *swap(void *real) {
    for (unsigned at = place((uintptr_t)real);; at = (at + 1) % SWAPS) {
        uintptr_t there = atomic_load_explicit(&swaps[at].real, memory_order_acquire);
        if (there == 0) return NULL;
        if (there == (uintptr_t)real) return swaps[at].hook;
    }
}

void *ct_hook_for(void *real) {
    void *hook = ct_limited ? swap(real) : NULL;
    return hook ? hook : real;
}

static struct {
    _Atomic uintptr_t from, to;
} self;

static bool is_ours(const void *address) {
    struct ct_object object;
    if (!self.to && ct_find_object("", NULL, &object)) {
        self.from = object.from;
        self.to = object.to;
    }
    return self.from <= (uintptr_t)address && (uintptr_t)address < self.to;
}

// Our function, even if a wrapper in front of us defines the same name.
static void *our_own(const char *name) {
    struct ct_object object;
    return ct_find_object("", NULL, &object) ? ct_find_symbol(&object, name) : NULL;
}

// Loads a library, or keeps a loaded one from being unloaded: we keep addresses in it.
static bool keep_loaded(const char *path, int how) {
    void *(*open)(const char *, int) = ct_find_in_libc("dlopen");
    return open && open(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE | how);
}

static void learn(struct library *library, const struct ct_object *object) {
    for (int i = 0; i < CT_FUNCTIONS; i++) {
        if (library_of(names[i]) != library) continue;
        void *real = ct_find_symbol(object, names[i]);
        void *hook = hooked[i] ? our_own(names[i]) : NULL;
        if (real && hook) add_swap(real, hook);
        ct_real_functions[i] = real;
    }
    library->from = object->from;
    library->to = object->to;
    library->known = true;
}

static bool learn_if_loaded(struct library *library) {
    if (library->known) return true;
    struct ct_object object;
    if (!ct_find_object(library->name, FRONT_END, &object)) return false;
    keep_loaded(library->name, RTLD_NOLOAD);
    learn(library, &object);
    return true;
}

static bool load(struct library *library) {
    if (learn_if_loaded(library)) return true;
    if (library->refused) return false;
    struct ct_object front;
    const char *path = library->name;
    if (ct_find_object(library->name, NULL, &front)) path = ct_find_symbol(&front, FRONT_END);
    if (keep_loaded(path, 0) && learn_if_loaded(library)) return true;
    library->refused = true;
    ct_count_fault(library->missing);
    return false;
}

void *ct_find_function(enum ct_function function) {
    struct ct_thread_state before = ct_save_thread();
    load(library_of(names[function]));
    ct_restore_thread(before);
    return ct_real_functions[function];
}

static bool is_inside(const struct library *library, const void *address) {
    return library->from <= (uintptr_t)address && (uintptr_t)address < library->to;
}

// A function of a second copy of the driver (dlmopen, a front-end) is replaced by that of the first, which is the only
// one that our hooks call.
static void *from_first_copy(void *answer, const char *name) {
    struct library *library = library_of(name);
    if (is_inside(library, answer)) return answer;
    int (*where)(const void *, Dl_info *) = ct_find_in_libc("dladdr");
    Dl_info info;
    if (!where || !where(answer, &info) || !info.dli_fname) return answer;
    const char *file = strrchr(info.dli_fname, '/');
    if (strncmp(file ? file + 1 : info.dli_fname, library->name, strlen(library->name) - 2) != 0) return answer;
    struct ct_object first;
    if (!load(library) || !ct_find_object(library->name, FRONT_END, &first)) return answer;
    void *same = ct_find_symbol(&first, name);
    return same ? same : answer;
}

static bool is_loaders(const char *name) {
    return strcmp(name, "dlsym") == 0 || strcmp(name, "dlvsym") == 0;
}

// Whether the driver has this function, if it is one that we hook or use; true for all other names.
static bool driver_has(const char *name) {
    if (is_loaders(name)) return true;
    for (int i = 0; i < CT_FUNCTIONS; i++) {
        if (strcmp(names[i], name) == 0) return ct_real_functions[i];
    }
    return true;
}

static bool is_of_interest(const char *name) {
    if (name[0] == 'c') return name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    if (name[0] == 'n') return strncmp(name, "nvml", 4) == 0;
    return name[0] == 'd' && is_loaders(name);
}

struct ct_look_up_answer {
    void *value;
    void *jump; // not NULL: where to jump, in place of an answer
};

static void *call_real(void *real, void *handle, const char *name, const char *version) {
    if (!version) return ((void *(*)(void *, const char *))real)(handle, name);
    return ((void *(*)(void *, const char *, const char *))real)(handle, name, version);
}

static struct ct_look_up_answer look_up(void *handle, const char *name, const char *version, void *caller, void *real) {
    struct ct_look_up_answer pass = {.jump = real};
    if (!is_loaders(name)) learn_if_loaded(library_of(name));
    if (handle == RTLD_DEFAULT && driver_has(name)) return pass; // finds ours, or that of a wrapper in front of us
    void *answer = handle == RTLD_NEXT ? ct_find_next_symbol(caller, name) : call_real(real, handle, name, version);
    if (!answer) return handle == RTLD_NEXT ? pass : (struct ct_look_up_answer){0};
    if (is_ours(answer)) {
        // If the driver lacks a function, the program must not find ours of that name.
        if (!driver_has(name)) return (struct ct_look_up_answer){.value = call_real(real, RTLD_NEXT, name, version)};
        return (struct ct_look_up_answer){.value = answer};
    }
    if (!is_loaders(name)) answer = from_first_copy(answer, name);
    void *hook = swap(answer);
    if (handle == RTLD_NEXT && !hook) return pass;
    return (struct ct_look_up_answer){.value = hook ? hook : answer};
}

// The real dlsym or dlvsym; a program that looks it up gets ours.
static void *find_real(bool versioned) {
    static _Atomic(void *) known[2];
    if (known[versioned]) return known[versioned];
    const char *name = versioned ? "dlvsym" : "dlsym";
    void *real = ct_find_in_libc(name), *ours = our_own(name);
    if (real && ours) add_swap(real, ours);
    known[versioned] = real;
    return real;
}

// What dlsym.S calls. The caller is the program's return address.
struct ct_look_up_answer ct_look_up(void *handle, const char *name, const char *version, void *caller, int versioned);
struct ct_look_up_answer ct_look_up(void *handle, const char *name, const char *version, void *caller, int versioned) {
    struct ct_look_up_answer answer = {.jump = find_real(versioned)};
    if (!answer.jump || !name || !is_of_interest(name)) return answer;
    CT_ENTER();
    if (!ct_limited) return answer;
    int saved = errno;
    answer = look_up(handle, name, versioned ? version : NULL, caller, answer.jump);
    errno = saved;
    return answer;
}

static CUresult swap_found(const char *name, void **function, CUresult result) {
    if (result != CUDA_SUCCESS || !name || !function || !*function || !ct_limited) return result;
    void *hook = swap(*function);
    if (hook) {
        *function = hook;
        return result;
    }
    // The driver is newer than this list, or has other addresses here: calls of what was found are not limited. Callers
    // name a function without its version, and hooks.def lists that name of each.
    for (int i = 0; i < CT_FUNCTIONS; i++) {
        if (hooked[i] && strcmp(names[i], name) == 0) {
            ct_count_fault(CT_FAULT_DRIVER);
            break;
        }
    }
    return result;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    CT_ENTER();
    if (!HAS(cuGetProcAddress)) return CUDA_ERROR_NOT_FOUND;
    return swap_found(name, function, REAL(cuGetProcAddress)(name, function, version, flags));
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    CT_ENTER();
    if (!HAS(cuGetProcAddress_v2)) return CUDA_ERROR_NOT_FOUND;
    return swap_found(name, function, REAL(cuGetProcAddress_v2)(name, function, version, flags, status));
}

CUresult cuGetProcAddress_v2_ptsz(const char *name, void **function, int version, uint64_t flags, int *status) {
    CT_ENTER();
    if (!HAS(cuGetProcAddress_v2_ptsz)) return CUDA_ERROR_NOT_FOUND;
    return swap_found(name, function, REAL(cuGetProcAddress_v2_ptsz)(name, function, version, flags, status));
}
