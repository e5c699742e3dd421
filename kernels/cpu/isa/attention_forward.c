// Causal attention, forward (kernels/ops_layers.h: attention_forward), with an online softmax. A block of
// queries visits one block of keys after another and keeps each row's maximum and running sum, so a whole row
// of scores is never stored. Keys and values are packed once per key-value head, for all its query heads
// (tiles.h has the products). Softmax uses powers of two, with log2 e folded into the scale of the scores.
// Few queries against a key-value cache skip the packing and read keys and values in place (single_query.h).
#include <math.h>
#include <stdatomic.h>

#include "kernels/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/isa/single_query.h"

// Block sizes. A block of keys and values should stay in the first cache levels while a block of queries is
// multiplied by it. But the output tiles are loaded and stored once per block of keys, which favours long
// blocks. Blocks of keys are longer with pairs, which are multiplied faster and take half the memory.
// FEW_QUERIES: calls with at most this many queries skip the packing.
// MAXIMUM_SLACK: softmax_row keeps a maximum that is up to this much too low. Its terms are then at most
// 2^11, so that their sums stay far from overflow.
#define QUERY_BLOCK     (16 * TILE_ROWS)
#define KEY_BLOCK       64
#define PAIRS_KEY_BLOCK 192
#define FEW_QUERIES     4
#define MAXIMUM_SLACK   11.0f

#define LOG2_E 1.4426950408889634
#define LN_2   0.6931471805599453

// One packed key-value head. Keys: one block after another, (words of D, key_block) each. Values: (words of
// S, padded D).
struct packed_keys {
    float *keys, *values;
};

// Scratch of one thread for one block of queries.
struct query_scratch {
    float *queries; // (QUERY_BLOCK, padded D) words
    float *out;     // (QUERY_BLOCK, padded D): the sum of 2^(score - maximum) * value
    float *sums;    // (QUERY_BLOCK, VF_WIDTH): the sum of 2^(score - maximum), by lane
    float *maxima;  // (QUERY_BLOCK): the maximum of each row's scores so far, or up to MAXIMUM_SLACK less
    float *scores;  // (TILE_ROWS, key_block)
};

// How a call is divided. Each thread takes whole groups (a key-value head and its query heads) if they divide
// evenly enough. Otherwise all key-value heads are packed first, and the threads share the blocks of queries.
struct forward_plan {
    int n_threads;
    bool whole_groups;
    bool pairs;    // words are pairs of bf16 (tiles.h)
    int group;     // query heads per key-value head
    int n_parts;   // with few queries: tasks per group
    int key_block; // keys per block
    int n_key_blocks, n_query_blocks;
    int padded_D;
    float score_scale;     // log2 e / sqrt(D)
    size_t head_floats;    // floats of a packed key-value head
    size_t n_heads_packed; // key-value heads that are packed at a time: one per thread, or all
    size_t scratch_floats; // floats of scratch per thread
};

// key_at and value_at: the offset, in words, of a block of keys or values in its packed head.
static size_t key_at(const struct forward_plan *plan, int block, int D) {
    return (size_t)block * (size_t)plan->key_block * (size_t)words_of(plan->pairs, D);
}

static size_t value_at(const struct forward_plan *plan, int block) {
    return (size_t)words_of(plan->pairs, block * plan->key_block) * (size_t)plan->padded_D;
}

