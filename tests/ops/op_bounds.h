// Error bounds that the checks of several operations need. Each is computed with the check of its own
// operation.
#ifndef ZERO_TESTS_OPS_OP_BOUNDS_H
#define ZERO_TESTS_OPS_OP_BOUNDS_H

#include "tests/ops/op_check.h"

// ---- attention (op_check_attention.c)

// Devices that multiply 16-bit numbers (a GPU, or a CPU with bf16 instructions) take both operands in the
// tensors' type. Where an operand is a weight (p, ds), they round it, by half an epsilon relative or half of
// the smallest number.
struct weight_rounding {
    double relative, absolute;
    double absolute_ds; // error of ds / sqrt(D), which cuDNN's graph rounds instead of ds
    double flushed;     // a CPU's bf16 instructions flush subnormal products and sums to 0
    double head_sums;   // relative error of each query head's dk and dv, which cuDNN's graph rounds before it
                        // adds them
};

// One query of a head, and the rows [first, end) of k and v that it sees, of a cache or sequence of S rows.
struct op_query {
    const double *q, *k, *v;
    const double *q_off, *last_k_off; // (D) errors of q and of row end - 1 of k, or both NULL
    size_t k_stride, v_stride;        // between rows
    int first, end, S, D;
    struct weight_rounding rounding;
};

//   out   (D) of the query
//   lse   of the query, or NULL
void op_allow_query(const struct op_query *query, double *out, double *lse);

// The first position that a query sees: the start of its document, at `at` of first (may be NULL), or the
// start of the window that ends at its own position, whichever is later.
int op_first_seen(const struct op_tensor *first, size_t at, int window, int own);

// ---- rotation (op_check_rope.c)

#define ROPE_EPSILON 1e-5

// The values of one head in a call's tensors, in double.
struct op_head {
    const double *x, *weight, *table; // of D elements; weight: or NULL; (D / 2, 2)
    size_t D;
};

// Computes the error of the rotated head before it is rounded to its type. Returns the error of rstd.
//   rotated   (D) [w] the rotated head, or NULL
double op_allow_rotated(const struct op_head *head, bool norm, double *rotated, double *allowed);

#endif
