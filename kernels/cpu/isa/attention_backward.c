// Causal attention, backward (kernels/ops.h: attention_backward), blockwise: the probabilities of one block
// of queries and one block of keys are made again from the saved lse, then five small products (see
// attention.h) give
//   dv += p^T dout,  ds = p * (dout v^T - delta),  dk += ds^T q,  dq += ds k,  with delta = the row sums of
//   dout * out.
// A thread takes whole heads. With fewer heads than threads, blocks of dk and dv and blocks of dq become
// separate tasks, which makes scores twice (seven products for five) but needs no sum over threads. Both
// ways, and any number of threads, give the same bits: every sum runs over blocks in ascending order.
#include <math.h>
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/attention.h"

// Queries and keys alike: a multiple of TILE_ROWS and of VF_WIDTH.
#define BLOCK 96

// One head in float, padded to whole blocks and vectors.
struct packed_head {
    float *q;                // (blocks * BLOCK, padded D), scaled by 1 / sqrt(D)
    float *k;                // (blocks * BLOCK, padded D)
    float *k_columns;        // a block at a time (D, BLOCK)
    float *v_columns;        // a block at a time (D, BLOCK)
    float *dout;             // (blocks * BLOCK, padded D)
    float *dq;               // (blocks * BLOCK, padded D), before its factor 1 / sqrt(D)
    float *delta;            // (blocks * BLOCK)
    const float *lse;        // (T)
    size_t index, out_index; // where the head begins in q, k, v and in out
};

struct block_scratch {
    float *probabilities; // (BLOCK queries, BLOCK keys)
    float *dscores;       // (BLOCK queries, BLOCK keys)
    float *dk, *dv;       // (BLOCK, padded D)
};

struct backward_plan {
    int n_threads;
    bool whole_heads;
    int n_blocks, padded_D;
    size_t head_floats, n_heads_packed; // n_heads_packed: one a thread, or all
    size_t scratch_floats;
};

static struct backward_plan plan_backward(const struct device *device,
                                          const struct attention_backward_args *args) {
    size_t n_heads = (size_t)args->B * (size_t)args->H;
    struct backward_plan plan = {
        .n_threads = cpu_threads(device, n_heads * (size_t)args->T * (size_t)args->T * (size_t)args->D),
        .n_blocks = (args->T + BLOCK - 1) / BLOCK,
        .padded_D = (int)round_up_to((size_t)args->D, VF_WIDTH),
    };
    size_t threads = (size_t)plan.n_threads, rounds = (n_heads + threads - 1) / threads;
    plan.whole_heads = rounds * threads * 5 <= n_heads * 7 || n_heads >= 2 * threads;
    plan.n_heads_packed = plan.whole_heads ? threads : n_heads;
    plan.head_floats = (size_t)plan.n_blocks * BLOCK * ((size_t)plan.padded_D * 4 + (size_t)args->D * 2 + 1);
    plan.scratch_floats = BLOCK * 2 * (BLOCK + (size_t)plan.padded_D);
    return plan;
}

size_t CPU_OP(attention_backward_workspace)(const struct device *device,
                                            const struct attention_backward_args *args) {
    struct backward_plan plan = plan_backward(device, args);
    return (plan.n_heads_packed * plan.head_floats + (size_t)plan.n_threads * plan.scratch_floats) *
           sizeof(float);
}

static struct packed_head packed_head(const struct stream *stream, const struct backward_plan *plan,
                                      const struct attention_backward_args *args, size_t slot, size_t head) {
    size_t rows = (size_t)plan->n_blocks * BLOCK, H = (size_t)args->H, D = (size_t)args->D,
           T = (size_t)args->T;
    size_t b = head / H, h = head % H, row_floats = rows * (size_t)plan->padded_D;
    struct packed_head packed = {
        .q = (float *)stream->workspace + slot * plan->head_floats,
        .lse = (const float *)args->lse + head * T,
        .index = b * args->batch_stride + h * D,
        .out_index = (b * T * H + h) * D,
    };
    packed.k = packed.q + row_floats;
    packed.dout = packed.k + row_floats;
    packed.dq = packed.dout + row_floats;
    packed.k_columns = packed.dq + row_floats;
    packed.v_columns = packed.k_columns + rows * D;
    packed.delta = packed.v_columns + rows * D;
    return packed;
}

