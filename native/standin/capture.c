// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Streams that record a graph instead of working. A capture spreads to other streams through events and ends on the
// stream on which it began.

#include <stdlib.h>
#include <string.h>

#include "graphs.h"

#define MOST_STREAMS 64

struct si_capture {
    unsigned long long id;
    CUgraph graph;
    CUstream streams[MOST_STREAMS]; // the first is the one on which it began
    int count;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long ids;

static void set_tips(CUgraphNode **tips, size_t *tip_count, const CUgraphNode *nodes, size_t count) {
    CUgraphNode *copy = calloc(count + 1, sizeof *copy);
    if (count) memcpy(copy, nodes, count * sizeof *nodes);
    free(*tips);
    *tips = copy;
    *tip_count = count;
}

static void take_part(CUstream stream, struct si_capture *capture, const CUgraphNode *tips, size_t count) {
    stream->capture = capture;
    stream->capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    set_tips(&stream->tips, &stream->tip_count, tips, count);
    if (capture->count < MOST_STREAMS) capture->streams[capture->count++] = stream;
}

static CUresult begin(CUstream handle, CUgraph graph, const CUgraphNode *after, size_t count) {
    CUstream stream;
    TRY(si_stream(handle, &stream));
    if (stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
    if (handle == NULL || handle == CU_STREAM_LEGACY) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct si_capture *capture = calloc(1, sizeof *capture);
    pthread_mutex_lock(&guard);
    capture->id = ++ids;
    pthread_mutex_unlock(&guard);
    capture->graph = graph;
    take_part(stream, capture, after, count);
    return CUDA_SUCCESS;
}

API(cuStreamBeginCapture_v2)(CUstream stream, CUstreamCaptureMode mode) {
    (void)mode;
    return begin(stream, si_make_graph(), NULL, 0);
}

API(cuStreamBeginCapture)(CUstream stream) { return begin(stream, si_make_graph(), NULL, 0); }

API(cuStreamBeginCaptureToGraph)
(CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count,
 CUstreamCaptureMode mode) {
    (void)edges, (void)mode;
    KNOWN(graph && (after || !count));
    return begin(stream, graph, after, count);
}

API(cuStreamEndCapture)(CUstream handle, CUgraph *graph) {
    CUstream stream;
    KNOWN(graph);
    TRY(si_stream(handle, &stream));
    if (!stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
    struct si_capture *capture = stream->capture;
    if (capture->streams[0] != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    *graph = capture->graph;
    for (int i = 0; i < capture->count; i++) {
        capture->streams[i]->capturing = CU_STREAM_CAPTURE_STATUS_NONE;
        capture->streams[i]->capture = NULL;
    }
    return CUDA_SUCCESS; // events may still name the capture: it is not freed
}

API(cuStreamIsCapturing)(CUstream handle, CUstreamCaptureStatus *status) {
    CUstream stream;
    KNOWN(status);
    TRY(si_stream(handle, &stream));
    *status = (CUstreamCaptureStatus)stream->capturing;
    return CUDA_SUCCESS;
}

API(cuStreamGetCaptureInfo_v2)
(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **tips,
 size_t *count) {
    CUstream stream;
    KNOWN(status);
    TRY(si_stream(handle, &stream));
    *status = (CUstreamCaptureStatus)stream->capturing;
    if (!stream->capturing) return CUDA_SUCCESS;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    if (tips) *tips = stream->tips;
    if (count) *count = stream->tip_count;
    return CUDA_SUCCESS;
}

API(cuStreamGetCaptureInfo_v3)
(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **tips,
 const CUgraphEdgeData **edges, size_t *count) {
    if (edges) *edges = NULL;
    return si_cuStreamGetCaptureInfo_v2(stream, status, id, graph, tips, count);
}

API(cuStreamGetCaptureInfo)(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return si_cuStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

API(cuStreamUpdateCaptureDependencies)(CUstream handle, CUgraphNode *nodes, size_t count, unsigned flags) {
    CUstream stream;
    TRY(si_stream(handle, &stream));
    if (!stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
    size_t kept = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? 0 : stream->tip_count;
    CUgraphNode *all = calloc(kept + count + 1, sizeof *all);
    if (kept) memcpy(all, stream->tips, kept * sizeof *all);
    if (count) memcpy(all + kept, nodes, count * sizeof *all);
    set_tips(&stream->tips, &stream->tip_count, all, kept + count);
    free(all);
    return CUDA_SUCCESS;
}

API(cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *mode) {
    static __thread int current;
    KNOWN(mode);
    int before = current;
    current = (int)*mode;
    *mode = (CUstreamCaptureMode)before;
    return CUDA_SUCCESS;
}

bool si_capture_record(CUstream stream, CUevent event) {
    if (!stream->capturing) return false;
    event->captured = stream->capture;
    set_tips(&event->tips, &event->tip_count, stream->tips, stream->tip_count);
    return true;
}

bool si_capture_wait(CUstream stream, CUevent event) {
    if (!event->captured) return false;
    if (!stream->capturing) {
        take_part(stream, event->captured, event->tips, event->tip_count);
    } else {
        si_cuStreamUpdateCaptureDependencies(stream, event->tips, event->tip_count, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
    }
    return true;
}

static CUresult continue_from(CUstream stream, CUresult result, CUgraphNode node) {
    if (result == CUDA_SUCCESS) set_tips(&stream->tips, &stream->tip_count, &node, 1);
    return result;
}

CUresult si_capture_plain(CUstream stream, int type) {
    CUgraphNode node;
    CUresult result = si_add_node(&node, stream->capture->graph, type, stream->tips, stream->tip_count);
    return continue_from(stream, result, node);
}

CUresult si_capture_kernel(CUstream stream, CUfunction function) {
    TRY(si_capture_plain(stream, CU_GRAPH_NODE_TYPE_KERNEL));
    stream->tips[0]->function = function;
    return CUDA_SUCCESS;
}

CUresult si_capture_allocation(CUstream stream, uint64_t *address, size_t size) {
    CUgraphNode node;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = si_ordinal(stream->context->device)};
    CUDA_MEM_ALLOC_NODE_PARAMS asked = {.poolProps = {.location = here}, .bytesize = size};
    TRY(continue_from(
        stream, si_add_allocation(&node, stream->capture->graph, stream->tips, stream->tip_count, &asked), node));
    *address = asked.dptr;
    return CUDA_SUCCESS;
}

CUresult si_capture_free(CUstream stream, uint64_t address) {
    CUgraphNode node;
    CUresult result = si_add_free(&node, stream->capture->graph, stream->tips, stream->tip_count, address);
    return continue_from(stream, result, node);
}
