// Causal attention, backward (kernels/ops.h: attention_backward). The probabilities of one block of queries
// and one block of keys are recomputed from the saved lse; then small products (see attention.h) give
//   dv += p^T dout,  ds = p * (dout v^T - delta),  dk += ds^T q,  dq += ds k,  with delta = row sums of dout
//   * out.
// Each thread takes whole heads. With fewer heads than threads, blocks of dk and dv and blocks of dq are
// separate tasks: scores are computed twice (seven products instead of five), but no sum over threads is
// needed. Determinism: both ways and any number of threads give the same bits, as every sum runs over blocks
// in ascending order.
#include <math.h>
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/attention.h"

// Block size of queries and of keys: a multiple of TILE_ROWS and of VF_WIDTH, and even.
#define BLOCK 96

#define LOG2_E 1.4426950408889634

// One head, packed for products and padded to whole blocks and vectors. With float units, left and right
// operands of q and dout share memory.
struct packed_head {
    float *q, *dout;                       // left operands: (blocks * BLOCK, padded D) units
    float *q_right, *dout_right, *k_right; // right operands: (units of blocks * BLOCK, padded D)
    float *k_columns, *v_columns; // right operands, transposed, one block after another (units of D, BLOCK)
    float *dq;                    // (blocks * BLOCK, padded D), not yet scaled by 1 / sqrt(D)
    float *delta;                 // (blocks * BLOCK)
    const float *lse;             // (T)
    const int32_t *first;         // (T) the first position that each query sees, or NULL
    size_t index, out_index;      // of the head's first element in q, k, v; and in out
};

// probabilities and dscores first hold float scores, then units of p and of ds. Float units replace them in
// place. Pairs of two queries replace the first query's (left operands, transposed); dq needs pairs of two
// keys, which are stored separately in dscores_left.
struct block_scratch {
    float *probabilities; // (BLOCK queries, BLOCK keys)
    float *dscores;       // (BLOCK queries, BLOCK keys)
    float *dscores_left;  // (BLOCK queries, units of BLOCK keys); == dscores with float units
    float *dk, *dv;       // (BLOCK, padded D)
};

struct backward_plan {
    int n_threads;
    bool whole_heads;
    bool pairs; // see attention.h
    int n_blocks, padded_D;
    float score_scale;                  // log2 e / sqrt(D)
    size_t head_floats, n_heads_packed; // n_heads_packed: one per thread, or all
    size_t scratch_floats;
};

static struct backward_plan plan_backward(const struct device *device,
                                          const struct attention_backward_args *args) {
    size_t n_heads = (size_t)args->B * (size_t)args->H;
    struct backward_plan plan = {
        .n_threads = cpu_threads(device, n_heads * (size_t)args->T * (size_t)args->T * (size_t)args->D),
        .pairs = multiplies_pairs(args->type),
        .n_blocks = (args->T + BLOCK - 1) / BLOCK,
        .padded_D = (int)round_up_to((size_t)args->D, VF_WIDTH),
        .score_scale = (float)(LOG2_E / sqrt(args->D)),
    };
    size_t threads = (size_t)plan.n_threads, rounds = (n_heads + threads - 1) / threads;
    plan.whole_heads = rounds * threads * 5 <= n_heads * 7 || n_heads >= 2 * threads;
    plan.n_heads_packed = plan.whole_heads ? threads : n_heads;
    size_t rows = (size_t)plan.n_blocks * BLOCK, row_floats = rows * (size_t)plan.padded_D;
    plan.head_floats = (plan.pairs ? 3 * row_floats + 3 * row_floats / 2 : 4 * row_floats) +
                       2 * rows * (size_t)units_of(plan.pairs, args->D) + rows;
    plan.scratch_floats = BLOCK * 2 * (BLOCK + (size_t)plan.padded_D) + (plan.pairs ? BLOCK * BLOCK / 2 : 0);
    return plan;
}

