// See single_query.h. Keys are visited in blocks, with an online softmax over the blocks. Scores are computed
// for VF_WIDTH keys at once, so that their horizontal sums form one vector.
#include "kernels/cpu/isa/single_query.h"

#include <math.h>

#include "kernels/cpu/isa/attention.h"

#define KEY_BLOCK 64

// Sums over a block's values are kept in registers, for up to HEAD_CHUNK heads, or VALUE_VECTORS vectors of
// one head, at a time.
#define HEAD_CHUNK    4
#define VALUE_VECTORS 4

// Scratch of one call.
struct scratch {
    float *queries; // (n_heads, padded D), scaled by 1 / sqrt(D)
    float *out;     // (n_heads, padded D): the sum of exp(score - maximum) * value
    float *scores;  // (n_heads, KEY_BLOCK)
    float *totals;  // (n_heads, VF_WIDTH): the sum of exp(score - maximum), by lane
    float *wide;    // (VF_WIDTH, padded D): keys upcast to fp32, if several heads read them
    float *maxima;  // (n_heads): the maximum score so far
};

static struct scratch scratch_at(float *memory, size_t n_heads, size_t padded_D) {
    struct scratch s = {.queries = memory};
    s.out = s.queries + n_heads * padded_D;
    s.scores = s.out + n_heads * padded_D;
    s.totals = s.scores + n_heads * KEY_BLOCK;
    s.wide = s.totals + n_heads * VF_WIDTH;
    s.maxima = s.wide + VF_WIDTH * padded_D;
    return s;
}

size_t CPU_OP(single_query_floats)(int n_heads, int D) {
    const size_t padded_D = round_up_to((size_t)D, VF_WIDTH);
    const struct scratch s = scratch_at(NULL, (size_t)n_heads, padded_D);
    return round_up_to((size_t)(s.maxima - s.queries) + (size_t)n_heads, 16);
}

// Adds the upper half of a to its lower half, and likewise for b. Interleaves the results: lane 2 i is from
// a, lane 2 i + 1 from b.
VF_INLINE vf add_halves(vf a, vf b) {
    return INTERLEAVE(a, b, 0) + INTERLEAVE(a, b, VF_WIDTH / 2);
}

// Returns the vector whose lane i is the sum over the lanes of rows[i], added in the order of vf_reduce_add.
VF_INLINE vf add_rows(vf rows[VF_WIDTH]) {
#if VF_WIDTH == 16
    FLAT_LOOP(i, 8) {
        rows[i] = add_halves(rows[i], rows[i + 8]);
    }
#endif
#if VF_WIDTH >= 8
    FLAT_LOOP(i, 4) {
        rows[i] = add_halves(rows[i], rows[i + 4]);
    }
#endif
    FLAT_LOOP(i, 2) {
        rows[i] = add_halves(rows[i], rows[i + 2]);
    }
    return add_halves(rows[0], rows[1]);
}

// Returns the dot products of a query with VF_WIDTH keys.
VF_INLINE vf score_keys(const enum dtype type, const float *query, const void *keys, size_t index,
                        size_t stride, int D) {
    vf sums[VF_WIDTH];
    FLAT_LOOP(i, VF_WIDTH) {
        sums[i] = vf_zero();
    }
    int d = 0;
    for (; d + VF_WIDTH <= D; d += VF_WIDTH) {
        const vf q = vf_load(query + d);
        FLAT_LOOP(i, VF_WIDTH) {
            sums[i] = vf_fma(q, vf_get(type, keys, index + (size_t)i * stride + (size_t)d), sums[i]);
        }
    }
    if (d < D) {
        const vf q = vf_load(query + d);
        FLAT_LOOP(i, VF_WIDTH) {
            const size_t at = index + (size_t)i * stride + (size_t)d;
            sums[i] = vf_fma(q, vf_get_part(type, keys, at, D - d), sums[i]);
        }
    }
    return add_rows(sums);
}

VF_INLINE float score_key(const enum dtype type, const float *query, const void *keys, size_t index, int D) {
    vf sum = vf_zero();
    for (VF_LOOP(d, lanes, (size_t)D))
        sum = vf_fma(vf_load(query + d), vf_get_part(type, keys, index + d, (int)lanes), sum);
    return vf_reduce_add(sum);
}

