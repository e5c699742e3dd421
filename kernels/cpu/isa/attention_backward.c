// Causal attention, backward (kernels/ops_layers.h: attention_backward). The probabilities p of one block of
// queries and one block of keys are recomputed from the saved lse. With delta = row sums of dout * out,
// small products (tiles.h) then give
//   dv += p^T dout,  ds = p * (dout v^T - delta),  dk += ds^T q,  dq += ds k
// A group is a key-value head with its query heads; dk and dv are sums over the group. Keys and values are
// packed once per group. Each thread takes whole groups. If the groups do not divide evenly among the
// threads, blocks of dk and dv and blocks of dq become separate tasks. That computes scores twice (seven
// products instead of five) but needs no sum over threads.
// Determinism: both ways and any number of threads give the same bits. Every sum runs over query heads in
// ascending order and, for each head, over blocks in ascending order.
#include <math.h>
#include <stdatomic.h>

#include "kernels/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/attention.h"

// Block size of queries and of keys: a multiple of TILE_ROWS and of VF_WIDTH, and even.
#define BLOCK 96

#define LOG2_E 1.4426950408889634

// A query head, packed for products and padded to whole blocks and vectors. With float words, left and right
// operands share memory.
struct packed_queries {
    float *q, *dout;             // left operands: (blocks * BLOCK, padded D) words
    float *q_right, *dout_right; // right operands: (words of blocks * BLOCK, padded D)
    float *dq;                   // (blocks * BLOCK, padded D), not yet scaled by 1 / sqrt(D)
    float *delta;                // (blocks * BLOCK): the row sums of dout * out
    const float *lse;            // (T)
    const int32_t *first;        // (T) the first position of each query's document, or NULL
    int window;
    size_t index, out_index; // index of the head's first element in q and in out
};

// A key-value head, packed in the same way.
struct packed_keys {
    float *k_right;               // right operand: (words of blocks * BLOCK, padded D)
    float *k_columns, *v_columns; // right operands, transposed, one block after another (words of D, BLOCK)
    size_t k_index, v_index;      // index of the head's first element in k and in v
};

// probabilities first holds scores and dscores holds dout v^T, both as floats. Words of p and of ds then
// replace them. Float words replace them one by one. With bf16, a word is a pair of two queries' elements
// and replaces the first query's float; dk and dv read these pairs as a transposed left operand. dq needs
// pairs of two keys' elements instead; dscores_left holds them.
struct block_scratch {
    float *probabilities; // (BLOCK queries, BLOCK keys)
    float *dscores;       // (BLOCK queries, BLOCK keys)
    float *dscores_left;  // ds as the left operand of dq: (BLOCK queries, words of BLOCK keys). If words are
                          // floats, this is dscores itself
    float *gradients;     // per block of keys: dk (BLOCK, padded D), then dv (BLOCK, padded D)
};

struct backward_plan {
    int n_threads;
    bool whole_groups;
    bool pairs; // words are pairs of bf16 (tiles.h)
    int group;  // query heads per key-value head
    int n_blocks, padded_D;
    float score_scale; // log2 e / sqrt(D)
    size_t queries_floats, keys_floats;
    // Query heads and key-value heads that the workspace holds at a time: one of each per thread, or all.
    size_t n_heads_packed, n_groups_packed;
    // Blocks of dk and dv in a thread's scratch: one, or all if the thread adds several query heads of a
    // whole group to them, one after another.
    int n_gradient_blocks;
    size_t scratch_floats;
};