size_t CPU_OP(attention_backward_workspace)(const struct device *device,
                                            const struct attention_backward_args *args) {
    struct backward_plan plan = plan_backward(device, args);
    return (plan.n_heads_packed * plan.head_floats + (size_t)plan.n_threads * plan.scratch_floats) *
           sizeof(float);
}

static struct packed_head packed_head_at(const struct stream *stream, const struct backward_plan *plan,
                                         const struct attention_backward_args *args, size_t slot,
                                         size_t head) {
    size_t rows = (size_t)plan->n_blocks * BLOCK, H = (size_t)args->H, D = (size_t)args->D,
           T = (size_t)args->T;
    size_t b = head / H, h = head % H, row_floats = rows * (size_t)plan->padded_D;
    size_t column_floats = rows * (size_t)units_of(plan->pairs, args->D);
    struct packed_head packed = {
        .q = (float *)stream->workspace + slot * plan->head_floats,
        .lse = (const float *)args->lse + head * T,
        .first = args->first ? args->first + b * T : NULL,
        .index = b * args->q_batch_stride + h * D,
        .out_index = (b * T * H + h) * D,
    };
    packed.dout = packed.q + row_floats;
    packed.dq = packed.dout + row_floats;
    packed.k_right = packed.dq + row_floats;
    packed.q_right = packed.q;
    packed.dout_right = packed.dout;
    packed.k_columns = packed.k_right + row_floats;
    if (plan->pairs) {
        packed.q_right = packed.k_right + row_floats / 2;
        packed.dout_right = packed.q_right + row_floats / 2;
        packed.k_columns = packed.dout_right + row_floats / 2;
    }
    packed.v_columns = packed.k_columns + column_floats;
    packed.delta = packed.v_columns + column_floats;
    return packed;
}

static struct block_scratch scratch_at(const struct stream *stream, const struct backward_plan *plan,
                                       int part) {
    struct block_scratch scratch = {.probabilities = (float *)stream->workspace +
                                                     plan->n_heads_packed * plan->head_floats +
                                                     (size_t)part * plan->scratch_floats};
    scratch.dscores = scratch.probabilities + BLOCK * BLOCK;
    scratch.dk = scratch.dscores + BLOCK * BLOCK;
    scratch.dv = scratch.dk + BLOCK * (size_t)plan->padded_D;
    scratch.dscores_left = plan->pairs ? scratch.dv + BLOCK * (size_t)plan->padded_D : scratch.dscores;
    return scratch;
}

// Offsets of block i in left, right and transposed operands.
static size_t left_at(const struct backward_plan *plan, int i) {
    return (size_t)i * BLOCK * (size_t)plan->padded_D;
}

static size_t right_at(const struct backward_plan *plan, int i) {
    return left_at(plan, i) / (plan->pairs ? 2 : 1);
}

static size_t columns_at(const struct backward_plan *plan, int i, int D) {
    return (size_t)i * BLOCK * (size_t)units_of(plan->pairs, D);
}

static int rows_of_block(const struct attention_backward_args *args, int block) {
    return args->T - block * BLOCK < BLOCK ? args->T - block * BLOCK : BLOCK;
}

VF_INLINE float row_product(const enum dtype type, const void *a, const void *b, size_t index, int D) {
    vf sum = vf_zero();
    for (VF_LOOP(d, lanes, (size_t)D))
        sum = vf_fma(vf_get_part(type, a, index + d, (int)lanes), vf_get_part(type, b, index + d, (int)lanes),
                     sum);
    return vf_reduce_add(sum);
}