static struct forward_plan plan_forward(const struct device *device,
                                        const struct attention_forward_args *args) {
    size_t n_groups = (size_t)args->B * (size_t)args->K;
    size_t n_keys = (size_t)(args->window > 0 && args->window < args->S ? args->window : args->S);
    const int key_block = multiplies_pairs(args->type) ? PAIRS_KEY_BLOCK : KEY_BLOCK;
    struct forward_plan plan = {
        .n_threads = cpu_threads(device, (size_t)args->B * (size_t)args->H * (size_t)args->T * n_keys *
                                             (size_t)args->D),
        .pairs = multiplies_pairs(args->type),
        .group = args->H / args->K,
        .key_block = key_block,
        .n_key_blocks = (args->S + key_block - 1) / key_block,
        .n_query_blocks = (args->T + QUERY_BLOCK - 1) / QUERY_BLOCK,
        .padded_D = (int)round_up_to((size_t)args->D, VF_WIDTH),
        .score_scale = (float)(LOG2_E / sqrt(args->D)),
    };
    if (args->T <= FEW_QUERIES) {
        plan.n_parts = group_parts(n_groups, plan.group, plan.n_threads);
        plan.scratch_floats =
            CPU_OP(single_query_floats)(group_part_heads(plan.group, plan.n_parts), args->D);
        return plan;
    }
    size_t threads = (size_t)plan.n_threads, rounds = (n_groups + threads - 1) / threads;
    plan.whole_groups = rounds * threads * 8 <= n_groups * 9 || n_groups >= 4 * threads;
    plan.n_heads_packed = plan.whole_groups ? threads : n_groups;
    plan.head_floats = key_at(&plan, plan.n_key_blocks, args->D) + value_at(&plan, plan.n_key_blocks);
    plan.scratch_floats = round_up_to(
        QUERY_BLOCK * ((size_t)plan.padded_D * 2 + VF_WIDTH + 1) + TILE_ROWS * (size_t)plan.key_block, 16);
    return plan;
}

size_t CPU_OP(attention_forward_workspace)(const struct device *device,
                                           const struct attention_forward_args *args) {
    struct forward_plan plan = plan_forward(device, args);
    return (plan.n_heads_packed * plan.head_floats + (size_t)plan.n_threads * plan.scratch_floats) *
           sizeof(float);
}

static struct packed_keys packed_keys_at(const struct stream *stream, const struct forward_plan *plan,
                                         size_t slot, int D) {
    float *keys = (float *)stream->workspace + slot * plan->head_floats;
    return (struct packed_keys){.keys = keys, .values = keys + key_at(plan, plan->n_key_blocks, D)};
}

static float *part_scratch(const struct stream *stream, const struct forward_plan *plan, int part) {
    return (float *)stream->workspace + plan->n_heads_packed * plan->head_floats +
           (size_t)part * plan->scratch_floats;
}

// The first position that query t of sequence b sees. Queries past the last one, which pad a tile, get the
// result of the last one.
static int first_seen(const struct attention_forward_args *args, size_t b, int t) {
    int at = t < args->T ? t : args->T - 1, own = args->S - args->T + at;
    return first_in_window(args->first ? args->first[b * (size_t)args->T + (size_t)at] : 0, args->window,
                           own);
}

// The first block of keys that any query of sequence b sees.
static int first_key_block(const struct attention_forward_args *args, const struct forward_plan *plan,
                           size_t b) {
    return first_seen(args, b, 0) / plan->key_block;
}

// Packs one block of keys and values of key-value head group % K of sequence group / K.
VF_INLINE void pack_key_block(const enum dtype type, const struct attention_forward_args *args,
                              const struct forward_plan *plan, struct packed_keys to, size_t group,
                              int block) {
    int key_block = plan->key_block, key = block * key_block;
    int n_keys = args->S - key < key_block ? args->S - key : key_block;
    size_t b = group / (size_t)args->K, column = group % (size_t)args->K * (size_t)args->D;
    pack_transposed(type, to.keys + key_at(plan, block, args->D), key_block, args->k,
                    b * args->k_batch_stride + (size_t)key * args->k_stride + column, args->k_stride, n_keys,
                    args->D);
    pack_right(type, to.values + value_at(plan, block), key_block, plan->padded_D, args->v,
               b * args->v_batch_stride + (size_t)key * args->v_stride + column, args->v_stride, n_keys,
               args->D);
}

