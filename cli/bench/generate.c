// The weights are random, and the same in blocks of the same layout. A step must read all of them except the
// position embeddings.
#include "cli/bench/generate.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/parallel.h"
#include "cli/bench/median.h"
#include "configs/config.h"
#include "kernels/ops.h"
#include "kernels/region_memory.h"
#include "model/generate.h"
#include "model/unsharded.h"
#include "trainer/plan/model_sizes.h"

enum { SEQUENCES = 32, CONTEXT = 64, POSITIONS = 256, MOST_ROUNDS = 15 };
static const int batches[] = {1, 2, 4, 8, 16, 32};
enum { N_BATCHES = sizeof batches / sizeof *batches };

struct generate_bench {
    struct device *device;
    struct stream stream;
    struct region_memory memory;
    struct params params;
    enum dtype type;
    int positions;
    char *span; // all units, in `type`
    struct unsharded unsharded;
    struct unit_hooks hooks; // of `unsharded`
    struct generator *generator;
};

// ---- measurements

// Bytes of weights that a step reads.
static size_t step_bytes(const struct generate_bench *bench) {
    const struct params *params = &bench->params;
    const struct param *positions = params_tensor(params, 0, PARAM_WPE),
                       *tokens = params_tensor(params, 0, PARAM_WTE);
    size_t elements = params->n_weights - (positions ? positions->elements : 0);
    if (params->config.untied)
        elements -= tokens->elements;
    for (int i = 0; i < params->config.n_value_embeddings; i++)
        elements -=
            params_tensor(params, 1 + params->config.value_embeddings[i], PARAM_VALUE_EMBEDDING)->elements;
    return elements * dtype_size(bench->type);
}

struct weight_read {
    const struct generate_bench *bench;
    atomic_uint_least64_t *sink; // so that the compiler keeps the reads
};

static void read_part(const void *context, int part, int n_parts) {
    enum { LINE = 64 / sizeof(uint64_t), AHEAD = 8192 / sizeof(uint64_t) };
    const struct weight_read *read = context;
    const uint64_t *words = (const uint64_t *)read->bench->span;
    uint64_t sums[LINE] = {0}, sum = 0;
    struct parallel_span lines =
        parallel_span_of(step_bytes(read->bench) / sizeof *words / LINE, 1, part, n_parts);
    for (size_t line = lines.begin; line < lines.end; line++) {
        __builtin_prefetch(words + line * LINE + AHEAD, 0, 2);
        for (size_t i = 0; i < LINE; i++)
            sums[i] += words[line * LINE + i];
    }
    for (size_t i = 0; i < LINE; i++)
        sum += sums[i];
    atomic_fetch_add(read->sink, sum);
}

// Seconds of a plain read of all the weights, by cache lines, with prefetches.
static double read_weights(const struct generate_bench *bench) {
    atomic_uint_least64_t sink = 0;
    double began = clock_monotonic_s();
    parallel_run(bench->device->n_threads, read_part, &(struct weight_read){bench, &sink});
    return clock_monotonic_s() - began;
}

static enum status step(struct generate_bench *bench, int n, double *seconds) {
    struct sampling sampling[SEQUENCES];
    int sequences[SEQUENCES];
    int32_t tokens[SEQUENCES];
    uint64_t counters[SEQUENCES];
    for (int i = 0; i < n; i++) {
        sequences[i] = i;
        tokens[i] = i;
        counters[i] = (uint64_t)i;
        sampling[i] = (struct sampling){.temperature = 1, .top_p = 1, .seed = 1};
    }
    double began = clock_monotonic_s();
    TRY(generator_step(bench->generator, &bench->stream, &bench->hooks, sequences, tokens, n, NULL));
    TRY(generator_draw(bench->generator, &bench->stream, sampling, bench->params.config.vocab_size, counters,
                       n, tokens));
    *seconds = clock_monotonic_s() - began;
    return STATUS_OK;
}

// The tokens that each context begins with. A round, which adds one token per batch size to the first, fits.
static int context_tokens(const struct generate_bench *bench) {
    int n = (bench->positions - N_BATCHES) / 2;
    return n < CONTEXT ? n : CONTEXT;
}

static enum status begin_contexts(struct generate_bench *bench) {
    int32_t tokens[CONTEXT];
    int n = context_tokens(bench);
    for (int i = 0; i < n; i++)
        tokens[i] = (int32_t)((unsigned)i * 997u % (unsigned)bench->params.config.vocab_size);
    for (int sequence = 0; sequence < SEQUENCES; sequence++) {
        generator_reset(bench->generator, sequence);
        if (n > 0)
            TRY(generator_append(bench->generator, &bench->stream, &bench->hooks, sequence, tokens, n));
    }
    return STATUS_OK;
}

// ---- the model

static bool same_layout(const struct params *params, int a, int b) {
    const struct param_unit *x = &params->units[a], *y = &params->units[b];
    if (x->n_params != y->n_params || x->elements != y->elements ||
        memcmp(x->index, y->index, sizeof x->index) != 0)
        return false;
    for (int i = 0; i < x->n_params; i++)
        if (params->params[x->first_param + i].offset != params->params[y->first_param + i].offset)
            return false;
    return true;
}

static enum status initialize_unit(struct generate_bench *bench, int unit, char *to) {
    size_t n = bench->params.units[unit].elements;
    float *values = malloc(n * sizeof *values);
    if (!values)
        return FAIL(STATUS_FAILED, "out of memory for %zu weights", n);
    params_init_span(&bench->params, 1, unit, 0, n, values);
    const struct cast_args cast = {to, values, n, DTYPE_F32, bench->type};
    enum status status = bench->device->ops->cast(&bench->stream, &cast);
    free(values);
    return status;
}