// Packs one block of a head, computes its delta, and clears its dq.
VF_INLINE void pack_block(const enum dtype type, const struct attention_backward_args *args,
                          const struct backward_plan *plan, struct packed_head to, int block) {
    int D = args->D, padded_D = plan->padded_D, n = rows_of_block(args, block);
    size_t row = (size_t)block * BLOCK, left = left_at(plan, block), right = right_at(plan, block);
    size_t columns = columns_at(plan, block, D);
    size_t index = to.index + row * args->q_stride, out_stride = (size_t)args->H * (size_t)D;
    size_t out_index = to.out_index + row * out_stride;
    pack_left(type, to.q + left, BLOCK, padded_D, args->q, index, args->q_stride, n, D);
    pack_left(type, to.dout + left, BLOCK, padded_D, args->dout, out_index, out_stride, n, D);
    if (multiplies_pairs(type)) {
        pack_right(type, to.q_right + right, BLOCK, padded_D, args->q, index, args->q_stride, n, D);
        pack_right(type, to.dout_right + right, BLOCK, padded_D, args->dout, out_index, out_stride, n, D);
    }
    pack_right(type, to.k_right + right, BLOCK, padded_D, args->k, index, args->q_stride, n, D);
    pack_transposed(type, to.k_columns + columns, BLOCK, args->k, index, args->q_stride, n, D);
    pack_transposed(type, to.v_columns + columns, BLOCK, args->v, index, args->q_stride, n, D);
    memset(to.dq + left, 0, BLOCK * (size_t)padded_D * sizeof(float));
    for (int i = 0; i < n; i++, out_index += out_stride) {
        if (i + PREFETCH_ROWS < n)
            prefetch_row(type, args->out, out_index + PREFETCH_ROWS * out_stride, D);
        to.delta[row + (size_t)i] = row_product(type, args->dout, args->out, out_index, D);
    }
}

// One query's row during soften_tile. It sees keys [n_hidden, n_visible) of the block, which may be none.
struct query_row {
    float *scores, *dscores;
    vf lse, delta; // lse: negated and multiplied by log2 e
    int n_hidden, n_visible;
};

// One vector of one row: p = 2^(score - lse), and ds = p * (dp - delta), where dscores holds dp = dout v^T.
// Zeros for keys that the query does not see.
VF_INLINE void soften(const bool masked, struct query_row row, int v, vf scale, vf *p, vf *ds) {
    *p = vf_exp2(vf_fma(vf_load(row.scores + v * VF_WIDTH), scale, row.lse));
    *ds = *p * (vf_load(row.dscores + v * VF_WIDTH) - row.delta);
    if (masked) {
        *p = vf_first(*p, row.n_visible - v * VF_WIDTH, vf_zero());
        *ds = vf_first(*ds, row.n_visible - v * VF_WIDTH, vf_zero());
        if (row.n_hidden > v * VF_WIDTH) {
            *p = vf_first(vf_zero(), row.n_hidden - v * VF_WIDTH, *p);
            *ds = vf_first(vf_zero(), row.n_hidden - v * VF_WIDTH, *ds);
        }
    }
}

VF_INLINE void soften_row(const bool masked, struct query_row row, int n_vectors, vf scale) {
    for (int v = 0; v < n_vectors; v++) {
        vf p, ds;
        soften(masked, row, v, scale, &p, &ds);
        vf_store(row.scores + v * VF_WIDTH, p);
        vf_store(row.dscores + v * VF_WIDTH, ds);
    }
}

// Two rows. Their pairs replace the first row; those of ds are also stored to `left`.
VF_INLINE void soften_two_rows(const bool masked, const struct query_row rows[2], float *left, int n_vectors,
                               vf scale) {
    for (int v = 0; v < n_vectors; v++) {
        vf p[2], ds[2];
        for (int i = 0; i < 2; i++)
            soften(masked, rows[i], v, scale, &p[i], &ds[i]);
        vf_store(rows[0].scores + v * VF_WIDTH, (vf)vu_from_two(p[0], p[1]));
        vf_store(rows[0].dscores + v * VF_WIDTH, (vf)vu_from_two(ds[0], ds[1]));
        vu rounded = vu_from_neighbours(ds[0], ds[1]);
        memcpy(left + v * VF_WIDTH / 2, &rounded, sizeof rounded / 2);
        memcpy(left + (BLOCK + v * VF_WIDTH) / 2, (char *)&rounded + sizeof rounded / 2, sizeof rounded / 2);
    }
}