static struct backward_plan plan_backward(const struct device *device,
                                          const struct attention_backward_args *args) {
    size_t n_groups = (size_t)args->B * (size_t)args->K, n_heads = (size_t)args->B * (size_t)args->H;
    size_t n_keys = (size_t)(args->window > 0 && args->window < args->T ? args->window : args->T);
    struct backward_plan plan = {
        .n_threads = cpu_threads(device, n_heads * (size_t)args->T * n_keys * (size_t)args->D),
        .pairs = multiplies_pairs(args->type),
        .group = args->H / args->K,
        .n_blocks = (args->T + BLOCK - 1) / BLOCK,
        .padded_D = (int)round_up_to((size_t)args->D, VF_WIDTH),
        .score_scale = (float)(LOG2_E / sqrt(args->D)),
    };
    size_t threads = (size_t)plan.n_threads, rounds = (n_groups + threads - 1) / threads;
    plan.whole_groups = rounds * threads * 5 <= n_groups * 7 || n_groups >= 2 * threads;
    plan.n_heads_packed = plan.whole_groups ? threads : n_heads;
    plan.n_groups_packed = plan.whole_groups ? threads : n_groups;
    plan.n_gradient_blocks = plan.whole_groups && plan.group > 1 ? plan.n_blocks : 1;
    size_t rows = (size_t)plan.n_blocks * BLOCK, row_floats = rows * (size_t)plan.padded_D;
    size_t right_floats = plan.pairs ? row_floats / 2 : row_floats;
    plan.queries_floats = 3 * row_floats + (plan.pairs ? 2 * right_floats : 0) + rows;
    plan.keys_floats = right_floats + 2 * rows * (size_t)words_of(plan.pairs, args->D);
    plan.scratch_floats = BLOCK * 2 * (BLOCK + (size_t)plan.n_gradient_blocks * (size_t)plan.padded_D) +
                          (plan.pairs ? BLOCK * BLOCK / 2 : 0);
    return plan;
}

static size_t packed_floats(const struct backward_plan *plan) {
    return plan->n_heads_packed * plan->queries_floats + plan->n_groups_packed * plan->keys_floats;
}

size_t CPU_OP(attention_backward_workspace)(const struct device *device,
                                            const struct attention_backward_args *args) {
    struct backward_plan plan = plan_backward(device, args);
    struct rope_backward_args rotations[ATTENTION_ROPE_CALLS];
    size_t bytes = (packed_floats(&plan) + (size_t)plan.n_threads * plan.scratch_floats) * sizeof(float);
    // rope_backward runs after attention.
    for (int i = attention_rope_backward(args, rotations) - 1; i >= 0; i--) {
        const size_t own = CPU_OP(rope_backward_workspace)(&rotations[i]);
        bytes = own > bytes ? own : bytes;
    }
    return bytes;
}

// Where a query head is, or will be, packed in the workspace.
//   slot   packed head, below n_heads_packed
//   head   query head, numbered over all sequences
static struct packed_queries packed_queries_at(const struct stream *stream, const struct backward_plan *plan,
                                               const struct attention_backward_args *args, size_t slot,
                                               size_t head) {
    size_t rows = (size_t)plan->n_blocks * BLOCK, H = (size_t)args->H, D = (size_t)args->D,
           T = (size_t)args->T;
    size_t b = head / H, h = head % H, row_floats = rows * (size_t)plan->padded_D;
    struct packed_queries packed = {
        .q = (float *)stream->workspace + slot * plan->queries_floats,
        .lse = (const float *)args->lse + head * T,
        .first = args->first ? args->first + b * T : NULL,
        .window = args->window,
        .index = b * args->q_batch_stride + h * D,
        .out_index = (b * T * H + h) * D,
    };
    packed.dout = packed.q + row_floats;
    packed.dq = packed.dout + row_floats;
    packed.q_right = packed.q;
    packed.dout_right = packed.dout;
    packed.delta = packed.dq + row_floats;
    if (plan->pairs) {
        packed.q_right = packed.delta;
        packed.dout_right = packed.q_right + row_floats / 2;
        packed.delta = packed.dout_right + row_floats / 2;
    }
    return packed;
}

// Where a key-value head is, or will be, packed in the workspace.
//   slot    packed key-value head, below n_groups_packed
//   group   key-value head, numbered over all sequences
static struct packed_keys packed_keys_at(const struct stream *stream, const struct backward_plan *plan,
                                         const struct attention_backward_args *args, size_t slot,
                                         size_t group) {
    size_t rows = (size_t)plan->n_blocks * BLOCK, K = (size_t)args->K, D = (size_t)args->D;
    size_t b = group / K, column = group % K * D;
    struct packed_keys packed = {
        .k_right = (float *)stream->workspace + plan->n_heads_packed * plan->queries_floats +
                   slot * plan->keys_floats,
        .k_index = b * args->k_batch_stride + column,
        .v_index = b * args->v_batch_stride + column,
    };
    packed.k_columns = packed.k_right + rows * (size_t)plan->padded_D / (plan->pairs ? 2 : 1);
    packed.v_columns = packed.k_columns + rows * (size_t)words_of(plan->pairs, args->D);
    return packed;
}

