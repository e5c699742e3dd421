// Partial sums are few, so one thread of the device adds them, in order.
#include "zero/optimizer/rules/norm.h"

#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/ops.h"

size_t norm_partials(const struct optimizer_groups *groups, const struct params *params, int unit,
                     size_t begin, size_t end) {
    size_t n = 0;
    for (struct trained_span it = {0}; optimizer_groups_next_trained(groups, params, unit, begin, end, &it);)
        n += sum_squares_partials(it.end - it.begin);
    return n;
}

enum status norm_init(struct norm *norm, const struct stage *stage, const struct optimizer_groups *groups,
                      struct region_table *table) {
    *norm = (struct norm){
        .stage = stage,
        .groups = groups,
        .first_partial = allocate((size_t)stage->n_owned + 1, sizeof *norm->first_partial),
    };
    for (int i = 0; i < stage->n_owned; i++) {
        const struct stage_span *span = &stage->owned[i];
        norm->first_partial[i + 1] =
            norm->first_partial[i] + norm_partials(groups, stage->params, span->unit, span->begin, span->end);
    }
    TRY(region_add(table, REGION_DATA, stage->device->place, DTYPE_F64,
                   norm->first_partial[stage->n_owned] + 1, &norm->partials_region, "norm: sums of squares"));
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
    const struct stage_span *span = &stage->owned[i];
    double *partial = norm->partials + norm->first_partial[i];
    for (struct trained_span it = {0};
         optimizer_groups_next_trained(norm->groups, stage->params, span->unit, span->begin, span->end, &it);
         partial += sum_squares_partials(it.end - it.begin))
        TRY(stage->device->ops->sum_squares(stream,
                                            &(struct sum_squares_args){.partial = partial,
                                                                       .x = x + (it.begin - span->begin),
                                                                       .n = it.end - it.begin,
                                                                       .type = DTYPE_F32}));
    return STATUS_OK;
}

enum status norm_sum(struct norm *norm, struct stream *stream, double *sum) {
    const struct sum_args args = {
        .out = sum, .x = norm->partials, .n = norm->first_partial[norm->stage->n_owned], .type = DTYPE_F64};
    return norm->stage->device->ops->sum(stream, &args);
}

enum status norm_finish(struct norm *norm, struct stream *stream, double *out) {
    const struct stage *stage = norm->stage;
    double *on_device = norm->partials + norm->first_partial[stage->n_owned];
    TRY(norm_sum(norm, stream, on_device));
    TRY(stage->device->copy(stream, norm->host_sum, on_device, sizeof *on_device));
    TRY(stage->device->synchronize(stream));
    double sum = *norm->host_sum;
    TRY(comm_sum(stage->comm, &sum, 1));
    *out = sqrt(sum);
    return STATUS_OK;
}
