// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Arrays and mipmapped arrays: memory without an address, laid out row by row.

#include "arrays.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LEVELS 32

struct CUmipmappedArray_st {
    unsigned levels;
    CUarray level[MOST_LEVELS];
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static CUarray everything;
static _Atomic CUarray destroyed; // the last one

static unsigned channel_bytes(CUarray_format format) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

static bool is_known(const CUDA_ARRAY3D_DESCRIPTOR *asked) {
    unsigned channels = asked->NumChannels;
    return asked->Width && channel_bytes(asked->Format) && (channels == 1 || channels == 2 || channels == 4);
}

// The next array gets the handle of the one that was destroyed last, as a driver may do.
static CUarray new_handle(void) {
    CUarray found = atomic_exchange(&destroyed, NULL);
    return found ? found : malloc(sizeof *found);
}

static CUresult make(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *asked) {
    KNOWN(array && is_known(asked));
    TRY(si_ready());
    size_t element = (size_t)channel_bytes(asked->Format) * asked->NumChannels;
    size_t rows = asked->Height ? asked->Height : 1, layers = asked->Depth ? asked->Depth : 1, size;
    if (__builtin_mul_overflow(asked->Width * element, rows, &size) || __builtin_mul_overflow(size, layers, &size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool is_mapped_later = asked->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
    size_t taken = is_mapped_later ? 0 : size;
    TRY(si_charged(si_current->device, taken));
    CUarray made = new_handle();
    *made = (struct CUarray_st){
        .asked = *asked, .pitch = asked->Width * element, .rows = rows, .size = size, .taken = taken, .context = si_current};
    made->data = si_backing && taken ? calloc(1, size) : NULL;
    pthread_mutex_lock(&guard);
    made->next = everything;
    everything = made;
    pthread_mutex_unlock(&guard);
    *array = made;
    return CUDA_SUCCESS;
}

static bool take_out(CUarray array) {
    pthread_mutex_lock(&guard);
    CUarray *link = &everything;
    while (*link && *link != array) link = &(*link)->next;
    bool found = *link;
    if (found) *link = array->next;
    pthread_mutex_unlock(&guard);
    return found;
}

static void destroy(CUarray array) {
    si_uncharged(array->context->device, array->taken);
    si_forget_tiles(array);
    free(array->data);
    free(atomic_exchange(&destroyed, array));
}

void si_free_context_arrays(CUcontext context) {
    for (CUarray found;;) {
        pthread_mutex_lock(&guard);
        for (found = everything; found && found->context != context;) found = found->next;
        pthread_mutex_unlock(&guard);
        if (!found) return;
        if (take_out(found)) destroy(found);
    }
}

API(cuArray3DCreate_v2)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *asked) {
    KNOWN(asked);
    return make(array, asked);
}

API(cuArrayCreate_v2)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *asked) {
    KNOWN(asked);
    CUDA_ARRAY3D_DESCRIPTOR flat = {
        .Width = asked->Width, .Height = asked->Height, .Format = asked->Format, .NumChannels = asked->NumChannels};
    return make(array, &flat);
}

API(cuArrayCreate)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *asked) {
    KNOWN(asked);
    CUDA_ARRAY3D_DESCRIPTOR flat = {
        .Width = asked->Width, .Height = asked->Height, .Format = asked->Format, .NumChannels = asked->NumChannels};
    return make(array, &flat);
}

API(cuArray3DCreate)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *asked) {
    KNOWN(asked);
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = asked->Width,
                                    .Height = asked->Height,
                                    .Depth = asked->Depth,
                                    .Format = asked->Format,
                                    .NumChannels = asked->NumChannels,
                                    .Flags = asked->Flags};
    return make(array, &wide);
}

API(cuArrayDestroy)(CUarray array) {
    TRY(si_ready());
    if (!array || !take_out(array)) return CUDA_ERROR_INVALID_HANDLE;
    destroy(array);
    return CUDA_SUCCESS;
}

API(cuArray3DGetDescriptor_v2)(CUDA_ARRAY3D_DESCRIPTOR *answer, CUarray array) {
    KNOWN(answer && array);
    *answer = array->asked;
    return CUDA_SUCCESS;
}

API(cuArrayGetDescriptor_v2)(CUDA_ARRAY_DESCRIPTOR *answer, CUarray array) {
    KNOWN(answer && array);
    *answer = (CUDA_ARRAY_DESCRIPTOR){.Width = array->asked.Width,
                                      .Height = array->asked.Height,
                                      .Format = array->asked.Format,
                                      .NumChannels = array->asked.NumChannels};
    return CUDA_SUCCESS;
}

API(cuArrayGetMemoryRequirements)(CUDA_ARRAY_MEMORY_REQUIREMENTS *answer, CUarray array, CUdevice device) {
    (void)device;
    KNOWN(answer && array);
    *answer = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->size, .alignment = 512};
    return CUDA_SUCCESS;
}

static size_t halved(size_t extent, unsigned times) {
    size_t less = extent >> times;
    return extent && !less ? 1 : less;
}

static void destroy_levels(CUmipmappedArray array) {
    for (unsigned i = 0; i < array->levels; i++)
        if (take_out(array->level[i])) destroy(array->level[i]);
    si_forget_tiles(array);
    free(array);
}

API(cuMipmappedArrayCreate)(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned levels) {
    KNOWN(array && asked && levels && levels <= MOST_LEVELS);
    CUmipmappedArray made = calloc(1, sizeof *made);
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < levels && result == CUDA_SUCCESS; i++) {
        CUDA_ARRAY3D_DESCRIPTOR level = *asked;
        level.Width = halved(asked->Width, i), level.Height = halved(asked->Height, i);
        if (!(asked->Flags & CUDA_ARRAY3D_LAYERED)) level.Depth = halved(asked->Depth, i);
        result = make(&made->level[i], &level);
        if (result == CUDA_SUCCESS) made->levels++;
    }
    if (result != CUDA_SUCCESS) {
        destroy_levels(made);
        return result;
    }
    *array = made;
    return CUDA_SUCCESS;
}

API(cuMipmappedArrayDestroy)(CUmipmappedArray array) {
    TRY(si_ready());
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    destroy_levels(array);
    return CUDA_SUCCESS;
}

API(cuMipmappedArrayGetLevel)(CUarray *level, CUmipmappedArray array, unsigned number) {
    KNOWN(level && array && number < array->levels);
    *level = array->level[number];
    return CUDA_SUCCESS;
}