static struct block_scratch scratch_at(const struct stream *stream, const struct backward_plan *plan,
                                       int part) {
    struct block_scratch scratch = {.probabilities = (float *)stream->workspace + packed_floats(plan) +
                                                     (size_t)part * plan->scratch_floats};
    scratch.dscores = scratch.probabilities + BLOCK * BLOCK;
    scratch.gradients = scratch.dscores + BLOCK * BLOCK;
    scratch.dscores_left =
        plan->pairs ? scratch.gradients + (size_t)plan->n_gradient_blocks * BLOCK * 2 * (size_t)plan->padded_D
                    : scratch.dscores;
    return scratch;
}

// Returns where dk of key block j is in a thread's scratch. Its dv follows.
static float *gradients_at(const struct backward_plan *plan, struct block_scratch scratch, int j) {
    size_t slot = (size_t)(j % plan->n_gradient_blocks);
    return scratch.gradients + slot * BLOCK * 2 * (size_t)plan->padded_D;
}

// left_at, right_at and columns_at: the offset, in words, of block i in a left, a right and a transposed
// operand.
static size_t left_at(const struct backward_plan *plan, int i) {
    return (size_t)i * BLOCK * (size_t)plan->padded_D;
}

static size_t right_at(const struct backward_plan *plan, int i) {
    return left_at(plan, i) / (plan->pairs ? 2 : 1);
}

static size_t columns_at(const struct backward_plan *plan, int i, int D) {
    return (size_t)i * BLOCK * (size_t)words_of(plan->pairs, D);
}

static int rows_of_block(const struct attention_backward_args *args, int block) {
    return args->T - block * BLOCK < BLOCK ? args->T - block * BLOCK : BLOCK;
}

VF_INLINE float row_product(const enum dtype type, const void *a, const void *b, size_t index, int D) {
    const size_t n = (size_t)D, n_whole = n / VF_WIDTH * VF_WIDTH;
    vf sum = vf_zero();
    for (size_t d = 0; d < n_whole; d += VF_WIDTH)
        sum = vf_fma(vf_get(type, a, index + d), vf_get(type, b, index + d), sum);
    if (n_whole < n) {
        const int lanes = (int)(n - n_whole);
        sum = vf_fma(vf_get_part(type, a, index + n_whole, lanes),
                     vf_get_part(type, b, index + n_whole, lanes), sum);
    }
    return vf_reduce_add(sum);
}

// Packs one block of a query head, computes the block's delta, and clears its dq.
VF_INLINE void pack_queries(const enum dtype type, const struct attention_backward_args *args,
                            const struct backward_plan *plan, struct packed_queries to, int block) {
    int D = args->D, padded_D = plan->padded_D, n = rows_of_block(args, block);
    size_t row = (size_t)block * BLOCK, left = left_at(plan, block), right = right_at(plan, block);
    size_t index = to.index + row * args->q_stride, out_stride = (size_t)args->H * (size_t)D;
    size_t out_index = to.out_index + row * out_stride;
    pack_left(type, to.q + left, BLOCK, padded_D, args->q, index, args->q_stride, n, D);
    pack_left(type, to.dout + left, BLOCK, padded_D, args->dout, out_index, out_stride, n, D);
    if (multiplies_pairs(type)) {
        pack_right(type, to.q_right + right, BLOCK, padded_D, args->q, index, args->q_stride, n, D);
        pack_right(type, to.dout_right + right, BLOCK, padded_D, args->dout, out_index, out_stride, n, D);
    }
    memset(to.dq + left, 0, BLOCK * (size_t)padded_D * sizeof(float));
    for (int i = 0; i < n; i++, out_index += out_stride) {
        if (i + PREFETCH_ROWS < n)
            prefetch_row(type, args->out, out_index + PREFETCH_ROWS * out_stride, D);
        to.delta[row + (size_t)i] = row_product(type, args->dout, args->out, out_index, D);
    }
}

