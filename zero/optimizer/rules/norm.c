// There are few partial sums, so one thread of the device adds them, in order.
#include "zero/optimizer/rules/norm.h"

#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/ops.h"

enum status norm_init(struct norm *norm, const struct stage *stage, struct region_table *table) {
    const int n = stage->owned_trained.n;
    *norm =
        (struct norm){.stage = stage, .first_partial = allocate((size_t)n + 1, sizeof *norm->first_partial)};
    for (int i = 0; i < n; i++) {
        const struct stage_span *span = &stage->owned_trained.spans[i];
        norm->first_partial[i + 1] = norm->first_partial[i] + sum_squares_partials(span->end - span->begin);
    }
    TRY(region_add(table, REGION_DATA, stage->device->place, DTYPE_F64, norm->first_partial[n] + 1,
                   &norm->partials_region, "norm: sums of squares"));
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_F64, 1, &norm->host_region,
                      "norm: sum of squares on the host");
}

void norm_bind(struct norm *norm, const struct region_table *table) {
    norm->partials = region_data(table, norm->partials_region);
    norm->host_sum = region_data(table, norm->host_region);
}

void norm_free(struct norm *norm) {
    free(norm->first_partial);
    *norm = (struct norm){0};
}

enum status norm_add(struct norm *norm, struct stream *stream, int i, const float *x) {
    const struct stage *stage = norm->stage;
    const struct stage_span *span = &stage->owned_trained.spans[i];
    const struct sum_squares_args args = {.partial = norm->partials + norm->first_partial[i],
                                          .x = x,
                                          .n = span->end - span->begin,
                                          .type = DTYPE_F32};
    return stage->device->ops->sum_squares(stream, &args);
}

enum status norm_sum(struct norm *norm, struct stream *stream, double *sum) {
    const struct sum_args args = {.out = sum,
                                  .x = norm->partials,
                                  .n = norm->first_partial[norm->stage->owned_trained.n],
                                  .type = DTYPE_F64};
    return norm->stage->device->ops->sum(stream, &args);
}

enum status norm_finish(struct norm *norm, struct stream *stream, double *out) {
    const struct stage *stage = norm->stage;
    double *on_device = norm->partials + norm->first_partial[stage->owned_trained.n];
    TRY(norm_sum(norm, stream, on_device));
    TRY(stage->device->copy(stream, norm->host_sum, on_device, sizeof *on_device));
    TRY(stage->device->synchronize(stream));
    double sum = *norm->host_sum;
    TRY(comm_sum(stage->comm, &sum, 1));
    *out = sqrt(sum);
    return STATUS_OK;
}
