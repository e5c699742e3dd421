// Orthogonalization of matrices by Newton-Schulz iterations, as Muon uses it (Jordan 2024,
// https://kellerjordan.github.io/posts/muon; torch.optim.Muon): X is divided by its Frobenius norm, then
//   A = X X^T; X <- a X + (b A + c A^2) X, five times, with a, b, c = 3.4445, -4.7750, 2.0315
// which moves all singular values near 1. A matrix with more rows than columns is transposed before and
// after, so that the Gram matrix is the smaller one.
//
// An iteration is three of the device's matrix products, in bf16 with fp32 sums or in fp32, which add b A and
// a X themselves: A = X X^T, B = c A A + b A, X = B X + a X. A and B are symmetric, and computed in strips.
//
// Lanes: a GPU orthogonalizes several matrices side by side, where one of them is too little work for all of
// its multiprocessors. Each lane has a stream and memory of its own.
//
// Determinism: the bits depend on the matrix, the device and its number of threads, not on what the other
// lanes do.
#ifndef ZERO_ZERO_STAGES_NEWTON_SCHULZ_H
#define ZERO_ZERO_STAGES_NEWTON_SCHULZ_H

#include "base/region.h"
#include "kernels/device.h"

#define NEWTON_SCHULZ_STEPS      5
#define NEWTON_SCHULZ_EPSILON    1e-7 // least norm to divide by, as in torch.optim.Muon
#define NEWTON_SCHULZ_MOST_LANES 8

struct matrix_shape {
    int64_t rows, columns;
};

struct newton_schulz_lane {
    struct stream stream; // its workspace is the lane's; the first lane's queue is the caller's
    struct event done;    // of the first lane: what the caller issued before
    void *y;              // a matrix
    void *gram, *power;   // square matrices: A and B
    double *partial;      // sums of squares
};

enum { N_NEWTON_SCHULZ_REGIONS = 5 };
struct newton_schulz {
    struct device *device;
    enum dtype type;
    int n_lanes;
    int regions[N_NEWTON_SCHULZ_REGIONS];
    size_t lane_bytes[N_NEWTON_SCHULZ_REGIONS]; // of each region
    size_t workspace_bytes;
    struct newton_schulz_lane *lanes; // (n_lanes)
};

// Adds regions to `table` for matrices of these shapes, in the device's memory.
//   type   bf16 or fp32 (F64: kernels/ref)
enum status newton_schulz_plan(struct newton_schulz *ns, struct device *device, enum dtype type,
                               const struct matrix_shape *shapes, int n_shapes,
                               struct region_table *table) MUST_CHECK;
// Call newton_schulz_free also after a failure.
enum status newton_schulz_bind(struct newton_schulz *ns, const struct region_table *table) MUST_CHECK;
void newton_schulz_free(struct newton_schulz *ns); // before the device is closed; no-op for a zeroed one

// x (rows, columns), in the device's memory.
struct newton_schulz_matrix {
    void *x;
    struct matrix_shape shape;
};
// Orthogonalizes n matrices, in place; n_lanes or more keep a GPU busy. In a profile it is one line,
// "newton_schulz".
enum status newton_schulz_run(const struct newton_schulz *ns, struct stream *stream,
                              const struct newton_schulz_matrix *matrices, int n) MUST_CHECK;
// FLOPs of the products of newton_schulz_run with symmetric ones in such strips; 0: of whole products.
double newton_schulz_flops(struct matrix_shape shape, int strip);

#endif
