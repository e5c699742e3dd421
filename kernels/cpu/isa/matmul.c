// Vector code of matrix products, for kernels/cpu/matmul.c:
// - upcasting the operands of a tile to fp32, before oneDNN multiplies them
// - the epilogue of a tile, after the product: bias, residual, an activation or its gradient, rounding
// - whole products on AMX
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/tiles.h"

// ---- the epilogue, one row at a time (struct linear_epilogue_args)

// Returns alpha c + bias + beta residual for elements [i, i + lanes) of a row. Explicit FMAs make the bits
// the same wherever this is inlined.
//   row   index of the row's first element in out and in the tensors with the same stride
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
        if (args->pre_activation) { // the activation is applied to the rounded value, which backward reads
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

VF_INLINE void upcast_transposed(enum dtype type, const struct linear_upcast_args *args) {
    pack_columns(false, type, args->to, (int)args->to_stride, args->from, 0, (size_t)args->from_stride,
                 (int)args->rows, (int)args->columns);
}

void CPU_OP(linear_upcast)(const struct linear_upcast_args *args) {
    const struct linear_upcast_args copy = *args; // a local copy: no store through a pointer aliases it
    if (copy.transposes)
        VF_DISPATCH(copy.type, upcast_transposed, &copy);
    else
        VF_DISPATCH(copy.type, upcast_rows, &copy);
}

void CPU_OP(linear_epilogue)(const struct linear_epilogue_args *args) {
    const struct linear_epilogue_args copy = *args;
    VF_DISPATCH(copy.type, epilogue_rows, &copy);
}

// ---- products on AMX

#if VF_AMX

// Large bf16 products on AMX, on one thread (struct amx_product_args). On the shapes of linear layers,
// oneDNN 2.6 reaches a fifth of AMX's peak rate, and this code a third (benchmarks/cpu.md).
// - 2 x 2 tile registers hold the sums of a PANEL x PANEL block. Both operands are packed into panels.
// - At most PANEL_WORDS of a left panel are multiplied at a time. They stay in the first-level cache while
//   right panels come from the second-level cache.
// - Each element is one chain of additions in the order of the inner dimension. Its bits depend neither on
//   tile sizes nor on which thread computes it.
// - An AMX instruction runs for longer than it takes to issue, but few are issued ahead. Vector instructions
//   between them cost little if they are spread evenly, and their full time if not. So the next left panel is
//   packed, and the epilogue of the previous block applied, in small steps between the products.

#    define PANEL_WORDS 128
#    define LINE_FLOATS 16 // floats per cache line

// ---- operands, packed into panels: PANEL rows of the left operand, PANEL columns of the right one. A word
// is a pair of bf16, adjacent along the inner dimension (amx.h).

#    define PANEL AMX_PRODUCT_GRAIN

// Words in a packed row of `n` numbers: whole tile registers, with zeros past n.
static inline size_t padded_words(int64_t n) {
    return round_up_to((size_t)words_of(true, (int)n), AMX_ROWS);
}

// Distance in words between rows of the packed left operand. It is one tile register wider than needed,
// because rows at multiples of 4 KiB share few cache sets.
static inline size_t left_row(int64_t k) {
    return padded_words(k) + AMX_ROWS;
}

static inline size_t panels_of(int64_t n) {
    return ((size_t)n + PANEL - 1) / PANEL;
}

// The number of rows or columns of panel `panel`; the last one may have fewer than PANEL.
static inline int part_of_panel(int64_t n, size_t panel) {
    const int64_t left = n - (int64_t)panel * PANEL;
    return left < PANEL ? (int)left : PANEL;
}

static inline int lanes_at(int64_t column, int64_t n) {
    return n - column < VF_WIDTH ? (int)(n > column ? n - column : 0) : VF_WIDTH;
}

// Loads word number `word` of `lanes` columns of a (k, columns) operand: pairs from its rows 2 word and
// 2 word + 1. The rest are zeros.
VF_INLINE vf pair_rows(const uint16_t *from, int64_t stride, int64_t word, int64_t k, int lanes) {
    const vh none = {0};
    const uint16_t *first = from + 2 * word * stride;
    return (vf)vu_from_pairs(2 * word < k ? vh_load_part(first, lanes) : none,
                             2 * word + 1 < k ? vh_load_part(first + stride, lanes) : none);
}

// ---- packing the right operand, all at once

#    define ROWS_AHEAD 8 // prefetch distance in rows

// Prefetches the two rows that are ROWS_AHEAD and ROWS_AHEAD + 1 rows after `row`.
static inline void prefetch_pair(const uint16_t *from, int64_t stride, int64_t row, int64_t k,
                                 int64_t columns) {
    for (int64_t ahead = row + ROWS_AHEAD; ahead < row + ROWS_AHEAD + 2 && ahead < k; ahead++)
        for (int64_t column = 0; column < columns; column += 32)
            __builtin_prefetch(from + ahead * stride + column);
}

// For an operand with contiguous rows: packs one pair of rows into all panels, then the next pair.
static inline void pack_right_rows(const struct amx_product_args *args) {
    const size_t words = padded_words(args->k);
    for (size_t word = 0; word < words; word++) {
        prefetch_pair(args->b, args->b_row, 2 * (int64_t)word, args->k, args->n);
        for (size_t panel = 0; panel < panels_of(args->n); panel++)
            for (size_t i = 0; i < PANEL; i += VF_WIDTH) {
                const size_t column = panel * PANEL + i;
                vf_store(args->right + (panel * words + word) * PANEL + i,
                         pair_rows((const uint16_t *)args->b + column, args->b_row, (int64_t)word, args->k,
                                   lanes_at((int64_t)column, args->n)));
            }
    }
}

// For an operand with contiguous columns: packs one panel after another.
static inline void pack_right_columns(const struct amx_product_args *args) {
    const size_t words = padded_words(args->k), used = (size_t)words_of(true, (int)args->k);
    for (size_t panel = 0; panel < panels_of(args->n); panel++) {
        float *to = args->right + panel * PANEL * words;
        pack_transposed(DTYPE_BF16, to, PANEL, args->b, panel * PANEL * (size_t)args->b_column,
                        (size_t)args->b_column, part_of_panel(args->n, panel), (int)args->k);
        memset(to + used * PANEL, 0, (words - used) * PANEL * sizeof *to);
    }
}

// ---- packing the left operand, one panel ahead of its products

static inline float *left_panel(const struct amx_product_args *args, size_t panel) {
    return args->left + panel % 2 * PANEL * left_row(args->k);
}

// Packs rows [first, first + rows) of a panel, `depth` words each from `word` on. Elements past m or k
// become zeros.
static inline void pack_left_rows(const struct amx_product_args *args, size_t panel, size_t first,
                                  size_t rows, size_t word, size_t depth) {
    for (size_t i = first; i < first + rows; i++) {
        const int64_t row = (int64_t)(panel * PANEL + i);
        const uint16_t *from = (const uint16_t *)args->a + row * args->a_row;
        for (size_t at = word; at < word + depth; at += VF_WIDTH) {
            const int64_t column = 2 * (int64_t)at, left = row < args->m ? args->k - column : 0;
            const int n = left > 2 * VF_WIDTH ? 2 * VF_WIDTH : left > 0 ? (int)left : 0;
            vf_store(left_panel(args, panel) + i * left_row(args->k) + at,
                     (vf)vu_load_pairs(from + column, n));
        }
    }
}

// Packs VF_WIDTH rows of a panel, from `word` on, for an operand whose columns are contiguous.
static inline void pack_left_square(const struct amx_product_args *args, size_t panel, size_t row,
                                    size_t word) {
    const int64_t column = (int64_t)(panel * PANEL + row), first = 2 * (int64_t)word;
    const uint16_t *from = (const uint16_t *)args->a + column;
    float *to = left_panel(args, panel) + row * left_row(args->k) + word;
    vf square[VF_WIDTH];
    if (row == 0 && column + PANEL < args->m) // prefetches the next panel
        for (int64_t i = first; i < first + 2 * VF_WIDTH && i < args->k; i++)
            __builtin_prefetch(from + i * args->a_column + PANEL, 0, 2);
    FLAT_LOOP(i, VF_WIDTH) {
        square[i] = pair_rows(from, args->a_column, (int64_t)word + i, args->k, lanes_at(column, args->m));
    }
    transpose_vectors(square);
    FLAT_LOOP(i, VF_WIDTH) {
        vf_store(to + (size_t)i * left_row(args->k), square[i]);
    }
}

// Rows of a panel that are packed during the products of one block: at every step, one vector of each row.
struct left_piece {
    const uint16_t *from;
    float *to;
    size_t from_row, to_row, rows; // strides of from and to; number of rows
    int64_t ahead;                 // prefetch distance in elements: to the next panel, or 0
};

// Returns part `part` of `parts` of the words [word, word + depth) of a panel, to be packed step by step. If
// a has contiguous columns, or rows that do not fill whole vectors, this function packs the part itself and
// returns an empty piece.
static inline struct left_piece left_piece_at(const struct amx_product_args *args, size_t panel, size_t word,
                                              size_t depth, size_t part, size_t parts) {
    const size_t squares = depth / VF_WIDTH * (PANEL / VF_WIDTH), all = args->a_column == 1 ? PANEL : squares,
                 most = (all + parts - 1) / parts, first = part * most < all ? part * most : all,
                 rows = all - first < most ? all - first : most, row = panel * PANEL + first;
    if (panel >= panels_of(args->m))
        return (struct left_piece){0};
    if (args->a_column != 1) {
        for (size_t i = first; i < first + rows; i++)
            pack_left_square(args, panel, i % (PANEL / VF_WIDTH) * VF_WIDTH,
                             word + i / (PANEL / VF_WIDTH) * VF_WIDTH);
        return (struct left_piece){0};
    }
    if ((int64_t)(row + rows) > args->m || 2 * (int64_t)(word + depth) > args->k) {
        pack_left_rows(args, panel, first, rows, word, depth);
        return (struct left_piece){0};
    }
    return (struct left_piece){
        .from = (const uint16_t *)args->a + (int64_t)row * args->a_row + 2 * (int64_t)word,
        .to = left_panel(args, panel) + first * left_row(args->k) + word,
        .from_row = (size_t)args->a_row,
        .to_row = left_row(args->k),
        .rows = rows,
        .ahead = (int64_t)row + 2 * PANEL <= args->m ? PANEL * args->a_row : 0,
    };
}

static inline void pack_left_panel(const struct amx_product_args *args, size_t panel) {
    const size_t words = padded_words(args->k);
    if (args->a_column == 1) {
        pack_left_rows(args, panel, 0, PANEL, 0, words);
        return;
    }
    for (size_t word = 0; word < words; word += VF_WIDTH)
        for (size_t row = 0; row < PANEL; row += VF_WIDTH)
            pack_left_square(args, panel, row, word);
}

// One step: packs VF_WIDTH words of each row of the piece, from `word` on.
VF_INLINE void pack_left_step(const struct left_piece *piece, size_t word) {
    for (size_t i = 0; i < piece->rows; i++) {
        const uint16_t *from = piece->from + i * piece->from_row + 2 * word;
        __builtin_prefetch(from + piece->ahead, 0, 2);
        vf_store(piece->to + i * piece->to_row + word, (vf)vu_load_pairs(from, 2 * VF_WIDTH));
    }
}

size_t CPU_OP(amx_product_right_bytes)(int64_t k, int64_t n) {
    return panels_of(n) * PANEL * padded_words(k) * sizeof(float);
}

size_t CPU_OP(amx_product_left_bytes)(int64_t k) {
    return 2 * PANEL * left_row(k) * sizeof(float);
}

void CPU_OP(amx_product_pack)(const struct amx_product_args *args) {
    if (args->b_column == 1)
        pack_right_rows(args);
    else
        pack_right_columns(args);
}

// ---- a block's epilogue

// The epilogue of the block that was multiplied last, which is applied during the products of the next block.
struct finish {
    struct linear_epilogue_args epilogue;
    int64_t done;   // number of rows that are finished
    bool is_linear; // no activation, and rows of PANEL bf16 results: two vectors are rounded at once
};

static const void *bf16_at(const void *tensor, int64_t index) {
    return tensor ? (const uint16_t *)tensor + index : NULL;
}

static struct finish finish_of(const struct amx_product_args *args, const float *sums, size_t panel,
                               size_t i) {
    const struct linear_epilogue_args *all = args->epilogue;
    const int64_t row = (int64_t)panel * PANEL, column = (int64_t)i * PANEL,
                  first = row * all->out_stride + column;
    struct finish finish = {.epilogue = *all};
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

// Applies the epilogue to up to n more rows of the block. Prefetches the memory that the next block will
// write.
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

static void end_finish(struct finish *finish) {
    finish_rows(finish, PANEL);
    *finish = (struct finish){0};
}

// ---- the products of blocks and panels

// Work to interleave with the products of a block.
struct beside {
    struct left_piece piece;
    struct finish finish;
};

// Computes sums = left right, or sums += left right with `add`, for one block and `depth` words. Interleaves
// the work in `beside`.
VF_INLINE void multiply_block(float *sums, const float *left, size_t row, const float *right, size_t depth,
                              bool add, struct beside *beside) {
    const size_t sums_stride = PANEL * sizeof *sums, left_stride = row * sizeof *left,
                 right_stride = PANEL * sizeof *right, steps = depth / AMX_ROWS,
                 lines = (PANEL * PANEL / LINE_FLOATS + steps - 1) / steps;
    const int64_t rows = (PANEL + (int64_t)steps - 1) / (int64_t)steps;
    float *lower_sums = sums + AMX_ROWS * PANEL;
    const float *lower_left = left + AMX_ROWS * row, *next_sums = sums + PANEL * PANEL;
    const struct left_piece piece = beside->piece; // local: no store through a pointer aliases it
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
    for (size_t word = 0; word < depth; word += AMX_ROWS) {
        _tile_loadd(4, left + word, left_stride);
        _tile_loadd(6, right + word * PANEL, right_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + word * PANEL + VF_WIDTH, right_stride);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower_left + word, left_stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        pack_left_step(&piece, word);
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

static void run_panel(const struct amx_product_args *args, size_t panel, struct beside *beside) {
    const size_t words = padded_words(args->k), row = left_row(args->k), columns = panels_of(args->n),
                 parts = (words + PANEL_WORDS - 1) / PANEL_WORDS,
                 most = round_up_to((words + parts - 1) / parts, AMX_ROWS);
    float *sums = args->sums + (args->keeps_sums ? panel : panel % 2) * columns * PANEL * PANEL;
    for (size_t word = 0; word < words; word += most) {
        const size_t depth = words - word < most ? words - word : most;
        for (size_t i = 0; i < columns; i++) {
            float *block = sums + i * PANEL * PANEL;
            beside->piece = left_piece_at(args, panel + 1, word, depth, i, columns);
            multiply_block(block, left_panel(args, panel) + word, row,
                           args->right + (i * words + word) * PANEL, depth, args->add || word > 0, beside);
            end_finish(&beside->finish);
            if (args->epilogue && word + depth == words)
                beside->finish = finish_of(args, block, panel, i);
        }
    }
}

void CPU_OP(amx_product_run)(const struct amx_product_args *args) {
    struct beside beside = {0};
    pack_left_panel(args, 0);
    amx_begin();
    for (size_t panel = 0; panel < panels_of(args->m); panel++)
        run_panel(args, panel, &beside);
    end_finish(&beside.finish);
    amx_end();
}

#endif
