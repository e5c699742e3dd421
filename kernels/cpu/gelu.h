// GELU in its tanh form, written with the logistic function: 0.5 (1 + tanh(u)) = sigmoid(2 u), which keeps
// its relative accuracy where 1 + tanh(u) would cancel. For kernels/cpu/isa.
#ifndef ZERO_KERNELS_CPU_GELU_H
#define ZERO_KERNELS_CPU_GELU_H

#include "kernels/cpu/simd.h"

#define TWO_SQRT_2_OVER_PI 1.5957691216057308f // 2 sqrt(2 / pi)
#define CUBIC              0.044715f

VF_INLINE vf vf_gelu(vf x) {
    vf u = x * vf_fma(x * x, vf_set1(TWO_SQRT_2_OVER_PI * CUBIC), vf_set1(TWO_SQRT_2_OVER_PI));
    return x * vf_sigmoid(u);
}

// With s = sigmoid(2 u): d(x s)/dx = s + x 2 u' s (1 - s). From e = exp(-|2 u|) and q = 1 / (1 + e), s is q
// or e q by the sign of u, and s (1 - s) is e q^2: nothing cancels, nothing overflows.
VF_INLINE vf vf_gelu_derivative(vf x) {
    vf square = x * x;
    vf u = x * vf_fma(square, vf_set1(TWO_SQRT_2_OVER_PI * CUBIC), vf_set1(TWO_SQRT_2_OVER_PI));
    vf slope = vf_fma(square, vf_set1(3.0f * TWO_SQRT_2_OVER_PI * CUBIC), vf_set1(TWO_SQRT_2_OVER_PI));
    vf e = vf_exp(vf_min(u, -u));
    vf q = 1.0f / (e + 1.0f);
    vf s = vf_select(u < vf_zero(), e * q, q);
    return vf_fma(x * slope, e * q * q, s);
}

#endif
