// Operands of unit_product.c, packed into panels: PANEL rows of the left one, PANEL columns of the right one,
// in pairs of bf16 along the inner dimension (matrix_units.h). A unit is a pair.
#ifndef ZERO_KERNELS_CPU_ISA_UNIT_PANELS_H
#define ZERO_KERNELS_CPU_ISA_UNIT_PANELS_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/tiles.h"

#if VF_MATRIX_UNITS

#    define PANEL UNIT_PRODUCT_GRAIN

// Units of a packed row of `n` numbers: whole tile registers, with zeros past n.
static inline size_t padded_units(int64_t n) {
    return round_up_to((size_t)units_of(true, (int)n), UNIT_ROWS);
}

// Rows of the left operand are one register further apart, as multiples of 4 KiB share few cache sets.
static inline size_t left_row(int64_t k) {
    return padded_units(k) + UNIT_ROWS;
}

static inline size_t panels_of(int64_t n) {
    return ((size_t)n + PANEL - 1) / PANEL;
}

// Rows or columns in a panel.
static inline int part_of_panel(int64_t n, size_t panel) {
    const int64_t left = n - (int64_t)panel * PANEL;
    return left < PANEL ? (int)left : PANEL;
}

static inline int lanes_at(int64_t column, int64_t n) {
    return n - column < VF_WIDTH ? (int)(n > column ? n - column : 0) : VF_WIDTH;
}

// Pairs of rows 2 unit and 2 unit + 1 of a (k, columns) operand, `lanes` columns of them; zeros past either.
VF_INLINE vf pair_rows(const uint16_t *from, int64_t stride, int64_t unit, int64_t k, int lanes) {
    const vh none = {0};
    const uint16_t *first = from + 2 * unit * stride;
    return (vf)vu_from_pairs(2 * unit < k ? vh_load_part(first, lanes) : none,
                             2 * unit + 1 < k ? vh_load_part(first + stride, lanes) : none);
}

// ---- the right operand, all at once

#    define ROWS_AHEAD 8 // that are prefetched

// A row and the next, which are used ROWS_AHEAD rows later.
static inline void prefetch_pair(const uint16_t *from, int64_t stride, int64_t row, int64_t k,
                                 int64_t columns) {
    for (int64_t ahead = row + ROWS_AHEAD; ahead < row + ROWS_AHEAD + 2 && ahead < k; ahead++)
        for (int64_t column = 0; column < columns; column += 32)
            __builtin_prefetch(from + ahead * stride + column);
}

// With contiguous rows: all panels of a pair of rows, then of the next.
static inline void pack_right_rows(const struct unit_product_args *args) {
    const size_t units = padded_units(args->k);
    for (size_t unit = 0; unit < units; unit++) {
        prefetch_pair(args->b, args->b_row, 2 * (int64_t)unit, args->k, args->n);
        for (size_t panel = 0; panel < panels_of(args->n); panel++)
            for (size_t i = 0; i < PANEL; i += VF_WIDTH) {
                const size_t column = panel * PANEL + i;
                vf_store(args->right + (panel * units + unit) * PANEL + i,
                         pair_rows((const uint16_t *)args->b + column, args->b_row, (int64_t)unit, args->k,
                                   lanes_at((int64_t)column, args->n)));
            }
    }
}

// With contiguous columns.
static inline void pack_right_columns(const struct unit_product_args *args) {
    const size_t units = padded_units(args->k), used = (size_t)units_of(true, (int)args->k);
    for (size_t panel = 0; panel < panels_of(args->n); panel++) {
        float *to = args->right + panel * PANEL * units;
        pack_transposed(DTYPE_BF16, to, PANEL, args->b, panel * PANEL * (size_t)args->b_column,
                        (size_t)args->b_column, part_of_panel(args->n, panel), (int)args->k);
        memset(to + used * PANEL, 0, (units - used) * PANEL * sizeof *to);
    }
}

// ---- the left operand, a panel ahead of its products

static inline float *left_panel(const struct unit_product_args *args, size_t panel) {
    return args->left + panel % 2 * PANEL * left_row(args->k);
}

