// FLOPs and bytes of one call of an operation, computed from its arguments. Benchmarks and profiles share
// them.
//   FLOPs   Only matrix products count. A multiplication and an addition are two FLOPs. For a symmetric
//     product, only the elements that are computed count.
//   Bytes   Each large tensor counts once; [rw] and [+] tensors count twice. Tensors with one value per
//     row or column (mean, rstd, lse, biases, tokens) do not count.
#ifndef ZERO_KERNELS_COST_H
#define ZERO_KERNELS_COST_H

#include "kernels/ops.h"

const char *operation_name(enum operation operation);

struct operation_cost {
    double flops, bytes;
};
// args: the operation's argument struct. Only sizes, types and which pointers are NULL are read.
struct operation_cost cost_of_operation(enum operation operation, const void *args);

// Input and output columns of a linear layer, to tell the layers of a model apart; {0, 0} for other
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
// The roofline model (Williams et al., CACM 52(4), 2009): the least time in seconds for the work, if
// computing and moving data overlap.
//   which   [out] the rate that limits it; COST_LIMIT_NONE, and a time of 0, if there is no work
double cost_least_seconds(const struct operation_cost *work, const struct device_peak *limits,
                          enum cost_limit *which);

#endif
