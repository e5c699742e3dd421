// Sums, sums of squares, fill, cast, lerp, add and sums along a tree.
#include "tests/ref/ref.h"

enum status ref_sum(struct stream *stream, const struct sum_args *a) {
    double sum = a->accumulate ? *a->out : 0;
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        sum += ref_load(a->x, a->type, i);
    *a->out = sum;
    return STATUS_OK;
}

enum status ref_sum_squares(struct stream *stream, const struct sum_squares_args *a) {
    (void)stream;
    for (size_t begin = 0; begin < a->n; begin += SUM_SQUARES_BLOCK) {
        double sum = 0;
        for (size_t i = begin; i < a->n && i < begin + SUM_SQUARES_BLOCK; i++)
            sum += ref_load(a->x, a->type, i) * ref_load(a->x, a->type, i);
        a->partial[begin / SUM_SQUARES_BLOCK] = sum;
    }
    return STATUS_OK;
}

enum status ref_add_squares(struct stream *stream, const struct add_squares_args *a) {
    (void)stream;
    for (size_t begin = 0; begin < a->n; begin += SQUARES_LEAF) {
        double lanes[SQUARES_LANES] = {0};
        for (size_t i = begin; i < a->n && i < begin + SQUARES_LEAF; i++)
            lanes[(i - begin) % SQUARES_LANES] += (double)a->x[i] * (double)a->x[i];
        for (int half = SQUARES_LANES / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; lane++)
                lanes[lane] += lanes[lane + half];
        const struct exact_parts parts = exact_parts_of(lanes[0]);
        for (int i = 0; i < parts.n; i++)
            a->sum[parts.first + i] += (int64_t)parts.part[i];
    }
    return STATUS_OK;
}

enum status ref_fill(struct stream *stream, const struct fill_args *a) {
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->out, a->type, i, (double)a->value);
    return STATUS_OK;
}

enum status ref_cast(struct stream *stream, const struct cast_args *a) {
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        if (a->through != DTYPE_F32) {
            double rounded; // memory for an element of any type
            ref_store(&rounded, a->through, 0, ref_load(a->x, a->type, i));
            ref_store(a->out, a->out_type, i, ref_load(&rounded, a->through, 0));
        } else
            ref_store(a->out, a->out_type, i, ref_load(a->x, a->type, i));
    return STATUS_OK;
}

enum status ref_lerp(struct stream *stream, const struct lerp_args *a) {
    const double weight = (double)(a->plan ? a->plan->average_weight : a->weight);
    (void)stream;
    if (a->plan && (a->result->skipped || weight == 0))
        return STATUS_OK;
    for (size_t i = 0; i < a->n; i++) {
        const double x = ref_load(a->x, a->type, i), y = ref_load(a->y, a->type, i);
        ref_store(a->out, a->out_type, i, weight == 1 ? y : x + weight * (y - x));
    }
    return STATUS_OK;
}

enum status ref_add(struct stream *stream, const struct add_args *a) {
    (void)stream;
    enum dtype sums = a->type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->out, sums, i, ref_load(a->x, sums, i) + ref_load(a->y, a->type, i));
    return STATUS_OK;
}

enum status ref_add_spans(struct stream *stream, const struct add_spans_args *a) {
    (void)stream;
    size_t from = 0;
    for (int s = 0; s < a->n_spans; s++)
        for (size_t i = 0; i < a->spans[s].n; i++)
            ref_accumulate(a->spans[s].out, a->type, i, ref_load(a->x, a->type, from++));
    return STATUS_OK;
}

// The sum of n ranks from `first` on. The left half has the largest power of two below n.
static double tree(const struct sum_tree_args *a, size_t i, int first, int n, enum dtype sums) {
    int left = 1;
    if (n == 1)
        return ref_load(a->x[first], a->type, i);
    while (2 * left < n)
        left *= 2;
    double sum = tree(a, i, first, left, sums) + tree(a, i, first + left, n - left, sums);
    // Rounding the sum of two floats first to double does not change the result.
    return sums == DTYPE_F64 ? sum : (double)(float)sum;
}

enum status ref_sum_tree(struct stream *stream, const struct sum_tree_args *a) {
    (void)stream;
    enum dtype sums = a->type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    for (size_t i = 0; i < a->n; i++) {
        double sum = tree(a, i, 0, a->count, sums);
        ref_store(a->out, sums, i, a->accumulate ? ref_load(a->out, sums, i) + sum : sum);
    }
    return STATUS_OK;
}
