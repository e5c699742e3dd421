// Causal attention, one query at a time, in training and against a key-value cache: p_j = exp(q . k_j /
// sqrt(D) - lse), out = sum of p_j v_j. Backward, with delta = dout . out: ds_j = p_j (dout . v_j - delta),
// dq = sum of ds_j k_j / sqrt(D), dk_j += ds_j q / sqrt(D), dv_j += p_j dout.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention.h"
#include "tests/ref/ref.h"

static double dot(const void *a, size_t at_a, const void *b, size_t at_b, size_t n, enum dtype type) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ref_load(a, type, at_a + i) * ref_load(b, type, at_b + i);
    return sum;
}

// The first position that query t of a sequence sees. own: the query's own position among the keys.
static size_t first_seen(const int32_t *first, int window, size_t T, size_t b, size_t t, size_t own) {
    size_t of_document = first ? (size_t)first[b * T + t] : 0;
    size_t of_window = window > 0 && own >= (size_t)window ? own - (size_t)window + 1 : 0;
    return of_document > of_window ? of_document : of_window;
}

// One query of a head, and the positions [first, end) of k and v that it sees.
struct query {
    const void *q, *k, *v;
    size_t q_at, k_at, v_at, k_stride, v_stride, first, end; // *_at: index of the head's first element
    size_t D;
    enum dtype type;
};

static double score(const struct query *a, size_t s) {
    return 1 / sqrt((double)a->D) * dot(a->q, a->q_at, a->k, a->k_at + s * a->k_stride, a->D, a->type);
}

// Sets `sum` to the weighted sum of v, and returns lse. scores: scratch for a->end numbers.
static double query_forward(const struct query *a, double *scores, double *sum) {
    double highest = -HUGE_VAL, total = 0;
    for (size_t s = a->first; s < a->end; s++) {
        scores[s] = score(a, s);
        highest = fmax(highest, scores[s]);
    }
    for (size_t s = a->first; s < a->end; s++)
        total += exp(scores[s] - highest);
    double lse = highest + log(total);
    for (size_t d = 0; d < a->D; d++)
        sum[d] = 0;
    for (size_t s = a->first; s < a->end; s++) {
        double p = exp(scores[s] - lse);
        for (size_t d = 0; d < a->D; d++)
            sum[d] += p * ref_load(a->v, a->type, a->v_at + s * a->v_stride + d);
    }
    return lse;
}

enum status ref_attention_forward(struct stream *stream, const struct attention_forward_args *args) {
    struct rope_forward_args rotations[ATTENTION_ROPE_CALLS];
    for (int i = 0, n = attention_rope_forward(args, rotations); i < n; i++)
        TRY(ref_rope_forward(stream, &rotations[i]));
    const struct attention_forward_args rotated = attention_of_rotated(args), *a = &rotated;
    size_t T = (size_t)a->T, H = (size_t)a->H, D = (size_t)a->D, group = H / (size_t)a->K;
    size_t own = (size_t)a->S - T; // position of the first query
    double *sum = malloc((D + (size_t)a->S) * sizeof *sum);
    if (!sum)
        return FAIL(STATUS_FAILED, "out of memory for a row of attention");
    for (size_t b = 0; b < (size_t)a->B; b++)
        for (size_t h = 0; h < H; h++)
            for (size_t t = 0; t < T; t++) {
                const struct query query = {.q = a->q,
                                            .k = a->k,
                                            .v = a->v,
                                            .q_at = b * a->q_batch_stride + t * a->q_stride + h * D,
                                            .k_at = b * a->k_batch_stride + h / group * D,
                                            .v_at = b * a->v_batch_stride + h / group * D,
                                            .k_stride = a->k_stride,
                                            .v_stride = a->v_stride,
                                            .first = first_seen(a->first, a->window, T, b, t, own + t),
                                            .end = own + t + 1,
                                            .D = D,
                                            .type = a->type};
                double lse = query_forward(&query, sum + D, sum);
                for (size_t d = 0; d < D; d++)
                    ref_store(a->out, a->type, (b * T + t) * H * D + h * D + d, sum[d]);
                if (a->lse)
                    ref_store(a->lse, ref_wide(a->type), (b * H + h) * T + t, lse);
            }
    free(sum);
    return STATUS_OK;
}

// Replaces q and k by rotated copies in new memory, *rotated, which the caller frees.
static enum status rotate_rows(struct stream *stream, struct attention_decode_args *a, void **rotated) {
    const size_t queries = (size_t)a->H * (size_t)a->D, keys = (size_t)a->K * (size_t)a->D;
    char *rows = *rotated = malloc((size_t)a->B * (queries + keys) * dtype_size(a->type));
    if (!rows)
        return FAIL(STATUS_FAILED, "out of memory for rotated queries and keys");
    struct rope_forward_args q = {.out = rows,
                                  .x = a->q,
                                  .q_weight = a->rope.q_weight,
                                  .k_weight = a->rope.k_weight,
                                  .table = a->rope.table,
                                  .B = a->B,
                                  .T = 1,
                                  .H = a->H,
                                  .D = a->D,
                                  .x_stride = a->q_stride,
                                  .out_stride = queries,
                                  .positions = a->lengths,
                                  .norm = a->rope.norm,
                                  .epsilon = a->rope.epsilon,
                                  .type = a->type};
    struct rope_forward_args k = q;
    k.out = rows + (size_t)a->B * queries * dtype_size(a->type);
    k.x = a->k;
    k.H = 0;
    k.K = a->K;
    k.x_stride = a->k_stride;
    k.out_stride = keys;
    TRY(ref_rope_forward(stream, &q));
    TRY(ref_rope_forward(stream, &k));
    a->q = q.out;
    a->k = k.out;
    a->q_stride = queries;
    a->k_stride = keys;
    return STATUS_OK;
}

