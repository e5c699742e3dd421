// The global L2 norm of the gradients, computed from the spans that each rank owns. Frozen tensors
// (optimizer.groups) are left out, as with requires_grad=False in PyTorch.
//
// Determinism: squares are summed in blocks of SUM_SQUARES_BLOCK elements, then blocks, spans and ranks are
// added in order, all in double. The bits are the same on every rank and in every stage, whether spans are
// added during backward or after it.
#ifndef ZERO_ZERO_OPTIMIZER_RULES_NORM_H
#define ZERO_ZERO_OPTIMIZER_RULES_NORM_H

#include "zero/partition/stage.h"

struct norm {
    const struct stage *stage;
    size_t *first_partial; // (owned_trained.n + 1) index in `partials` of the first block of each span
    int partials_region, host_region;
    double *partials; // sum of squares of each block, then one element for their sum, on the device
    double *host_sum; // that sum, copied to the host
};

// Adds regions for the partial sums to `table`. Call norm_free also after a failure.
enum status norm_init(struct norm *norm, const struct stage *stage, struct region_table *table) MUST_CHECK;
void norm_bind(struct norm *norm, const struct region_table *table);
void norm_free(struct norm *norm);

// Issues the sums of squares of stage->owned_trained.spans[i], whose gradients begin at x on the device.
// Call it once per span and step.
enum status norm_add(struct norm *norm, struct stream *stream, int i, const float *x) MUST_CHECK;
// Issues the sum of all squares of this rank, after all spans were added on `stream`.
//   sum   [out] in device memory
enum status norm_sum(struct norm *norm, struct stream *stream, double *sum) MUST_CHECK;
// Returns the norm, after all spans were added on `stream`. Waits for the stream and for the other ranks. If
// losses were scaled, so is the norm.
enum status norm_finish(struct norm *norm, struct stream *stream, double *out) MUST_CHECK;

#endif
