// The dense peak of GPUs, which utilization (MFU) refers to. Needs no GPU.
#ifndef ZERO_KERNELS_DENSE_PEAK_H
#define ZERO_KERNELS_DENSE_PEAK_H

#include "base/dtype.h"

// FLOP/s of matrix products at the vendor's figures, without sparsity: bf16 and fp16 factors with fp32 sums
// on tensor cores, fp32 on the other cores. 0: a GPU that is not listed, or a slice of one (MIG).
//   name         as cudaGetDeviceProperties gives it
//   capability   compute capability, 90 for 9.0
double gpu_dense_peak(const char *name, int capability, enum dtype type);

#endif
