// The arguments of one matrix of a batch (kernels/ops.h: matrix_normalize, matrix_product), for devices that
// work on one at a time.
#ifndef ZERO_KERNELS_MATRIX_BATCH_H
#define ZERO_KERNELS_MATRIX_BATCH_H

#include "kernels/ops.h"

static inline char *matrix_at(const void *x, size_t distance, int i, enum dtype type) {
    return x ? (char *)x + (size_t)i * distance * dtype_size(type) : NULL;
}

static inline struct matrix_normalize_args matrix_normalize_of(const struct matrix_normalize_args *args,
                                                               int i) {
    struct matrix_normalize_args one = *args;
    one.out = matrix_at(args->out, args->out_distance, i, args->type);
    one.x = matrix_at(args->x, args->x_distance, i, args->type);
    one.partial = args->partial + (size_t)i * sum_squares_partials(args->n);
    one.n_matrices = 1;
    return one;
}

static inline struct matrix_product_args matrix_product_of(const struct matrix_product_args *args, int i) {
    struct matrix_product_args one = *args;
    one.out = matrix_at(args->out, args->out_distance, i, args->type);
    one.x = matrix_at(args->x, args->x_distance, i, args->type);
    one.y = matrix_at(args->y, args->y_distance, i, args->type);
    one.addend = matrix_at(args->addend, args->addend_distance, i, args->type);
    one.n_matrices = 1;
    return one;
}

#endif
