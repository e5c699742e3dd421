// Products that are known to be symmetric (kernels/ops.h: matrix_product) are computed in strips. A strip is
// some columns of the matrix, from their first diagonal element down; what is below its diagonal block is
// mirrored. With n equal strips (n - 1) / 2n of the product is saved.
#ifndef ZERO_KERNELS_SYMMETRIC_H
#define ZERO_KERNELS_SYMMETRIC_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

#define SYMMETRIC_GRAIN 16 // columns of strips that are wider

// Columns of all strips but the last of a (side, side) matrix: nearly equal ones, about `strip` (see
// matrix_product_args.strip).
static inline int64_t symmetric_columns(int64_t side, int64_t strip) {
    if (strip <= 0 || side <= strip)
        return side;
    const int64_t n = (side + strip - 1) / strip, columns = (side + n - 1) / n,
                  grain = strip < SYMMETRIC_GRAIN ? 1 : SYMMETRIC_GRAIN;
    return (columns + grain - 1) / grain * grain;
}

// Elements that are computed.
static inline double symmetric_elements(int64_t side, int64_t strip) {
    const int64_t columns = symmetric_columns(side, strip);
    double elements = 0;
    for (int64_t first = 0; first < side; first += columns)
        elements += (double)(side - first < columns ? side - first : columns) * (double)(side - first);
    return elements;
}

// What mirrors a part of a matrix: out = x^T, to the bit. They are parts of one matrix and do not overlap.
struct mirror_args {
    void *out;     // [w] (columns, rows) type
    const void *x; // [r] (rows, columns) type
    int rows, columns;
    size_t stride;   // between rows of both
    int n_matrices;  // a batch
    size_t distance; // between matrices, of both
    enum dtype type;
};

#endif