// A block is a copy of the first one with its layout: drawing random values takes far longer than copying.
static enum status make_weights(struct generate_bench *bench) {
    const struct params *params = &bench->params;
    size_t size = dtype_size(bench->type);
    for (int unit = 0; unit < params->n_units; unit++) {
        char *to = bench->span + params->units[unit].offset * size;
        int like = unit == params->n_units - 1 ? unit : 1;
        while (like < unit && !same_layout(params, like, unit))
            like++;
        if (like < unit)
            memcpy(to, bench->span + params->units[like].offset * size, params->units[unit].elements * size);
        else
            TRY(initialize_unit(bench, unit, to));
    }
    return STATUS_OK;
}

static enum status make_model(struct generate_bench *bench) {
    struct region_table *table = &bench->memory.table;
    const struct generator_options options = {
        .type = bench->type, .positions = bench->positions, .sequences = SEQUENCES};
    int span;
    TRY(region_add(table, REGION_PARAMS, bench->device->place, bench->type,
                   params_memory(&bench->params, bench->device->place), &span, "params"));
    TRY(generator_new(&bench->params, &options, bench->device, table, &bench->generator));
    TRY(region_memory_allocate(&bench->memory));
    bench->span = region_data(table, span);
    TRY(unsharded_init(&bench->unsharded, &bench->params, bench->type, bench->span, DTYPE_F32, NULL));
    bench->hooks = unsharded_hooks(&bench->unsharded);
    TRY(generator_bind(bench->generator, table, &bench->stream));
    return make_weights(bench);
}

// ---- the report

static enum status measure(struct generate_bench *bench, bool quick, bool as_json) {
    static double seconds[N_BATCHES][MOST_ROUNDS], ratios[N_BATCHES][MOST_ROUNDS], loops[MOST_ROUNDS];
    int n_rounds = quick ? 3 : MOST_ROUNDS;
    double bytes = (double)step_bytes(bench);
    int length = bench->positions;                    // of the longest context
    for (int round = -1; round < n_rounds; round++) { // the first warms up
        int at = round < 0 ? 0 : round;
        if (length + N_BATCHES > bench->positions) {
            TRY(begin_contexts(bench));
            length = context_tokens(bench);
        }
        length += N_BATCHES;
        for (int i = 0; i < N_BATCHES; i++) {
            double before = read_weights(bench), took;
            TRY(step(bench, batches[i], &took));
            loops[at] = (before + read_weights(bench)) / 2;
            seconds[i][at] = took;
            ratios[i][at] = loops[at] / took;
        }
    }
    double rate = bytes / bench_median(loops, n_rounds);
    for (int i = 0; i < N_BATCHES; i++) {
        double took = bench_median(seconds[i], n_rounds), ratio = bench_median(ratios[i], n_rounds);
        if (as_json)
            printf("{\"type\": \"%s\", \"batch\": %d, \"step_s\": %.6g, \"tokens_per_s\": %.6g, "
                   "\"read_bytes_per_s\": %.6g, \"of_bandwidth\": %.4g}\n",
                   dtype_name(bench->type), batches[i], took, batches[i] / took, rate, ratio);
        else
            printf(
                "%-5s %5d %9.2f ms %9.1f tokens/s %7.1f GB/s %6.2f of the rate of a read loop (%.1f GB/s)\n",
                dtype_name(bench->type), batches[i], took * 1e3, batches[i] / took, bytes / took / 1e9, ratio,
                rate / 1e9);
    }
    fflush(stdout);
    return STATUS_OK;
}

static enum status bench_type(struct generate_bench *bench, bool quick, bool as_json) {
    region_memory_init(&bench->memory, bench->device);
    enum status status = stream_init(&bench->stream, bench->device);
    if (status == STATUS_OK)
        status = make_model(bench);
    if (status == STATUS_OK)
        status = measure(bench, quick, as_json);
    generator_delete(bench->generator);
    bench->generator = NULL;
    unsharded_free(&bench->unsharded);
    region_memory_free(&bench->memory);
    stream_free(&bench->stream);
    return status;
}

static enum status bench_types(struct generate_bench *bench, bool quick, bool as_json) {
    int n_positions = bench->params.config.n_positions;
    bench->positions = n_positions < POSITIONS ? n_positions : POSITIONS;
    if (n_positions < N_BATCHES)
        return FAIL(STATUS_INVALID, "model.n_positions is %d, at least %d are needed to measure generation",
                    n_positions, N_BATCHES);
    if (!as_json)
        printf("%s\n%lld weights; medians of a step with sampling, from contexts of %d tokens:\n",
               bench->device->description, (long long)bench->params.n_weights, context_tokens(bench));
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        bench->type = (enum dtype)type;
        TRY(bench_type(bench, quick, as_json));
    }
    return STATUS_OK;
}

enum status bench_generate(const char *config_path, int n_threads, bool quick, bool as_json) {
    struct config config;
    struct generate_bench bench = {0};
    enum status status = config_read(&config, config_path, 0, NULL);
    const struct gpt_config sizes = status == STATUS_OK ? model_sizes(&config) : (struct gpt_config){0};
    config_free(&config);
    TRY(status);
    TRY(params_init(&bench.params, &sizes));
    status = device_open("cpu", n_threads, 0, &bench.device);
    if (status == STATUS_OK) {
        status = bench_types(&bench, quick, as_json);
        device_close(bench.device);
    }
    params_free(&bench.params);
    return status;
}