// The vectors of a row of scores that its query sees entirely. The vectors before and after them are masked
// lane by lane.
struct open_vectors {
    int begin, end;
};

VF_INLINE struct open_vectors open_vectors_of(const bool masked, int n_vectors, int n_hidden, int n_visible) {
    if (!masked)
        return (struct open_vectors){0, n_vectors};
    return (struct open_vectors){n_hidden > 0 ? (n_hidden + VF_WIDTH - 1) / VF_WIDTH : 0,
                                 n_visible > 0 ? n_visible / VF_WIDTH : 0};
}

// Returns the maximum of one row's unscaled scores over keys [n_hidden, n_visible); minus infinity if there
// are none. Sets the scores of other keys to minus infinity.
VF_INLINE float mask_row(const bool masked, float *scores, int n_vectors, int n_hidden, int n_visible) {
    const struct open_vectors open = open_vectors_of(masked, n_vectors, n_hidden, n_visible);
    vf top = vf_set1(-INFINITY);
    for (int v = 0; v < n_vectors; v++) {
        vf score = vf_load(scores + v * VF_WIDTH);
        if (masked && (v < open.begin || v >= open.end)) {
            score = vf_first(score, n_visible - v * VF_WIDTH, vf_set1(-INFINITY));
            score = vf_first(vf_set1(-INFINITY), n_hidden - v * VF_WIDTH, score);
            vf_store(scores + v * VF_WIDTH, score);
        }
        top = vf_max(top, score);
    }
    return vf_reduce_max(top);
}

// Turns one row's unscaled scores, whose maximum is `top`, into 2^(scaled score - maximum). With pairs, the
// results take half the space. The maximum of previous blocks is kept if it is at most MAXIMUM_SLACK too
// low. Then nothing is rescaled and, thanks to branch prediction, nothing waits for this block's maximum.
// Otherwise the row's sums are rescaled to the new maximum.
VF_INLINE void softmax_row(const bool pairs, const bool masked, bool first, const struct forward_plan *plan,
                           float *scores, int n_vectors, float top, float *maximum, float *sum, float *out) {
    const vf scale = vf_set1(plan->score_scale);
    const float new_maximum = top * plan->score_scale;
    if (first) {
        *maximum = new_maximum;
        vf_store(sum, vf_zero());
    } else if (__builtin_expect(new_maximum > *maximum + MAXIMUM_SLACK, 0)) {
        vf shrink = vf_exp2(vf_set1(*maximum - new_maximum));
        *maximum = new_maximum;
        vf_store(sum, vf_load(sum) * shrink);
        for (int d = 0; d < plan->padded_D; d += VF_WIDTH)
            vf_store(out + d, vf_load(out + d) * shrink);
    }
    // A row that has seen no key yet has only scores of minus infinity, which become 0 with any finite
    // reference.
    vf total = vf_load(sum), reference = vf_set1(masked && *maximum == -INFINITY ? 0.0f : -*maximum);
    for (int v = 0; v < n_vectors; v += pairs ? 2 : 1) {
        vf p = vf_exp2(vf_fma(vf_load(scores + v * VF_WIDTH), scale, reference));
        total += p;
        if (pairs) {
            vf next = vf_zero();
            if (v + 1 < n_vectors)
                next = vf_exp2(vf_fma(vf_load(scores + (v + 1) * VF_WIDTH), scale, reference));
            total += next;
            vf_store(scores + v / 2 * VF_WIDTH, (vf)vu_from_neighbours(p, next));
        } else {
            vf_store(scores + v * VF_WIDTH, p);
        }
    }
    vf_store(sum, total);
}

