// Activations and their derivatives for kernels/cpu/isa. GELU in its tanh form is written with the logistic
// function: 0.5 (1 + tanh(u)) = sigmoid(2 u). That keeps its relative accuracy where 1 + tanh(u) would
// cancel.
#ifndef ZERO_KERNELS_CPU_ACTIVATIONS_H
#define ZERO_KERNELS_CPU_ACTIVATIONS_H

#include "kernels/cpu/simd.h"
#include "kernels/ops_layers.h"

#define TWO_SQRT_2_OVER_PI 1.5957691216057308f // 2 sqrt(2 / pi)
#define CUBIC              0.044715f
#define LOG2_E             1.4426950408889634f

// The sigmoid of u and its terms, as vf_logistic(u log2 e) returns them. With e = exp(-|u|) and
// q = 1 / (1 + e), the sigmoid is q for u >= 0 and e q for u < 0. Its derivative is e q^2. These forms
// neither cancel nor overflow.
struct logistic_terms {
    vf e, q, sigmoid;
};

VF_INLINE struct logistic_terms vf_logistic(vf u) {
    struct logistic_terms s = {.e = vf_exp2(vf_negative(u))};
    s.q = vf_reciprocal(s.e + 1.0f);
    s.sigmoid = vf_select_by_sign(u, s.e * s.q, s.q);
    return s;
}

// Returns 2 u log2 e, the argument of vf_logistic in gelu(x) = x sigmoid(2 u). `square` is x^2.
VF_INLINE vf vf_gelu_argument(vf x, vf square) {
    return x *
           vf_fma(square, vf_set1(TWO_SQRT_2_OVER_PI * CUBIC * LOG2_E), vf_set1(TWO_SQRT_2_OVER_PI * LOG2_E));
}

VF_INLINE vf vf_gelu(vf x) {
    return x * vf_logistic(vf_gelu_argument(x, x * x)).sigmoid;
}

// d(x sigmoid(2 u))/dx = sigmoid + x 2 u' e q^2
VF_INLINE vf vf_gelu_derivative(vf x) {
    vf square = x * x;
    struct logistic_terms s = vf_logistic(vf_gelu_argument(x, square));
    vf slope = vf_fma(square, vf_set1(3.0f * TWO_SQRT_2_OVER_PI * CUBIC), vf_set1(TWO_SQRT_2_OVER_PI));
    return vf_fma(x * slope, s.e * s.q * s.q, s.sigmoid);
}

// silu(z) = z sigmoid(z), and its derivative sigmoid + z e q^2
struct silu_terms {
    vf value, derivative;
};

VF_INLINE struct silu_terms vf_silu(vf z) {
    struct logistic_terms s = vf_logistic(z * LOG2_E);
    return (struct silu_terms){z * s.sigmoid, vf_fma(z, s.e * s.q * s.q, s.sigmoid)};
}

// max(x, 0)^2; NaN stays NaN.
VF_INLINE vf vf_relu_squared(vf x) {
    vf positive = vf_max(vf_zero(), x);
    return positive * positive;
}

VF_INLINE vf vf_relu_squared_derivative(vf x) {
    return 2.0f * vf_max(vf_zero(), x);
}

// Applies the activation of a fused epilogue. It is the same for a whole call, so the branches are predicted.
VF_INLINE vf vf_activate(enum activation activation, vf x) {
    return activation == ACTIVATION_GELU           ? vf_gelu(x)
           : activation == ACTIVATION_RELU_SQUARED ? vf_relu_squared(x)
                                                   : x;
}

VF_INLINE vf vf_activation_derivative(enum activation activation, vf x) {
    return activation == ACTIVATION_GELU           ? vf_gelu_derivative(x)
           : activation == ACTIVATION_RELU_SQUARED ? vf_relu_squared_derivative(x)
                                                   : vf_set1(1.0f);
}

// tanh(x) within 3 ulp. Near 0, Cephes's polynomial; elsewhere (1 - e) / (1 + e) with e = exp(-2 |x|).
VF_INLINE vf vf_tanh(vf x) {
    vf square = x * x, negative = vf_negative(x);
    vf p = vf_set1(-5.70498872745e-3f);
    p = vf_fma(p, square, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, square, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, square, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, square, vf_set1(-3.33332819422e-1f));
    vf near = vf_fma(p * square, x, x);
    vf e = vf_exp2(negative * (2 * LOG2_E));
    vf far = (1.0f - e) * vf_reciprocal(1.0f + e);
    return vf_select(negative > vf_set1(-0.625f), near, vf_select_by_sign(x, -far, far));
}

// For a vector of logits: tanh(logit / cap) and the capped logit. Without a cap, 0 and the logit.
struct capped {
    vf tanh, logit;
};

VF_INLINE struct capped vf_soft_cap(vf logit, float cap) {
    if (cap == 0)
        return (struct capped){vf_zero(), logit};
    vf t = vf_tanh(logit * (1.0f / cap));
    return (struct capped){t, t * cap};
}

#endif