static struct block_scratch block_scratch(const struct stream *stream, const struct backward_plan *plan,
                                          int thread) {
    struct block_scratch scratch = {.probabilities = (float *)stream->workspace +
                                                     plan->n_heads_packed * plan->head_floats +
                                                     (size_t)thread * plan->scratch_floats};
    scratch.dscores = scratch.probabilities + BLOCK * BLOCK;
    scratch.dk = scratch.dscores + BLOCK * BLOCK;
    scratch.dv = scratch.dk + BLOCK * (size_t)plan->padded_D;
    return scratch;
}

static int rows_of_block(const struct attention_backward_args *args, int block) {
    return args->T - block * BLOCK < BLOCK ? args->T - block * BLOCK : BLOCK;
}

VF_INLINE float row_product(const enum dtype type, const float *a, const void *b, size_t index, int D) {
    vf sum = vf_zero();
    for (VF_LOOP(d, lanes, (size_t)D))
        sum = vf_fma(vf_load(a + d), vf_get_part(type, b, index + d, (int)lanes), sum);
    return vf_reduce_add(sum);
}

// Packs one block of a head, sets its delta, and its dq to zero.
VF_INLINE void pack_block(const enum dtype type, const struct attention_backward_args *args,
                          const struct backward_plan *plan, struct packed_head to, int block) {
    int D = args->D, padded_D = plan->padded_D, n = rows_of_block(args, block);
    size_t row = (size_t)block * BLOCK, rows_at = row * (size_t)padded_D, columns_at = row * (size_t)D;
    size_t index = to.index + row * args->stride, out_stride = (size_t)args->H * (size_t)D;
    size_t out_index = to.out_index + row * out_stride;
    pack_rows(type, to.q + rows_at, BLOCK, padded_D, args->q, index, args->stride, n, D,
              (float)(1.0 / sqrt(D)));
    pack_rows(type, to.k + rows_at, BLOCK, padded_D, args->k, index, args->stride, n, D, 1.0f);
    pack_rows(type, to.dout + rows_at, BLOCK, padded_D, args->dout, out_index, out_stride, n, D, 1.0f);
    pack_transposed(type, to.k_columns + columns_at, BLOCK, args->k, index, args->stride, n, D);
    pack_transposed(type, to.v_columns + columns_at, BLOCK, args->v, index, args->stride, n, D);
    memset(to.dq + rows_at, 0, BLOCK * (size_t)padded_D * sizeof(float));
    for (int i = 0; i < n; i++) {
        if (i + PREFETCH_ROWS < n)
            prefetch_row(type, args->out, out_index + (size_t)(i + PREFETCH_ROWS) * out_stride, D);
        to.delta[row + (size_t)i] = row_product(type, to.dout + rows_at + i * padded_D, args->out,
                                                out_index + (size_t)i * out_stride, D);
    }
}

// One row: scores become p = exp(score - lse), and dscores, which hold dp = dout v^T, become p * (dp -
// delta); zeros beyond the first n_visible.
VF_INLINE void soften_row(const bool masked, float *scores, float *dscores, int n_vectors, int n_visible,
                          float lse, float delta) {
    for (int v = 0; v < n_vectors; v++) {
        vf p = vf_exp(vf_load(scores + v * VF_WIDTH) - lse);
        vf ds = p * (vf_load(dscores + v * VF_WIDTH) - delta);
        if (masked) {
            p = vf_first(p, n_visible - v * VF_WIDTH, vf_zero());
            ds = vf_first(ds, n_visible - v * VF_WIDTH, vf_zero());
        }
        vf_store(scores + v * VF_WIDTH, p);
        vf_store(dscores + v * VF_WIDTH, ds);
    }
}

