// FLOPs and bytes of an operation's call, from its arguments; benchmarks and profiles share them. FLOPs are
// those of matrix products, with a multiply and an add counting as two; operations without products have
// none. Of a symmetric product they are those of the elements that are computed. Bytes count each
// large tensor once, [rw] and [+] tensors twice. Tensors with one value per row or column (mean, rstd, lse,
// biases, tokens) are left out.
#ifndef ZERO_KERNELS_COST_H
#define ZERO_KERNELS_COST_H

#include "kernels/ops.h"

struct operation_cost {
    double flops, bytes;
};
// args: the operation's argument struct. Only sizes, types and which pointers are NULL are read.
struct operation_cost cost_of_operation(enum operation operation, const void *args);

// Input and output columns of a linear layer, which identify the layers of a model; {0, 0} for other
// operations.
struct linear_shape {
    int in, out;
};
struct linear_shape operation_linear_shape(enum operation operation, const void *args);

// The peak rates of a machine, from device_measure_gemm_rate and device_measure_bandwidth.
struct device_peak {
    double flops_per_s, bytes_per_s;
};
enum cost_limit { COST_LIMIT_NONE, COST_LIMIT_GEMM, COST_LIMIT_BANDWIDTH };
const char *cost_limit_name(enum cost_limit limit); // "", "GEMM", "bandwidth"
// The roofline (Williams et al., CACM 52(4), 2009): the least time in seconds for the work if computing and
// moving data overlap. *which: the one that takes longer. 0 and COST_LIMIT_NONE for no work.
double cost_least_seconds(const struct operation_cost *work, const struct device_peak *limits,
                          enum cost_limit *which);

#endif
