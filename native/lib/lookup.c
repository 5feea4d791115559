// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// How a program's calls come to us. Symbols it is linked with bind to ours by themselves; what it looks up (dlsym,
// dlvsym, cuGetProcAddress) is first asked of the real one and then swapped by address: an answer that is the driver's
// function becomes our hook, every other answer stays. So versions, per-thread-stream variants, other wrappers and a
// program's own functions of the same name come out right without a table of names and versions.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base.h"
#include "hooks.h"
#include "lock.h"

// The real driver's path is in a symbol of this name where a front-end has taken the place of libcuda.so.1.
#define FRONT_END "cotenant_driver"
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

_Atomic(void *) ct_found[CT_FUNCTIONS];

struct library {
    const char *name;
    char initial; // of its functions
    enum ct_fault missing;
    _Atomic bool known;   // what it has is in ct_found and in the swaps
    _Atomic bool refused; // it could not be loaded
    _Atomic uintptr_t from, to;
};

static struct library cuda = {.name = "libcuda.so.1", .initial = 'c', .missing = CT_FAULT_DRIVER};
static struct library nvml = {.name = "libnvidia-ml.so.1", .initial = 'n', .missing = CT_FAULT_NVML};

static struct library *library_of(const char *function) {
    return *function == nvml.initial ? &nvml : &cuda;
}

// From the address of a real function to our hook. Only ever added to, and twice the same is harmless: no lock that a
// fork could leave closed.
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
        swaps[at].hook = hook; // of two names of one function the later is the newer one
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

