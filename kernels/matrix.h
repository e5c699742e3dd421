// Code shared by the backends' batched matrix operations (kernels/ops.h: matrix_normalize, matrix_product):
// the arguments of one matrix of a batch, for devices that process one at a time, and the strips of
// symmetric products.
#ifndef ZERO_KERNELS_MATRIX_H
#define ZERO_KERNELS_MATRIX_H

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

// ---- symmetric products

// Products that are known to be symmetric are computed in strips. A strip is a range of columns. Its rows are
// those from the strip's diagonal block to the last. The elements below the diagonal block are copied,
// transposed, to the upper triangle. n equal strips save (n - 1) / 2n of the product's FLOPs.

// If there are several strips and matrix_product_args.strip is at least this, their widths are multiples
// of it.
#define SYMMETRIC_GRAIN 16

// The number of columns of each strip of a (side, side) matrix; the last strip may have fewer. Widths are
// nearly equal, about `strip` (matrix_product_args.strip). Returns `side`, one strip, if strip is 0 or at
// least `side`.
static inline int64_t symmetric_columns(int64_t side, int64_t strip) {
    if (strip <= 0 || side <= strip)
        return side;
    const int64_t n = (side + strip - 1) / strip, columns = (side + n - 1) / n,
                  grain = strip < SYMMETRIC_GRAIN ? 1 : SYMMETRIC_GRAIN;
    return (columns + grain - 1) / grain * grain;
}

// The number of elements of a symmetric (side, side) product that are computed rather than mirrored.
static inline double symmetric_elements(int64_t side, int64_t strip) {
    const int64_t columns = symmetric_columns(side, strip);
    double elements = 0;
    for (int64_t first = 0; first < side; first += columns)
        elements += (double)(side - first < columns ? side - first : columns) * (double)(side - first);
    return elements;
}

// Mirrors a block of a matrix: out = x^T, bit for bit. `out` and x are blocks of the same matrix and do not
// overlap.
struct mirror_args {
    void *out;     // [w] (columns, rows) type
    const void *x; // [r] (rows, columns) type
    int rows, columns;
    size_t stride;   // between rows, for both
    int n_matrices;  // in the batch
    size_t distance; // between consecutive matrices of the batch, for both
    enum dtype type;
};

#endif