// Applies mask_row and softmax_row to the TILE_ROWS rows from `row` on. The maxima of all rows are computed
// before the first is used, which hides their latency. n_visible is that of the first row.
VF_INLINE void softmax_tile(const bool pairs, const bool masked, bool first, const struct forward_plan *plan,
                            struct query_scratch scratch, int row, int n_vectors, const int *n_hidden,
                            int n_visible) {
    float tops[TILE_ROWS];
    for (int i = 0; i < TILE_ROWS; i++)
        tops[i] = mask_row(masked, scratch.scores + i * plan->key_block, n_vectors,
                           n_hidden ? n_hidden[i] : 0, n_visible + i);
    for (int i = 0; i < TILE_ROWS; i++)
        softmax_row(pairs, masked, first, plan, scratch.scores + i * plan->key_block, n_vectors, tops[i],
                    scratch.maxima + row + i, scratch.sums + (row + i) * VF_WIDTH,
                    scratch.out + (row + i) * plan->padded_D);
}

// Adds one block of keys to the attention of TILE_ROWS queries, from `row` of the block of queries on. Query
// i of them sees keys [n_hidden[i], n_visible + i) of the block; that range may be empty, and n_visible
// negative.
//   first      true for the first block of keys that these queries visit
//   n_hidden   [rw] (TILE_ROWS) in ascending order; overwritten. NULL: all are 0. Whole vectors of keys at
//     the start of the block that no query sees are skipped
static void attend_tile(const struct forward_plan *plan, struct query_scratch scratch, int D, int row,
                        const float *keys, const float *values, int *n_hidden, int n_visible, bool first) {
    bool pairs = VF_PAIRS && plan->pairs;
    int padded_D = plan->padded_D, key_block = plan->key_block;
    int depth = clamp_to(n_visible + TILE_ROWS - 1, 0, key_block);
    int skipped = n_hidden && n_hidden[0] > 0 ? n_hidden[0] / VF_WIDTH * VF_WIDTH : 0;
    if (skipped > 0) {
        keys += skipped;
        values += words_of(pairs, skipped) * padded_D;
        depth -= skipped;
        n_visible -= skipped;
        for (int i = 0; i < TILE_ROWS; i++)
            n_hidden[i] -= skipped;
    }
    int n_vectors = (depth + VF_WIDTH - 1) / VF_WIDTH;
    multiply_rows(pairs, scratch.scores, (size_t)key_block, scratch.queries + row * padded_D,
                  (size_t)padded_D, keys, (size_t)key_block, n_vectors, words_of(pairs, D), false);
    if (n_visible < key_block || n_hidden)
        softmax_tile(pairs, true, first, plan, scratch, row, n_vectors, n_hidden, n_visible);
    else if (pairs)
        softmax_tile(true, false, first, plan, scratch, row, PAIRS_KEY_BLOCK / VF_WIDTH, NULL, 0);
    else
        softmax_tile(false, false, first, plan, scratch, row, KEY_BLOCK / VF_WIDTH, NULL, 0);
    multiply_rows(pairs, scratch.out + row * padded_D, (size_t)padded_D, scratch.scores, (size_t)key_block,
                  values, (size_t)padded_D, padded_D / VF_WIDTH, words_of(pairs, depth), !first);
}

// Counts, for each query of a tile, the keys from `key` on that it does not see. Returns NULL if all
// queries see the key at `key`.
static int *count_hidden(const struct attention_forward_args *args, size_t b, int query, int key,
                         int n_hidden[TILE_ROWS]) {
    for (int i = 0; i < TILE_ROWS; i++)
        n_hidden[i] = first_seen(args, b, query + i) - key;
    return n_hidden[TILE_ROWS - 1] > 0 ? n_hidden : NULL; // the last query has the most
}

