// Mirrored parts of symmetric matrices (kernels/symmetric.h): transposed, a square of VF_WIDTH x VF_WIDTH
// elements at a time. Elements are moved as bits, 16-bit ones in the lower halves of a vector's lanes.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_transpose.h"
#include "kernels/symmetric.h"

VF_INLINE vf load_bits(const size_t size, const void *x, size_t at, int lanes) {
    if (size == sizeof(float))
        return vf_load_part((const float *)x + at, lanes);
    return (vf) __builtin_convertvector(vh_load_part((const uint16_t *)x + at, lanes), vu);
}

VF_INLINE void store_bits(const size_t size, void *out, size_t at, vf bits, int lanes) {
    if (size == sizeof(float))
        vf_store_part((float *)out + at, bits, lanes);
    else
        vh_store_part((uint16_t *)out + at, vh_from_vu((vu)bits), lanes);
}

// Rows [row, row + n_rows) and columns [column, column + n_columns) of x.
VF_INLINE void transpose_square(const size_t size, const struct mirror_args *args, size_t row, size_t column,
                                int n_rows, int n_columns) {
    vf square[VF_WIDTH];
    FLAT_LOOP(i, VF_WIDTH) {
        square[i] = i < n_rows
                        ? load_bits(size, args->x, (row + (size_t)i) * args->stride + column, n_columns)
                        : vf_zero();
    }
    transpose_vectors(square);
    FLAT_LOOP(i, VF_WIDTH) {
        if (i < n_columns)
            store_bits(size, args->out, (column + (size_t)i) * args->stride + row, square[i], n_rows);
    }
}

VF_INLINE void mirror_part(const size_t size, const struct mirror_args *args) {
    const struct mirror_args copy = *args; // stores through pointers cannot alias it
    const size_t n_rows = (size_t)copy.rows, n_columns = (size_t)copy.columns;
    for (size_t column = 0; column < n_columns; column += VF_WIDTH) {
        int width = n_columns - column < VF_WIDTH ? (int)(n_columns - column) : VF_WIDTH;
        size_t row = 0;
        for (; width == VF_WIDTH && row + VF_WIDTH <= n_rows; row += VF_WIDTH)
            transpose_square(size, &copy, row, column, VF_WIDTH, VF_WIDTH);
        for (; row < n_rows; row += VF_WIDTH)
            transpose_square(size, &copy, row, column,
                             n_rows - row < VF_WIDTH ? (int)(n_rows - row) : VF_WIDTH, width);
    }
}

void CPU_OP(mirror)(const struct mirror_args *args) {
    if (args->type == DTYPE_F32)
        mirror_part(sizeof(float), args);
    else
        mirror_part(sizeof(uint16_t), args);
}