// Packs one block of a key-value head.
VF_INLINE void pack_keys(const enum dtype type, const struct attention_backward_args *args,
                         const struct backward_plan *plan, struct packed_keys to, int block) {
    int D = args->D, n = rows_of_block(args, block);
    size_t row = (size_t)block * BLOCK, columns = columns_at(plan, block, D);
    size_t k_index = to.k_index + row * args->k_stride, v_index = to.v_index + row * args->v_stride;
    pack_right(type, to.k_right + right_at(plan, block), BLOCK, plan->padded_D, args->k, k_index,
               args->k_stride, n, D);
    pack_transposed(type, to.k_columns + columns, BLOCK, args->k, k_index, args->k_stride, n, D);
    pack_transposed(type, to.v_columns + columns, BLOCK, args->v, v_index, args->v_stride, n, D);
}

// One query's row in softmax_tile, with one column per key. The query sees columns [n_hidden, n_visible) of
// it, possibly none. n_visible may exceed the length of the row.
struct query_row {
    float *scores, *dscores;
    vf lse, delta; // lse: negated and multiplied by log2 e
    int n_hidden, n_visible;
};

// One vector of one row: p = 2^(score - lse) and ds = p * (dp - delta), where dscores holds dp = dout v^T.
// Keys that the query does not see get zeros.
VF_INLINE void softmax_vector(const bool masked, struct query_row row, int v, vf scale, vf *p, vf *ds) {
    *p = vf_exp2(vf_fma(vf_load(row.scores + v * VF_WIDTH), scale, row.lse));
    *ds = *p * (vf_load(row.dscores + v * VF_WIDTH) - row.delta);
    if (masked && row.n_visible < (v + 1) * VF_WIDTH) {
        *p = vf_first(*p, row.n_visible - v * VF_WIDTH, vf_zero());
        *ds = vf_first(*ds, row.n_visible - v * VF_WIDTH, vf_zero());
    }
    if (masked && row.n_hidden > v * VF_WIDTH) {
        *p = vf_first(vf_zero(), row.n_hidden - v * VF_WIDTH, *p);
        *ds = vf_first(vf_zero(), row.n_hidden - v * VF_WIDTH, *ds);
    }
}

VF_INLINE void softmax_row(const bool masked, struct query_row row, int n_vectors, vf scale) {
    for (int v = 0; v < n_vectors; v++) {
        vf p, ds;
        softmax_vector(masked, row, v, scale, &p, &ds);
        vf_store(row.scores + v * VF_WIDTH, p);
        vf_store(row.dscores + v * VF_WIDTH, ds);
    }
}

// Computes p and ds of two rows. Pairs of the two rows' elements replace the scores and dscores of the first
// row. For each of the two rows, pairs of neighbouring elements of ds are stored to `left`.
VF_INLINE void softmax_two_rows(const bool masked, const struct query_row rows[2], float *left, int n_vectors,
                                vf scale) {
    for (int v = 0; v < n_vectors; v++) {
        vf p[2], ds[2];
        for (int i = 0; i < 2; i++)
            softmax_vector(masked, rows[i], v, scale, &p[i], &ds[i]);
        vf_store(rows[0].scores + v * VF_WIDTH, (vf)vu_from_two(p[0], p[1]));
        vf_store(rows[0].dscores + v * VF_WIDTH, (vf)vu_from_two(ds[0], ds[1]));
        vu rounded = vu_from_neighbours(ds[0], ds[1]);
        memcpy(left + v * VF_WIDTH / 2, &rounded, sizeof rounded / 2);
        memcpy(left + (BLOCK + v * VF_WIDTH) / 2, (char *)&rounded + sizeof rounded / 2, sizeof rounded / 2);
    }
}

// The first position that the query at position t sees.
static int first_seen(struct packed_queries head, int t) {
    return first_in_window(head.first ? head.first[t] : 0, head.window, t);
}

// The number of keys at the start of block j that the query at position t does not see. It is 0 or negative
// if the query sees all of them.
static int hidden_keys(struct packed_queries head, int t, int j) {
    return first_seen(head, t) - j * BLOCK;
}

// True if any query of block i sees a key of block j <= i. It suffices to test the first query, which sees
// the most.
static bool sees_block(struct packed_queries head, int i, int j) {
    return hidden_keys(head, i * BLOCK, j) < BLOCK;
}

