// The global L2 norm of the gradients, computed from the spans that each rank owns. Frozen tensors
// (optimizer.groups) are left out, as with requires_grad=False in PyTorch.
//
// Determinism: leaves of SQUARES_LEAF elements are summed in double, and added exactly (kernels/exact_sum.h).
// The bits are the same on every rank, in every stage and partition, for any number of ranks and threads, and
// whether spans are added during backward or after it.
#ifndef ZERO_ZERO_OPTIMIZER_RULES_NORM_H
#define ZERO_ZERO_OPTIMIZER_RULES_NORM_H

#include "kernels/ops.h"
#include "zero/partition/stage.h"

struct norm {
    const struct stage *stage;
    int host_region;
    int64_t *squares;             // (EXACT_WORDS) sum of this rank's squares, on the device
    int64_t *host_squares;        // its copy on the host
    int64_t of_host[EXACT_WORDS]; // sum of the squares that norm_add_host was called with
    bool is_begun;                // `squares` and of_host have a part of this step's sum
};

// Adds a region for the sum on the host to `table`.
enum status norm_init(struct norm *norm, const struct stage *stage, struct region_table *table) MUST_CHECK;
//   squares   (EXACT_WORDS) in device memory
void norm_bind(struct norm *norm, const struct region_table *table, int64_t *squares);

// Issues the sum of the squares of n gradients on the device. Call it, or norm_add_host, once per step for
// each trained element that this rank owns. n must be a multiple of PARAM_ALIGNMENT.
enum status norm_add(struct norm *norm, struct stream *stream, const float *x, size_t n) MUST_CHECK;
// The same for gradients in host memory, at once. norm_finish includes them; norm_end alone does not.
enum status norm_add_host(struct norm *norm, struct stream *stream, const float *x, size_t n) MUST_CHECK;
// Ends the sum of this rank's squares, after all spans were added on `stream`. The next norm_add begins
// another.
enum status norm_end(struct norm *norm, struct stream *stream) MUST_CHECK;
// As norm_end, and returns the norm over all ranks. Waits for the stream and for the other ranks. If losses
// were scaled, so is the norm.
enum status norm_finish(struct norm *norm, struct stream *stream, double *out) MUST_CHECK;

#endif