// Some rows of a panel, `depth` units of them from `unit` on, whole or not.
static inline void pack_left_rows(const struct unit_product_args *args, size_t panel, size_t first,
                                  size_t rows, size_t unit, size_t depth) {
    for (size_t i = first; i < first + rows; i++) {
        const int64_t row = (int64_t)(panel * PANEL + i);
        const uint16_t *from = (const uint16_t *)args->a + row * args->a_row;
        for (size_t at = unit; at < unit + depth; at += VF_WIDTH) {
            const int64_t column = 2 * (int64_t)at, left = row < args->m ? args->k - column : 0;
            const int n = left > 2 * VF_WIDTH ? 2 * VF_WIDTH : left > 0 ? (int)left : 0;
            vf_store(left_panel(args, panel) + i * left_row(args->k) + at,
                     (vf)vu_load_pairs(from + column, n));
        }
    }
}

// VF_WIDTH rows of a panel and units from `unit` on, of an operand whose columns are contiguous.
static inline void pack_left_square(const struct unit_product_args *args, size_t panel, size_t row,
                                    size_t unit) {
    const int64_t column = (int64_t)(panel * PANEL + row), first = 2 * (int64_t)unit;
    const uint16_t *from = (const uint16_t *)args->a + column;
    float *to = left_panel(args, panel) + row * left_row(args->k) + unit;
    vf square[VF_WIDTH];
    if (row == 0 && column + PANEL < args->m) // of the next panel
        for (int64_t i = first; i < first + 2 * VF_WIDTH && i < args->k; i++)
            __builtin_prefetch(from + i * args->a_column + PANEL, 0, 2);
    FLAT_LOOP(i, VF_WIDTH) {
        square[i] = pair_rows(from, args->a_column, (int64_t)unit + i, args->k, lanes_at(column, args->m));
    }
    transpose_vectors(square);
    FLAT_LOOP(i, VF_WIDTH) {
        vf_store(to + (size_t)i * left_row(args->k), square[i]);
    }
}

// Rows of a panel that are packed beside the products of one block, a vector of each at every step.
struct left_piece {
    const uint16_t *from;
    float *to;
    size_t from_row, to_row, rows; // strides, and how many
    int64_t ahead;                 // elements to the rows of the next panel, or 0
};

// Part `part` of `parts` of a panel's units [unit, unit + depth). What is no whole vectors of rows is packed
// at once.
static inline struct left_piece left_piece_at(const struct unit_product_args *args, size_t panel, size_t unit,
                                              size_t depth, size_t part, size_t parts) {
    const size_t squares = depth / VF_WIDTH * (PANEL / VF_WIDTH), all = args->a_column == 1 ? PANEL : squares,
                 most = (all + parts - 1) / parts, first = part * most < all ? part * most : all,
                 rows = all - first < most ? all - first : most, row = panel * PANEL + first;
    if (panel >= panels_of(args->m))
        return (struct left_piece){0};
    if (args->a_column != 1) {
        for (size_t i = first; i < first + rows; i++)
            pack_left_square(args, panel, i % (PANEL / VF_WIDTH) * VF_WIDTH,
                             unit + i / (PANEL / VF_WIDTH) * VF_WIDTH);
        return (struct left_piece){0};
    }
    if ((int64_t)(row + rows) > args->m || 2 * (int64_t)(unit + depth) > args->k) {
        pack_left_rows(args, panel, first, rows, unit, depth);
        return (struct left_piece){0};
    }
    return (struct left_piece){
        .from = (const uint16_t *)args->a + (int64_t)row * args->a_row + 2 * (int64_t)unit,
        .to = left_panel(args, panel) + first * left_row(args->k) + unit,
        .from_row = (size_t)args->a_row,
        .to_row = left_row(args->k),
        .rows = rows,
        .ahead = (int64_t)row + 2 * PANEL <= args->m ? PANEL * args->a_row : 0,
    };
}

static inline void pack_left_panel(const struct unit_product_args *args, size_t panel) {
    const size_t units = padded_units(args->k);
    if (args->a_column == 1) {
        pack_left_rows(args, panel, 0, PANEL, 0, units);
        return;
    }
    for (size_t unit = 0; unit < units; unit += VF_WIDTH)
        for (size_t row = 0; row < PANEL; row += VF_WIDTH)
            pack_left_square(args, panel, row, unit);
}

// One step of a piece, at `unit` of its depth.
VF_INLINE void pack_left_step(const struct left_piece *piece, size_t unit) {
    for (size_t i = 0; i < piece->rows; i++) {
        const uint16_t *from = piece->from + i * piece->from_row + 2 * unit;
        __builtin_prefetch(from + piece->ahead, 0, 2);
        vf_store(piece->to + i * piece->to_row + unit, (vf)vu_load_pairs(from, 2 * VF_WIDTH));
    }
}

#endif

#endif
