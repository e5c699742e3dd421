// GELU in its tanh form, written with the logistic function: 0.5 (1 + tanh(u)) = sigmoid(2 u), which keeps
// its relative accuracy where 1 + tanh(u) would cancel.
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

#define TWO_SQRT_2_OVER_PI 1.5957691216057308f // 2 sqrt(2 / pi)
#define CUBIC              0.044715f

VF_INLINE vf gelu(vf x) {
    vf u = x * vf_fma(x * x, vf_set1(TWO_SQRT_2_OVER_PI * CUBIC), vf_set1(TWO_SQRT_2_OVER_PI));
    return x * vf_sigmoid(u);
}

// With s = sigmoid(2 u): d(x s)/dx = s + x 2 u' s (1 - s). From e = exp(-|2 u|) and q = 1 / (1 + e), s is q
// or e q by the sign of u, and s (1 - s) is e q^2: nothing cancels, nothing overflows.
VF_INLINE vf gelu_derivative(vf x) {
    vf square = x * x;
    vf u = x * vf_fma(square, vf_set1(TWO_SQRT_2_OVER_PI * CUBIC), vf_set1(TWO_SQRT_2_OVER_PI));
    vf slope = vf_fma(square, vf_set1(3.0f * TWO_SQRT_2_OVER_PI * CUBIC), vf_set1(TWO_SQRT_2_OVER_PI));
    vf e = vf_exp(vf_min(u, -u));
    vf q = 1.0f / (e + 1.0f);
    vf s = vf_select(u < vf_zero(), e * q, q);
    return vf_fma(x * slope, e * q * q, s);
}

VF_INLINE void forward_range(enum dtype type, const struct gelu_forward_args *args, struct cpu_range range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        vf_put(type, args->out, i, gelu(vf_get(type, args->x, i)));
    if (i < range.end) {
        int lanes = (int)(range.end - i);
        vf_put_part(type, args->out, i, gelu(vf_get_part(type, args->x, i, lanes)), lanes);
    }
}

enum status CPU_OP(gelu_forward)(struct stream *stream, const struct gelu_forward_args *args) {
#pragma omp parallel num_threads(cpu_threads(stream->device, args->n))
    {
        struct cpu_range range = cpu_thread_range(args->n, 1024, omp_get_thread_num(), omp_get_num_threads());
        VF_DISPATCH(args->type, forward_range, args, range);
    }
    return STATUS_OK;
}

VF_INLINE void backward_step(enum dtype type, const struct gelu_backward_args *args, size_t i, int lanes) {
    vf derivative = gelu_derivative(vf_get_part(type, args->x, i, lanes));
    vf_put_part(type, args->dx, i, derivative * vf_get_part(type, args->dout, i, lanes), lanes);
}

VF_INLINE void backward_range(enum dtype type, const struct gelu_backward_args *args,
                              struct cpu_range range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        backward_step(type, args, i, VF_WIDTH);
    if (i < range.end)
        backward_step(type, args, i, (int)(range.end - i));
}

enum status CPU_OP(gelu_backward)(struct stream *stream, const struct gelu_backward_args *args) {
#pragma omp parallel num_threads(cpu_threads(stream->device, args->n))
    {
        struct cpu_range range = cpu_thread_range(args->n, 1024, omp_get_thread_num(), omp_get_num_threads());
        VF_DISPATCH(args->type, backward_range, args, range);
    }
    return STATUS_OK;
}
