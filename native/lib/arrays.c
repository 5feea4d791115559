// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Arrays: the driver does not say how large they became, so their size is worked out from what was requested. Tiling
// may take a little more on a real GPU; the monitor shows the difference.

#include "hooks.h"
#include "memory.h"

enum { LAYERED = 0x01, CUBEMAP = 0x04, SPARSE = 0x40, DEFERRED_MAPPING = 0x80 };

// Bits of one element with all of its channels. A format that implies its channels and sampling counts accordingly; a
// plane of lower resolution counts as its share of an element.
static uint64_t bits(int format, unsigned channels) {
    switch (format) {
    case 0x01: case 0x08: return 8 * (uint64_t)channels;             // 8-bit integers
    case 0x02: case 0x09: case 0x10: return 16 * (uint64_t)channels; // 16-bit integers, half
    case 0x03: case 0x0a: case 0x20: return 32 * (uint64_t)channels; // 32-bit integers, float
    case 0x91: case 0x92: case 0x97: case 0x98: return 4;            // BC1, BC4: 8 bytes for 4x4 elements
    case 0x93: case 0x94: case 0x95: case 0x96: case 0x99: case 0x9a: // BC2, BC3, BC5
    case 0x9b: case 0x9c: case 0x9d: case 0x9e: return 8;            // BC6H, BC7
    case 0xb0: case 0x53: case 0x59: return 12;                      // 4:2:0 of 8 bits
    case 0x9f: case 0xa1: case 0x54: case 0x5a: return 24;           // 4:2:0 of 10 to 16 bits
    case 0xa2: case 0xa5: case 0x51: case 0x55: case 0x5b: return 16; // 4:2:2 of 8 bits
    case 0xa3: case 0xa4: case 0xa6: case 0xa7: case 0x56: case 0x5c: return 32; // 4:2:2 of 10 to 16 bits
    case 0xb2: case 0xb4: case 0x57: case 0x5d: return 24;           // 4:4:4 of 8 bits
    case 0xb3: case 0xb5: case 0x58: case 0x5e: return 48;           // 4:4:4 of 10 to 16 bits
    case 0xa8: case 0xa9: case 0x52: case 0x50: return 32;           // packed to 32 bits
    case 0xb1: return 64;                                            // 4 channels packed to 64 bits
    case 0xc0: case 0xc6: return 8;                                  // normalised integers: 1, 2, 4 channels
    case 0xc1: case 0xc7: case 0xc3: case 0xc9: return 16;
    case 0xc2: case 0xc8: case 0xc4: case 0xca: return 32;
    case 0xc5: case 0xcb: return 64;
    default: return 32 * (uint64_t)(channels ? channels : 1);        // newer than this list: as the widest plain one
    }
}

static uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t at_least_one(uint64_t value) { return value ? value : 1; }

static bool is_compressed(int format) { return format >= 0x91 && format <= 0x9e; }

// A compressed block has 4x4 elements, and a part of a block takes all of it.
static uint64_t whole_blocks(int format, uint64_t side) {
    return is_compressed(format) && side <= UINT64_MAX - 3 ? (side + 3) / 4 * 4 : side;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *of, uint64_t width, uint64_t height, uint64_t depth) {
    uint64_t plane = times(whole_blocks(of->Format, width), whole_blocks(of->Format, height));
    uint64_t in_bits = times(times(plane, depth), bits(of->Format, of->NumChannels));
    return in_bits == UINT64_MAX ? UINT64_MAX : in_bits / 8 + (in_bits % 8 != 0);
}

// All levels, each half as wide, high and (unless its depth counts layers) deep as the one before, down to one element.
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned levels) {
    if (of->Flags & (SPARSE | DEFERRED_MAPPING)) return 0; // its memory is mapped later, and cuMemCreate counts it
    uint64_t width = at_least_one(of->Width), height = at_least_one(of->Height), depth = at_least_one(of->Depth);
    uint64_t sum = 0;
    for (unsigned level = 0; level < levels; level++) {
        if (__builtin_add_overflow(sum, level_bytes(of, width, height, depth), &sum)) return UINT64_MAX;
        bool layered = of->Flags & (LAYERED | CUBEMAP);
        if (width == 1 && height == 1 && (layered || depth == 1)) break;
        width = at_least_one(width / 2);
        height = at_least_one(height / 2);
        if (!layered) depth = at_least_one(depth / 2);
    }
    return sum;
}

// False: refused. An array that takes no memory, or is made outside a slice, claims 0 bytes.
static bool claim(const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned levels, struct ct_entry *claimed) {
    int device = of ? ct_device_here() : -1;
    *claimed = (struct ct_entry){.bytes = device < 0 ? 0 : array_bytes(of, levels), .device = (int16_t)device};
    return !claimed->bytes || ct_claim(device, claimed->bytes);
}

// The driver tells the context of a pointer, but not that of an array: the books keep it.
static uint64_t current_context(void) {
    CUcontext context = 0;
    CALL(cuCtxGetCurrent, &context);
    return (uint64_t)(uintptr_t)context;
}

static CUresult book_array(struct ct_entry *claimed, CUresult result, void *const *array) {
    if (!claimed->bytes) return result;
    claimed->owner = current_context();
    return ct_book_claim(CT_ARRAYS, claimed, result, result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*array : 0);
}

#define CREATE(name, array, of, full, levels, ...)                                     \
    do {                                                                               \
        struct ct_entry claimed;                                                       \
        if (!claim((of) ? (full) : NULL, levels, &claimed)) return ct_refuse_in_context(claimed.device); \
        CUresult result;                                                               \
        CT_ASK_DRIVER(result, claimed.device, 0, CALL(name, array, __VA_ARGS__));      \
        return book_array(&claimed, result, (void *const *)(array));                   \
    } while (0)

#define IN_FULL(of, depth, flags)                                                                                   \
    &(CUDA_ARRAY3D_DESCRIPTOR) { (of)->Width, (of)->Height, depth, (of)->Format, (of)->NumChannels, flags }

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *of) {
    CREATE(cuArrayCreate, array, of, IN_FULL(of, 0, 0), 1, of);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *of) {
    CREATE(cuArrayCreate_v2, array, of, IN_FULL(of, 0, 0), 1, of);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *of) {
    CREATE(cuArray3DCreate, array, of, IN_FULL(of, of->Depth, of->Flags), 1, of);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *of) {
    CREATE(cuArray3DCreate_v2, array, of, of, 1, of);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *of, unsigned levels) {
    CREATE(cuMipmappedArrayCreate, array, of, of, levels, of, levels);
}

#define DESTROY(name, array)                                                                            \
    do {                                                                                                \
        struct ct_entry entry;                                                                          \
        bool known = ct_in_slice() && ct_take(CT_ARRAYS, (uint64_t)(uintptr_t)(array), &entry);        \
        uint64_t tiles = ct_in_slice() ? ct_set_tiles_aside(array) : 0;                                 \
        CUresult result = ct_book_free(CT_ARRAYS, known, &entry, CALL(name, array));                    \
        ct_end_tiles(tiles, array, result);                                                             \
        return result;                                                                                  \
    } while (0)

CUresult cuArrayDestroy(CUarray array) { DESTROY(cuArrayDestroy, array); }

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { DESTROY(cuMipmappedArrayDestroy, array); }
