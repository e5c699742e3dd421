// The epilogue of a linear layer's GEMM, a row at a time (struct linear_epilogue_args).
#ifndef ZERO_KERNELS_CPU_ISA_LINEAR_EPILOGUE_H
#define ZERO_KERNELS_CPU_ISA_LINEAR_EPILOGUE_H

#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu.h"

// Elements [i, i + lanes) of a row, before the activation. `row`: index of its first element in out and in
// the tensors with its stride. Explicit FMAs, so that the bits are the same wherever this is inlined.
VF_INLINE vf epilogue_sum(enum dtype type, const struct linear_epilogue_args *args, const float *c,
                          size_t row, size_t i, int lanes) {
    vf v = vf_get_part(DTYPE_F32, c, i, lanes) * args->alpha;
    if (args->bias)
        v = vf_fma(vf_get_part(type, args->bias, i, lanes), vf_set1(1), v);
    if (args->residual)
        v = vf_fma(vf_get_part(type, args->residual, row + i, lanes), vf_set1(args->beta), v);
    return v;
}

VF_INLINE void epilogue_vector(enum dtype type, const struct linear_epilogue_args *args, const float *c,
                               size_t row, size_t i, int lanes) {
    vf v = epilogue_sum(type, args, c, row, i, lanes);
    if (args->activation_input) {
        vf slope = vf_activation_derivative(args->activation,
                                            vf_get_part(type, args->activation_input, row + i, lanes));
        v *= slope;
    } else if (args->activation != ACTIVATION_NONE) {
        if (args->pre_activation) { // rounded, as backward will see it
            if (type != DTYPE_F32)
                v = vf_upcast(type, vf_downcast(type, v));
            vf_put_part(type, args->pre_activation, row + i, v, lanes);
        }
        v = vf_activate(args->activation, v);
    }
    if (args->accumulate)
        v += vf_get_part(DTYPE_F32, args->out, row + i, lanes);
    if (args->out_type == type)
        vf_put_part(type, args->out, row + i, v, lanes);
    else
        vf_put_part(DTYPE_F32, args->out, row + i, v, lanes);
}

VF_INLINE void epilogue_row(enum dtype type, const struct linear_epilogue_args *args, size_t row) {
    const float *c = args->c + row * (size_t)args->c_stride;
    size_t n = (size_t)args->columns, first = row * (size_t)args->out_stride, i = 0;
    for (; i + VF_WIDTH <= n; i += VF_WIDTH)
        epilogue_vector(type, args, c, first, i, VF_WIDTH);
    if (i < n)
        epilogue_vector(type, args, c, first, i, (int)(n - i));
}

VF_INLINE void epilogue_rows(enum dtype type, const struct linear_epilogue_args *args) {
    for (size_t row = 0; row < (size_t)args->rows; row++)
        epilogue_row(type, args, row);
}

#endif
