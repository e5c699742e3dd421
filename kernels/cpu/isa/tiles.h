// A register-tiled product of small matrices, and functions that pack rows of any type into the layouts that
// it reads. Used by attention and by symmetric products.
// - Operands are matrices of words, packed and zero-padded to whole vectors, so that the same code serves
//   every type, width and length.
// - A word is a float. For bf16 on processors that multiply bf16 fast (VF_PAIRS), a word is a pair of bf16
//   that are adjacent along the inner dimension, which then has half as many words. Sums are always floats.
// - Each element of a product is one chain of fused multiply-adds in the order of the inner dimension,
//   whatever tile it is in. (On AMX, one step of the chain adds the products of 16 words.) So the bits do
//   not depend on which thread computes which block.
// Call the functions between amx_begin and amx_end on the same thread.
#ifndef ZERO_KERNELS_CPU_ISA_TILES_H
#define ZERO_KERNELS_CPU_ISA_TILES_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/isa/amx.h"
#include "kernels/cpu/simd.h"

// A tile is TILE_ROWS x TILE_VECTORS vectors. VECTOR_ROWS of its rows are summed in registers at a time.
// Without AMX, the sums take 24 of AVX-512's 32 registers, and 12 of the 16 of other instruction sets.
#if VF_AMX
#    define TILE_ROWS   AMX_ROWS
#    define VECTOR_ROWS 4
#else
#    define TILE_ROWS   6
#    define VECTOR_ROWS 6
#endif
#define TILE_VECTORS (VF_WIDTH == 16 ? 4 : 2)

