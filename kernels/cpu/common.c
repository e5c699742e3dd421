// Code that is compiled once and shared by all instruction sets: the division of work among threads, the sum
// operation, the decision about an update, the loop over an update's spans, and sampling.
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/update.h"

struct spans {
    cpu_span_function *function;
    const void *context;
    size_t n, grain;
};

static void run_span(const void *context, int part, int n_parts) {
    const struct spans *spans = context;
    spans->function(spans->context, parallel_span_of(spans->n, spans->grain, part, n_parts));
}

void cpu_parallel(const struct device *device, size_t work_elements, size_t n, size_t grain,
                  cpu_span_function *function, const void *context) {
    int n_threads = cpu_threads(device, work_elements);
    if (n_threads == 1)
        function(context, (struct parallel_span){0, n});
    else
        parallel_run(n_threads, run_span, &(struct spans){function, context, n, grain});
}

// ---- sum, optimizer_spans and update_decide

enum status cpu_sum(struct stream *stream, const struct sum_args *args) {
    double sum = args->accumulate ? *args->out : 0;
    (void)stream;
    for (size_t i = 0; i < args->n; i++)
        sum += args->type == DTYPE_F64 ? ((const double *)args->x)[i] : (double)((const float *)args->x)[i];
    *args->out = sum;
    return STATUS_OK;
}

enum status cpu_optimizer_spans(struct stream *stream, const struct optimizer_spans_args *args) {
    const struct cpu_device *cpu = (const struct cpu_device *)stream->device;
    for (int i = 0; i < args->n_spans && !args->result->skipped; i++) {
        const struct optimizer_step_args step = optimizer_span_step(args, i);
        TRY(cpu->isa->ops.optimizer_step(stream, &step));
    }
    return STATUS_OK;
}

enum status cpu_update_decide(struct stream *stream, const struct update_decide_args *args) {
    (void)stream;
    *args->result = update_decision(args);
    return STATUS_OK;
}

// ---- sampling

// Sampling of tokens from logits (kernels/ops.h: sample). The rows of logits are divided among the threads.
// If there is only one row, all threads compute its weights. With top_k or top_p the tokens are first sorted
// by likelihood with a radix sort: three stable passes over pairs of the logit's bits and the token, so that
// ties stay in token order.

#define DIGIT_BITS 11
#define N_DIGITS   (1 << DIGIT_BITS)
#define N_PASSES   3 // enough for the 32 bits of a key

struct ranked_token {
    uint32_t key; // smaller for a larger logit
    int32_t token;
};

// The workspace of one row.
struct row_scratch {
    struct ranked_token *candidates, *sorted; // (V) each, used with top_k or top_p
    uint64_t *weights;                        // (V), in the order of the cumulative sum
};

static bool cuts(const struct sample_args *args) {
    return args->temperature > 0 && ((args->top_k > 0 && args->top_k < args->V) || args->top_p < 1);
}

static size_t scratch_bytes(const struct sample_args *args) {
    return (size_t)args->V * (sizeof(uint64_t) + 2 * sizeof(struct ranked_token));
}

static int threads_of(const struct device *device, const struct sample_args *args) {
    return cpu_threads(device, (size_t)args->N * (size_t)args->V);
}

size_t cpu_sample_workspace(const struct device *device, const struct sample_args *args) {
    return scratch_bytes(args) * (size_t)(args->N > 1 ? threads_of(device, args) : 1);
}

