// Elementwise functions shared by several kernels: activations and their derivatives, in float. GELU in its
// tanh form is written with the logistic function, as in kernels/cpu/activations.h: 0.5 (1 + tanh(u)) =
// sigmoid(2 u).
#ifndef ZERO_KERNELS_CUDA_ELEMENTWISE_CUH
#define ZERO_KERNELS_CUDA_ELEMENTWISE_CUH

#include "kernels/cuda/span.cuh"

constexpr float TWO_SQRT_2_OVER_PI = 1.5957691216057308f; // 2 sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ inline float gelu(float x) {
    float u = x * fmaf(x * x, TWO_SQRT_2_OVER_PI * CUBIC, TWO_SQRT_2_OVER_PI);
    return __fdividef(x, 1.0f + expf(-u));
}

// sigmoid: s = sigmoid(u). slope: its derivative, s (1 - s). With e = exp(-|u|) and q = 1 / (1 + e), s is q
// for u >= 0 and e q for u < 0; s (1 - s) is e q^2. These forms neither overflow nor cancel.
struct logistic_terms {
    float sigmoid, slope;
};

__device__ inline logistic_terms logistic(float u) {
    float e = expf(-fabsf(u));
    float q = __fdividef(1.0f, 1.0f + e);
    return {u < 0.0f ? e * q : q, e * q * q};
}

// gelu(x) = x s with s = sigmoid(u), so its derivative is s + x u' s (1 - s). `slope` is u'.
__device__ inline float gelu_derivative(float x) {
    float square = x * x;
    float u = x * fmaf(square, TWO_SQRT_2_OVER_PI * CUBIC, TWO_SQRT_2_OVER_PI);
    float slope = fmaf(square, 3.0f * TWO_SQRT_2_OVER_PI * CUBIC, TWO_SQRT_2_OVER_PI);
    logistic_terms terms = logistic(u);
    return fmaf(x * slope, terms.slope, terms.sigmoid);
}

// silu(z) = z sigmoid(z), and its derivative
struct silu_terms {
    float value, derivative;
};

__device__ inline silu_terms silu(float z) {
    logistic_terms terms = logistic(z);
    return {z * terms.sigmoid, fmaf(z, terms.slope, terms.sigmoid)};
}

// relu_squared(x) = max(x, 0)^2; its derivative is 2 max(x, 0). A NaN stays NaN.
__device__ inline float relu_squared(float x) {
    return x < 0.0f ? 0.0f : x * x;
}

__device__ inline float relu_squared_derivative(float x) {
    return x < 0.0f ? 0.0f : 2.0f * x;
}

__device__ inline float activate(enum activation activation, float x) {
    return activation == ACTIVATION_GELU           ? gelu(x)
           : activation == ACTIVATION_RELU_SQUARED ? relu_squared(x)
                                                   : x;
}

__device__ inline float activation_derivative(enum activation activation, float x) {
    return activation == ACTIVATION_GELU           ? gelu_derivative(x)
           : activation == ACTIVATION_RELU_SQUARED ? relu_squared_derivative(x)
                                                   : 1.0f;
}

// tanh(x) without branches, with an absolute error of at most 7 * 2^-24. For |x| < 0.625 it is the
// polynomial of kernels/cpu/activations.h, otherwise 1 - 2 / (1 + exp(2 x)).
__device__ inline float tanh_select(float x) {
    float square = x * x;
    float p = fmaf(-5.70498872745e-3f, square, 2.06390887954e-2f);
    p = fmaf(p, square, -5.37397155531e-2f);
    p = fmaf(p, square, 1.33314422036e-1f);
    p = fmaf(p, square, -3.33332819422e-1f);
    float near = fmaf(p * square, x, x);
    float e = exp2_approximate(x * (2 * LOG2_E)); // 0 or infinity for large |x|, which gives -1 or 1
    float far = fmaf(-2.0f, reciprocal_approximate(1.0f + e), 1.0f);
    return fabsf(x) < 0.625f ? near : far;
}

// The soft-cap of logits: x becomes cap tanh(x / cap). tanh(x) returns only the factor tanh(x / cap).
struct soft_cap_of {
    float cap, inverse; // inverse: 1 / cap

    __device__ float tanh(float x) const {
        return tanh_select(x * inverse);
    }
};

#endif
