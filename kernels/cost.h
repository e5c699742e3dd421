// What an operation's call does at least, from its arguments: the one place where benchmarks and profiles
// learn FLOPs and bytes. FLOPs are those of matrix products, a multiplication and an addition being two;
// operations without products have none. Bytes are those of the tensors of elements, each once ([rw] and [+]
// twice); what there is one of a row or a column (statistics, biases, tokens) is left out.
#ifndef ZERO_KERNELS_COST_H
#define ZERO_KERNELS_COST_H

#include "kernels/ops.h"

struct operation_cost {
    double flops, bytes;
};
// args: the operation's own. Only sizes, types and which pointers are NULL are looked at.
struct operation_cost cost_of_operation(enum operation operation, const void *args);

// Columns in and out of a linear layer, which tell the layers of a model apart; {0, 0} for all else.
struct linear_shape {
    int in, out;
};
struct linear_shape operation_linear_shape(enum operation operation, const void *args);

// What a machine gives at most: what device_measure_gemm_rate and device_measure_bandwidth say.
struct device_peak {
    double flops_per_s, bytes_per_s;
};
enum cost_limit { COST_LIMIT_NONE, COST_LIMIT_GEMM, COST_LIMIT_BANDWIDTH };
const char *cost_limit_name(enum cost_limit limit); // "", "GEMM", "bandwidth"
// Seconds that the work takes at the limits, computing and moving at the same time (the roofline: Williams et
// al., CACM 52(4), 2009), and which of them it is that takes longer. 0 and COST_LIMIT_NONE without work.
double cost_least_seconds(const struct operation_cost *work, const struct device_peak *limits,
                          enum cost_limit *which);

#endif
