// Wraps AMX: products of bf16 in tile registers of 16 rows of 16 words. A word is a pair of bf16 that are
// adjacent along the inner dimension. Operands must be packed into words (tiles.h): row m of a left operand
// holds all words of row m of the matrix, and row k of a right operand holds word k of every column. Sums
// are fp32; subnormal numbers count as 0.
#ifndef ZERO_KERNELS_CPU_ISA_AMX_H
#define ZERO_KERNELS_CPU_ISA_AMX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/simd.h"

#if VF_AMX

#    define AMX_ROWS      16                         // rows of a tile register, and words per row
#    define AMX_ROW_BYTES (AMX_ROWS * sizeof(float)) // bytes per row of a tile register

// amx_begin configures a thread's tile registers and must precede products; amx_end releases them
// afterwards. They are released because oneDNN configures them too, and because the system saves registers
// in use at each context switch.
VF_INLINE void amx_begin(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = AMX_ROW_BYTES;
        config.rows[i] = AMX_ROWS;
    }
    // gcc's _tile_loadconfig declares only the first 8 of the 64 bytes that it reads. This makes the
    // compiler store all of config before it.
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

VF_INLINE void amx_end(void) {
    _tile_release();
}

// A compiler barrier: intrinsics that load a tile do not declare that they read memory, so the compiler could
// move earlier stores past them.
VF_INLINE void finish_stores(void) {
    __asm__ volatile("" ::: "memory");
}

// Sets tile registers 0 to 3, which hold the sums of n_vectors vectors of columns: to the contents of c with
// `add`, otherwise to zero. The other registers hold operands.
VF_INLINE void begin_sums(const int n_vectors, const float *c, size_t c_row, bool add) {
    const size_t stride = c_row * sizeof *c;
    if (!add) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, c, stride);
    if (n_vectors > 1)
        _tile_loadd(1, c + VF_WIDTH, stride);
    if (n_vectors > 2)
        _tile_loadd(2, c + 2 * VF_WIDTH, stride);
    if (n_vectors > 3)
        _tile_loadd(3, c + 3 * VF_WIDTH, stride);
}

VF_INLINE void amx_add_products(const int n_vectors, const float *a, size_t a_row, const float *b,
                                size_t b_row) {
    const size_t stride = b_row * sizeof *b;
    _tile_loadd(4, a, a_row * sizeof *a);
    _tile_loadd(5, b, stride);
    _tile_dpbf16ps(0, 4, 5);
    if (n_vectors > 1) {
        _tile_loadd(6, b + VF_WIDTH, stride);
        _tile_dpbf16ps(1, 4, 6);
    }
    if (n_vectors > 2) {
        _tile_loadd(7, b + 2 * VF_WIDTH, stride);
        _tile_dpbf16ps(2, 4, 7);
    }
    if (n_vectors > 3) {
        _tile_loadd(5, b + 3 * VF_WIDTH, stride);
        _tile_dpbf16ps(3, 4, 5);
    }
}

VF_INLINE void store_sums(const int n_vectors, float *c, size_t c_row) {
    const size_t stride = c_row * sizeof *c;
    _tile_stored(0, c, stride);
    if (n_vectors > 1)
        _tile_stored(1, c + VF_WIDTH, stride);
    if (n_vectors > 2)
        _tile_stored(2, c + 2 * VF_WIDTH, stride);
    if (n_vectors > 3)
        _tile_stored(3, c + 3 * VF_WIDTH, stride);
}

// Copies AMX_ROWS rows of a left operand to `to`. Each has `depth` words of a and is padded with zeros to
// VF_WIDTH. If `transposed`, a has `depth` rows of AMX_ROWS words instead, and they are transposed.
VF_INLINE void gather_left(const bool transposed, float *to, const float *a, size_t a_row, int depth) {
    vf rows[AMX_ROWS];
    FLAT_LOOP(i, AMX_ROWS) {
        rows[i] = !transposed ? vf_load_part(a + (size_t)i * a_row, depth)
                  : i < depth ? vf_load(a + (size_t)i * a_row)
                              : vf_zero();
    }
    if (transposed)
        transpose_vectors(rows);
    FLAT_LOOP(i, AMX_ROWS) {
        vf_store(to + i * VF_WIDTH, rows[i]);
    }
}

// c[m, n] = (add ? c[m, n] : 0) + the sum over words k of a(m, k) * b[k, n] for AMX_ROWS rows, as
// multiply_tile in tiles.h. A last, partial tile register is loaded without the words past the end, which may
// be NaN.
VF_INLINE void amx_multiply(const bool transposed, const int n_vectors, float *c, size_t c_row,
                            const float *a, size_t a_row, const float *b, size_t b_row, int depth, bool add) {
    float left[AMX_ROWS * VF_WIDTH], right[AMX_ROWS * 4 * VF_WIDTH];
    int k = 0;
    finish_stores();
    begin_sums(n_vectors, c, c_row, add);
    for (; k + AMX_ROWS <= depth; k += AMX_ROWS, b += AMX_ROWS * b_row) {
        if (transposed) {
            gather_left(true, left, a, a_row, AMX_ROWS);
            finish_stores();
            amx_add_products(n_vectors, left, VF_WIDTH, b, b_row);
            a += AMX_ROWS * a_row;
        } else {
            amx_add_products(n_vectors, a, a_row, b, b_row);
            a += AMX_ROWS;
        }
    }
    if (k < depth) {
        gather_left(transposed, left, a, a_row, depth - k);
        for (int i = 0; i < AMX_ROWS; i++)
            for (int n = 0; n < n_vectors; n++)
                vf_store(right + (i * 4 + n) * VF_WIDTH,
                         i < depth - k ? vf_load(b + (size_t)i * b_row + n * VF_WIDTH) : vf_zero());
        finish_stores();
        amx_add_products(n_vectors, left, VF_WIDTH, right, 4 * VF_WIDTH);
    }
    store_sums(n_vectors, c, c_row);
}

#else

VF_INLINE void amx_begin(void) {}

VF_INLINE void amx_end(void) {}

#endif

#endif