// Keys of block j that the query at position t does not see, from the start of the block; at most 0: none.
static int hidden_keys(struct packed_head head, int t, int j) {
    return head.first ? head.first[t] - j * BLOCK : 0;
}

// Whether a query of block i sees a key of block j <= i. The first query sees the most.
static bool sees_block(struct packed_head head, int i, int j) {
    return hidden_keys(head, i * BLOCK, j) < BLOCK;
}

// Rows row .. row + TILE_ROWS of query block i, as far as they exist, against key block j.
//   masked   some of them do not see all keys of the block
VF_INLINE void soften_tile(const bool pairs, const bool masked, const struct backward_plan *plan,
                           struct packed_head head, struct block_scratch scratch, int i, int j, int n,
                           int row, int n_vectors) {
    vf scale = vf_set1(plan->score_scale);
    for (int t = row; t < row + TILE_ROWS && t < n; t += pairs ? 2 : 1) {
        struct query_row rows[2];
        for (int r = 0; r < (pairs ? 2 : 1); r++) {
            int at = t + r < n ? t + r : t; // a row past the last one yields zeros
            rows[r] = (struct query_row){scratch.probabilities + (t + r) * BLOCK,
                                         scratch.dscores + (t + r) * BLOCK,
                                         vf_set1(head.lse[i * BLOCK + at] * (float)-LOG2_E),
                                         vf_set1(head.delta[i * BLOCK + at]),
                                         masked ? hidden_keys(head, i * BLOCK + at, j) : 0,
                                         t + r >= n ? 0
                                         : i == j   ? t + r + 1
                                                    : BLOCK};
        }
        if (!pairs)
            soften_row(masked, rows[0], n_vectors, scale);
        else if (masked || t + 1 == n)
            soften_two_rows(true, rows, scratch.dscores_left + t * BLOCK / 2, n_vectors, scale);
        else
            soften_two_rows(false, rows, scratch.dscores_left + t * BLOCK / 2, n_vectors, scale);
    }
}

// Computes p and ds of query block i and key block j <= i. On the diagonal, a tile of rows computes only the
// columns that its last row sees, rounded up to whole vectors.
static void make_scores(const struct attention_backward_args *args, const struct backward_plan *plan,
                        struct packed_head head, struct block_scratch scratch, int i, int j) {
    bool pairs = VF_PAIRS && plan->pairs;
    int n = rows_of_block(args, i), padded_D = plan->padded_D, depth = units_of(pairs, args->D);
    const float *q = head.q + left_at(plan, i), *dout = head.dout + left_at(plan, i);
    const float *k = head.k_columns + columns_at(plan, j, args->D);
    const float *v = head.v_columns + columns_at(plan, j, args->D);
    for (int row = 0; row < n; row += TILE_ROWS) {
        int n_columns = i == j ? row + TILE_ROWS : BLOCK, n_vectors = (n_columns + VF_WIDTH - 1) / VF_WIDTH;
        multiply_rows(pairs, scratch.probabilities + row * BLOCK, BLOCK, q + row * padded_D, (size_t)padded_D,
                      k, BLOCK, n_vectors, depth, false);
        multiply_rows(pairs, scratch.dscores + row * BLOCK, BLOCK, dout + row * padded_D, (size_t)padded_D, v,
                      BLOCK, n_vectors, depth, false);
        const int last = i * BLOCK + (row + TILE_ROWS < n ? row + TILE_ROWS : n) - 1;
        if (i == j || hidden_keys(head, last, j) > 0)
            soften_tile(pairs, true, plan, head, scratch, i, j, n, row, n_vectors);
        else if (pairs)
            soften_tile(true, false, plan, head, scratch, i, j, n, row, BLOCK / VF_WIDTH);
        else
            soften_tile(false, false, plan, head, scratch, i, j, n, row, BLOCK / VF_WIDTH);
    }
}

