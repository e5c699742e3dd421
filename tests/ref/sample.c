// Sampling tokens from logits: the definition in kernels/ops.h step by step, without sorting a row.
#include <math.h>

#include "tests/ref/ref.h"

struct row {
    const struct sample_args *args;
    size_t begin; // index of the row's first logit
    double largest;
    bool by_likelihood; // the cumulative sum runs in order of likelihood
    int kept;           // tokens that remain after top_k and top_p
    uint64_t least;     // smaller weights count as 0 (min_p)
};

static double logit(const struct row *row, int token) {
    return ref_load(row->args->logits, row->args->type, row->begin + (size_t)token);
}

static uint64_t weight(const struct row *row, int token) {
    double e = exp((logit(row, token) - row->largest) / row->args->temperature);
    uint64_t units = e > 0 ? (uint64_t)(e / SAMPLE_WEIGHT_UNIT) : 0;
    return units < row->least ? 0 : units;
}

static bool likelier(const struct row *row, int a, int b) {
    return logit(row, a) > logit(row, b) || (logit(row, a) == logit(row, b) && a < b);
}

// The token after `last` in the row's order. Pass -1 to start; returns -1 at the end.
static int next(const struct row *row, int last) {
    int best = -1;
    if (!row->by_likelihood)
        return last + 1;
    for (int token = 0; token < row->args->V; token++)
        if ((last < 0 || likelier(row, last, token)) && (best < 0 || likelier(row, token, best)))
            best = token;
    return best;
}

// Adds the weights of the kept tokens until the sum exceeds the threshold. Returns the token at which it
// does, and that token's index in *place.
static int walk_row(const struct row *row, uint64_t threshold, int *place, uint64_t *sum) {
    int token = next(row, -1);
    *sum = 0;
    for (*place = 0; *place < row->kept && token >= 0; ++*place) {
        *sum += weight(row, token);
        if (*sum > threshold)
            return token;
        token = next(row, token);
    }
    return 0; // only with NaN logits
}

static int draw(struct row *row, double uniform) {
    uint64_t total, sum;
    int place;
    walk_row(row, UINT64_MAX, &place, &total);
    if (row->args->top_p < 1) {
        uint64_t wanted = (uint64_t)ceil(row->args->top_p * (double)total);
        walk_row(row, wanted > 0 ? wanted - 1 : 0, &place, &total);
        row->kept = place + 1;
    }
    row->least = (uint64_t)ceil(row->args->min_p / SAMPLE_WEIGHT_UNIT);
    walk_row(row, UINT64_MAX, &place, &total);
    uint64_t threshold = (uint64_t)(uniform * (double)total);
    return walk_row(row, threshold < total ? threshold : total - 1, &place, &sum);
}

enum status ref_sample(struct stream *stream, const struct sample_args *a) {
    (void)stream;
    for (int n = 0; n < a->N; n++) {
        bool cut_to_k = a->top_k > 0 && a->top_k < a->V;
        struct row row = {.args = a,
                          .begin = (size_t)n * (size_t)a->logits_stride,
                          .by_likelihood = true,
                          .kept = cut_to_k ? a->top_k : a->V};
        int first = next(&row, -1);
        row.largest = logit(&row, first);
        row.by_likelihood = cut_to_k || a->top_p < 1;
        a->tokens[n] = a->temperature > 0 ? draw(&row, a->uniforms[n]) : first;
    }
    return STATUS_OK;
}