VF_INLINE void attend_query_block(const enum dtype type, const struct attention_forward_args *args,
                                  const struct forward_plan *plan, struct packed_keys from, float *memory,
                                  size_t head, int block) {
    int first = block * QUERY_BLOCK, n = args->T - first < QUERY_BLOCK ? args->T - first : QUERY_BLOCK;
    int D = args->D, padded_D = plan->padded_D, key_block = plan->key_block, n_before = args->S - args->T;
    size_t b = head / (size_t)args->H, h = head % (size_t)args->H;
    struct query_scratch scratch = {.queries = memory};
    scratch.out = scratch.queries + QUERY_BLOCK * padded_D;
    scratch.sums = scratch.out + QUERY_BLOCK * padded_D;
    scratch.scores = scratch.sums + QUERY_BLOCK * VF_WIDTH;
    scratch.maxima = scratch.scores + TILE_ROWS * plan->key_block;

    pack_left(type, scratch.queries, (int)round_up_to((size_t)n, TILE_ROWS), padded_D, args->q,
              b * args->q_batch_stride + (size_t)first * args->q_stride + h * (size_t)D, args->q_stride, n,
              D);
    for (int block_of_keys = first_seen(args, b, first) / key_block;
         block_of_keys * key_block < n_before + first + n; block_of_keys++)
        for (int row = 0; row < n; row += TILE_ROWS) {
            int key = block_of_keys * key_block, n_visible = n_before + first + row + 1 - key;
            int first_block = first_seen(args, b, first + row) / key_block, n_hidden[TILE_ROWS];
            if (n_visible + TILE_ROWS > 1 && block_of_keys >= first_block)
                attend_tile(plan, scratch, D, row, from.keys + key_at(plan, block_of_keys, D),
                            from.values + value_at(plan, block_of_keys),
                            count_hidden(args, b, first + row, key, n_hidden), n_visible,
                            block_of_keys == first_block);
        }

    for (int row = 0; row < n; row++) {
        size_t t = (size_t)(first + row);
        float sum = vf_reduce_add(vf_load(scratch.sums + row * VF_WIDTH));
        unpack_rows(type, args->out, ((b * (size_t)args->T + t) * (size_t)args->H + h) * (size_t)D, 0,
                    scratch.out + row * padded_D, padded_D, 1, D, 1.0f / sum);
        if (args->lse)
            ((float *)args->lse)[head * (size_t)args->T + t] = (float)(scratch.maxima[row] * LN_2 + log(sum));
    }
}

// ---- division among threads

struct forward_call {
    const struct stream *stream;
    const struct attention_forward_args *args;
    struct forward_plan plan;
    size_t n_groups;     // key-value heads of all sequences
    atomic_size_t *next; // number of the next task to take
};

static void groups_part(const void *context, int part, int n_parts) {
    const struct forward_call *call = context;
    const struct attention_forward_args *args = call->args;
    const struct forward_plan *plan = &call->plan;
    float *scratch = part_scratch(call->stream, plan, part);
    struct packed_keys packed = packed_keys_at(call->stream, plan, (size_t)part, args->D);
    struct parallel_span groups = parallel_span_of(call->n_groups, 1, part, n_parts);
    amx_begin();
    for (size_t group = groups.begin; group < groups.end; group++) {
        size_t n_heads = (size_t)plan->group;
        for (int block = first_key_block(args, plan, group / (size_t)args->K); block < plan->n_key_blocks;
             block++)
            VF_DISPATCH(args->type, pack_key_block, args, plan, packed, group, block);
        for (size_t head = group * n_heads; head < (group + 1) * n_heads; head++)
            for (int block = 0; block < plan->n_query_blocks; block++)
                VF_DISPATCH(args->type, attend_query_block, args, plan, packed, scratch, head, block);
    }
    amx_end();
}

