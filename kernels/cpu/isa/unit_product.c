// Large products of bf16 on matrix units, on one thread (struct unit_product_args). oneDNN 2.6 multiplies the
// shapes of linear layers at a fifth of the units' rate, and this at a third (benchmarks/cpu.md).
// - 2 x 2 tile registers hold the sums of a block of PANEL x PANEL; panels of both operands are packed for
//   them (unit_panels.h).
// - Of a left panel at most PANEL_UNITS are multiplied at a time, which stay in the first-level cache while
//   right panels come from the second.
// - Each element is one chain of additions in the order of the inner dimension. So its bits depend neither on
//   the sizes of tiles nor on which thread computes it.
// - The units are busy for longer than it takes to issue their instructions, but few of these are issued
//   ahead: vector instructions between them cost little if they are spread evenly, and all that they take if
//   not. So the next left panel is packed, and the epilogue of the block before applied, in small steps
//   beside the products.
#include "kernels/cpu/isa/linear_epilogue.h"
#include "kernels/cpu/isa/unit_panels.h"

#if VF_MATRIX_UNITS

#    define PANEL_UNITS 128
#    define LINE_FLOATS 16 // of a cache line

size_t CPU_OP(unit_product_right_bytes)(int64_t k, int64_t n) {
    return panels_of(n) * PANEL * padded_units(k) * sizeof(float);
}

size_t CPU_OP(unit_product_left_bytes)(int64_t k) {
    return 2 * PANEL * left_row(k) * sizeof(float);
}

void CPU_OP(unit_product_pack)(const struct unit_product_args *args) {
    if (args->b_column == 1)
        pack_right_rows(args);
    else
        pack_right_columns(args);
}

// ---- a block's epilogue

// The block that was multiplied last, of which `done` rows are finished.
struct finish {
    struct linear_epilogue_args epilogue;
    int64_t row, done;
    bool is_linear;  // no activation: two vectors are rounded at once
    bool ends_panel; // no block of its rows follows
};

static const void *bf16_at(const void *tensor, int64_t index) {
    return tensor ? (const uint16_t *)tensor + index : NULL;
}

static struct finish finish_of(const struct unit_product_args *args, const float *sums, size_t panel,
                               size_t i) {
    const struct linear_epilogue_args *all = args->epilogue;
    const int64_t row = (int64_t)panel * PANEL, column = (int64_t)i * PANEL,
                  first = row * all->out_stride + column;
    struct finish finish = {.epilogue = *all, .row = row, .ends_panel = i + 1 == panels_of(args->n)};
    struct linear_epilogue_args *epilogue = &finish.epilogue;
    epilogue->c = sums;
    epilogue->c_stride = PANEL;
    epilogue->rows = part_of_panel(args->m, panel);
    epilogue->columns = part_of_panel(args->n, i);
    epilogue->out = (char *)all->out + (size_t)first * dtype_size(all->out_type);
    epilogue->pre_activation = (void *)(uintptr_t)bf16_at(all->pre_activation, first);
    epilogue->residual = bf16_at(all->residual, first);
    epilogue->activation_input = bf16_at(all->activation_input, first);
    epilogue->bias = bf16_at(all->bias, column);
    finish.is_linear =
        all->activation == ACTIVATION_NONE && all->out_type == DTYPE_BF16 && epilogue->columns == PANEL;
    return finish;
}

// Up to n rows. What the next block will write there is prefetched.
VF_INLINE void finish_rows(struct finish *finish, int64_t n) {
    const struct linear_epilogue_args *epilogue = &finish->epilogue;
    const size_t size = dtype_size(epilogue->out_type);
    for (int64_t i = 0; i < n && finish->done < epilogue->rows; i++, finish->done++) {
        char *out = (char *)epilogue->out + (size_t)(finish->done * epilogue->out_stride) * size;
        for (size_t byte = 0; byte < PANEL * size; byte += LINE_FLOATS * sizeof(float))
            __builtin_prefetch(out + PANEL * size + byte, 1);
        if (finish->is_linear) {
            const float *sums = epilogue->c + finish->done * PANEL;
            const size_t row = (size_t)(finish->done * epilogue->out_stride);
            const vu pairs =
                vu_from_neighbours(epilogue_sum(DTYPE_BF16, epilogue, sums, row, 0, VF_WIDTH),
                                   epilogue_sum(DTYPE_BF16, epilogue, sums, row, VF_WIDTH, VF_WIDTH));
            memcpy(out, &pairs, sizeof pairs);
        } else {
            epilogue_row(DTYPE_BF16, epilogue, (size_t)finish->done);
        }
    }
}

