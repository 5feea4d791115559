// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// dlsym and dlvsym as programs find them. ct_look_up returns either the answer or the address of the real function. The
// latter is reached by a jump, because the loader's functions interpret RTLD_NEXT and RTLD_DEFAULT relative to their
// return address, which must be the program's. dlopen and dlmopen are the loader's own, after ct_before_open (opening.c)
// has adjusted their parameters, and are reached in the same way.

#if defined(__x86_64__)

.macro LOOK_UP name versioned
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    mov 24(%rsp), %rcx
    mov $\versioned, %r8d
    call ct_look_up
    mov %rdx, %r11
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    test %r11, %r11
    jz 1f
    jmp *%r11
1:  ret
    .cfi_endproc
    .size \name, . - \name
.endm

// The parameters are on the stack while ct_before_open adjusts them, in the order of dlmopen's.
.macro OPEN name in_space
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
.if \in_space
    push %rdx
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdi
    .cfi_adjust_cfa_offset 8
.else
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdi
    .cfi_adjust_cfa_offset 8
    push $0
    .cfi_adjust_cfa_offset 8
.endif
    mov %rsp, %rdi
    mov $\in_space, %esi
    call ct_before_open
.if \in_space
    pop %rdi
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdx
    .cfi_adjust_cfa_offset -8
.else
    pop %rdi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
.endif
    test %rax, %rax
    jz 1f
    jmp *%rax
1:  ret
    .cfi_endproc
    .size \name, . - \name
.endm

#elif defined(__aarch64__)

.macro LOOK_UP name versioned
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint #34 // a landing place for indirect branches
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset x29, -48
    .cfi_offset x30, -40
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x3, x30
    mov w4, #\versioned
    bl ct_look_up
    mov x16, x1
    mov x17, x0
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    cbz x16, 1f
    br x16
1:  mov x0, x17
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

.macro OPEN name in_space
    .globl \name
    .type \name, %function
\name:
    .cfi_startproc
    hint #34
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset x29, -48
    .cfi_offset x30, -40
.if \in_space
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
.else
    stp xzr, x0, [sp, #16]
    str x1, [sp, #32]
.endif
    add x0, sp, #16
    mov w1, #\in_space
    bl ct_before_open
    mov x16, x0
.if \in_space
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
.else
    ldp x17, x0, [sp, #16]
    ldr x1, [sp, #32]
.endif
    ldp x29, x30, [sp], #48
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    cbz x16, 1f
    br x16
1:  mov x0, xzr
    ret
    .cfi_endproc
    .size \name, . - \name
.endm

#else
#error "dlsym is written for x86-64 and arm64"
#endif

    .text
    LOOK_UP dlsym, 0
    LOOK_UP dlvsym, 1
    OPEN dlopen, 0
    OPEN dlmopen, 1

    .section .note.GNU-stack, "", %progbits
