// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What an array is: made in arrays.c, copied from and to in copies.c.

#ifndef STANDIN_ARRAYS_H
#define STANDIN_ARRAYS_H

#include "driver.h"

struct CUarray_st {
    CUDA_ARRAY3D_DESCRIPTOR asked;
    size_t pitch; // bytes of a row
    size_t rows;  // of a layer
    size_t size;
    size_t taken; // bytes on the device; a sparse array has none of its own
    char *data; // NULL: no memory behind it
    CUcontext context;
    struct CUarray_st *next;
};

#endif
