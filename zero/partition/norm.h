// The global norm of the gradients, from the spans that each rank owns: in blocks of SUM_SQUARES_BLOCK
// elements, blocks, spans and ranks added in order, in double. The same bits on every rank, in every stage,
// and whether the spans were summed one by one as backward had them or all at the end.
#ifndef ZERO_ZERO_PARTITION_NORM_H
#define ZERO_ZERO_PARTITION_NORM_H

#include "base/region.h"
#include "kernels/device.h"
#include "zero/comm/comm.h"
#include "zero/partition/stage.h"

struct norm {
    struct device *device;
    const struct stage_span *spans; // what this rank owns
    int n_spans;
    size_t *first_partial; // (n_spans + 1)
    int partials_region, host_region;
    double *partials, *host_partials; // sums of squares of blocks: on the device, on the host
};

// How many sums one span of so many elements takes.
size_t norm_span_partials(size_t elements);
// Adds the sums' buffers to the table. `spans` must outlive the norm. Free with norm_free, also after a
// failure.
enum status norm_init(struct norm *norm, const struct stage_span *spans, int n_spans, struct device *device,
                      struct region_table *table) MUST_CHECK;
void norm_bind(struct norm *norm, const struct region_table *table);
void norm_free(struct norm *norm);

// Sums the squares of spans[i], whose gradients begin at x on the device. Each span once a step.
enum status norm_add(struct norm *norm, struct stream *stream, int i, const float *x) MUST_CHECK;
// The norm of the gradients as they are, scaled if the losses were, once every span was added in the order of
// `stream`. Waits for the stream, and for the ranks.
enum status norm_finish(struct norm *norm, struct stream *stream, struct comm *comm, double *out) MUST_CHECK;

#endif
