// SOAP of one matrix (Vyas et al., arXiv 2409.11321, algorithm 3, as in github.com/nikhilvyas/SOAP): Adam in
// the eigenbasis of Shampoo's preconditioner. With the gradient G (rows, columns) and decays b1, b2:
//   L = b2 L + (1 - b2) G G^T; R = b2 R + (1 - b2) G^T G         a preconditioner per side
//   G' = V_L G V_R^T, where the rows of V are a side's basis     rotation
//   m = b1 m + (1 - b1) G'; v = b2 v + (1 - b2) G'^2; D' = their direction, as in Adam
//   D = V_L^T D' V_R                                             the direction: weights -= lr D
// The first step only makes L, R and the bases, by an eigendecomposition, so that no gradient is seen in a
// basis that was made from it. A refresh replaces each basis: one power iteration with its preconditioner,
// then orthonormal rows. Before, its rows, and the elements of v, are put in the order of their estimated
// eigenvalues, the largest first; m is rotated from the old bases to the new ones.
//
// A side without a basis (longer than optimizer.max_precond_dim) uses the identity. As published, epsilon is
// added to the root of v before its bias is corrected.
//
// Precision: fp32 throughout. Decompositions are computed in double on the host (base/eigen.h,
// zero/stages/orthonormal.h), products by the device.
//
// Determinism: the bits depend on the matrix, the device and its number of threads.
#ifndef ZERO_ZERO_STAGES_SOAP_MATRIX_H
#define ZERO_ZERO_STAGES_SOAP_MATRIX_H

#include "base/region.h"
#include "kernels/device.h"
#include "zero/stages/orthonormal.h"

struct soap_shape {
    int rows, columns;
    bool left, right; // whether the rows' side, and the columns', has a basis
};
struct soap_shape soap_shape_of(int64_t rows, int64_t columns, int64_t max_precond_dim);
// The states of a matrix: L, V_L, R, V_R (of sides that have a basis), m, v, one after another.
size_t soap_state_elements(struct soap_shape shape);
// FLOPs of the products of a step without a refresh.
double soap_flops(struct soap_shape shape);

struct soap_step {
    int64_t step; // from 1
    bool refresh;
    double beta1, beta2, epsilon;
    float grad_scale;
};

struct soap_matrix {
    struct device *device;
    enum dtype type;
    struct orthonormal orthonormal;
    int regions[9], workspace_region;
    void *x, *y;         // matrices
    void *square, *turn; // of a side
    // Host:
    double *gram, *vectors;  // of the shorter side
    double *numbers;         // eigenvalues and scratch
    double *rows;            // (ORTHONORMAL_PANEL, side)
    struct soap_rank *order; // of the rows of two bases
    void *workspace;
    size_t workspace_bytes;
};

// Adds regions to `table` for matrices of these shapes.
//   type   fp32 (F64: tests/ref)
enum status soap_matrix_plan(struct soap_matrix *soap, struct device *device, enum dtype type,
                             const struct soap_shape *shapes, int n_shapes,
                             struct region_table *table) MUST_CHECK;
void soap_matrix_bind(struct soap_matrix *soap, const struct region_table *table);
// Has `progress` called again and again during decompositions, which may take minutes.
void soap_matrix_watch(struct soap_matrix *soap, void (*progress)(void *), void *context);
// One step: updates the states.
//   states     [rw] (soap_state_elements(shape)); on the first step [w]
//   gradient   [rw] (rows, columns) before grad_scale; after the first step replaced by the direction
// Waits for the stream on the first step and at a refresh. STATUS_FAILED when states are not finite.
enum status soap_matrix_update(const struct soap_matrix *soap, const struct stream *stream,
                               struct soap_shape shape, void *states, void *gradient,
                               const struct soap_step *step) MUST_CHECK;

#endif
