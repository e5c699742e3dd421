#include "zero/optimizer/rules/norm.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/update.h"

enum status norm_init(struct norm *norm, const struct stage *stage, struct region_table *table) {
    *norm = (struct norm){.stage = stage};
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_U8, EXACT_WORDS * sizeof *norm->squares,
                      &norm->host_region, "norm: sum of squares on the host");
}

void norm_bind(struct norm *norm, const struct region_table *table, int64_t *squares) {
    norm->squares = squares;
    norm->host_squares = region_data(table, norm->host_region);
}

// Clears the sum before the first span of a step.
static enum status begin(struct norm *norm, struct stream *stream) {
    const struct fill_args zeros = {
        .out = norm->squares, .n = EXACT_WORDS * sizeof *norm->squares / sizeof(float), .type = DTYPE_F32};
    if (norm->is_begun)
        return STATUS_OK;
    norm->is_begun = true;
    memset(norm->of_host, 0, sizeof norm->of_host);
    return norm->stage->device->ops->fill(stream, &zeros);
}

enum status norm_add(struct norm *norm, struct stream *stream, const float *x, size_t n) {
    TRY(begin(norm, stream));
    return norm->stage->device->ops->add_squares(
        stream, &(struct add_squares_args){.sum = norm->squares, .x = x, .n = n});
}

enum status norm_add_host(struct norm *norm, struct stream *stream, const float *x, size_t n) {
    struct device *host = norm->stage->host;
    TRY(begin(norm, stream));
    return host->ops->add_squares(&(struct stream){.device = host},
                                  &(struct add_squares_args){.sum = norm->of_host, .x = x, .n = n});
}

enum status norm_end(struct norm *norm, struct stream *stream) {
    TRY(begin(norm, stream)); // a rank without trained spans
    norm->is_begun = false;
    return STATUS_OK;
}

enum status norm_finish(struct norm *norm, struct stream *stream, double *out) {
    const struct stage *stage = norm->stage;
    const size_t bytes = EXACT_WORDS * sizeof *norm->squares;
    TRY(norm_end(norm, stream));
    TRY(stage->device->copy(stream, norm->host_squares, norm->squares, bytes));
    TRY(stage->device->synchronize(stream));
    for (int i = 0; i < EXACT_WORDS; i++)
        norm->host_squares[i] += norm->of_host[i];
    void *all = allocate((size_t)stage->world, bytes);
    enum status status = comm_gather(stage->comm, norm->host_squares, bytes, all);
    if (status == STATUS_OK)
        *out = update_norm(all, stage->world, 0);
    free(all);
    return status;
}