// Probabilities and dscores of query block i and key block j <= i. On the diagonal a tile of rows makes only
// the columns that its last row sees (rounded up to whole vectors).
static void make_scores(const struct attention_backward_args *args, const struct backward_plan *plan,
                        struct packed_head head, struct block_scratch scratch, int i, int j) {
    int n = rows_of_block(args, i), D = args->D, padded_D = plan->padded_D;
    const float *q = head.q + (size_t)i * BLOCK * (size_t)padded_D, *dout = head.dout + (q - head.q);
    const float *k = head.k_columns + (size_t)j * BLOCK * (size_t)D,
                *v = head.v_columns + (k - head.k_columns);
    for (int row = 0; row < n; row += TILE_ROWS) {
        float *scores = scratch.probabilities + row * BLOCK, *dscores = scratch.dscores + row * BLOCK;
        int n_columns = i == j ? row + TILE_ROWS : BLOCK, n_vectors = (n_columns + VF_WIDTH - 1) / VF_WIDTH;
        multiply_rows(scores, BLOCK, q + row * padded_D, (size_t)padded_D, k, BLOCK, n_vectors, D, false);
        multiply_rows(dscores, BLOCK, dout + row * padded_D, (size_t)padded_D, v, BLOCK, n_vectors, D, false);
        for (int t = row; t < row + TILE_ROWS && t < n; t++, scores += BLOCK, dscores += BLOCK) {
            float lse = head.lse[i * BLOCK + t], delta = head.delta[i * BLOCK + t];
            if (i == j)
                soften_row(true, scores, dscores, n_vectors, t + 1, lse, delta);
            else
                soften_row(false, scores, dscores, BLOCK / VF_WIDTH, 0, lse, delta);
        }
    }
}

// dk and dv of one block of keys += what query block i gives them. On the diagonal no earlier query sees a
// key.
static void add_key_gradients(const struct attention_backward_args *args, const struct backward_plan *plan,
                              struct packed_head head, struct block_scratch scratch, int i, int j) {
    int n = rows_of_block(args, i), n_keys = rows_of_block(args, j), padded_D = plan->padded_D;
    int n_vectors = padded_D / VF_WIDTH;
    const float *q = head.q + (size_t)i * BLOCK * (size_t)padded_D, *dout = head.dout + (q - head.q);
    for (int key = 0; key < n_keys; key += TILE_ROWS) {
        int first = i == j ? key : 0;
        multiply_columns(scratch.dv + key * padded_D, (size_t)padded_D,
                         scratch.probabilities + first * BLOCK + key, BLOCK, dout + first * padded_D,
                         (size_t)padded_D, n_vectors, n - first, true);
    }
    for (int key = 0; key < n_keys; key += TILE_ROWS) {
        int first = i == j ? key : 0;
        multiply_columns(scratch.dk + key * padded_D, (size_t)padded_D, scratch.dscores + first * BLOCK + key,
                         BLOCK, q + first * padded_D, (size_t)padded_D, n_vectors, n - first, true);
    }
}

// dq of query block i += what key block j gives it.
static void add_query_gradient(const struct attention_backward_args *args, const struct backward_plan *plan,
                               struct packed_head head, struct block_scratch scratch, int i, int j) {
    int n = rows_of_block(args, i), n_keys = rows_of_block(args, j), padded_D = plan->padded_D;
    float *dq = head.dq + (size_t)i * BLOCK * (size_t)padded_D;
    const float *k = head.k + (size_t)j * BLOCK * (size_t)padded_D;
    for (int row = 0; row < n; row += TILE_ROWS) {
        int depth = i == j && row + TILE_ROWS < n_keys ? row + TILE_ROWS : n_keys;
        multiply_rows(dq + row * padded_D, (size_t)padded_D, scratch.dscores + row * BLOCK, BLOCK, k,
                      (size_t)padded_D, padded_D / VF_WIDTH, depth, true);
    }
}

