// What happens to a tile before and after a linear layer's GEMM, while the tile is in the cache: upcasting of
// operands that are multiplied in fp32; the epilogue with bias, residual, an activation or its gradient, and
// rounding.
#include "kernels/cpu/isa/linear_epilogue.h"

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

void CPU_OP(linear_epilogue)(const struct linear_epilogue_args *args) {
    const struct linear_epilogue_args copy = *args;
    VF_DISPATCH(copy.type, epilogue_rows, &copy);
}
