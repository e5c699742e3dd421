// Orthogonalization of matrices by Newton-Schulz iterations, as Muon uses it (Jordan 2024,
// https://kellerjordan.github.io/posts/muon; torch.optim.Muon): X is divided by its Frobenius norm, then
//   A = X X^T; X <- a X + (b A + c A^2) X, five times, with a, b, c = 3.4445, -4.7750, 2.0315
// which moves all singular values near 1. A matrix with more rows than columns is treated as its transpose,
// because the Gram matrix is then smaller: A = X^T X; X <- a X + X (b A + c A^2).
//
// An iteration is three matrix products of the device, in bf16 with fp32 sums or in fp32:
//   A = X X^T; B = c A A + b A + a I; X = B X
// The second product adds b A, and a I is added to its result. The last product could add a X instead. But
// on a GPU, a product that adds a matrix is 15 to 30 % slower (benchmarks/gpu.md). A and B are symmetric
// and computed in strips.
//
// Batches: a GPU orthogonalizes several matrices of one shape at once if one alone is too little work for all
// of its multiprocessors.
//
// Determinism: the bits depend on the matrix and the kind of device, not on the batch.
#ifndef ZERO_ZERO_OPTIMIZER_RULES_NEWTON_SCHULZ_H
#define ZERO_ZERO_OPTIMIZER_RULES_NEWTON_SCHULZ_H

#include "base/region.h"
#include "kernels/device.h"

#define NEWTON_SCHULZ_STEPS   5
#define NEWTON_SCHULZ_EPSILON 1e-7 // smallest norm to divide by, as in torch.optim.Muon
#define NEWTON_SCHULZ_MOST    64   // maximum matrices per batch

struct matrix_shape {
    int64_t rows, columns;
};

// A matrix (rows, columns) that begins `at` elements into a buffer.
struct newton_schulz_matrix {
    size_t at;
    struct matrix_shape shape;
};

// n matrices. The first begins `at` elements into a buffer; consecutive ones are `distance` elements apart.
struct newton_schulz_batch {
    size_t at, distance;
    struct matrix_shape shape;
    int n;
};

enum { N_NEWTON_SCHULZ_REGIONS = 5 };
struct newton_schulz {
    struct device *device;
    enum dtype type;      // bf16 or fp32 (fp64 in tests/ref)
    size_t most_elements; // elements of the largest batch of any shape
    int regions[N_NEWTON_SCHULZ_REGIONS];
    size_t workspace_bytes;
    void *y;            // a second buffer for X, as large as the largest batch
    void *gram, *power; // the square matrices A and B of a batch
    double *partial;    // partial sums of squares, for the norms of a batch
    void *workspace;    // for the products
};

// Adds regions to `table`, in device memory, for matrices of the given shapes. ns->device and ns->type must
// be set.
//   kinds  (n_kinds) the shapes of the matrices. `n` is the number of matrices of the shape, so no batch
//          has more; `at` and `distance` are ignored
enum status newton_schulz_plan(struct newton_schulz *ns, const struct newton_schulz_batch *kinds, int n_kinds,
                               struct region_table *table) MUST_CHECK;
void newton_schulz_bind(struct newton_schulz *ns, const struct region_table *table);

// Returns how many matrices of this shape form a batch, at most NEWTON_SCHULZ_MOST. 1 on the CPU.
int newton_schulz_batch_size(const struct device *device, struct matrix_shape shape);
// Divides matrices of one buffer into batches.
//   matrices  (n) in the order in which they are in the buffer; overwritten
//   batches   [out] (n)
// Returns the number of batches.
int newton_schulz_divide(const struct device *device, struct newton_schulz_matrix *matrices, int n,
                         struct newton_schulz_batch *batches);
// Finds the fastest kernels for a batch's products. The bits of the results do not depend on this call.
enum status newton_schulz_prepare(const struct newton_schulz *ns,
                                  const struct newton_schulz_batch *batch) MUST_CHECK;
// Orthogonalizes the matrices of a batch in place. A profile shows this as one line, "newton_schulz".
//   buffer   the buffer into which batch->at is an offset
enum status newton_schulz_run(const struct newton_schulz *ns, struct stream *stream, void *buffer,
                              const struct newton_schulz_batch *batch) MUST_CHECK;
// Returns the dtype in which matrices are orthogonalized, for a model of this compute dtype.
static inline enum dtype newton_schulz_type(enum dtype compute) {
    return compute == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
}
// Returns the FLOPs of the products of newton_schulz_run for one matrix.
//   strip   symmetric products are computed in strips of this many columns; 0: completely
double newton_schulz_flops(struct matrix_shape shape, int strip);

#endif
