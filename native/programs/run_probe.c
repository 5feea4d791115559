// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Prints what a command sees of its slice: the size of the GPU, and whether MIB can be allocated; then launches for a
// while.
//
//   run_probe MIB MILLISECONDS [stay]     stay: then waits until its standard input ends

#include "share.h"

#define MIB (1 << 20)
#define KERNEL_NS 1000000

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    size_t available, total;
    CUdeviceptr memory;
    share_start();
    CHECK(cuMemGetInfo_v2(&available, &total));
    printf("total %zu\nfree %zu\n", total / MIB, available / MIB);
    printf("allocated %d\n", cuMemAlloc_v2(&memory, strtoull(argv[1], NULL, 0) * MIB));
    fflush(stdout);
    CUfunction function = share_kernel(KERNEL_NS);
    unsigned long long launches = 0;
    for (uint64_t end = standinNow() + strtoull(argv[2], NULL, 0) * KERNEL_NS; standinNow() < end; launches++) {
        CHECK(share_launch(function, 1, NULL));
        CHECK(cuCtxSynchronize());
    }
    printf("launches %llu\n", launches);
    fflush(stdout);
    while (argc > 3 && getchar() != EOF)
        ;
    return 0;
}