void *ct_in_front_of(void *real) {
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

// Ours even where a wrapper in front of us has taken the name.
static void *our_own(const char *name) {
    struct ct_object object;
    return ct_find_object("", NULL, &object) ? ct_symbol_of(&object, name) : NULL;
}

// Loads a library, or keeps a loaded one from being unloaded: we keep addresses in it.
static bool keep_loaded(const char *path, int how) {
    void *(*open)(const char *, int) = ct_of_libc("dlopen");
    return open && open(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE | how);
}

static void learn(struct library *library, const struct ct_object *object) {
    for (int i = 0; i < CT_FUNCTIONS; i++) {
        if (library_of(names[i]) != library) continue;
        void *real = ct_symbol_of(object, names[i]);
        void *hook = hooked[i] ? our_own(names[i]) : NULL;
        if (real && hook) add_swap(real, hook);
        ct_found[i] = real;
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
    if (ct_find_object(library->name, NULL, &front)) path = ct_symbol_of(&front, FRONT_END);
    if (keep_loaded(path, 0) && learn_if_loaded(library)) return true;
    library->refused = true;
    ct_fault(library->missing);
    return false;
}

void *ct_find(enum ct_function function) {
    struct ct_aside before = ct_step_aside();
    load(library_of(names[function]));
    ct_step_back(before);
    return ct_found[function];
}

static bool is_inside(const struct library *library, const void *address) {
    return library->from <= (uintptr_t)address && (uintptr_t)address < library->to;
}

// A second copy of the driver (dlmopen, a front-end) is answered from the first: our hooks know no other.
static void *from_first_copy(void *answer, const char *name) {
    struct library *library = library_of(name);
    if (is_inside(library, answer)) return answer;
    int (*where)(const void *, Dl_info *) = ct_of_libc("dladdr");
    Dl_info info;
    if (!where || !where(answer, &info) || !info.dli_fname) return answer;
    const char *file = strrchr(info.dli_fname, '/');
    if (strncmp(file ? file + 1 : info.dli_fname, library->name, strlen(library->name) - 2) != 0) return answer;
    struct ct_object first;
    void *same = load(library) && ct_find_object(library->name, FRONT_END, &first) ? ct_symbol_of(&first, name) : NULL;
    return same ? same : answer;
}

static bool is_loaders(const char *name) {
    return strcmp(name, "dlsym") == 0 || strcmp(name, "dlvsym") == 0;
}

// Whether the driver has what we hook under this name; true for all other names.
static bool driver_has(const char *name) {
    if (is_loaders(name)) return true;
    for (int i = 0; i < CT_FUNCTIONS; i++) {
        if (strcmp(names[i], name) == 0) return ct_found[i];
    }
    return true;
}

static bool is_looked_at(const char *name) {
    if (name[0] == 'c') return name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
    if (name[0] == 'n') return strncmp(name, "nvml", 4) == 0;
    return name[0] == 'd' && is_loaders(name);
}

struct ct_answer {
    void *value;
    void *jump; // to the real one, in place of an answer
};

static void *call_real(void *real, void *handle, const char *name, const char *version) {
    if (!version) return ((void *(*)(void *, const char *))real)(handle, name);
    return ((void *(*)(void *, const char *, const char *))real)(handle, name, version);
}

static struct ct_answer look_up(void *handle, const char *name, const char *version, void *caller, void *real) {
    struct ct_answer pass = {.jump = real};
    if (!is_loaders(name)) learn_if_loaded(library_of(name));
    if (handle == RTLD_DEFAULT && driver_has(name)) return pass; // ours, or that of a wrapper in front of us
    void *answer = handle == RTLD_NEXT ? ct_next_symbol(caller, name) : call_real(real, handle, name, version);
    if (!answer) return handle == RTLD_NEXT ? pass : (struct ct_answer){0};
    if (is_ours(answer)) {
        // Where the driver lacks a function, ours of that name must not be what is found.
        if (!driver_has(name)) return (struct ct_answer){.value = call_real(real, RTLD_NEXT, name, version)};
        return (struct ct_answer){.value = answer};
    }
    if (!is_loaders(name)) answer = from_first_copy(answer, name);
    void *hook = swap(answer);
    if (handle == RTLD_NEXT && !hook) return pass;
    return (struct ct_answer){.value = hook ? hook : answer};
}

// The real dlsym or dlvsym; who looks it up gets ours.
static void *find_real(bool versioned) {
    static _Atomic(void *) known[2];
    if (known[versioned]) return known[versioned];
    const char *name = versioned ? "dlvsym" : "dlsym";
    void *real = ct_of_libc(name), *ours = our_own(name);
    if (real && ours) add_swap(real, ours);
    known[versioned] = real;
    return real;
}

// What dlsym.S calls. The caller is the program's return address.
struct ct_answer ct_look_up(void *handle, const char *name, const char *version, void *caller, int versioned);
struct ct_answer ct_look_up(void *handle, const char *name, const char *version, void *caller, int versioned) {
    struct ct_answer answer = {.jump = find_real(versioned)};
    if (!answer.jump || !name || !is_looked_at(name)) return answer;
    CT_ENTER();
    if (!ct_limited) return answer;
    int saved = errno;
    answer = look_up(handle, name, versioned ? version : NULL, caller, answer.jump);
    errno = saved;
    return answer;
}

// Whether a hook's name is this one, up to its version and variant.
static bool is_variant(const char *hook, const char *name) {
    size_t length = strlen(name);
    return strncmp(hook, name, length) == 0 &&
           (hook[length] == 0 || strncmp(hook + length, "_v", 2) == 0 || strncmp(hook + length, "_ptsz", 5) == 0);
}

static CUresult swap_found(const char *name, void **function, CUresult result) {
    if (result != CUDA_SUCCESS || !name || !function || !*function || !ct_limited) return result;
    void *hook = swap(*function);
    if (hook) {
        *function = hook;
        return result;
    }
    // A driver newer than this list, or one that keeps other addresses here: what was found is not held to the limits.
    for (int i = 0; i < CT_FUNCTIONS; i++) {
        if (hooked[i] && is_variant(names[i], name)) {
            ct_fault(CT_FAULT_DRIVER);
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
