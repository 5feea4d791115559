// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The base of the library inside a program: what is hidden in the library can be called, and there need be no driver.

#ifndef BASE_ALL_H
#define BASE_ALL_H

#define _GNU_SOURCE
#include "biased.c"
#include "devices.c"
#include "elf.c"
#include "limits.c"
#include "lookup.c"
#include "opening.c"
#include "parse.c"
#include "region.c"
#include "slots.c"
#include "start.c"
#include "strict.c"

void ct_forget_books(void) {}
void ct_forget_compute(void) {}
void ct_forget_overhead(void) {}

#endif