VF_INLINE void store_query_gradient(const enum dtype type, const struct attention_backward_args *args,
                                    const struct backward_plan *plan, struct packed_head head, int i) {
    size_t row = (size_t)i * BLOCK;
    unpack_rows(type, args->dq, head.index + row * args->stride, args->stride,
                head.dq + row * (size_t)plan->padded_D, plan->padded_D, rows_of_block(args, i), args->D,
                (float)(1.0 / sqrt(args->D)));
}

// All of dk and dv of key block j, and with with_dq its part of every dq.
VF_INLINE void backward_key_block(const enum dtype type, const struct attention_backward_args *args,
                                  const struct backward_plan *plan, struct packed_head head,
                                  struct block_scratch scratch, int j, bool with_dq) {
    size_t index = head.index + (size_t)j * BLOCK * args->stride;
    memset(scratch.dk, 0, BLOCK * 2 * (size_t)plan->padded_D * sizeof(float)); // dv lies behind it
    for (int i = j; i < plan->n_blocks; i++) {
        make_scores(args, plan, head, scratch, i, j);
        add_key_gradients(args, plan, head, scratch, i, j);
        if (with_dq)
            add_query_gradient(args, plan, head, scratch, i, j);
    }
    unpack_rows(type, args->dk, index, args->stride, scratch.dk, plan->padded_D, rows_of_block(args, j),
                args->D, 1.0f);
    unpack_rows(type, args->dv, index, args->stride, scratch.dv, plan->padded_D, rows_of_block(args, j),
                args->D, 1.0f);
}

VF_INLINE void backward_query_block(const enum dtype type, const struct attention_backward_args *args,
                                    const struct backward_plan *plan, struct packed_head head,
                                    struct block_scratch scratch, int i) {
    for (int j = 0; j <= i; j++) {
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

enum status CPU_OP(attention_backward)(struct stream *stream, const struct attention_backward_args *args) {
    struct backward_plan plan = plan_backward(stream->device, args);
    size_t n_heads = (size_t)args->B * (size_t)args->H, n_blocks = (size_t)plan.n_blocks;
#pragma omp parallel num_threads(plan.n_threads)
    {
        int thread = omp_get_thread_num();
        struct block_scratch scratch = block_scratch(stream, &plan, thread);
        if (plan.whole_heads) {
            struct cpu_range range = cpu_thread_range(n_heads, 1, thread, omp_get_num_threads());
            for (size_t head = range.begin; head < range.end; head++) {
                struct packed_head packed = packed_head(stream, &plan, args, (size_t)thread, head);
                VF_DISPATCH(args->type, backward_head, args, &plan, packed, scratch);
            }
        } else {
#pragma omp for schedule(static)
            for (size_t task = 0; task < n_heads * n_blocks; task++) {
                size_t head = task / n_blocks;
                struct packed_head packed = packed_head(stream, &plan, args, head, head);
                VF_DISPATCH(args->type, pack_block, args, &plan, packed, (int)(task % n_blocks));
            }
            // Largest first, so that the threads end together: the first keys are seen by most queries, the
            // last queries see most keys.
#pragma omp for schedule(dynamic, 1)
            for (size_t task = 0; task < 2 * n_heads * n_blocks; task++) {
                size_t head = task / 2 % n_heads;
                int rank = (int)(task / (2 * n_heads));
                struct packed_head packed = packed_head(stream, &plan, args, head, head);
                if (task % 2 == 0)
                    VF_DISPATCH(args->type, backward_key_block, args, &plan, packed, scratch, rank, false);
                else
                    VF_DISPATCH(args->type, backward_query_block, args, &plan, packed, scratch,
                                plan.n_blocks - 1 - rank);
            }
        }
    }
    return STATUS_OK;
}
