// What an operation's call does at least, from its arguments: the one place where benchmarks and profiles
// learn FLOPs and bytes. FLOPs are those of matrix products, a multiplication and an addition being two;
// operations without products have none. Bytes are those of the tensors of elements, each once ([rw] and [+]
// twice); what there is one of a row or a column (statistics, biases, tokens) is left out.
#ifndef ZERO_KERNELS_WORK_H
#define ZERO_KERNELS_WORK_H

#include "kernels/ops.h"

struct work {
    double flops, bytes;
};
// args: the operation's own. Only sizes, types and which pointers are NULL are looked at.
struct work operation_work(enum operation operation, const void *args);

// Columns in and out of a linear layer, which tell the layers of a model apart; {0, 0} for all else.
struct work_shape {
    int in, out;
};
struct work_shape operation_shape(enum operation operation, const void *args);

// What a machine gives at most: what device_measure_gemm_rate and device_measure_bandwidth say.
struct work_limits {
    double flops_per_s, bytes_per_s;
};
enum work_limit { WORK_LIMIT_NONE, WORK_LIMIT_GEMM, WORK_LIMIT_BANDWIDTH };
const char *work_limit_name(enum work_limit limit); // "", "GEMM", "bandwidth"
// Seconds that the work takes at the limits, computing and moving at the same time (the roofline: Williams et
// al., CACM 52(4), 2009), and which of them it is that takes longer. 0 and WORK_LIMIT_NONE without work.
double work_least_seconds(const struct work *work, const struct work_limits *limits, enum work_limit *which);

#endif
