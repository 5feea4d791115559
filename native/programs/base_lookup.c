// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Looks the driver's functions up in every possible way and prints to which library each belongs; then allocates
// memory, and prints what that changed in the process.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cuda_abi.h"

#define QUOTA_MIB 64

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);

// A function of the driver's that this program has taken the name of.
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags) {
    return address && bytes && !offset && handle && !flags;
}

enum { NOBODY, OURS, DRIVERS, PROGRAMS, OTHERS };

static int owner(void *function) {
    Dl_info info;
    if (!function) return NOBODY;
    if (!dladdr(function, &info)) return OTHERS;
    if (strstr(info.dli_fname, "libcotenant")) return OURS;
    if (strstr(info.dli_fname, "libcuda.so") || strstr(info.dli_fname, "libnvidia-ml.so")) return DRIVERS;
    return strstr(info.dli_fname, "base_lookup") ? PROGRAMS : OTHERS;
}

static void say(const char *what, int value) {
    printf("%s %d\n", what, value);
}

static void look_by_handle(void *driver) {
    void *all = dlopen(NULL, RTLD_NOW), *libc = dlopen("libc.so.6", RTLD_NOW);
    dlerror();
    say("handle", owner(dlsym(driver, "cuMemAlloc_v2")));
    say("quiet", dlerror() == NULL);
    say("unhooked", owner(dlsym(driver, "cuInit")));
    say("whole_program", owner(dlsym(all, "cuMemAlloc_v2")));
    say("versioned", owner(dlvsym(driver, "cuMemAlloc_v2", "NO_SUCH_VERSION")));
    say("elsewhere", owner(dlsym(libc, "cuMemAlloc_v2")));
    say("nonsense", owner(dlsym(driver, "cuNoSuchThing")));
    const char *complaint = dlerror();
    say("complaint", complaint && strstr(complaint, "cuNoSuchThing") != NULL);
    say("inside", owner(dlsym(all, "ct_start")));
    say("maybe", owner(dlsym(all, "cuMemCreate")));
    say("maybe_default", owner(dlsym(RTLD_DEFAULT, "cuMemCreate")));
    say("maybe_next", owner(dlsym(RTLD_NEXT, "cuMemCreate")));
}

static void look_by_scope(void *driver) {
    say("default", owner(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
    say("next", owner(dlsym(RTLD_NEXT, "cuMemAlloc_v2")));
    say("own", owner(dlsym(RTLD_DEFAULT, "cuMemMap")));
    say("behind_own", owner(dlsym(RTLD_NEXT, "cuMemMap")));
    say("own_by_handle", owner(dlsym(driver, "cuMemMap")));
}

// As other wrappers look for the loader's own.
static void look_for_the_look_up(void *driver) {
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    void *found[] = {dlsym(RTLD_NEXT, "dlsym"), dlsym(libc, "dlsym"), dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"),
                     dlvsym(libc, "dlsym", "GLIBC_2.2.5")};
    int ours = 0;
    for (int i = 0; i < 4; i++) {
        void *(*look_up)(void *, const char *) = found[i];
        ours += look_up && owner(look_up(driver, "cuMemAlloc_v2")) == OURS;
    }
    say("through_the_look_up", ours);
}

static void *get(void *driver, const char *name, int version, uint64_t flags, int *status) {
    CUresult (*ask)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    void *function = NULL;
    return ask && ask(name, &function, version, flags, status) == CUDA_SUCCESS ? function : NULL;
}

static void look_by_version(void *driver) {
    enum { LEGACY = 1, PER_THREAD = 2 };
    int status = -1;
    void *legacy = get(driver, "cuLaunchKernel", 12000, LEGACY, &status);
    say("status", status);
    say("legacy", legacy && legacy == dlsym(driver, "cuLaunchKernel") && owner(legacy) == OURS);
    void *thread = get(driver, "cuLaunchKernel", 12000, PER_THREAD, NULL);
    say("per_thread", thread && thread == dlsym(driver, "cuLaunchKernel_ptsz") && owner(thread) == OURS);
    say("second_version", get(driver, "cuMemAlloc", 12000, 0, NULL) == dlsym(driver, "cuMemAlloc_v2"));
    say("first_version", get(driver, "cuGraphInstantiate", 10000, 0, NULL) == dlsym(driver, "cuGraphInstantiate"));
    say("itself", owner(get(driver, "cuGetProcAddress", 12000, 0, NULL)));
    say("not_hooked", owner(get(driver, "cuInit", 12000, 0, NULL)));
    status = -1;
    say("unknown", owner(get(driver, "cuNoSuchThing", 12000, 0, &status)));
    say("unknown_status", status);
}

static void look_in_nvml(void) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    say("nvml", owner(dlsym(nvml, "nvmlDeviceGetMemoryInfo_v2")));
    say("nvml_unhooked", owner(dlsym(nvml, "nvmlInit_v2")));
}

struct state {
    mode_t mask;
    sigset_t blocked;
    void *actions[65];
    int descriptors;
};

static struct state take_state(void) {
    struct state state;
    memset(&state, 0, sizeof state);
    umask(state.mask = umask(0));
    sigprocmask(SIG_SETMASK, NULL, &state.blocked);
    for (int i = 1; i <= 64; i++) {
        struct sigaction action = {0};
        sigaction(i, NULL, &action);
        state.actions[i] = (void *)action.sa_handler;
    }
    for (int i = 0; i < 1024; i++) state.descriptors += fcntl(i, F_GETFD) >= 0;
    return state;
}

// The driver is used once before, so that what it does to a process itself is not counted.
static void use_memory(void) {
    CUcontext context;
    CUdeviceptr one = 0, two = 0;
    say("init", cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context));
    struct state before = take_state();
    say("within", cuMemAlloc_v2(&one, (size_t)QUOTA_MIB / 2 << 20));
    say("beyond", cuMemAlloc_v2(&two, (size_t)QUOTA_MIB << 20));
    say("freed", cuMemFree_v2(one));
    struct state after = take_state();
    say("umask", after.mask == before.mask);
    say("signals", memcmp(&before.blocked, &after.blocked, sizeof before.blocked) == 0);
    say("handlers", memcmp(&before.actions, &after.actions, sizeof before.actions) == 0);
    say("descriptors", after.descriptors - before.descriptors);
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return fputs(dlerror(), stderr), 2;
    look_by_handle(driver);
    look_by_scope(driver);
    look_for_the_look_up(driver);
    look_by_version(driver);
    look_in_nvml();
    use_memory();
    int (*count)(void) = dlsym(RTLD_DEFAULT, "wrapper_calls");
    say("wrapper_calls", count ? count() : -1);
    return 0;
}