// Stores the scores of n <= VF_WIDTH keys from `index` on, for all heads, from `column` of their block of
// scores on. Lanes beyond n get minus infinity.
VF_INLINE void score_heads(const enum dtype type, const struct single_query *a, struct scratch s, int column,
                           const void *keys, size_t index, size_t stride, int n, int D) {
    const size_t padded_D = round_up_to((size_t)a->D, VF_WIDTH);
    for (int h = 0; h < a->n_heads; h++) {
        const float *query = s.queries + (size_t)h * padded_D;
        float *scores = s.scores + h * KEY_BLOCK + column;
        if (n == VF_WIDTH) {
            vf_store(scores, score_keys(type, query, keys, index, stride, D));
            continue;
        }
        for (int i = 0; i < VF_WIDTH; i++)
            scores[i] = i < n ? score_key(type, query, keys, index + (size_t)i * stride, D) : -INFINITY;
    }
}

// Stores the scores of a block of n keys from `index` on, for all heads.
VF_INLINE void score_block(const enum dtype type, const struct single_query *a, struct scratch s,
                           size_t index, int n) {
    const size_t padded_D = round_up_to((size_t)a->D, VF_WIDTH);
    for (int j = 0; j < n; j += VF_WIDTH) {
        const int m = n - j < VF_WIDTH ? n - j : VF_WIDTH;
        const size_t at = index + (size_t)j * a->k_stride;
        if (type == DTYPE_F32 || a->n_heads == 1) {
            score_heads(type, a, s, j, a->k, at, a->k_stride, m, a->D);
            continue;
        }
        for (int i = 0; i < m; i++)
            for (VF_LOOP(d, lanes, (size_t)a->D))
                vf_store(s.wide + (size_t)i * padded_D + d,
                         vf_get_part(type, a->k, at + (size_t)i * a->k_stride + d, (int)lanes));
        score_heads(DTYPE_F32, a, s, j, s.wide, 0, padded_D, m, (int)padded_D);
    }
}

// Turns n scores of a head into exp(score - maximum). Returns the factor by which the caller must multiply
// `out`, whose sums refer to the previous maximum.
VF_INLINE vf softmax_head(struct scratch s, int h, int n) {
    float *scores = s.scores + h * KEY_BLOCK;
    const float maximum = s.maxima[h];
    vf top = vf_set1(maximum);
    for (int j = 0; j < n; j += VF_WIDTH)
        top = vf_max(top, vf_load(scores + j));
    const float new_maximum = vf_reduce_max(top);
    const vf shrink = vf_exp(vf_set1(maximum - new_maximum));
    vf total = vf_load(s.totals + h * VF_WIDTH) * shrink;
    for (int j = 0; j < n; j += VF_WIDTH) {
        const vf p = vf_exp(vf_load(scores + j) - new_maximum);
        vf_store(scores + j, p);
        total += p;
    }
    vf_store(s.totals + h * VF_WIDTH, total);
    s.maxima[h] = new_maximum;
    return shrink;
}

// out += the sum over n positions j of weights[j] * value j, for n_heads heads and for n_vectors vectors, the
// first of which begins at `index`. Each vector has `lanes` lanes; fewer than VF_WIDTH only if it is the only
// one. Even and odd positions are summed separately.
VF_INLINE void add_values(const enum dtype type, const int n_heads, const int n_vectors, float *out,
                          size_t padded_D, const float *weights, const void *values, size_t index,
                          size_t stride, int n, int lanes) {
    vf even[HEAD_CHUNK][VALUE_VECTORS], odd[HEAD_CHUNK][VALUE_VECTORS];
    FLAT_LOOP(h, n_heads) {
        FLAT_LOOP(i, n_vectors) {
            even[h][i] = vf_load(out + (size_t)h * padded_D + i * VF_WIDTH);
            odd[h][i] = vf_zero();
        }
    }
    int j = 0;
    for (; j + 1 < n; j += 2, index += 2 * stride) {
        FLAT_LOOP(i, n_vectors) {
            const size_t at = index + (size_t)i * VF_WIDTH;
            const vf first = vf_get_part(type, values, at, lanes);
            const vf second = vf_get_part(type, values, at + stride, lanes);
            FLAT_LOOP(h, n_heads) {
                even[h][i] = vf_fma(vf_set1(weights[h * KEY_BLOCK + j]), first, even[h][i]);
                odd[h][i] = vf_fma(vf_set1(weights[h * KEY_BLOCK + j + 1]), second, odd[h][i]);
            }
        }
    }
    FLAT_LOOP(i, n_vectors) {
        vf last = vf_zero();
        if (j < n)
            last = vf_get_part(type, values, index + (size_t)i * VF_WIDTH, lanes);
        FLAT_LOOP(h, n_heads) {
            if (j < n)
                even[h][i] = vf_fma(vf_set1(weights[h * KEY_BLOCK + j]), last, even[h][i]);
            vf_store(out + (size_t)h * padded_D + i * VF_WIDTH, even[h][i] + odd[h][i]);
        }
    }
}