// The columns of a block of keys that a tile of queries computes.
struct tile_columns {
    int begin, end; // multiples of VF_WIDTH
};

// The columns of key block j to compute for TILE_ROWS rows of query block i, from `row` on. Leaves out whole
// vectors that no row sees: those before the first query's keys and, on the diagonal, those after the last
// query's. Empty if no row sees any key.
static struct tile_columns columns_of_tile(struct packed_queries head, int i, int j, int row) {
    int hidden = hidden_keys(head, i * BLOCK + row, j);
    return (struct tile_columns){
        hidden > 0 ? hidden / VF_WIDTH * VF_WIDTH : 0,
        i == j ? (int)round_up_to((size_t)row + TILE_ROWS, VF_WIDTH) : BLOCK,
    };
}

// Turns scores into p and ds, for TILE_ROWS rows from `row` on of query block i and `columns` of key block j.
//   n        number of rows of the query block; rows past them are skipped
//   masked   true if some rows do not see all of the columns
VF_INLINE void softmax_tile(const bool pairs, const bool masked, const struct backward_plan *plan,
                            struct packed_queries head, struct block_scratch scratch, int i, int j, int n,
                            int row, struct tile_columns columns) {
    vf scale = vf_set1(plan->score_scale);
    int n_vectors = (columns.end - columns.begin) / VF_WIDTH;
    for (int t = row; t < row + TILE_ROWS && t < n; t += pairs ? 2 : 1) {
        struct query_row rows[2];
        for (int r = 0; r < (pairs ? 2 : 1); r++) {
            int at = t + r < n ? t + r : t; // a row past the last one yields zeros
            rows[r] = (struct query_row){scratch.probabilities + (t + r) * BLOCK + columns.begin,
                                         scratch.dscores + (t + r) * BLOCK + columns.begin,
                                         vf_set1(head.lse[i * BLOCK + at] * (float)-LOG2_E),
                                         vf_set1(head.delta[i * BLOCK + at]),
                                         masked ? hidden_keys(head, i * BLOCK + at, j) - columns.begin : 0,
                                         t + r >= n ? 0
                                         : i == j   ? t + r + 1 - columns.begin
                                                    : BLOCK};
        }
        if (!pairs)
            softmax_row(masked, rows[0], n_vectors, scale);
        else if (masked || t + 1 == n)
            softmax_two_rows(true, rows, scratch.dscores_left + (t * BLOCK + columns.begin) / 2, n_vectors,
                             scale);
        else
            softmax_two_rows(false, rows, scratch.dscores_left + (t * BLOCK + columns.begin) / 2, n_vectors,
                             scale);
    }
}

// Products with p and ds read whole tiles of TILE_ROWS columns. `begin` is the first column that was computed
// for TILE_ROWS rows from `row` on. Clears the columns of its tile that precede it.
static void clear_columns_before(struct block_scratch scratch, int row, int begin) {
    size_t bytes = (size_t)(begin % TILE_ROWS) * sizeof(float);
    for (int t = row; t < row + TILE_ROWS && bytes > 0; t++) {
        memset(scratch.probabilities + t * BLOCK + begin - begin % TILE_ROWS, 0, bytes);
        memset(scratch.dscores + t * BLOCK + begin - begin % TILE_ROWS, 0, bytes);
    }
}