static void single_queries_part(const void *context, int part, int n_threads) {
    const struct forward_call *call = context;
    const struct attention_forward_args *args = call->args;
    float *scratch = part_scratch(call->stream, &call->plan, part);
    size_t H = (size_t)args->H, K = (size_t)args->K, D = (size_t)args->D,
           n_parts = (size_t)call->plan.n_parts;
    struct parallel_span tasks = parallel_span_of(call->n_groups * n_parts, 1, part, n_threads);
    for (size_t task = tasks.begin; task < tasks.end; task++)
        for (int t = 0; t < args->T; t++) {
            size_t b = task / n_parts / K, g = task / n_parts % K, row = b * (size_t)args->T + (size_t)t;
            struct group_span heads =
                group_span_of(call->plan.group, (int)(task % n_parts), call->plan.n_parts);
            size_t h = g * (size_t)call->plan.group + (size_t)heads.begin;
            const struct single_query query = {
                .q = args->q,
                .k = args->k,
                .v = args->v,
                .out = args->out,
                .lse = args->lse ? (float *)args->lse + (b * H + h) * (size_t)args->T + t : NULL,
                .q_at = b * args->q_batch_stride + (size_t)t * args->q_stride + h * D,
                .k_at = b * args->k_batch_stride + g * D,
                .v_at = b * args->v_batch_stride + g * D,
                .out_at = (row * H + h) * D,
                .k_stride = args->k_stride,
                .v_stride = args->v_stride,
                .lse_stride = (size_t)args->T,
                .n_heads = heads.end - heads.begin,
                .first = first_seen(args, b, t),
                .end = args->S - args->T + t + 1,
                .D = args->D};
            CPU_OP(attend_single_query)(&query, args->type, scratch);
        }
}

static void pack_part(const void *context, int part, int n_parts) {
    const struct forward_call *call = context;
    size_t n_blocks = (size_t)call->plan.n_key_blocks;
    struct parallel_span tasks = parallel_span_of(call->n_groups * n_blocks, 1, part, n_parts);
    for (size_t task = tasks.begin; task < tasks.end; task++) {
        size_t group = task / n_blocks;
        int block = (int)(task % n_blocks);
        struct packed_keys packed = packed_keys_at(call->stream, &call->plan, group, call->args->D);
        if (block >= first_key_block(call->args, &call->plan, group / (size_t)call->args->K))
            VF_DISPATCH(call->args->type, pack_key_block, call->args, &call->plan, packed, group, block);
    }
}

// Takes the largest tasks first, so that the threads finish together: the last blocks of queries see the most
// keys.
static void query_blocks_part(const void *context, int part, int n_parts) {
    (void)n_parts;
    const struct forward_call *call = context;
    const struct forward_plan *plan = &call->plan;
    float *scratch = part_scratch(call->stream, plan, part);
    size_t n_heads = call->n_groups * (size_t)plan->group, n_tasks = n_heads * (size_t)plan->n_query_blocks;
    amx_begin();
    for (size_t task; (task = atomic_fetch_add(call->next, 1)) < n_tasks;) {
        size_t head = task % n_heads;
        struct packed_keys packed =
            packed_keys_at(call->stream, plan, head / (size_t)plan->group, call->args->D);
        VF_DISPATCH(call->args->type, attend_query_block, call->args, plan, packed, scratch, head,
                    plan->n_query_blocks - 1 - (int)(task / n_heads));
    }
    amx_end();
}

enum status CPU_OP(attention_forward)(struct stream *stream, const struct attention_forward_args *args) {
    struct rope_forward_args rotations[ATTENTION_ROPE_CALLS];
    const int n_rotations = attention_rope_forward(args, rotations);
    for (int i = 0; i < n_rotations; i++)
        TRY(CPU_OP(rope_forward)(stream, &rotations[i]));
    const struct attention_forward_args rotated = attention_of_rotated(args);
    atomic_size_t next = 0;
    const struct forward_call call = {stream, &rotated, plan_forward(stream->device, args),
                                      (size_t)args->B * (size_t)args->K, &next};
    if (args->T <= FEW_QUERIES) {
        parallel_run(call.plan.n_threads, single_queries_part, &call);
    } else if (call.plan.whole_groups) {
        parallel_run(call.plan.n_threads, groups_part, &call);
    } else {
        parallel_run(call.plan.n_threads, pack_part, &call);
        parallel_run(call.plan.n_threads, query_blocks_part, &call);
    }
    return STATUS_OK;
}
