// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Opens a plug-in that is linked with the driver in a namespace of its own, where no preloaded library is, again and
// again, and prints the driver's answers to it.
//
//   plugin_space PLUGIN TIMES WITHIN_MIB BEYOND_MIB [keep]     keep: all of them stay open

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    // As a program does that wants to hide its limits.
    setenv("COTENANT_LIMITS", "/dev/null", 1);
    unsetenv("LD_PRELOAD");
    for (int i = 0; i < atoi(argv[2]); i++) {
        void *plugin = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW);
        if (!plugin) return fprintf(stderr, "%s\n", dlerror()), 1;
        int (*take)(size_t) = dlsym(plugin, "take"), (*early)(void) = dlsym(plugin, "early");
        Lmid_t space = LM_ID_BASE;
        if (!take || !early || dlinfo(plugin, RTLD_DI_LMID, &space)) return fprintf(stderr, "%s\n", dlerror()), 1;
        printf("%d %d %d %d\n", space != LM_ID_BASE, early(), take(strtoull(argv[3], NULL, 0) << 20),
               take(strtoull(argv[4], NULL, 0) << 20));
        if (argc == 5) dlclose(plugin);
    }
    return 0;
}