// Computes p and ds of query block i and key block j <= i.
static void make_scores(const struct attention_backward_args *args, const struct backward_plan *plan,
                        struct packed_queries head, struct packed_keys keys, struct block_scratch scratch,
                        int i, int j) {
    bool pairs = VF_PAIRS && plan->pairs;
    int n = rows_of_block(args, i), padded_D = plan->padded_D, depth = words_of(pairs, args->D);
    const float *q = head.q + left_at(plan, i), *dout = head.dout + left_at(plan, i);
    const float *k = keys.k_columns + columns_at(plan, j, args->D);
    const float *v = keys.v_columns + columns_at(plan, j, args->D);
    const struct tile_columns all = {0, BLOCK};
    for (int row = 0; row < n; row += TILE_ROWS) {
        const struct tile_columns columns = columns_of_tile(head, i, j, row);
        const int n_vectors = (columns.end - columns.begin) / VF_WIDTH, at = row * BLOCK + columns.begin;
        if (n_vectors <= 0)
            break; // later queries see none of the block's keys
        multiply_rows(pairs, scratch.probabilities + at, BLOCK, q + row * padded_D, (size_t)padded_D,
                      k + columns.begin, BLOCK, n_vectors, depth, false);
        multiply_rows(pairs, scratch.dscores + at, BLOCK, dout + row * padded_D, (size_t)padded_D,
                      v + columns.begin, BLOCK, n_vectors, depth, false);
        const int last = i * BLOCK + (row + TILE_ROWS < n ? row + TILE_ROWS : n) - 1;
        if (i == j || hidden_keys(head, last, j) > 0)
            softmax_tile(pairs, true, plan, head, scratch, i, j, n, row, columns);
        else if (pairs)
            softmax_tile(true, false, plan, head, scratch, i, j, n, row, all);
        else
            softmax_tile(false, false, plan, head, scratch, i, j, n, row, all);
        clear_columns_before(scratch, row, columns.begin);
    }
}

// Adds the product with query block i to dk or dv of key block j: dk += ds^T q, or dv += p^T dout. Keys are
// processed in tiles of TILE_ROWS. The sums run over the queries from the first that may see a key of the
// tile (if i == j, the query at the tile's first key) to the last that does.
//   gradient   dk or dv
//   weights    ds or p
//   right      q or dout, packed as a right operand
static void add_key_gradient(const struct attention_backward_args *args, const struct backward_plan *plan,
                             struct packed_queries head, float *gradient, const float *weights,
                             const float *right, int i, int j) {
    bool pairs = VF_PAIRS && plan->pairs;
    int n = rows_of_block(args, i), n_keys = rows_of_block(args, j), padded_D = plan->padded_D;
    size_t row_floats = pairs ? 2 * BLOCK : BLOCK;
    int end = hidden_keys(head, i * BLOCK + n - 1, j) > 0 ? 0 : n;
    for (int key = 0; key < n_keys; key += TILE_ROWS) {
        int first = i == j ? key : 0;
        while (end < n && hidden_keys(head, i * BLOCK + end, j) < key + TILE_ROWS)
            end++;
        if (first < end)
            multiply_columns(pairs, gradient + key * padded_D, (size_t)padded_D,
                             weights + first * BLOCK + key, row_floats,
                             right + words_of(pairs, first) * padded_D, (size_t)padded_D, padded_D / VF_WIDTH,
                             words_of(pairs, end - first), true);
    }
}

// Adds ds k of key block j to dq of query block i.
static void add_query_gradient(const struct attention_backward_args *args, const struct backward_plan *plan,
                               struct packed_queries head, struct packed_keys keys,
                               struct block_scratch scratch, int i, int j) {
    bool pairs = VF_PAIRS && plan->pairs;
    int n = rows_of_block(args, i), n_keys = rows_of_block(args, j), padded_D = plan->padded_D;
    int row_floats = words_of(pairs, BLOCK);
    float *dq = head.dq + left_at(plan, i);
    for (int row = 0; row < n; row += TILE_ROWS) {
        int begin = columns_of_tile(head, i, j, row).begin;
        int end = i == j && row + TILE_ROWS < n_keys ? row + TILE_ROWS : n_keys;
        if (begin < end)
            multiply_rows(pairs, dq + row * padded_D, (size_t)padded_D,
                          scratch.dscores_left + row * row_floats + words_of(pairs, begin),
                          (size_t)row_floats,
                          keys.k_right + right_at(plan, j) + words_of(pairs, begin) * padded_D,
                          (size_t)padded_D, padded_D / VF_WIDTH, words_of(pairs, end - begin), true);
    }
}

VF_INLINE void store_query_gradient(const enum dtype type, const struct attention_backward_args *args,
                                    const struct backward_plan *plan, struct packed_queries head, int i) {
    size_t row = (size_t)i * BLOCK;
    unpack_rows(type, args->dq, head.index + row * args->q_stride, args->q_stride,
                head.dq + row * (size_t)plan->padded_D, plan->padded_D, rows_of_block(args, i), args->D,
                (float)(1.0 / sqrt(args->D)));
}

