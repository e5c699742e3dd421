// The work of one micro-batch of training, counted by a dry run of the model's passes: calls, launches on a
// GPU, FLOPs and bytes (kernels/cost.h) of each operation. Linear layers of different shapes are counted
// separately.
#ifndef ZERO_MODEL_WORK_H
#define ZERO_MODEL_WORK_H

#include "kernels/cost.h"

// Maximum number of rows; more than any model's passes need.
#define GPT_WORK_ROWS 32

struct gpt_work_row {
    enum operation operation;
    struct linear_shape shape;  // of a linear layer; {0, 0} for other operations
    int64_t calls, launches;    // launches: kernels, library products and fills (ops->launches)
    struct operation_cost cost; // of all calls
};

struct gpt_work {
    struct gpt_work_row rows[GPT_WORK_ROWS]; // in order of first use
    int n_rows;
};

// Counts a call of an operation with these arguments.
void gpt_work_add(struct gpt_work *work, struct device *device, enum operation operation, const void *args);
// Returns the sum of all rows. Its operation and shape have no meaning.
struct gpt_work_row gpt_work_sum(const struct gpt_work *work);

#endif