static void end_finish(const struct unit_product_args *args, struct finish *finish) {
    finish_rows(finish, PANEL);
    if (finish->ends_panel && args->finish_rows)
        args->finish_rows(args->context, finish->row, finish->epilogue.rows);
    *finish = (struct finish){0};
}

// ---- products

// Work beside the products of a block.
struct beside {
    struct left_piece piece;
    struct finish finish;
};

// A block of sums (+)= left right, `depth` units.
VF_INLINE void multiply_block(float *sums, const float *left, size_t row, const float *right, size_t depth,
                              bool add, struct beside *beside) {
    const size_t sums_stride = PANEL * sizeof *sums, left_stride = row * sizeof *left,
                 right_stride = PANEL * sizeof *right, steps = depth / UNIT_ROWS,
                 lines = (PANEL * PANEL / LINE_FLOATS + steps - 1) / steps;
    const int64_t rows = (PANEL + (int64_t)steps - 1) / (int64_t)steps;
    float *lower_sums = sums + UNIT_ROWS * PANEL;
    const float *lower_left = left + UNIT_ROWS * row, *next_sums = sums + PANEL * PANEL;
    const struct left_piece piece = beside->piece; // copies, that stores cannot alias
    struct finish finish = beside->finish;
    finish_stores();
    if (add) {
        _tile_loadd(0, sums, sums_stride);
        _tile_loadd(1, sums + VF_WIDTH, sums_stride);
        _tile_loadd(2, lower_sums, sums_stride);
        _tile_loadd(3, lower_sums + VF_WIDTH, sums_stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t unit = 0; unit < depth; unit += UNIT_ROWS) {
        _tile_loadd(4, left + unit, left_stride);
        _tile_loadd(6, right + unit * PANEL, right_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + unit * PANEL + VF_WIDTH, right_stride);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower_left + unit, left_stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        pack_left_step(&piece, unit);
        for (size_t i = 0; i < lines; i++, next_sums += LINE_FLOATS)
            __builtin_prefetch(next_sums);
        finish_rows(&finish, rows);
    }
    beside->finish.done = finish.done;
    finish_stores();
    _tile_stored(0, sums, sums_stride);
    _tile_stored(1, sums + VF_WIDTH, sums_stride);
    _tile_stored(2, lower_sums, sums_stride);
    _tile_stored(3, lower_sums + VF_WIDTH, sums_stride);
    finish_stores();
}

static void run_panel(const struct unit_product_args *args, size_t panel, struct beside *beside) {
    const size_t units = padded_units(args->k), row = left_row(args->k), columns = panels_of(args->n),
                 parts = (units + PANEL_UNITS - 1) / PANEL_UNITS,
                 most = round_up_to((units + parts - 1) / parts, UNIT_ROWS);
    float *sums = args->sums + (args->keeps_sums ? panel : panel % 2) * columns * PANEL * PANEL;
    for (size_t unit = 0; unit < units; unit += most) {
        const size_t depth = units - unit < most ? units - unit : most;
        for (size_t i = 0; i < columns; i++) {
            float *block = sums + i * PANEL * PANEL;
            beside->piece = left_piece_at(args, panel + 1, unit, depth, i, columns);
            multiply_block(block, left_panel(args, panel) + unit, row,
                           args->right + (i * units + unit) * PANEL, depth, args->add || unit > 0, beside);
            end_finish(args, &beside->finish);
            if (args->epilogue && unit + depth == units)
                beside->finish = finish_of(args, block, panel, i);
        }
    }
}

void CPU_OP(unit_product_run)(const struct unit_product_args *args) {
    struct beside beside = {0};
    pack_left_panel(args, 0);
    matrix_units_begin();
    for (size_t panel = 0; panel < panels_of(args->m); panel++)
        run_panel(args, panel, &beside);
    end_finish(args, &beside.finish);
    matrix_units_end();
}

#endif