// dk or dv of one block of keys += (ds or p)^T times (q or dout) of query block i. On the diagonal, a key is
// not seen by earlier queries.
static void add_key_gradient(const struct attention_backward_args *args, const struct backward_plan *plan,
                             float *gradient, const float *weights, const float *right, int i, int j) {
    bool pairs = VF_PAIRS && plan->pairs;
    int n = rows_of_block(args, i), n_keys = rows_of_block(args, j), padded_D = plan->padded_D;
    size_t row_floats = pairs ? 2 * BLOCK : BLOCK;
    for (int key = 0; key < n_keys; key += TILE_ROWS) {
        int first = i == j ? key : 0;
        multiply_columns(pairs, gradient + key * padded_D, (size_t)padded_D, weights + first * BLOCK + key,
                         row_floats, right + units_of(pairs, first) * padded_D, (size_t)padded_D,
                         padded_D / VF_WIDTH, units_of(pairs, n - first), true);
    }
}

// dq of query block i += ds k of key block j.
static void add_query_gradient(const struct attention_backward_args *args, const struct backward_plan *plan,
                               struct packed_head head, struct block_scratch scratch, int i, int j) {
    bool pairs = VF_PAIRS && plan->pairs;
    int n = rows_of_block(args, i), n_keys = rows_of_block(args, j), padded_D = plan->padded_D;
    int row_floats = units_of(pairs, BLOCK);
    float *dq = head.dq + left_at(plan, i);
    for (int row = 0; row < n; row += TILE_ROWS) {
        int depth = i == j && row + TILE_ROWS < n_keys ? row + TILE_ROWS : n_keys;
        multiply_rows(pairs, dq + row * padded_D, (size_t)padded_D, scratch.dscores_left + row * row_floats,
                      (size_t)row_floats, head.k_right + right_at(plan, j), (size_t)padded_D,
                      padded_D / VF_WIDTH, units_of(pairs, depth), true);
    }
}

VF_INLINE void store_query_gradient(const enum dtype type, const struct attention_backward_args *args,
                                    const struct backward_plan *plan, struct packed_head head, int i) {
    size_t row = (size_t)i * BLOCK;
    unpack_rows(type, args->dq, head.index + row * args->q_stride, args->q_stride,
                head.dq + row * (size_t)plan->padded_D, plan->padded_D, rows_of_block(args, i), args->D,
                (float)(1.0 / sqrt(args->D)));
}

// Computes dk and dv of key block j; with with_dq also its contribution to every dq.
VF_INLINE void backward_key_block(const enum dtype type, const struct attention_backward_args *args,
                                  const struct backward_plan *plan, struct packed_head head,
                                  struct block_scratch scratch, int j, bool with_dq) {
    size_t index = head.index + (size_t)j * BLOCK * args->q_stride;
    memset(scratch.dk, 0, BLOCK * 2 * (size_t)plan->padded_D * sizeof(float)); // dv follows it
    for (int i = j; i < plan->n_blocks && sees_block(head, i, j); i++) {
        make_scores(args, plan, head, scratch, i, j);
        add_key_gradient(args, plan, scratch.dv, scratch.probabilities, head.dout_right + right_at(plan, i),
                         i, j);
        add_key_gradient(args, plan, scratch.dk, scratch.dscores, head.q_right + right_at(plan, i), i, j);
        if (with_dq)
            add_query_gradient(args, plan, head, scratch, i, j);
    }
    unpack_rows(type, args->dk, index, args->q_stride, scratch.dk, plan->padded_D, rows_of_block(args, j),
                args->D, (float)(1.0 / sqrt(args->D)));
    unpack_rows(type, args->dv, index, args->q_stride, scratch.dv, plan->padded_D, rows_of_block(args, j),
                args->D, 1.0f);
}

