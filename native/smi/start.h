// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The oldest version of glibc's functions on each architecture; start.c says why.

#ifndef COTENANT_SMI_START_H
#define COTENANT_SMI_START_H

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#else
#error "cotenant-smi is for x86-64 and arm64"
#endif

#endif
