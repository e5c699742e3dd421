// matrix_product whose result is symmetric, such as x x^T or x^T x (kernels/ops.h: strip). Both operands
// are packed for tiles.h; then the threads compute the blocks on and below the diagonal. Each block is
// stored twice, as it is and transposed.
// Determinism: an element is one chain of multiply-adds in the order of the inner dimension, whichever thread
// computes it.
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/tiles.h"

// The size of a block: its rows (a multiple of TILE_ROWS and of VF_WIDTH) and columns (a multiple of
// TILE_VECTORS vectors). BLOCK_WORDS: words of the inner dimension that are multiplied at a time.
#define BLOCK_ROWS    48
#define BLOCK_COLUMNS 64
#define BLOCK_WORDS   256

struct product_plan {
    int n_threads;
    bool pairs; // words are pairs of bf16 (tiles.h)
    int n_row_blocks, n_column_blocks;
    int words, padded_words; // words of the inner dimension, and of a padded row of the left operand
    size_t left_floats, right_floats;
};

static struct product_plan plan_product(const struct device *device, const struct matrix_product_args *args) {
    const size_t n = (size_t)args->rows;
    struct product_plan plan = {
        .n_threads = cpu_threads(device, n * n * (size_t)args->inner),
        .pairs = multiplies_pairs(args->type),
        .n_row_blocks = (args->rows + BLOCK_ROWS - 1) / BLOCK_ROWS,
        .n_column_blocks = (args->rows + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS,
    };
    plan.words = words_of(plan.pairs, args->inner);
    plan.padded_words = (int)round_up_to((size_t)plan.words, VF_WIDTH);
    plan.left_floats = (size_t)plan.n_row_blocks * BLOCK_ROWS * (size_t)plan.padded_words;
    plan.right_floats = (size_t)plan.n_column_blocks * BLOCK_COLUMNS * (size_t)plan.words;
    return plan;
}

size_t CPU_OP(symmetric_product_workspace)(const struct device *device,
                                           const struct matrix_product_args *args) {
    const struct product_plan plan = plan_product(device, args);
    return (plan.left_floats + plan.right_floats + (size_t)plan.n_threads * BLOCK_ROWS * BLOCK_COLUMNS) *
           sizeof(float);
}

struct product_call {
    const struct matrix_product_args *args;
    struct product_plan plan;
    // The packed x: rows of padded_words words. If x_transposed: one block after another, (words, BLOCK_ROWS)
    // each.
    float *left;
    float *right;        // the packed y: one block of columns after another, (words, BLOCK_COLUMNS) each
    float *sums;         // (threads, BLOCK_ROWS, BLOCK_COLUMNS)
    atomic_size_t *next; // (2) the next task of pack_part, and of blocks_part
};

// ---- packing the operands

static int clamp_rows(int n, int first, int most) {
    return n - first < most ? n - first : most;
}

// Packs one block of an operand. The blocks of columns of y come first, since transposing them takes longer
// than copying the rows of x. For x^T x, whose inner dimension is the rows of x, the blocks of both
// operands are copied.
VF_INLINE void pack_block(const enum dtype type, const struct product_call *call, int block) {
    const struct matrix_product_args *args = call->args;
    const struct product_plan *plan = &call->plan;
    const size_t n = (size_t)args->rows, k = (size_t)args->inner;
    const int padded = plan->words * (plan->pairs ? 2 : 1); // padded inner dimension, for pack_right
    if (block < plan->n_column_blocks) {
        const int first = block * BLOCK_COLUMNS, columns = clamp_rows(args->rows, first, BLOCK_COLUMNS);
        float *to = call->right + (size_t)first * (size_t)plan->words;
        if (args->x_transposed)
            pack_right(type, to, padded, BLOCK_COLUMNS, args->y, (size_t)first, n, args->inner, columns);
        else
            pack_transposed(type, to, BLOCK_COLUMNS, args->y, (size_t)first * k, k, columns, args->inner);
    } else {
        const int first = (block - plan->n_column_blocks) * BLOCK_ROWS,
                  rows = clamp_rows(args->rows, first, BLOCK_ROWS);
        float *to = call->left + (size_t)first * (size_t)plan->padded_words;
        if (args->x_transposed)
            pack_right(type, to, padded, BLOCK_ROWS, args->x, (size_t)first, n, args->inner, rows);
        else
            pack_left(type, to, BLOCK_ROWS, plan->padded_words, args->x, (size_t)first * k, k, rows,
                      args->inner);
    }
}

static void pack_part(const void *context, int part, int n_parts) {
    (void)part, (void)n_parts;
    const struct product_call *call = context;
    const size_t n = (size_t)(call->plan.n_row_blocks + call->plan.n_column_blocks);
    for (size_t block; (block = atomic_fetch_add(&call->next[0], 1)) < n;)
        VF_DISPATCH(call->args->type, pack_block, call, (int)block);
}

// ---- computing the blocks

// The number of column blocks on or below the diagonal in a row of blocks.
static int column_blocks_of(const struct product_plan *plan, int row_block) {
    const int n = ((row_block + 1) * BLOCK_ROWS - 1) / BLOCK_COLUMNS + 1;
    return n < plan->n_column_blocks ? n : plan->n_column_blocks;
}

// Computes the sums of one block, for the vectors that have elements on or below the diagonal. The rows are
// rounded up to a multiple of VF_WIDTH; the sums of rows past the last one are zeros.
static void multiply_block(const struct product_call *call, float *sums, int row, int column) {
    const struct product_plan *plan = &call->plan;
    const bool pairs = VF_PAIRS && plan->pairs;
    const size_t stride = (size_t)plan->padded_words;
    const int rows = (int)round_up_to((size_t)clamp_rows(call->args->rows, row, BLOCK_ROWS), VF_WIDTH);
    const float *left = call->left + (size_t)row * stride;
    const float *right = call->right + (size_t)column * (size_t)plan->words;
    for (int word = 0; word < plan->words; word += BLOCK_WORDS) {
        const int depth = plan->words - word < BLOCK_WORDS ? plan->words - word : BLOCK_WORDS;
        for (int i = 0; i < rows; i += TILE_ROWS) {
            const int columns = row + i + TILE_ROWS - column;
            const int n_vectors =
                (columns < BLOCK_COLUMNS ? columns + VF_WIDTH - 1 : BLOCK_COLUMNS) / VF_WIDTH;
            if (columns <= 0)
                continue;
            if (call->args->x_transposed)
                multiply_columns(pairs, sums + i * BLOCK_COLUMNS, BLOCK_COLUMNS,
                                 left + (size_t)word * BLOCK_ROWS + i, BLOCK_ROWS,
                                 right + (size_t)word * BLOCK_COLUMNS, BLOCK_COLUMNS, n_vectors, depth,
                                 word > 0);
            else
                multiply_rows(pairs, sums + i * BLOCK_COLUMNS, BLOCK_COLUMNS,
                              left + (size_t)i * stride + word, stride, right + (size_t)word * BLOCK_COLUMNS,
                              BLOCK_COLUMNS, n_vectors, depth, word > 0);
        }
    }
}

// Returns alpha sum + beta addend for one vector of a square. `at` is the index of its first element in out.
VF_INLINE vf finish(const enum dtype type, const struct matrix_product_args *args, const float *sums,
                    size_t at, int lanes) {
    const vf v = vf_load(sums) * (float)args->alpha;
    return args->addend ? v + vf_get_part(type, args->addend, at, lanes) * (float)args->beta : v;
}

// Stores a square of VF_WIDTH x VF_WIDTH sums twice: at (row, column) of out, row >= column, and transposed
// at (column, row). For a square on the diagonal, both use the lower triangle.
VF_INLINE void store_square(const enum dtype type, const struct matrix_product_args *args, const float *sums,
                            int row, int column) {
    const size_t n = (size_t)args->rows, first = (size_t)row * n + (size_t)column;
    const int rows = clamp_rows(args->rows, row, VF_WIDTH),
              columns = clamp_rows(args->rows, column, VF_WIDTH);
    vf square[VF_WIDTH], transposed[VF_WIDTH];
    FLAT_LOOP(i, VF_WIDTH) {
        square[i] = transposed[i] =
            i < rows ? finish(type, args, sums + i * BLOCK_COLUMNS, first + (size_t)i * n, columns)
                     : vf_zero();
    }
    transpose_vectors(transposed);
    for (int i = 0; i < VF_WIDTH; i++) {
        const vf lower = row == column ? vf_first(square[i], i + 1, transposed[i]) : square[i];
        if (i < rows)
            vf_put_part(type, args->out, first + (size_t)i * n, lower, columns);
        if (row > column && i < columns)
            vf_put_part(type, args->out, (size_t)(column + i) * n + (size_t)row, transposed[i], rows);
    }
}

VF_INLINE void one_block(const enum dtype type, const struct product_call *call, float *sums, int row,
                         int column) {
    multiply_block(call, sums, row, column);
    for (int i = 0; i < BLOCK_ROWS && row + i < call->args->rows; i += VF_WIDTH)
        for (int j = 0; j < BLOCK_COLUMNS && column + j <= row + i; j += VF_WIDTH)
            store_square(type, call->args, sums + i * BLOCK_COLUMNS + j, row + i, column + j);
}

// Tasks are blocks. The first tasks are those of the last row of blocks, which has the most blocks on or
// below the diagonal.
static void blocks_part(const void *context, int part, int n_parts) {
    (void)n_parts;
    const struct product_call *call = context;
    float *sums = call->sums + (size_t)part * BLOCK_ROWS * BLOCK_COLUMNS;
    size_t first = 0; // first task of row_block
    int row_block = call->plan.n_row_blocks - 1;
    amx_begin();
    for (;;) {
        const size_t task = atomic_fetch_add(&call->next[1], 1);
        while (row_block >= 0 && task - first >= (size_t)column_blocks_of(&call->plan, row_block))
            first += (size_t)column_blocks_of(&call->plan, row_block--);
        if (row_block < 0)
            break;
        VF_DISPATCH(call->args->type, one_block, call, sums, row_block * BLOCK_ROWS,
                    (int)(task - first) * BLOCK_COLUMNS);
    }
    amx_end();
}

void CPU_OP(symmetric_product)(struct stream *stream, const struct matrix_product_args *args) {
    atomic_size_t next[2] = {0, 0};
    struct product_call call = {.args = args, .plan = plan_product(stream->device, args), .next = next};
    call.left = stream->workspace;
    call.right = call.left + call.plan.left_floats;
    call.sums = call.right + call.plan.right_floats;
    parallel_run(call.plan.n_threads, pack_part, &call);
    parallel_run(call.plan.n_threads, blocks_part, &call);
}
