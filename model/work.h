// The work of one micro-batch of training, counted by a dry run of the model's passes: for each operation
// (linear layers by shape) its calls, launches on a GPU, FLOPs and bytes.
#ifndef ZERO_MODEL_WORK_H
#define ZERO_MODEL_WORK_H

#include "kernels/cost.h"

// More rows than any model's passes need.
#define GPT_WORK_ROWS 32

struct gpt_work_row {
    enum operation operation;
    struct linear_shape shape; // for linear layers
    int64_t calls, launches;   // launches: 0 on devices whose operations are synchronous
    struct operation_cost cost;
};

struct gpt_work {
    struct gpt_work_row rows[GPT_WORK_ROWS]; // in order of first use
    int n_rows;
};

// Counts a call of an operation with these arguments.
void gpt_work_add(struct gpt_work *work, struct device *device, enum operation operation, const void *args);
// Sums all rows; operation and shape are unset.
struct gpt_work_row gpt_work_sum(const struct gpt_work *work);

#endif