static inline size_t round_up_to(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

// Broadcasts the word at an address to every lane.
VF_INLINE vu vu_set1_from(const float *word) {
    int32_t bits;
    memcpy(&bits, word, sizeof bits);
    return (vu)vi_set1(bits);
}

// The number of words that hold n numbers.
VF_INLINE int words_of(bool pairs, int n) {
    return pairs ? (n + 1) / 2 : n;
}

// c[m, n] = (add ? c[m, n] : 0) + the sum over words k of a(m, k) * b[k, n], for VECTOR_ROWS rows and
// n_vectors vectors of columns. a(m, k) is a[m * a_row + k], or a[k * a_row + m] when transposed.
VF_INLINE void multiply_vector_rows(const bool pairs, const bool transposed, const int n_vectors, float *c,
                                    size_t c_row, const float *a, size_t a_row, const float *b, size_t b_row,
                                    int depth, bool add) {
    vf sums[VECTOR_ROWS][TILE_VECTORS];
    FLAT_LOOP(m, VECTOR_ROWS) {
        FLAT_LOOP(n, n_vectors) {
            sums[m][n] = add ? vf_load(c + (size_t)m * c_row + n * VF_WIDTH) : vf_zero();
        }
    }
    for (int k = 0; k < depth; k++) {
        vf right[TILE_VECTORS];
        FLAT_LOOP(n, n_vectors) {
            right[n] = vf_load(b + n * VF_WIDTH);
        }
        FLAT_LOOP(m, VECTOR_ROWS) {
            const float *word = a + (transposed ? (size_t)m : (size_t)m * a_row);
            if (pairs) {
                vu left = vu_set1_from(word);
                FLAT_LOOP(n, n_vectors) {
                    sums[m][n] = vf_add_pair_products(left, (vu)right[n], sums[m][n]);
                }
            } else {
                vf left = vf_set1(*word);
                FLAT_LOOP(n, n_vectors) {
                    sums[m][n] = vf_fma(left, right[n], sums[m][n]);
                }
            }
        }
        a += transposed ? a_row : 1;
        b += b_row;
    }
    FLAT_LOOP(m, VECTOR_ROWS) {
        FLAT_LOOP(n, n_vectors) {
            vf_store(c + (size_t)m * c_row + n * VF_WIDTH, sums[m][n]);
        }
    }
}

// Computes what multiply_vector_rows does, for TILE_ROWS rows.
VF_INLINE void multiply_tile(const bool pairs, const bool transposed, const int n_vectors, float *c,
                             size_t c_row, const float *a, size_t a_row, const float *b, size_t b_row,
                             int depth, bool add) {
#if VF_AMX
    if (pairs) {
        amx_multiply(transposed, n_vectors, c, c_row, a, a_row, b, b_row, depth, add);
        return;
    }
#endif
    for (int m = 0; m < TILE_ROWS; m += VECTOR_ROWS)
        multiply_vector_rows(pairs, transposed, n_vectors, c + (size_t)m * c_row, c_row,
                             a + (size_t)m * (transposed ? 1 : a_row), a_row, b, b_row, depth, add);
}

VF_INLINE void multiply_tiles(const bool pairs, const bool transposed, float *c, size_t c_row, const float *a,
                              size_t a_row, const float *b, size_t b_row, int n_vectors, int depth,
                              bool add) {
    while (n_vectors > 0) {
        // Tiles of nearly equal width: five vectors are split into 3 + 2, as 4 + 1 would leave the FMA units
        // idle.
        int n_tiles = (n_vectors + TILE_VECTORS - 1) / TILE_VECTORS;
        int width = (n_vectors + n_tiles - 1) / n_tiles;
        switch (width) {
#if VF_WIDTH == 16
        case 4:
            multiply_tile(pairs, transposed, 4, c, c_row, a, a_row, b, b_row, depth, add);
            break;
        case 3:
            multiply_tile(pairs, transposed, 3, c, c_row, a, a_row, b, b_row, depth, add);
            break;
#endif
        case 2:
            multiply_tile(pairs, transposed, 2, c, c_row, a, a_row, b, b_row, depth, add);
            break;
        default:
            multiply_tile(pairs, transposed, 1, c, c_row, a, a_row, b, b_row, depth, add);
        }
        n_vectors -= width;
        c += width * VF_WIDTH;
        b += width * VF_WIDTH;
    }
}

#define DEFINE_PRODUCT(name, pairs, transposed)                                                              \
    __attribute__((noinline, unused)) static void name(float *c, size_t c_row, const float *a, size_t a_row, \
                                                       const float *b, size_t b_row, int n_vectors,          \
                                                       int depth, bool add) {                                \
        multiply_tiles(pairs, transposed, c, c_row, a, a_row, b, b_row, n_vectors, depth, add);              \
    }
DEFINE_PRODUCT(multiply_float_rows, false, false)
DEFINE_PRODUCT(multiply_float_columns, false, true)
DEFINE_PRODUCT(multiply_pair_rows, true, false)
DEFINE_PRODUCT(multiply_pair_columns, true, true)

// Computes TILE_ROWS rows of c = a b, or of c += a b with `add`. Rows of a are a_row words apart.
VF_INLINE void multiply_rows(bool pairs, float *c, size_t c_row, const float *a, size_t a_row, const float *b,
                             size_t b_row, int n_vectors, int depth, bool add) {
    if (VF_PAIRS && pairs)
        multiply_pair_rows(c, c_row, a, a_row, b, b_row, n_vectors, depth, add);
    else
        multiply_float_rows(c, c_row, a, a_row, b, b_row, n_vectors, depth, add);
}

// Computes TILE_ROWS rows of c = a^T b, or of c += a^T b with `add`, from columns 0 .. TILE_ROWS - 1 of a.
// Rows of a are a_row words apart.
VF_INLINE void multiply_columns(bool pairs, float *c, size_t c_row, const float *a, size_t a_row,
                                const float *b, size_t b_row, int n_vectors, int depth, bool add) {
    if (VF_PAIRS && pairs)
        multiply_pair_columns(c, c_row, a, a_row, b, b_row, n_vectors, depth, add);
    else
        multiply_float_columns(c, c_row, a, a_row, b, b_row, n_vectors, depth, add);
}

// ---- packing operands and unpacking results

#define PREFETCH_ROWS 16

// Prefetches a row. The rows of one head are kilobytes apart, which hardware prefetching does not follow.
VF_INLINE void prefetch_row(const enum dtype type, const void *from, size_t index, int n_columns) {
    const char *begin = vf_offset(type, from, index);
    for (size_t byte = 0; byte < (size_t)n_columns * dtype_size(type); byte += 64)
        __builtin_prefetch(begin + byte);
}

// The number of words of a row of n_columns numbers that fill whole vectors.
VF_INLINE int whole_words_of(bool pairs, int n_columns) {
    return n_columns / (pairs ? 2 * VF_WIDTH : VF_WIDTH) * VF_WIDTH;
}

// Loads words [word, word + VF_WIDTH) of the row of n_columns numbers at `index`. If `whole` is false, the
// row may end earlier; the words past its end are zeros.
VF_INLINE vf load_words(const bool pairs, const enum dtype type, const bool whole, const void *from,
                        size_t index, int word, int n_columns) {
    if (!pairs)
        return vf_get_part(type, from, index + (size_t)word, whole ? VF_WIDTH : n_columns - word);
    return (vf)vu_load_pairs((const uint16_t *)from + index + 2 * word,
                             whole ? 2 * VF_WIDTH : n_columns - 2 * word);
}

// Packs a left operand, whose inner dimension is the columns: the matrix `from` (n_rows, n_columns) into `to`
// (padded_rows, padded_columns) words, padded with zeros.
VF_INLINE void pack_left(const enum dtype type, float *to, int padded_rows, int padded_columns,
                         const void *from, size_t index, size_t stride, int n_rows, int n_columns) {
    const bool pairs = multiplies_pairs(type);
    const int n_words = words_of(pairs, n_columns), n_whole = whole_words_of(pairs, n_columns);
    for (int row = 0; row < n_rows; row++, to += padded_columns, index += stride) {
        if (row + PREFETCH_ROWS < n_rows)
            prefetch_row(type, from, index + PREFETCH_ROWS * stride, n_columns);
        for (int word = 0; word < n_whole; word += VF_WIDTH)
            vf_store(to + word, load_words(pairs, type, true, from, index, word, n_columns));
        if (n_whole < n_words)
            vf_store(to + n_whole, load_words(pairs, type, false, from, index, n_whole, n_columns));
    }
    if (n_rows < padded_rows)
        memset(to, 0, (size_t)(padded_rows - n_rows) * (size_t)padded_columns * sizeof *to);
}

// Packs columns [column, column + lanes) of two rows `stride` apart into words. A missing second row counts
// as zeros.
VF_INLINE void pack_two_rows(float *to, const uint16_t *rows, size_t stride, bool has_second, size_t column,
                             int lanes) {
    const vh none = {0};
    const vh second = has_second ? vh_load_part(rows + stride + column, lanes) : none;
    vf_store(to + column, (vf)vu_from_pairs(vh_load_part(rows + column, lanes), second));
}

// Packs a right operand, whose inner dimension is the rows: the matrix `from` (n_rows, n_columns) into `to`
// (words of padded_rows, padded_columns), padded with zeros. padded_rows must be even if words are pairs.
VF_INLINE void pack_right(const enum dtype type, float *to, int padded_rows, int padded_columns,
                          const void *from, size_t index, size_t stride, int n_rows, int n_columns) {
    if (!multiplies_pairs(type)) {
        pack_left(type, to, padded_rows, padded_columns, from, index, stride, n_rows, n_columns);
        return;
    }
    const uint16_t *rows = (const uint16_t *)from + index;
    const size_t n = (size_t)n_columns, n_whole = n / VF_WIDTH * VF_WIDTH;
    for (int row = 0; row < n_rows; row += 2, to += padded_columns, rows += 2 * stride) {
        for (int ahead = row + PREFETCH_ROWS; ahead < row + PREFETCH_ROWS + 2 && ahead < n_rows; ahead++)
            prefetch_row(type, from, index + (size_t)ahead * stride, n_columns);
        for (size_t column = 0; column < n_whole; column += VF_WIDTH)
            pack_two_rows(to, rows, stride, row + 1 < n_rows, column, VF_WIDTH);
        if (n_whole < n)
            pack_two_rows(to, rows, stride, row + 1 < n_rows, n_whole, (int)(n - n_whole));
    }
    const int n_words = words_of(true, n_rows);
    if (n_words < padded_rows / 2)
        memset(to, 0, (size_t)(padded_rows / 2 - n_words) * (size_t)padded_columns * sizeof *to);
}

// Packs words [word, word + VF_WIDTH) of VF_WIDTH rows, transposed. Rows past n_rows count as zeros.
VF_INLINE void pack_square(const bool pairs, const enum dtype type, const bool whole, float *to,
                           int padded_rows, const void *from, size_t index, size_t stride, int n_rows,
                           int word, int n_columns) {
    const int n_words = words_of(pairs, n_columns), lanes = whole ? VF_WIDTH : n_words - word;
    vf square[VF_WIDTH];
    FLAT_LOOP(i, VF_WIDTH) {
        square[i] = i < n_rows
                        ? load_words(pairs, type, whole, from, index + (size_t)i * stride, word, n_columns)
                        : vf_zero();
    }
    transpose_vectors(square);
    FLAT_LOOP(i, VF_WIDTH) {
        if (i < lanes)
            vf_store(to + (size_t)(word + i) * (size_t)padded_rows, square[i]);
    }
}

// Packs a right operand, whose inner dimension is the columns: the transpose of the matrix `from` (n_rows,
// n_columns) into `to` (words of n_columns, padded_rows), padded with zeros. padded_rows must be a multiple
// of VF_WIDTH.
VF_INLINE void pack_columns(const bool pairs, const enum dtype type, float *to, int padded_rows,
                            const void *from, size_t index, size_t stride, int n_rows, int n_columns) {
    const int n_words = words_of(pairs, n_columns), n_whole = whole_words_of(pairs, n_columns);
    for (int row = 0; row < padded_rows; row += VF_WIDTH, to += VF_WIDTH, index += VF_WIDTH * stride) {
        const int left = n_rows - row;
        for (int ahead = PREFETCH_ROWS; ahead < PREFETCH_ROWS + VF_WIDTH && ahead < left; ahead++)
            prefetch_row(type, from, index + (size_t)ahead * stride, n_columns);
        for (int word = 0; word < n_whole; word += VF_WIDTH)
            pack_square(pairs, type, true, to, padded_rows, from, index, stride, left, word, n_columns);
        if (n_whole < n_words)
            pack_square(pairs, type, false, to, padded_rows, from, index, stride, left, n_whole, n_columns);
    }
}

// Packs columns into the words that products of `type` multiply.
VF_INLINE void pack_transposed(const enum dtype type, float *to, int padded_rows, const void *from,
                               size_t index, size_t stride, int n_rows, int n_columns) {
    pack_columns(multiplies_pairs(type), type, to, padded_rows, from, index, stride, n_rows, n_columns);
}

// Writes from * scale to `to`, (n_rows, n_columns) of `type`. Rows of `from` have padded_columns floats.
VF_INLINE void unpack_rows(const enum dtype type, void *to, size_t index, size_t stride, const float *from,
                           int padded_columns, int n_rows, int n_columns, float scale) {
    const size_t n = (size_t)n_columns, n_whole = n / VF_WIDTH * VF_WIDTH;
    for (int row = 0; row < n_rows; row++, from += padded_columns, index += stride) {
        if (row + PREFETCH_ROWS < n_rows)
            prefetch_row(type, to, index + PREFETCH_ROWS * stride, n_columns);
        for (size_t column = 0; column < n_whole; column += VF_WIDTH)
            vf_put(type, to, index + column, vf_load(from + column) * scale);
        if (n_whole < n)
            vf_put_part(type, to, index + n_whole, vf_load(from + n_whole) * scale, (int)(n - n_whole));
    }
}

#endif
