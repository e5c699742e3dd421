// Expected values for tests of epilogues: GELU in its tanh form, and the errors of the library's roundings.
#ifndef CUDASIM_EPILOGUE_TEST_H
#define CUDASIM_EPILOGUE_TEST_H

#include <cmath>
#include <cublasLt.h>

#include "base/dtype.h"

inline double gelu(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

inline double gelu_slope(double x) {
    double root = std::sqrt(2 / M_PI), t = std::tanh(root * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

// The largest error of tanh in the fused GELU: that of PTX's tanh.approx if A and B have 16 bits.
inline double tanh_error(cudaDataType_t type, cudaDataType_t d_type) {
    return type == CUDA_R_32F ? 0 : d_type == CUDA_R_16BF ? 0x1p-8 : 0x1.03p-11;
}

inline dtype dtype_of(cudaDataType_t type) {
    return type == CUDA_R_16F ? DTYPE_F16 : type == CUDA_R_16BF ? DTYPE_BF16 : DTYPE_F32;
}

// The largest error of rounding a number to a type.
inline double rounding(cudaDataType_t type, double value) {
    return dtype_epsilon(dtype_of(type)) / 2 * std::fabs(value) + dtype_smallest(dtype_of(type));
}

#endif
