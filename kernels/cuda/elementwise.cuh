// Functions of one element that several kernels apply: GELU in its tanh form and its derivative, in float.
// Written with the logistic function, as in kernels/cpu/isa/gelu.c: 0.5 (1 + tanh(u)) = sigmoid(2 u).
#ifndef ZERO_KERNELS_CUDA_ELEMENTWISE_CUH
#define ZERO_KERNELS_CUDA_ELEMENTWISE_CUH

#include "kernels/cuda/common.cuh"

constexpr float TWO_SQRT_2_OVER_PI = 1.5957691216057308f; // 2 sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ inline float gelu(float x) {
    float u = x * fmaf(x * x, TWO_SQRT_2_OVER_PI * CUBIC, TWO_SQRT_2_OVER_PI);
    return __fdividef(x, 1.0f + expf(-u));
}

// With s = sigmoid(2 u): d(x s)/dx = s + x 2 u' s (1 - s). From e = exp(-|2 u|) and q = 1 / (1 + e), s is q
// or e q by the sign of u, and s (1 - s) is e q^2: nothing cancels, nothing overflows.
__device__ inline float gelu_derivative(float x) {
    float square = x * x;
    float u = x * fmaf(square, TWO_SQRT_2_OVER_PI * CUBIC, TWO_SQRT_2_OVER_PI);
    float slope = fmaf(square, 3.0f * TWO_SQRT_2_OVER_PI * CUBIC, TWO_SQRT_2_OVER_PI);
    float e = expf(-fabsf(u));
    float q = __fdividef(1.0f, 1.0f + e);
    float s = u < 0.0f ? e * q : q;
    return fmaf(x * slope, e * q * q, s);
}

#endif