VF_INLINE void backward_query_block(const enum dtype type, const struct attention_backward_args *args,
                                    const struct backward_plan *plan, struct packed_head head,
                                    struct block_scratch scratch, int i) {
    for (int j = head.first ? head.first[i * BLOCK] / BLOCK : 0; j <= i; j++) {
        make_scores(args, plan, head, scratch, i, j);
        add_query_gradient(args, plan, head, scratch, i, j);
    }
    store_query_gradient(type, args, plan, head, i);
}

VF_INLINE void backward_head(const enum dtype type, const struct attention_backward_args *args,
                             const struct backward_plan *plan, struct packed_head head,
                             struct block_scratch scratch) {
    for (int block = 0; block < plan->n_blocks; block++)
        pack_block(type, args, plan, head, block);
    for (int j = 0; j < plan->n_blocks; j++)
        backward_key_block(type, args, plan, head, scratch, j, true);
    for (int i = 0; i < plan->n_blocks; i++)
        store_query_gradient(type, args, plan, head, i);
}

// ---- division among threads

struct backward_call {
    const struct stream *stream;
    const struct attention_backward_args *args;
    struct backward_plan plan;
    size_t n_heads;
    atomic_size_t *next; // task
};

static void heads_part(const void *context, int part, int n_parts) {
    const struct backward_call *call = context;
    struct block_scratch scratch = scratch_at(call->stream, &call->plan, part);
    struct parallel_span heads = parallel_span_of(call->n_heads, 1, part, n_parts);
    for (size_t head = heads.begin; head < heads.end; head++) {
        struct packed_head packed = packed_head_at(call->stream, &call->plan, call->args, (size_t)part, head);
        VF_DISPATCH(call->args->type, backward_head, call->args, &call->plan, packed, scratch);
    }
}

static void pack_part(const void *context, int part, int n_parts) {
    const struct backward_call *call = context;
    size_t n_blocks = (size_t)call->plan.n_blocks;
    struct parallel_span tasks = parallel_span_of(call->n_heads * n_blocks, 1, part, n_parts);
    for (size_t task = tasks.begin; task < tasks.end; task++) {
        size_t head = task / n_blocks;
        struct packed_head packed = packed_head_at(call->stream, &call->plan, call->args, head, head);
        VF_DISPATCH(call->args->type, pack_block, call->args, &call->plan, packed, (int)(task % n_blocks));
    }
}

// Largest tasks first, so that the threads finish together: the first keys are seen by the most queries, the
// last queries see the most keys.
static void blocks_part(const void *context, int part, int n_parts) {
    (void)n_parts;
    const struct backward_call *call = context;
    const struct backward_plan *plan = &call->plan;
    struct block_scratch scratch = scratch_at(call->stream, plan, part);
    size_t n_tasks = 2 * call->n_heads * (size_t)plan->n_blocks;
    for (size_t task; (task = atomic_fetch_add(call->next, 1)) < n_tasks;) {
        size_t head = task / 2 % call->n_heads;
        int rank = (int)(task / (2 * call->n_heads));
        struct packed_head packed = packed_head_at(call->stream, plan, call->args, head, head);
        if (task % 2 == 0)
            VF_DISPATCH(call->args->type, backward_key_block, call->args, plan, packed, scratch, rank, false);
        else
            VF_DISPATCH(call->args->type, backward_query_block, call->args, plan, packed, scratch,
                        plan->n_blocks - 1 - rank);
    }
}

enum status CPU_OP(attention_backward)(struct stream *stream, const struct attention_backward_args *args) {
    atomic_size_t next = 0;
    const struct backward_call call = {stream, args, plan_backward(stream->device, args),
                                       (size_t)args->B * (size_t)args->H, &next};
    if (call.plan.whole_heads) {
        parallel_run(call.plan.n_threads, heads_part, &call);
    } else {
        parallel_run(call.plan.n_threads, pack_part, &call);
        parallel_run(call.plan.n_threads, blocks_part, &call);
    }
    return STATUS_OK;
}