VF_INLINE void store_key_gradients(const enum dtype type, const struct attention_backward_args *args,
                                   const struct backward_plan *plan, struct packed_keys keys, const float *dk,
                                   int j) {
    size_t row = (size_t)j * BLOCK;
    unpack_rows(type, args->dk, keys.k_index + row * args->k_stride, args->k_stride, dk, plan->padded_D,
                rows_of_block(args, j), args->D, (float)(1.0 / sqrt(args->D)));
    unpack_rows(type, args->dv, keys.v_index + row * args->v_stride, args->v_stride,
                dk + BLOCK * plan->padded_D, plan->padded_D, rows_of_block(args, j), args->D, 1.0f);
}

static void clear_key_gradients(const struct backward_plan *plan, float *dk) {
    memset(dk, 0, BLOCK * 2 * (size_t)plan->padded_D * sizeof *dk); // dv follows it
}

// Adds a query head's contribution to dk and dv of key block j. If with_dq, also adds key block j's
// contribution to the head's dq.
static void add_head(const struct attention_backward_args *args, const struct backward_plan *plan,
                     struct packed_queries head, struct packed_keys keys, struct block_scratch scratch,
                     float *dk, int j, bool with_dq) {
    for (int i = j; i < plan->n_blocks && sees_block(head, i, j); i++) {
        make_scores(args, plan, head, keys, scratch, i, j);
        add_key_gradient(args, plan, head, dk + BLOCK * plan->padded_D, scratch.probabilities,
                         head.dout_right + right_at(plan, i), i, j);
        add_key_gradient(args, plan, head, dk, scratch.dscores, head.q_right + right_at(plan, i), i, j);
        if (with_dq)
            add_query_gradient(args, plan, head, keys, scratch, i, j);
    }
}

// Computes dq, dk and dv of a whole group. Packs the key-value head and one query head at a time into
// `slot` of the workspace.
VF_INLINE void backward_group(const enum dtype type, const struct stream *stream,
                              const struct attention_backward_args *args, const struct backward_plan *plan,
                              size_t slot, size_t group, struct block_scratch scratch) {
    const struct packed_keys keys = packed_keys_at(stream, plan, args, slot, group);
    for (int block = 0; block < plan->n_blocks; block++)
        pack_keys(type, args, plan, keys, block);
    for (int h = 0; h < plan->group; h++) {
        const struct packed_queries head =
            packed_queries_at(stream, plan, args, slot, group * (size_t)plan->group + (size_t)h);
        for (int block = 0; block < plan->n_blocks; block++)
            pack_queries(type, args, plan, head, block);
        for (int j = 0; j < plan->n_blocks; j++) {
            float *dk = gradients_at(plan, scratch, j);
            if (h == 0)
                clear_key_gradients(plan, dk);
            add_head(args, plan, head, keys, scratch, dk, j, true);
            if (h == plan->group - 1)
                store_key_gradients(type, args, plan, keys, dk, j);
        }
        for (int i = 0; i < plan->n_blocks; i++)
            store_query_gradient(type, args, plan, head, i);
    }
}

// Computes dk and dv of key block j, after all heads have been packed.
VF_INLINE void backward_key_block(const enum dtype type, const struct stream *stream,
                                  const struct attention_backward_args *args,
                                  const struct backward_plan *plan, size_t group,
                                  struct block_scratch scratch, int j) {
    const struct packed_keys keys = packed_keys_at(stream, plan, args, group, group);
    clear_key_gradients(plan, scratch.gradients);
    for (size_t head = group * (size_t)plan->group; head < (group + 1) * (size_t)plan->group; head++)
        add_head(args, plan, packed_queries_at(stream, plan, args, head, head), keys, scratch,
                 scratch.gradients, j, false);
    store_key_gradients(type, args, plan, keys, scratch.gradients, j);
}

// Computes dq of query block i, after all heads have been packed.
VF_INLINE void backward_query_block(const enum dtype type, const struct stream *stream,
                                    const struct attention_backward_args *args,
                                    const struct backward_plan *plan, size_t head_index,
                                    struct block_scratch scratch, int i) {
    const struct packed_queries head = packed_queries_at(stream, plan, args, head_index, head_index);
    const size_t group = head_index / (size_t)plan->group;
    const struct packed_keys keys = packed_keys_at(stream, plan, args, group, group);
    for (int j = first_seen(head, i * BLOCK) / BLOCK; j <= i; j++) {
        make_scores(args, plan, head, keys, scratch, i, j);
        add_query_gradient(args, plan, head, keys, scratch, i, j);
    }
    store_query_gradient(type, args, plan, head, i);
}

