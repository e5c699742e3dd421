// What happens to a tile before and after a linear layer's GEMM, while the tile is in the cache: upcasting of
// operands that are multiplied in fp32; the epilogue with bias, residual, an activation or its gradient, and
// rounding.
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu.h"

VF_INLINE void upcast_rows(enum dtype type, const struct linear_upcast_args *args) {
    size_t n = (size_t)args->columns;
    for (size_t row = 0; row < (size_t)args->rows; row++) {
        size_t first = row * (size_t)args->from_stride, i = 0;
        float *to = args->to + row * (size_t)args->to_stride;
        for (; i + VF_WIDTH <= n; i += VF_WIDTH)
            vf_put(DTYPE_F32, to, i, vf_get(type, args->from, first + i));
        if (i < n)
            vf_put_part(DTYPE_F32, to, i, vf_get_part(type, args->from, first + i, (int)(n - i)),
                        (int)(n - i));
    }
}

void CPU_OP(linear_upcast)(const struct linear_upcast_args *args) {
    const struct linear_upcast_args copy = *args; // a local copy: stores through pointers cannot alias it
    VF_DISPATCH(copy.type, upcast_rows, &copy);
}

// Elements [i, i + lanes) of a row. `row`: index of its first element in out and in the tensors with its
// stride.
VF_INLINE void epilogue_vector(enum dtype type, const struct linear_epilogue_args *args, const float *c,
                               size_t row, size_t i, int lanes) {
    vf v = vf_get_part(DTYPE_F32, c, i, lanes) * args->alpha;
    if (args->bias)
        v += vf_get_part(type, args->bias, i, lanes);
    if (args->residual)
        v += vf_get_part(type, args->residual, row + i, lanes) * args->beta;
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
    if (args->out_type == type)
        vf_put_part(type, args->out, row + i, v, lanes);
    else
        vf_put_part(DTYPE_F32, args->out, row + i, v, lanes);
}

VF_INLINE void epilogue_rows(enum dtype type, const struct linear_epilogue_args *args) {
    size_t n = (size_t)args->columns;
    for (size_t row = 0; row < (size_t)args->rows; row++) {
        const float *c = args->c + row * (size_t)args->c_stride;
        size_t first = row * (size_t)args->out_stride, i = 0;
        for (; i + VF_WIDTH <= n; i += VF_WIDTH)
            epilogue_vector(type, args, c, first, i, VF_WIDTH);
        if (i < n)
            epilogue_vector(type, args, c, first, i, (int)(n - i));
    }
}

void CPU_OP(linear_epilogue)(const struct linear_epilogue_args *args) {
    const struct linear_epilogue_args copy = *args;
    VF_DISPATCH(copy.type, epilogue_rows, &copy);
}
