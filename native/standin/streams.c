// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Streams and events, as programs see them.

#include <stdlib.h>

#include "driver.h"

API(cuStreamCreateWithPriority)(CUstream *stream, unsigned flags, int priority) {
    KNOWN(stream && flags <= CU_STREAM_NON_BLOCKING);
    TRY(si_ready());
    *stream = si_make_stream(si_current, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    return CUDA_SUCCESS;
}

API(cuStreamCreate)(CUstream *stream, unsigned flags) { return si_cuStreamCreateWithPriority(stream, flags, 0); }

// Its handle is remembered as that of a dead one.
API(cuStreamDestroy_v2)(CUstream handle) {
    CUstream stream;
    TRY(si_stream(handle, &stream));
    if (stream != handle) return CUDA_ERROR_INVALID_HANDLE;
    stream->dead = true;
    return CUDA_SUCCESS;
}

API(cuStreamGetPriority)(CUstream handle, int *priority) {
    CUstream stream;
    KNOWN(priority);
    TRY(si_stream(handle, &stream));
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API(cuStreamGetFlags)(CUstream handle, unsigned *flags) {
    CUstream stream;
    KNOWN(flags);
    TRY(si_stream(handle, &stream));
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API(cuStreamGetId)(CUstream handle, unsigned long long *id) {
    CUstream stream;
    KNOWN(id);
    TRY(si_stream(handle, &stream));
    *id = stream->id;
    return CUDA_SUCCESS;
}

API(cuStreamGetCtx)(CUstream handle, CUcontext *context) {
    CUstream stream;
    KNOWN(context);
    TRY(si_stream(handle, &stream));
    *context = stream->context;
    return CUDA_SUCCESS;
}

API(cuStreamGetDevice)(CUstream handle, CUdevice *device) {
    CUstream stream;
    KNOWN(device);
    TRY(si_stream(handle, &stream));
    *device = si_ordinal(stream->context->device);
    return CUDA_SUCCESS;
}

API(cuStreamCopyAttributes)(CUstream to, CUstream from) {
    (void)to, (void)from;
    return si_ready();
}

API(cuStreamSynchronize)(CUstream handle) {
    CUstream stream;
    TRY(si_stream(handle, &stream));
    if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    TRY(si_finish_stream(stream));
    si_settle_pools();
    return CUDA_SUCCESS;
}

API(cuStreamQuery)(CUstream handle) {
    CUstream stream;
    TRY(si_stream(handle, &stream));
    if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return si_is_idle(stream) ? CUDA_SUCCESS : si_not_ready();
}

API(cuStreamWaitEvent)(CUstream handle, CUevent event, unsigned flags) {
    (void)flags;
    CUstream stream;
    KNOWN(event);
    TRY(si_stream(handle, &stream));
    if (si_capture_wait(stream, event)) return CUDA_SUCCESS;
    if (event->recorded) si_make_wait(stream, event);
    return CUDA_SUCCESS;
}

API(cuStreamAttachMemAsync)(CUstream handle, CUdeviceptr pointer, size_t length, unsigned flags) {
    (void)pointer, (void)length, (void)flags;
    CUstream stream;
    return si_stream(handle, &stream);
}

// The driver would call from a thread of its own; here the caller waits for its turn and calls itself.
API(cuLaunchHostFunc)(CUstream handle, CUhostFn function, void *data) {
    CUstream stream;
    KNOWN(function);
    TRY(si_stream(handle, &stream));
    if (stream->capturing) return si_capture_plain(stream, CU_GRAPH_NODE_TYPE_HOST);
    TRY(si_finish_stream(stream));
    function(data);
    return CUDA_SUCCESS;
}

API(cuStreamAddCallback)(CUstream handle, CUstreamCallback function, void *data, unsigned flags) {
    (void)flags;
    CUstream stream;
    KNOWN(function);
    TRY(si_stream(handle, &stream));
    TRY(si_finish_stream(stream));
    function(handle, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
}

API(cuCtxSynchronize_v2)(CUcontext context) {
    if (!context) TRY(si_ready());
    TRY(si_finish_device((context ? context : si_current)->device));
    si_settle_pools();
    return CUDA_SUCCESS;
}

API(cuCtxSynchronize)(void) { return si_cuCtxSynchronize_v2(NULL); }

API(cuEventCreate)(CUevent *event, unsigned flags) {
    KNOWN(event);
    TRY(si_ready());
    *event = calloc(1, sizeof **event);
    (*event)->flags = flags;
    return CUDA_SUCCESS;
}

API(cuEventDestroy_v2)(CUevent event) {
    KNOWN(event);
    si_forget_event(event);
    free(event);
    return CUDA_SUCCESS;
}

API(cuEventRecord)(CUevent event, CUstream handle) {
    CUstream stream;
    KNOWN(event);
    TRY(si_stream(handle, &stream));
    if (si_capture_record(stream, event)) return CUDA_SUCCESS;
    event->captured = NULL;
    event->recorded = true;
    si_record(event, stream);
    return CUDA_SUCCESS;
}

API(cuEventRecordWithFlags)(CUevent event, CUstream handle, unsigned flags) {
    (void)flags;
    return si_cuEventRecord(event, handle);
}

API(cuEventQuery)(CUevent event) {
    KNOWN(event);
    return si_has_happened(event) ? CUDA_SUCCESS : si_not_ready();
}

API(cuEventSynchronize)(CUevent event) {
    KNOWN(event);
    for (uint64_t waited; !si_has_happened(event);)
        if ((waited = event->reference)) si_wait(0, waited);
    si_settle_pools();
    return CUDA_SUCCESS;
}

API(cuEventElapsedTime)(float *milliseconds, CUevent from, CUevent to) {
    KNOWN(milliseconds && from && to);
    if (!from->recorded || !to->recorded || (from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!si_has_happened(from) || !si_has_happened(to)) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(to->when - from->when) / 1e6);
    return CUDA_SUCCESS;
}