// ---- division among threads

struct backward_call {
    const struct stream *stream;
    const struct attention_backward_args *args;
    struct backward_plan plan;
    size_t n_groups, n_heads; // of all sequences
    atomic_size_t *next;      // number of the next task to take
};

static void groups_part(const void *context, int part, int n_parts) {
    const struct backward_call *call = context;
    struct block_scratch scratch = scratch_at(call->stream, &call->plan, part);
    struct parallel_span groups = parallel_span_of(call->n_groups, 1, part, n_parts);
    amx_begin();
    for (size_t group = groups.begin; group < groups.end; group++)
        VF_DISPATCH(call->args->type, backward_group, call->stream, call->args, &call->plan, (size_t)part,
                    group, scratch);
    amx_end();
}

// Packs blocks of all query heads, then of all key-value heads.
static void pack_part(const void *context, int part, int n_parts) {
    const struct backward_call *call = context;
    const struct backward_plan *plan = &call->plan;
    size_t n_blocks = (size_t)plan->n_blocks;
    struct parallel_span tasks =
        parallel_span_of((call->n_heads + call->n_groups) * n_blocks, 1, part, n_parts);
    for (size_t task = tasks.begin; task < tasks.end; task++) {
        size_t head = task / n_blocks, group = head - call->n_heads;
        int block = (int)(task % n_blocks);
        if (head < call->n_heads)
            VF_DISPATCH(call->args->type, pack_queries, call->args, plan,
                        packed_queries_at(call->stream, plan, call->args, head, head), block);
        else
            VF_DISPATCH(call->args->type, pack_keys, call->args, plan,
                        packed_keys_at(call->stream, plan, call->args, group, group), block);
    }
}

// Takes the largest tasks first, so that the threads finish together. The first block of keys is seen by the
// most queries, and the last block of queries sees the most keys. The i-th largest blocks of keys come before
// the i-th largest blocks of queries, since a task of keys covers all query heads of a group.
static void blocks_part(const void *context, int part, int n_parts) {
    (void)n_parts;
    const struct backward_call *call = context;
    const struct backward_plan *plan = &call->plan;
    struct block_scratch scratch = scratch_at(call->stream, plan, part);
    size_t n_together = call->n_groups + call->n_heads;
    amx_begin();
    for (size_t task; (task = atomic_fetch_add(call->next, 1)) < n_together * (size_t)plan->n_blocks;) {
        size_t index = task % n_together;
        int rank = (int)(task / n_together);
        if (index < call->n_groups)
            VF_DISPATCH(call->args->type, backward_key_block, call->stream, call->args, plan, index, scratch,
                        rank);
        else
            VF_DISPATCH(call->args->type, backward_query_block, call->stream, call->args, plan,
                        index - call->n_groups, scratch, plan->n_blocks - 1 - rank);
    }
    amx_end();
}

enum status CPU_OP(attention_backward)(struct stream *stream, const struct attention_backward_args *args) {
    const struct attention_backward_args rotated = attention_backward_of_rotated(args);
    atomic_size_t next = 0;
    const struct backward_call call = {stream,
                                       &rotated,
                                       plan_backward(stream->device, args),
                                       (size_t)args->B * (size_t)args->K,
                                       (size_t)args->B * (size_t)args->H,
                                       &next};
    if (call.plan.whole_groups) {
        parallel_run(call.plan.n_threads, groups_part, &call);
    } else {
        parallel_run(call.plan.n_threads, pack_part, &call);
        parallel_run(call.plan.n_threads, blocks_part, &call);
    }
    struct rope_backward_args rotations[ATTENTION_ROPE_CALLS];
    const int n_rotations = attention_rope_backward(args, rotations);
    for (int i = 0; i < n_rotations; i++)
        TRY(CPU_OP(rope_backward)(stream, &rotations[i]));
    return STATUS_OK;
}
