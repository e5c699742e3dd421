#include "model/work.h"

#include <assert.h>

static struct gpt_work_row *row_of(struct gpt_work *work, enum operation operation,
                                   struct linear_shape shape) {
    for (int i = 0; i < work->n_rows; i++) {
        struct gpt_work_row *row = &work->rows[i];
        if (row->operation == operation && row->shape.in == shape.in && row->shape.out == shape.out)
            return row;
    }
    assert(work->n_rows < GPT_WORK_ROWS);
    struct gpt_work_row *row = &work->rows[work->n_rows++];
    *row = (struct gpt_work_row){.operation = operation, .shape = shape};
    return row;
}

static void add(struct gpt_work_row *row, int64_t calls, int64_t launches, struct operation_cost cost) {
    row->calls += calls;
    row->launches += launches;
    row->cost.flops += cost.flops;
    row->cost.bytes += cost.bytes;
}

void gpt_work_add(struct gpt_work *work, struct device *device, enum operation operation, const void *args) {
    const int launches = device->ops->launches ? device->ops->launches(device, operation, args) : 0;
    add(row_of(work, operation, operation_linear_shape(operation, args)), 1, launches,
        cost_of_operation(operation, args));
}

struct gpt_work_row gpt_work_sum(const struct gpt_work *work) {
    struct gpt_work_row sum = {0};
    for (int i = 0; i < work->n_rows; i++)
        add(&sum, work->rows[i].calls, work->rows[i].launches, work->rows[i].cost);
    return sum;
}
