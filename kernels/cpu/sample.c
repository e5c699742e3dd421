// Drawing tokens from logits (kernels/ops.h: sample), a row at a time. Where top_k or top_p cuts, the tokens
// are first brought into order of likelihood by a radix sort: three stable passes over pairs of the logit's
// bits and the token, so that equals stay in order of the tokens.
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

#define DIGIT_BITS 11
#define N_DIGITS   (1 << DIGIT_BITS)
#define N_PASSES   3 // 32 bits

struct candidate {
    uint32_t key; // smaller for the likelier
    int32_t token;
};

// What the workspace holds for one row.
struct scratch {
    struct candidate *candidates, *sorted; // (V) each, used where something is cut
    uint64_t *weights;                     // (V), in order of the draw
};

static bool cuts(const struct sample_args *args) {
    return args->temperature > 0 && ((args->top_k > 0 && args->top_k < args->V) || args->top_p < 1);
}

size_t cpu_sample_workspace(const struct sample_args *args) {
    return (size_t)args->V * (sizeof(uint64_t) + 2 * sizeof(struct candidate));
}

// The float's bits, turned so that they grow as it falls; zeros of both signs are one.
static uint32_t key_of(float logit) {
    uint32_t bits;
    logit += 0.0f;
    memcpy(&bits, &logit, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

static void sort_by_likelihood(const float *logits, int V, struct scratch *scratch) {
    struct candidate *from = scratch->candidates, *to = scratch->sorted;
    for (int token = 0; token < V; token++)
        from[token] = (struct candidate){key_of(logits[token]), token};
    for (int pass = 0; pass < N_PASSES; pass++) {
        uint32_t begins[N_DIGITS + 1] = {0};
        int shift = pass * DIGIT_BITS;
        for (int i = 0; i < V; i++)
            begins[(from[i].key >> shift) % N_DIGITS + 1]++;
        for (int digit = 0; digit < N_DIGITS; digit++)
            begins[digit + 1] += begins[digit];
        for (int i = 0; i < V; i++)
            to[begins[(from[i].key >> shift) % N_DIGITS]++] = from[i];
        struct candidate *swapped = from;
        from = to, to = swapped;
    }
    scratch->sorted = from;
}

static int32_t likeliest(const float *logits, int V) {
    int32_t best = 0;
    for (int32_t token = 1; token < V; token++)
        if (logits[token] > logits[best])
            best = token;
    return best;
}

// The place, of n, at which the running sum of the weights first exceeds the threshold; *sum: up to and with
// it.
static int place_of(const uint64_t *weights, int n, uint64_t threshold, uint64_t *sum) {
    *sum = 0;
    for (int i = 0; i < n; i++) {
        *sum += weights[i];
        if (*sum > threshold)
            return i;
    }
    return 0; // of logits that are no numbers
}

static int32_t draw(const struct sample_args *args, const float *logits, double uniform,
                    struct scratch *scratch) {
    double largest = (double)logits[likeliest(logits, args->V)];
    bool ordered = cuts(args);
    int n = args->V;
    uint64_t total = 0;
    if (ordered)
        sort_by_likelihood(logits, n, scratch);
    if (args->top_k > 0 && args->top_k < n)
        n = args->top_k;
    for (int i = 0; i < n; i++) {
        int32_t token = ordered ? scratch->sorted[i].token : i;
        double e = exp(((double)logits[token] - largest) / args->temperature);
        scratch->weights[i] = e > 0 ? (uint64_t)(e / SAMPLE_WEIGHT_UNIT) : 0;
        total += scratch->weights[i];
    }
    if (args->top_p < 1) {
        uint64_t wanted = (uint64_t)ceil(args->top_p * (double)total);
        place_of(scratch->weights, n, wanted > 0 ? wanted - 1 : 0, &total);
    }
    uint64_t threshold = (uint64_t)(uniform * (double)total), sum;
    threshold = threshold < total ? threshold : total - 1; // where the total was rounded up
    int place = place_of(scratch->weights, n, threshold, &sum);
    return ordered ? scratch->sorted[place].token : place;
}

enum status cpu_sample(struct stream *stream, const struct sample_args *args) {
    size_t V = (size_t)args->V;
    for (int n = 0; n < args->N; n++) {
        const float *logits = (const float *)args->logits + (size_t)n * (size_t)args->logits_stride;
        struct scratch scratch = {.weights = stream->workspace};
        scratch.candidates = (struct candidate *)(scratch.weights + V);
        scratch.sorted = scratch.candidates + V;
        args->tokens[n] = args->temperature > 0 ? draw(args, logits, args->uniforms[n], &scratch)
                                                : likeliest(logits, args->V);
    }
    return STATUS_OK;
}
