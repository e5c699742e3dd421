// Causal attention, one query at a time, in training and against a key-value cache: p_j = exp(q . k_j /
// sqrt(D) - lse), out = sum of p_j v_j. Backward, with delta = dout . out: ds_j = p_j (dout . v_j - delta),
// dq = sum of ds_j k_j / sqrt(D), dk_j += ds_j q / sqrt(D), dv_j += p_j dout.
#include <math.h>
#include <stdlib.h>

#include "kernels/ref/ref.h"

static double dot(const void *a, size_t at_a, const void *b, size_t at_b, size_t n, enum dtype type) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ref_load(a, type, at_a + i) * ref_load(b, type, at_b + i);
    return sum;
}

// The first position that query t of a sequence sees.
static size_t first_seen(const int32_t *first, size_t T, size_t b, size_t t) {
    return first ? (size_t)first[b * T + t] : 0;
}

// One query of a head and what it sees: positions [first, end) of k and v, `stride` apart.
struct query {
    const void *q, *k, *v;
    size_t q_at, kv_at, stride, first, end; // q_at, kv_at: the head's first element
    size_t D;
    enum dtype type;
};

static double score(const struct query *a, size_t s) {
    return 1 / sqrt((double)a->D) * dot(a->q, a->q_at, a->k, a->kv_at + s * a->stride, a->D, a->type);
}

// Sets `sum` to the weighted sum of v, and returns lse.
static double query_forward(const struct query *a, double *sum) {
    double highest = -HUGE_VAL, total = 0;
    for (size_t s = a->first; s < a->end; s++)
        highest = fmax(highest, score(a, s));
    for (size_t s = a->first; s < a->end; s++)
        total += exp(score(a, s) - highest);
    double lse = highest + log(total);
    for (size_t d = 0; d < a->D; d++)
        sum[d] = 0;
    for (size_t s = a->first; s < a->end; s++) {
        double p = exp(score(a, s) - lse);
        for (size_t d = 0; d < a->D; d++)
            sum[d] += p * ref_load(a->v, a->type, a->kv_at + s * a->stride + d);
    }
    return lse;
}

enum status ref_attention_forward(struct stream *stream, const struct attention_forward_args *a) {
    (void)stream;
    size_t T = (size_t)a->T, H = (size_t)a->H, D = (size_t)a->D;
    double *sum = malloc(D * sizeof *sum);
    if (!sum)
        return FAIL(STATUS_FAILED, "out of memory for a row of attention");
    for (size_t b = 0; b < (size_t)a->B; b++)
        for (size_t h = 0; h < H; h++)
            for (size_t t = 0; t < T; t++) {
                const struct query query = {.q = a->q,
                                            .k = a->k,
                                            .v = a->v,
                                            .q_at = b * a->q_batch_stride + t * a->q_stride + h * D,
                                            .kv_at = b * a->kv_batch_stride + h * D,
                                            .stride = a->kv_stride,
                                            .first = first_seen(a->first, T, b, t),
                                            .end = (size_t)a->S - T + t + 1,
                                            .D = D,
                                            .type = a->type};
                double lse = query_forward(&query, sum);
                for (size_t d = 0; d < D; d++)
                    ref_store(a->out, a->type, (b * T + t) * H * D + h * D + d, sum[d]);
                if (a->lse)
                    ref_store(a->lse, ref_wide(a->type), (b * H + h) * T + t, lse);
            }
    free(sum);
    return STATUS_OK;
}

enum status ref_attention_decode(struct stream *stream, const struct attention_decode_args *a) {
    (void)stream;
    size_t H = (size_t)a->H, D = (size_t)a->D;
    double *sum = malloc(D * sizeof *sum);
    if (!sum)
        return FAIL(STATUS_FAILED, "out of memory for a row of attention");
    for (size_t b = 0; b < (size_t)a->B; b++) {
        size_t cache = (size_t)a->sequences[b] * a->cache_batch_stride, n = (size_t)a->lengths[b];
        for (size_t i = 0; i < H * D; i++) {
            size_t to = cache + n * a->cache_stride + i;
            ref_store(a->keys, a->type, to, ref_load(a->k, a->type, b * a->stride + i));
            ref_store(a->values, a->type, to, ref_load(a->v, a->type, b * a->stride + i));
        }
        for (size_t h = 0; h < H; h++) {
            const struct query query = {.q = a->q,
                                        .k = a->keys,
                                        .v = a->values,
                                        .q_at = b * a->stride + h * D,
                                        .kv_at = cache + h * D,
                                        .stride = a->cache_stride,
                                        .end = n + 1,
                                        .D = D,
                                        .type = a->type};
            query_forward(&query, sum);
            for (size_t d = 0; d < D; d++)
                ref_store(a->out, a->type, (b * H + h) * D + d, sum[d]);
        }
    }
    free(sum);
    return STATUS_OK;
}

// Sums of one head in double, (T, D) each.
struct head_gradients {
    double *dq, *dk, *dv;
};

static void head_backward(const struct attention_backward_args *a, size_t b, size_t h,
                          struct head_gradients *sums) {
    size_t T = (size_t)a->T, H = (size_t)a->H, D = (size_t)a->D;
    size_t first = b * a->batch_stride + h * D;
    double scale = 1 / sqrt((double)D);
    for (size_t t = 0; t < T; t++) {
        size_t q = first + t * a->stride, o = (b * T + t) * H * D + h * D;
        double lse = ref_load(a->lse, ref_wide(a->type), (b * H + h) * T + t);
        double delta = dot(a->dout, o, a->out, o, D, a->type);
        for (size_t s = first_seen(a->first, T, b, t); s <= t; s++) {
            size_t k = first + s * a->stride;
            double p = exp(scale * dot(a->q, q, a->k, k, D, a->type) - lse);
            double ds = p * (dot(a->dout, o, a->v, k, D, a->type) - delta) * scale;
            for (size_t d = 0; d < D; d++) {
                sums->dq[t * D + d] += ds * ref_load(a->k, a->type, k + d);
                sums->dk[s * D + d] += ds * ref_load(a->q, a->type, q + d);
                sums->dv[s * D + d] += p * ref_load(a->dout, a->type, o + d);
            }
        }
    }
}

enum status ref_attention_backward(struct stream *stream, const struct attention_backward_args *a) {
    (void)stream;
    size_t T = (size_t)a->T, H = (size_t)a->H, D = (size_t)a->D;
    for (size_t b = 0; b < (size_t)a->B; b++)
        for (size_t h = 0; h < H; h++) {
            double *memory = calloc(3 * T * D, sizeof *memory);
            if (!memory)
                return FAIL(STATUS_FAILED, "out of memory for the gradients of an attention head");
            struct head_gradients sums = {memory, memory + T * D, memory + 2 * T * D};
            head_backward(a, b, h, &sums);
            for (size_t t = 0; t < T; t++)
                for (size_t d = 0; d < D; d++) {
                    size_t at = b * a->batch_stride + t * a->stride + h * D + d;
                    ref_store(a->dq, a->type, at, sums.dq[t * D + d]);
                    ref_store(a->dk, a->type, at, sums.dk[t * D + d]);
                    ref_store(a->dv, a->type, at, sums.dv[t * D + d]);
                }
            free(memory);
        }
    return STATUS_OK;
}