static enum status decode(const struct attention_decode_args *a) {
    size_t H = (size_t)a->H, D = (size_t)a->D, K = (size_t)a->K, longest = 0;
    for (size_t b = 0; b < (size_t)a->B; b++)
        longest = (size_t)a->lengths[b] > longest ? (size_t)a->lengths[b] : longest;
    double *sum = malloc((D + longest + 1) * sizeof *sum);
    if (!sum)
        return FAIL(STATUS_FAILED, "out of memory for a row of attention");
    for (size_t b = 0; b < (size_t)a->B; b++) {
        size_t cache = (size_t)a->sequences[b] * a->cache_batch_stride, n = (size_t)a->lengths[b];
        for (size_t i = 0; i < K * D; i++) {
            size_t to = cache + n * a->cache_stride + i;
            ref_store(a->keys, a->type, to, ref_load(a->k, a->type, b * a->k_stride + i));
            ref_store(a->values, a->type, to, ref_load(a->v, a->type, b * a->v_stride + i));
        }
        for (size_t h = 0; h < H; h++) {
            const struct query query = {.q = a->q,
                                        .k = a->keys,
                                        .v = a->values,
                                        .q_at = b * a->q_stride + h * D,
                                        .k_at = cache + h / (H / K) * D,
                                        .v_at = cache + h / (H / K) * D,
                                        .k_stride = a->cache_stride,
                                        .v_stride = a->cache_stride,
                                        .first = first_seen(a->first, a->window, 1, b, 0, n),
                                        .end = n + 1,
                                        .D = D,
                                        .type = a->type};
            query_forward(&query, sum + D, sum);
            for (size_t d = 0; d < D; d++)
                ref_store(a->out, a->type, (b * H + h) * D + d, sum[d]);
        }
    }
    free(sum);
    return STATUS_OK;
}

enum status ref_attention_decode(struct stream *stream, const struct attention_decode_args *args) {
    struct attention_decode_args a = *args;
    void *rotated = NULL;
    enum status status = a.rope.table ? rotate_rows(stream, &a, &rotated) : STATUS_OK;
    if (status == STATUS_OK)
        status = decode(&a);
    free(rotated);
    return status;
}

// Adds one query head's contribution to the sums of its key-value head, in double, (T, D) each.
struct head_gradients {
    double *dq, *dk, *dv;
};

static void head_backward(const struct attention_backward_args *a, size_t b, size_t h,
                          struct head_gradients *sums) {
    size_t T = (size_t)a->T, H = (size_t)a->H, D = (size_t)a->D, g = h / (H / (size_t)a->K);
    double scale = 1 / sqrt((double)D);
    for (size_t t = 0; t < T; t++) {
        size_t q = b * a->q_batch_stride + t * a->q_stride + h * D, o = (b * T + t) * H * D + h * D;
        double lse = ref_load(a->lse, ref_wide(a->type), (b * H + h) * T + t);
        double delta = dot(a->dout, o, a->out, o, D, a->type);
        for (size_t s = first_seen(a->first, a->window, T, b, t, t); s <= t; s++) {
            size_t k = b * a->k_batch_stride + s * a->k_stride + g * D;
            size_t v = b * a->v_batch_stride + s * a->v_stride + g * D;
            double p = exp(scale * dot(a->q, q, a->k, k, D, a->type) - lse);
            double ds = p * (dot(a->dout, o, a->v, v, D, a->type) - delta) * scale;
            for (size_t d = 0; d < D; d++) {
                sums->dq[t * D + d] += ds * ref_load(a->k, a->type, k + d);
                sums->dk[s * D + d] += ds * ref_load(a->q, a->type, q + d);
                sums->dv[s * D + d] += p * ref_load(a->dout, a->type, o + d);
            }
        }
    }
}

// Stores the sums of a head, (T, D), in rows of a tensor.
static void store_head(void *to, enum dtype type, size_t at, size_t stride, const double *sums, size_t T,
                       size_t D) {
    for (size_t t = 0; t < T; t++)
        for (size_t d = 0; d < D; d++)
            ref_store(to, type, at + t * stride + d, sums[t * D + d]);
}

enum status ref_attention_backward(struct stream *stream, const struct attention_backward_args *args) {
    const struct attention_backward_args rotated = attention_backward_of_rotated(args), *a = &rotated;
    size_t T = (size_t)a->T, D = (size_t)a->D, group = (size_t)(a->H / a->K);
    for (size_t b = 0; b < (size_t)a->B; b++)
        for (size_t g = 0; g < (size_t)a->K; g++) {
            double *memory = calloc(3 * T * D, sizeof *memory);
            if (!memory)
                return FAIL(STATUS_FAILED, "out of memory for the gradients of an attention head");
            struct head_gradients sums = {memory, memory + T * D, memory + 2 * T * D};
            for (size_t h = g * group; h < (g + 1) * group; h++) {
                memset(sums.dq, 0, T * D * sizeof *sums.dq);
                head_backward(a, b, h, &sums);
                store_head(a->dq, a->type, b * a->q_batch_stride + h * D, a->q_stride, sums.dq, T, D);
            }
            store_head(a->dk, a->type, b * a->k_batch_stride + g * D, a->k_stride, sums.dk, T, D);
            store_head(a->dv, a->type, b * a->v_batch_stride + g * D, a->v_stride, sums.dv, T, D);
            free(memory);
        }
    struct rope_backward_args rotations[ATTENTION_ROPE_CALLS];
    for (int i = 0, n = attention_rope_backward(args, rotations); i < n; i++)
        TRY(ref_rope_backward(stream, &rotations[i]));
    return STATUS_OK;
}