// Maps a float's bits to keys that ascend as logits descend; -0 and +0 get the same key.
static uint32_t key_of(float logit) {
    uint32_t bits;
    logit += 0.0f;
    memcpy(&bits, &logit, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

static void sort_by_likelihood(const float *logits, int V, struct row_scratch *scratch) {
    struct ranked_token *from = scratch->candidates, *to = scratch->sorted;
    for (int token = 0; token < V; token++)
        from[token] = (struct ranked_token){key_of(logits[token]), token};
    for (int pass = 0; pass < N_PASSES; pass++) {
        uint32_t begins[N_DIGITS + 1] = {0};
        int shift = pass * DIGIT_BITS;
        for (int i = 0; i < V; i++)
            begins[(from[i].key >> shift) % N_DIGITS + 1]++;
        for (int digit = 0; digit < N_DIGITS; digit++)
            begins[digit + 1] += begins[digit];
        for (int i = 0; i < V; i++)
            to[begins[(from[i].key >> shift) % N_DIGITS]++] = from[i];
        struct ranked_token *swapped = from;
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

// Returns the first index below n at which the cumulative weight exceeds the threshold. Sets *sum to the
// cumulative weight up to and including that index.
static int place_of(const uint64_t *weights, int n, uint64_t threshold, uint64_t *sum) {
    *sum = 0;
    for (int i = 0; i < n; i++) {
        *sum += weights[i];
        if (*sum > threshold)
            return i;
    }
    return 0; // reached only if logits are NaN
}

struct weigh_call {
    const float *logits;
    const struct ranked_token *ordered; // NULL: all tokens, in their own order
    int n;
    double largest, temperature;
    uint64_t *weights;
    atomic_uint_least64_t *total;
};

static void weigh_part(const void *context, int part, int n_parts) {
    const struct weigh_call *call = context;
    struct parallel_span range = parallel_span_of((size_t)call->n, 64, part, n_parts);
    uint64_t sum = 0;
    for (size_t i = range.begin; i < range.end; i++) {
        double logit = (double)call->logits[call->ordered ? (size_t)call->ordered[i].token : i];
        double e = exp((logit - call->largest) / call->temperature);
        call->weights[i] = e > 0 ? (uint64_t)(e / SAMPLE_WEIGHT_UNIT) : 0;
        sum += call->weights[i];
    }
    atomic_fetch_add(call->total, sum);
}

// Sets those of the first n weights to 0 that are below min_p times the largest. Returns the new sum.
static uint64_t drop_unlikely(uint64_t *weights, int n, double min_p) {
    uint64_t least = (uint64_t)ceil(min_p / SAMPLE_WEIGHT_UNIT), total = 0;
    for (int i = 0; i < n; i++) {
        weights[i] = weights[i] < least ? 0 : weights[i];
        total += weights[i];
    }
    return total;
}

// Computes the weights of the n most likely tokens, or of all tokens in their own order. Returns their sum,
// which is exact in any order.
static uint64_t weigh(const struct sample_args *args, const float *logits, int n, double largest,
                      struct row_scratch *scratch, int n_threads) {
    atomic_uint_least64_t total = 0;
    const struct ranked_token *ordered = cuts(args) ? scratch->sorted : NULL;
    parallel_run(
        n_threads, weigh_part,
        &(struct weigh_call){logits, ordered, n, largest, args->temperature, scratch->weights, &total});
    return atomic_load(&total);
}

static int32_t draw(const struct sample_args *args, const float *logits, double uniform,
                    struct row_scratch *scratch, int n_threads) {
    double largest = (double)logits[likeliest(logits, args->V)];
    bool ordered = cuts(args);
    int n = args->V;
    if (ordered)
        sort_by_likelihood(logits, n, scratch);
    if (args->top_k > 0 && args->top_k < n)
        n = args->top_k;
    uint64_t total = weigh(args, logits, n, largest, scratch, n_threads);
    if (args->top_p < 1) {
        uint64_t wanted = (uint64_t)ceil(args->top_p * (double)total);
        n = place_of(scratch->weights, n, wanted > 0 ? wanted - 1 : 0, &total) + 1;
    }
    if (args->min_p > 0)
        total = drop_unlikely(scratch->weights, n, args->min_p);
    uint64_t threshold = (uint64_t)(uniform * (double)total), sum;
    threshold = threshold < total ? threshold : total - 1; // (double)total may have been rounded up
    int place = place_of(scratch->weights, n, threshold, &sum);
    return ordered ? scratch->sorted[place].token : place;
}

static void sample_row(const struct sample_args *args, int row, void *workspace, int n_threads) {
    const float *logits = (const float *)args->logits + (size_t)row * (size_t)args->logits_stride;
    struct row_scratch scratch = {.weights = workspace};
    scratch.candidates = (struct ranked_token *)(scratch.weights + args->V);
    scratch.sorted = scratch.candidates + args->V;
    args->tokens[row] = args->temperature > 0 ? draw(args, logits, args->uniforms[row], &scratch, n_threads)
                                              : likeliest(logits, args->V);
}

struct rows_call {
    const struct sample_args *args;
    char *workspace;
};

static void rows_part(const void *context, int part, int n_parts) {
    const struct rows_call *call = context;
    struct parallel_span rows = parallel_span_of((size_t)call->args->N, 1, part, n_parts);
    for (size_t row = rows.begin; row < rows.end; row++)
        sample_row(call->args, (int)row, call->workspace + (size_t)part * scratch_bytes(call->args), 1);
}

enum status cpu_sample(struct stream *stream, const struct sample_args *args) {
    int n_threads = threads_of(stream->device, args);
    if (args->N == 1) {
        sample_row(args, 0, stream->workspace, n_threads);
        return STATUS_OK;
    }
    parallel_run(n_threads, rows_part, &(struct rows_call){args, stream->workspace});
    return STATUS_OK;
}
