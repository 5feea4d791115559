// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The meter's batches over a driver whose events happen when this program says so. One batch runs for 5 s, as long as is
// expected of it, while so many others end that its place in the ring is needed. Prints what was paid for in the end, in
// milliseconds, and how many launches are still under way.

#include <stdio.h>
#include <stdlib.h>

#include "batches.c"

#define SECOND (1000 * MILLISECOND)

struct CUevent_st {
    uint64_t at;
};

static uint64_t now = 1;
static uint64_t work_until[2]; // of each stream

_Atomic(void *) ct_real_functions[CT_FUNCTIONS];
void *ct_find_function(enum ct_function function) { return (void)function, NULL; }
int ct_relax_capture(void) { return 0; }
void ct_restore_capture(int mode) { (void)mode; }
struct ct_slot *ct_my_slot(void) { return NULL; }
void ct_count_fault(enum ct_fault fault) { exit(10 + (int)fault); }
uint64_t ct_clock(void) { return now; }
uint32_t ct_own_fraction(int device) { return (void)device, CT_FRACTION_ONE; }
void ct_note_measured(int device, uint64_t nanoseconds) { (void)device, (void)nanoseconds; }
struct ct_spilled ct_note_spilled(int device) { return (void)device, (struct ct_spilled){0}; }
void ct_pay_rest(int device, int64_t rest, uint64_t took, const struct ct_spilled *before) {
    (void)device, (void)rest, (void)took, (void)before;
}
void ct_learn_kind(struct ct_meter *meter, const struct ct_batch *batch, uint64_t took) {
    (void)meter, (void)batch, (void)took;
}

static CUresult create(CUevent *event, unsigned flags) {
    *event = calloc(1, sizeof **event);
    return (void)flags, CUDA_SUCCESS;
}
static CUresult record(CUevent event, CUstream stream) {
    uint64_t until = work_until[stream == CU_STREAM_LEGACY];
    event->at = until > now ? until : now;
    return CUDA_SUCCESS;
}
static CUresult query(CUevent event) { return event->at <= now ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }
static CUresult elapsed(float *milliseconds, CUevent from, CUevent to) {
    *milliseconds = (float)((double)to->at - (double)from->at) / 1e6f;
    return CUDA_SUCCESS;
}

static void launch(struct ct_meter *meter, struct ct_stream *stream, uint64_t length) {
    struct ct_batch *batch = ct_open_batch(meter, stream, 1, true);
    if (!batch) exit(3);
    batch->estimate = length;
    batch->until = now + length;
    batch->launches = 1;
    meter->launches++;
    meter->ahead += length;
    work_until[stream->handle == CU_STREAM_LEGACY] = now + length;
    ct_close_batch(meter, batch);
    if (batch->state == CLOSED && query(batch->end) == CUDA_SUCCESS) exit(4);
}

int main(void) {
    struct ct_meter *meter = calloc(1, sizeof *meter);
    struct ct_stream streams[2] = {{.handle = CU_STREAM_LEGACY}, {.handle = CU_STREAM_PER_THREAD}};
    ct_real_functions[CT_cuEventCreate] = (void *)create;
    ct_real_functions[CT_cuEventRecord] = (void *)record;
    ct_real_functions[CT_cuEventQuery] = (void *)query;
    ct_real_functions[CT_cuEventElapsedTime] = (void *)elapsed;
    launch(meter, &streams[0], 5 * SECOND);
    for (int i = 0; i < BATCHES; i++) { // the last one needs the place of the first
        launch(meter, &streams[1], 20 * MICROSECOND);
        now += MILLISECOND;
    }
    ct_harvest(meter, now);
    printf("under_way %u\n", meter->launches);
    now = 6 * SECOND;
    ct_harvest(meter, now);
    printf("left %u\npaid_ms %llu\n", meter->launches, (unsigned long long)(meter->paid / MILLISECOND));
    return 0;
}