// Calls add_values for all D elements, with as many vectors at a time as keep the sums in registers.
VF_INLINE void add_rows_of_values(const enum dtype type, const int n_heads, const struct single_query *a,
                                  float *out, const float *weights, size_t index, int n) {
    const size_t padded_D = round_up_to((size_t)a->D, VF_WIDTH), D = (size_t)a->D;
    const int n_vectors = n_heads > 2   ? (VF_WIDTH == 16 ? 2 : 1)
                          : n_heads > 1 ? VALUE_VECTORS / 2
                                        : VALUE_VECTORS;
    size_t d = 0;
    for (; d + (size_t)n_vectors * VF_WIDTH <= D; d += (size_t)n_vectors * VF_WIDTH)
        add_values(type, n_heads, n_vectors, out + d, padded_D, weights, a->v, index + d, a->v_stride, n,
                   VF_WIDTH);
    for (; d + VF_WIDTH <= D; d += VF_WIDTH)
        add_values(type, n_heads, 1, out + d, padded_D, weights, a->v, index + d, a->v_stride, n, VF_WIDTH);
    if (d < D)
        add_values(type, n_heads, 1, out + d, padded_D, weights, a->v, index + d, a->v_stride, n,
                   (int)(D - d));
}

VF_INLINE void add_block(const enum dtype type, const struct single_query *a, struct scratch s, size_t index,
                         int n) {
    const size_t padded_D = round_up_to((size_t)a->D, VF_WIDTH);
    for (int h = 0; h < a->n_heads; h += HEAD_CHUNK) {
        float *out = s.out + (size_t)h * padded_D;
        const float *weights = s.scores + h * KEY_BLOCK;
        switch (a->n_heads - h) {
        case 1:
            add_rows_of_values(type, 1, a, out, weights, index, n);
            break;
        case 2:
            add_rows_of_values(type, 2, a, out, weights, index, n);
            break;
        case 3:
            add_rows_of_values(type, 3, a, out, weights, index, n);
            break;
        default:
            add_rows_of_values(type, HEAD_CHUNK, a, out, weights, index, n);
        }
    }
}

VF_INLINE void attend(const enum dtype type, const struct single_query *a, float *memory) {
    const size_t padded_D = round_up_to((size_t)a->D, VF_WIDTH), D = (size_t)a->D;
    const struct scratch s = scratch_at(memory, (size_t)a->n_heads, padded_D);
    for (int h = 0; h < a->n_heads; h++) {
        for (VF_LOOP(d, lanes, D))
            vf_store(s.queries + (size_t)h * padded_D + d,
                     vf_get_part(type, a->q, a->q_at + (size_t)h * D + d, (int)lanes) *
                         (float)(1.0 / sqrt(a->D)));
        vf_store(s.totals + h * VF_WIDTH, vf_zero());
        s.maxima[h] = -INFINITY;
    }
    memset(s.out, 0, (size_t)a->n_heads * padded_D * sizeof *s.out);
    for (int key = a->first; key < a->end; key += KEY_BLOCK) {
        const int n = a->end - key < KEY_BLOCK ? a->end - key : KEY_BLOCK;
        score_block(type, a, s, a->k_at + (size_t)key * a->k_stride, n);
        for (int h = 0; h < a->n_heads; h++) {
            const vf shrink = softmax_head(s, h, n);
            float *out = s.out + (size_t)h * padded_D;
            for (size_t d = 0; d < padded_D; d += VF_WIDTH)
                vf_store(out + d, vf_load(out + d) * shrink);
        }
        add_block(type, a, s, a->v_at + (size_t)key * a->v_stride, n);
    }
    for (int h = 0; h < a->n_heads; h++) {
        const float sum = vf_reduce_add(vf_load(s.totals + h * VF_WIDTH));
        unpack_rows(type, a->out, a->out_at + (size_t)h * D, 0, s.out + (size_t)h * padded_D, (int)padded_D,
                    1, a->D, 1.0f / sum);
        if (a->lse)
            a->lse[(size_t)h * a->lse_stride] = (float)(s.maxima[h] + log(sum));
    }
}

void CPU_OP(attend_single_query)(const struct single_query *args, enum dtype type, float *memory) {
    VF_DISPATCH(type, attend, args, memory);
}
