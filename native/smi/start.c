// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The start of cotenant-smi in place of the C compiler's own, which asks for the newest glibc that it knows (2.34). The
// program is mounted into images that are older than the machine on which it was built, so it asks for the oldest
// versions of these functions, which every glibc has. Before 2.34, dlopen and dlsym were in libdl.so.2.

#include "start.h"

#if defined(__x86_64__)
__asm__(".symver __libc_start_main, __libc_start_main@" OLDEST "\n"
        ".globl _start\n"
        ".type _start, @function\n"
        "_start:\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rdx, %r9\n" // what the loader wants called at the end
        "    movq (%rsp), %rsi\n"
        "    leaq 8(%rsp), %rdx\n"
        "    leaq main(%rip), %rdi\n"
        "    xorl %ecx, %ecx\n" // no functions before and after main
        "    xorl %r8d, %r8d\n"
        "    andq $-16, %rsp\n"
        "    pushq %rax\n"
        "    pushq %rsp\n"
        "    call __libc_start_main@PLT\n"
        "    hlt\n"
        ".size _start, . - _start\n");
#elif defined(__aarch64__)
__asm__(".symver __libc_start_main, __libc_start_main@" OLDEST "\n"
        ".globl _start\n"
        ".type _start, %function\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x5, x0\n" // what the loader wants called at the end
        "    ldr x1, [sp]\n"
        "    add x2, sp, #8\n"
        "    mov x6, sp\n"
        "    adrp x0, main\n"
        "    add x0, x0, :lo12:main\n"
        "    mov x3, #0\n" // no functions before and after main
        "    mov x4, #0\n"
        "    bl __libc_start_main\n"
        "    brk #1\n"
        ".size _start, . - _start\n");
#endif
