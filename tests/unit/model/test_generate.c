// Generation: decoding with the key-value cache against full forward passes, for any split of the prompt,
// with and without data.mask_documents; and sampling against its definition.
#include "tests/support/small_models.h"
#include "tests/support/whole_model.h"

#include <stdio.h>

#include "base/rng.h"

#define VOCAB_SIZE  61
#define N_POSITIONS 100
#define SIZES       .n_layer = 3, .n_embd = 24, .vocab_size = VOCAB_SIZE, .n_positions = N_POSITIONS

static const struct gpt_config small_config = {SIZES, .n_head = 3};
// What generation must follow: windows, values that depend on the token, an embedding that all blocks read,
// logits with a soft-cap.
static const struct gpt_config llama_config = {SIZES, SMALL_HEADS, LLAMA_PIECES, .windows = {20, 0}};
static const struct gpt_config modern_config = {SIZES, SMALL_HEADS, MODERN_PIECES, .windows = {20, 0},
                                                .value_embeddings = {0, 2}};

// Token 0 begins a document, with mask_documents: a long one, one of a token, across chunks, at the very end.
#define END_OF_TEXT 0

static void give_documents(int32_t *tokens) {
    static const int starts[] = {17, 18, 61, 75, N_POSITIONS - 1};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        tokens[starts[i]] = END_OF_TEXT;
}

// Weights as large as a trained model's, so that positions and attention matter.
static void model_init_of(struct whole_model *model, const struct gpt_config *config, struct device *device,
                          enum dtype type, bool documents) {
    const struct gpt_options options = {.type = type, .B = 1, .T = N_POSITIONS, .mask_documents = documents};
    whole_model_init(model, config, device, &options, N_POSITIONS);
    if (documents) {
        model->document_start = END_OF_TEXT;
        generator_set_end_of_text(model->generator, END_OF_TEXT);
    }
    float *values = malloc(model->params.n_elements * sizeof *values);
    assert_non_null(values);
    for (int unit = 0; unit < model->params.n_units; unit++) {
        const struct param_unit *u = &model->params.units[unit];
        params_init_span(&model->params, 11, unit, 0, u->elements, values);
        for (int i = u->first_param; i < u->first_param + u->n_params; i++)
            for (size_t e = 0; e < model->params.params[i].elements; e++)
                values[model->params.params[i].offset + e] += (float)(0.15 * rng_normal(12, (uint32_t)i, e));
        whole_model_set_unit(model, unit, values);
    }
    free(values);
}

static void model_init(struct whole_model *model, struct device *device, enum dtype type) {
    model_init_of(model, &small_config, device, type, false);
}

// Appends n tokens: all but the last as a prompt, the last in a step, whose logits it returns.
static void append(struct whole_model *model, int sequence, const int32_t *tokens, int n, float *logits) {
    if (n > 1)
        assert_ok(generator_append(model->generator, &model->stream, &model->hooks, sequence, tokens, n - 1));
    assert_ok(generator_step(model->generator, &model->stream, &model->hooks, &sequence, tokens + n - 1, 1,
                             logits));
}

// The largest difference between two evaluations of one formula. Every stored value is rounded to the compute
// type (per block: two norms, qkv, attention, two residual sums, two of the MLP; then the embedding and the
// last norm), by half an epsilon of values about as large as the largest logit. Sums of up to 4 C fp32
// products add sqrt(4 C) half epsilons of fp32 each. Both evaluations have these errors.
static double logits_tolerance(enum dtype type, const float *logits, size_t n) {
    double largest = 0, stored = 8.0 * small_config.n_layer + 2;
    for (size_t i = 0; i < n; i++)
        largest = worse(largest, fabs((double)logits[i]));
    return largest * stored *
           (dtype_epsilon(type) + sqrt(4.0 * small_config.n_embd) * dtype_epsilon(DTYPE_F32));
}

// Appends in chunks of these lengths (the last one repeats), each with its last token in a step, and compares
// the logits after every chunk.
static double append_error(struct whole_model *model, const int32_t *tokens, const float *expected,
                           const int *chunks, int n_chunks) {
    float logits[VOCAB_SIZE];
    double error = 0;
    const int sequence = 2;
    whole_model_poison(model); // also the cache
    generator_reset(model->generator, sequence);
    assert_int_equal(generator_length(model->generator, sequence), 0);
    for (int length = 0, i = 0; length < N_POSITIONS; i++) {
        int chunk = chunks[i < n_chunks ? i : n_chunks - 1];
        if (chunk > N_POSITIONS - length)
            chunk = N_POSITIONS - length;
        append(model, sequence, tokens + length, chunk, logits);
        length += chunk;
        assert_int_equal(generator_length(model->generator, sequence), length);
        for (size_t v = 0; v < VOCAB_SIZE; v++)
            error = worse(error,
                          fabs((double)logits[v] - (double)expected[(size_t)(length - 1) * VOCAB_SIZE + v]));
    }
    return error;
}

static void cache_gives_the_logits_of_a_full_pass(const char *name, const struct gpt_config *config,
                                                  bool documents) {
    static const int ones[] = {1}, chunks[] = {3, 5, 65, 1, 2, 7}, whole[] = {N_POSITIONS},
                     prompt[] = {64, 1};
    static const struct {
        const int *chunks;
        int n;
    } cuts[] = {{ones, 1}, {chunks, 6}, {whole, 1}, {prompt, 2}};
    struct device *device = device_for_test(name);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        struct whole_model model;
        int32_t tokens[N_POSITIONS];
        size_t n_logits = (size_t)N_POSITIONS * VOCAB_SIZE;
        float *expected = malloc(n_logits * sizeof *expected);
        assert_non_null(expected);
        model_init_of(&model, config, device, (enum dtype)type, documents);
        for (int i = 0; i < N_POSITIONS; i++)
            tokens[i] = (int32_t)rng_below(5, 1, (uint64_t)i, VOCAB_SIZE);
        if (documents)
            give_documents(tokens);
        assert_ok(gpt_logits(model.gpt, &model.stream, &model.hooks, whole_model_batch(&model, tokens, NULL),
                             expected));
        double tolerance = logits_tolerance((enum dtype)type, expected, n_logits), worst = 0;
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
            worst = worse(worst, append_error(&model, tokens, expected, cuts[i].chunks, cuts[i].n));
        print_message("%s: cached logits within %.2g of a full forward pass's, %.2g allowed\n",
                      dtype_name((enum dtype)type), worst, tolerance);
        assert_true(worst <= tolerance);
        free(expected);
        whole_model_free(&model);
    }
    device_close(device);
}

static void test_cache_gives_the_logits_of_a_full_pass(void **state) {
    cache_gives_the_logits_of_a_full_pass(*state, &small_config, false);
}

static void test_cache_with_documents(void **state) {
    cache_gives_the_logits_of_a_full_pass(*state, &small_config, true);
    cache_gives_the_logits_of_a_full_pass(*state, &llama_config, true);
}

static void test_cache_of_a_llama(void **state) {
    cache_gives_the_logits_of_a_full_pass(*state, &llama_config, false);
}

static void test_cache_of_a_modern_model(void **state) {
    cache_gives_the_logits_of_a_full_pass(*state, &modern_config, false);
}

// A context must not depend on earlier contents of the cache: after a reset, the bits are the same.
static void test_reset_forgets(void **state) {
    struct device *device = device_for_test(*state);
    struct whole_model model;
    model_init(&model, device, DTYPE_F32);
    static const int32_t first[] = {1, 2, 3, 4, 5, 6, 7}, second[] = {9, 8, 7};
    float before[VOCAB_SIZE], after[VOCAB_SIZE], other[VOCAB_SIZE];
    struct generator *generator = model.generator;
    append(&model, 0, second, 3, before);
    generator_reset(generator, 0);
    append(&model, 0, first, 7, other);
    generator_reset(generator, 0);
    append(&model, 0, second, 3, after);
    assert_memory_equal(before, after, sizeof before);
    assert_memory_not_equal(before, other, sizeof before);
    whole_model_free(&model);
    device_close(device);
}

static void test_context_is_bounded(void **state) {
    struct device *device = device_for_test(*state);
    struct whole_model model;
    model_init(&model, device, DTYPE_F32);
    int32_t tokens[N_POSITIONS + 1] = {0};
    struct generator *generator = model.generator, *none;
    static const int too_many[] = {N_POSITIONS + 1, 0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(generator_append(generator, &model.stream, &model.hooks, 1, tokens, too_many[i]),
                         STATUS_INVALID);
        status_clear();
    }
    assert_int_equal(generator_length(generator, 1), 0);
    assert_ok(generator_append(generator, &model.stream, &model.hooks, 1, tokens, N_POSITIONS));
    assert_int_equal(generator_append(generator, &model.stream, &model.hooks, 1, tokens, 1), STATUS_INVALID);
    status_clear();
    static const int both[] = {0, 1}; // one has room
    assert_int_equal(generator_step(generator, &model.stream, &model.hooks, both, tokens, 2, NULL),
                     STATUS_INVALID);
    status_clear();
    assert_int_equal(generator_length(generator, 0), 0);
    static const int bad_positions[] = {0, -1, N_POSITIONS + 1, N_POSITIONS};
    for (size_t i = 0; i < sizeof bad_positions / sizeof *bad_positions; i++) {
        struct region_table table;
        region_table_init(&table);
        const struct generator_options options = {DTYPE_F32, .positions = bad_positions[i],
                                                  .sequences = i > 2 ? 0 : 1};
        assert_int_equal(generator_new(&model.params, &options, device, &table, &none), STATUS_INVALID);
        assert_null(none);
        status_clear();
        region_table_free(&table);
    }
    whole_model_free(&model);
    device_close(device);
}

static int likeliest_of(const float *logits) {
    int best = 0;
    for (int v = 1; v < VOCAB_SIZE; v++)
        best = logits[v] > logits[best] ? v : best;
    return best;
}

// The tokens sampled on the device agree with its logits.
static void test_samples_follow_the_logits(void **state) {
    struct device *device = device_for_test(*state);
    struct whole_model model;
    model_init(&model, device, DTYPE_F32);
    struct generator *generator = model.generator;
    const struct sampling likeliest = {.top_p = 1}, ordinary = {.temperature = 1, .top_p = 1, .seed = 3};
    int32_t token = 7, again;
    const int sequence = 0;
    for (uint64_t i = 0; i < 10; i++) {
        float logits[VOCAB_SIZE], read[VOCAB_SIZE];
        assert_ok(generator_step(generator, &model.stream, &model.hooks, &sequence, &token, 1,
                                 i % 2 ? logits : NULL));
        assert_ok(
            generator_draw(generator, &model.stream, &likeliest, VOCAB_SIZE, &(uint64_t){0}, 1, &token));
        assert_ok(generator_read_logits(generator, &model.stream, 0, read));
        assert_int_equal(token, likeliest_of(read));
        if (i % 2)
            assert_memory_equal(logits, read, sizeof read);
        assert_ok(generator_draw(generator, &model.stream, &ordinary, 5, &i, 1, &token));
        assert_in_range(token, 0, 4); // the others are padding
        assert_ok(generator_draw(generator, &model.stream, &ordinary, 5, &i, 1, &again));
        assert_int_equal(token, again);
        assert_ok(generator_read_logits(generator, &model.stream, 0, logits));
        logits[4] = 1e30f;
        assert_ok(generator_write_logits(generator, &model.stream, 0, logits));
        assert_ok(generator_draw(generator, &model.stream, &ordinary, 5, &i, 1, &token));
        assert_int_equal(token, 4);
        token = again;
    }
    whole_model_free(&model);
    device_close(device);
}

// Greedy generation takes the most likely token by the logits of a full pass, except for near ties, which the
// two evaluations may resolve differently.
static void test_greedy_generation_agrees_with_full_passes(void **state) {
    enum { N_PROMPT = 9 };
    struct device *device = device_for_test(*state);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        struct whole_model model;
        int32_t tokens[N_POSITIONS];
        size_t n_logits = (size_t)N_POSITIONS * VOCAB_SIZE;
        float *logits = malloc(n_logits * sizeof *logits);
        assert_non_null(logits);
        model_init(&model, device, (enum dtype)type);
        random_tokens(tokens, N_PROMPT, VOCAB_SIZE, 8);
        const int sequence = 3;
        append(&model, sequence, tokens, N_PROMPT, NULL);
        for (int i = N_PROMPT; i < N_POSITIONS; i++) {
            assert_ok(generator_draw(model.generator, &model.stream, &(struct sampling){.top_p = 1},
                                     VOCAB_SIZE, &(uint64_t){0}, 1, &tokens[i]));
            assert_ok(
                generator_step(model.generator, &model.stream, &model.hooks, &sequence, &tokens[i], 1, NULL));
        }
        assert_ok(gpt_logits(model.gpt, &model.stream, &model.hooks, whole_model_batch(&model, tokens, NULL),
                             logits));
        double tolerance = 2 * logits_tolerance((enum dtype)type, logits, n_logits);
        int n_same = 0;
        for (int i = N_PROMPT; i < N_POSITIONS; i++) {
            const float *row = logits + (size_t)(i - 1) * VOCAB_SIZE;
            int best = likeliest_of(row);
            assert_true((double)row[best] - (double)row[tokens[i]] <= tolerance);
            n_same += best == tokens[i];
        }
        print_message("%s: %d of %d tokens are the most likely ones by a full forward pass\n",
                      dtype_name((enum dtype)type), n_same, N_POSITIONS - N_PROMPT);
        assert_true(type != DTYPE_F32 || n_same == N_POSITIONS - N_PROMPT);
        free(logits);
        whole_model_free(&model);
    }
    device_close(device);
}

// Five sequences of different lengths decoded together, some ending early, against each one alone: equal bits
// on the CPU, within the tolerance of two evaluations on a GPU.
static void check_batch(struct device *device, enum dtype type, bool documents) {
    enum { N_STEPS = 12 };
    static const int lengths[WHOLE_MODEL_SEQUENCES] = {4, 4, 71, 1, 12};
    static float alone[WHOLE_MODEL_SEQUENCES][N_STEPS][VOCAB_SIZE],
        together[WHOLE_MODEL_SEQUENCES][VOCAB_SIZE];
    struct whole_model model;
    int32_t tokens[WHOLE_MODEL_SEQUENCES][N_POSITIONS];
    double worst = 0;
    model_init_of(&model, &small_config, device, type, documents);
    for (int s = 0; s < WHOLE_MODEL_SEQUENCES; s++) {
        random_tokens(tokens[s], N_POSITIONS, VOCAB_SIZE, 20 + (uint32_t)s);
        // Within the prompt, its last token, one of a later step; and none in the second sequence.
        if (documents && s != 1)
            tokens[s][s == 2 ? 40 : lengths[s] - 1 + s / 2 * 2] = END_OF_TEXT;
        whole_model_poison(&model);
        generator_reset(model.generator, 0);
        for (int i = 0, n = lengths[s]; i < N_STEPS; i++, n = 1)
            append(&model, 0, tokens[s] + (i ? lengths[s] + i - 1 : 0), n, alone[s][i]);
    }
    whole_model_poison(&model);
    generator_reset(model.generator, 0);
    for (int s = 0; s < WHOLE_MODEL_SEQUENCES; s++)
        if (lengths[s] > 1)
            assert_ok(
                generator_append(model.generator, &model.stream, &model.hooks, s, tokens[s], lengths[s] - 1));
    double tolerance = logits_tolerance(type, &alone[0][0][0], sizeof alone / sizeof(float));
    for (int i = 0; i < N_STEPS; i++) {
        int sequences[WHOLE_MODEL_SEQUENCES], n = 0;
        int32_t step[WHOLE_MODEL_SEQUENCES];
        for (int s = 0; s < WHOLE_MODEL_SEQUENCES; s++)
            if (i < N_STEPS / 2 || s % 2) { // the others have ended
                sequences[n] = s;
                step[n++] = tokens[s][lengths[s] - 1 + i];
            }
        assert_ok(
            generator_step(model.generator, &model.stream, &model.hooks, sequences, step, n, together[0]));
        for (int row = 0; row < n; row++) {
            const float *expected = alone[sequences[row]][i];
            if (strcmp(device->name, "cpu") == 0)
                assert_memory_equal(together[row], expected, sizeof together[row]);
            for (int v = 0; v < VOCAB_SIZE; v++)
                worst = worse(worst, fabs((double)together[row][v] - (double)expected[v]));
        }
    }
    assert_true(worst <= tolerance);
    whole_model_free(&model);
}

static void test_batches_give_the_logits_of_each_sequence_alone(void **state) {
    struct device *device = device_for_test(*state);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        check_batch(device, (enum dtype)type, false);
    check_batch(device, DTYPE_F32, true);
    check_batch(device, DTYPE_BF16, true);
    device_close(device);
}

// ---- sampling

#define N_DRAWS 40000

static struct device *sampling_device;

static int open_device(void **state) {
    (void)state;
    return cpu_device_open("portable", 1, &sampling_device) == STATUS_OK ? 0 : -1;
}

static int close_device(void **state) {
    (void)state;
    device_close(sampling_device);
    return 0;
}

// Samples as generator_draw does, from logits in its memory.
static int32_t draw(const struct sampling *sampling, const float *logits, int n, uint64_t counter) {
    double uniform = rng_uniform(sampling->seed, RNG_STREAM_SAMPLE, counter);
    uint64_t workspace[3 * VOCAB_SIZE];
    int32_t token = -1;
    struct stream stream = {
        .device = sampling_device, .workspace = workspace, .workspace_bytes = sizeof workspace};
    struct sample_args args = {.tokens = &token,
                               .logits = logits,
                               .uniforms = &uniform,
                               .N = 1,
                               .V = n,
                               .logits_stride = n,
                               .temperature = sampling->temperature,
                               .top_k = sampling->top_k,
                               .top_p = sampling->top_p,
                               .min_p = sampling->min_p,
                               .type = DTYPE_F32};
    size_t bytes;
    memset(workspace, 0x55, sizeof workspace);
    assert_ok(sampling_device->ops->workspace_bytes(sampling_device, OP_sample, &args, &bytes));
    assert_true(bytes <= sizeof workspace);
    assert_ok(sampling_device->ops->sample(&stream, &args));
    assert_in_range(token, 0, n - 1);
    return token;
}

static void make_logits(float *logits, int n) {
    for (int i = 0; i < n; i++)
        logits[i] = (float)(2 * rng_normal(21, 1, (uint64_t)i));
}

// The probabilities by definition: keep the top_k largest logits, renormalize, keep the fewest tokens whose
// probabilities add up to top_p, renormalize.
static void expected_probabilities(const struct sampling *sampling, const float *logits, int n, double *out) {
    bool *kept = calloc((size_t)n, sizeof *kept);
    double *weights = malloc((size_t)n * sizeof *weights), total = 0, largest = -INFINITY, reached = 0;
    assert_true(kept && weights);
    int n_kept = sampling->top_k > 0 && sampling->top_k < n ? sampling->top_k : n;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, (double)logits[i]);
    for (int round = 0; round < n_kept; round++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!kept[i] && (best < 0 || logits[i] > logits[best]))
                best = i;
        kept[best] = true;
    }
    for (int i = 0; i < n; i++) {
        weights[i] = kept[i] ? exp(((double)logits[i] - largest) / sampling->temperature) : 0;
        total += weights[i];
        kept[i] = false;
    }
    while (reached < sampling->top_p * (1 - 1e-12)) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!kept[i] && weights[i] > 0 && (best < 0 || logits[i] > logits[best]))
                best = i;
        if (best < 0)
            break;
        kept[best] = true;
        reached += weights[best] / total;
    }
    double kept_total = 0;
    for (int i = 0; i < n; i++) {
        out[i] = kept[i] && weights[i] >= sampling->min_p ? weights[i] : 0; // the likeliest one's is 1
        kept_total += out[i];
    }
    for (int i = 0; i < n; i++)
        out[i] /= kept_total;
    free(kept);
    free(weights);
}

// The bound that chi-square with k degrees of freedom exceeds with probability 1e-6 (Wilson and Hilferty; z
// = 4.753).
static double chi_square_bound(int k) {
    double a = 2.0 / (9.0 * k);
    return k * pow(1 - a + 4.753 * sqrt(a), 3);
}

// Samples many tokens and compares their frequencies with the definition. Rare tokens are pooled.
static void check_frequencies(const struct sampling *sampling) {
    float logits[VOCAB_SIZE];
    double expected[VOCAB_SIZE], chi_square = 0, rest_expected = 0, rest_seen = 0;
    int seen[VOCAB_SIZE] = {0}, n_cells = 0;
    make_logits(logits, VOCAB_SIZE);
    expected_probabilities(sampling, logits, VOCAB_SIZE, expected);
    for (uint64_t counter = 0; counter < N_DRAWS; counter++)
        seen[draw(sampling, logits, VOCAB_SIZE, counter)]++;
    for (int i = 0; i < VOCAB_SIZE; i++) {
        double mean = expected[i] * N_DRAWS;
        if (expected[i] == 0) {
            assert_int_equal(seen[i], 0);
        } else if (mean < 10) {
            rest_expected += mean;
            rest_seen += seen[i];
        } else {
            chi_square += (seen[i] - mean) * (seen[i] - mean) / mean;
            n_cells++;
        }
    }
    if (rest_expected >= 10) {
        chi_square += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
        n_cells++;
    }
    print_message("temperature %g, top_k %d, top_p %g, min_p %g: chi-square %.1f of %d cells\n",
                  sampling->temperature, sampling->top_k, sampling->top_p, sampling->min_p, chi_square,
                  n_cells);
    assert_true(n_cells < 2 || chi_square < chi_square_bound(n_cells - 1));
}

static void test_frequencies_follow_the_definition(void **state) {
    (void)state;
    static const struct sampling cases[] = {
        {1, 0, 1, 0, 1},    {0.7, 0, 1, 0, 2},      {1.8, 0, 1, 0, 3},      {1, 5, 1, 0, 4},
        {1, 1, 1, 0, 5},    {1, 1000, 1, 0, 6},     {1, 0, 0.9, 0, 7},      {1, 0, 0.3, 0, 8},
        {1, 0, 1e-9, 0, 9}, {1.3, 12, 0.8, 0, 10},  {0.9, 40, 0.95, 0, 1},  {1, 61, 0.999, 0, 2},
        {1, 0, 1, 0.1, 3},  {1.5, 20, 0.9, 0.2, 4}, {0.8, 0, 0.99, 0.01, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_frequencies(&cases[i]);
}

static void test_temperature_zero_is_greedy(void **state) {
    (void)state;
    float logits[VOCAB_SIZE];
    make_logits(logits, VOCAB_SIZE);
    int best = 0;
    for (int i = 1; i < VOCAB_SIZE; i++)
        best = logits[i] > logits[best] ? i : best;
    for (uint64_t counter = 0; counter < 50; counter++) {
        assert_int_equal(draw(&(struct sampling){0, 0, 1, 0, counter}, logits, VOCAB_SIZE, counter), best);
        assert_int_equal(draw(&(struct sampling){0, 7, 0.5, 0, counter}, logits, VOCAB_SIZE, counter), best);
    }
    logits[best] = logits[(best + 1) % VOCAB_SIZE] = 50; // of two equal logits, the first
    int first = best < (best + 1) % VOCAB_SIZE ? best : (best + 1) % VOCAB_SIZE;
    assert_int_equal(draw(&(struct sampling){0, 0, 1, 0, 0}, logits, VOCAB_SIZE, 0), first);
}

static void test_samples_depend_on_seed_and_counter_only(void **state) {
    (void)state;
    float logits[VOCAB_SIZE];
    make_logits(logits, VOCAB_SIZE);
    int differ_by_seed = 0, differ_by_counter = 0;
    for (uint64_t counter = 0; counter < 200; counter++) {
        struct sampling a = {1, 0, 1, 0, 42}, b = {1, 0, 1, 0, 43};
        int32_t token = draw(&a, logits, VOCAB_SIZE, counter);
        assert_int_equal(token, draw(&a, logits, VOCAB_SIZE, counter));
        differ_by_seed += token != draw(&b, logits, VOCAB_SIZE, counter);
        differ_by_counter += token != draw(&a, logits, VOCAB_SIZE, counter + 1);
    }
    assert_true(differ_by_seed > 50 && differ_by_counter > 50);
}

// Logits that overflow a naive exp, and ties at the boundary of top_k.
static void test_extreme_logits(void **state) {
    (void)state;
    const float huge[4] = {-3e38f, 3e38f, 0, -INFINITY}, equal[4] = {1, 1, 1, 1};
    int seen[4] = {0};
    for (uint64_t counter = 0; counter < 400; counter++) {
        assert_int_equal(draw(&(struct sampling){1, 0, 1, 0, 1}, huge, 4, counter), 1);
        assert_int_equal(draw(&(struct sampling){1, 3, 0.9, 0, 1}, huge, 4, counter), 1);
        seen[draw(&(struct sampling){1, 2, 1, 0, 1}, equal, 4, counter)]++;
    }
    assert_true(seen[0] > 120 && seen[1] > 120 && seen[2] == 0 && seen[3] == 0);
    const float one[1] = {0.5f};
    assert_int_equal(draw(&(struct sampling){1, 0, 0.5, 0, 1}, one, 1, 0), 0);
}

#define ON(device, test)                                                                                     \
    { #test " on " device, test, NULL, NULL, (void *)(uintptr_t)device }

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("avx512", test_cache_gives_the_logits_of_a_full_pass),
        ON("avx2", test_cache_gives_the_logits_of_a_full_pass),
        ON("portable", test_cache_gives_the_logits_of_a_full_pass),
        ON("ref", test_cache_gives_the_logits_of_a_full_pass),
        ON("ref", test_cache_with_documents),
        ON("avx512", test_cache_with_documents),
        ON("portable", test_cache_with_documents),
        ON("ref", test_cache_of_a_llama),
        ON("portable", test_cache_of_a_llama),
        ON("ref", test_cache_of_a_modern_model),
        ON("avx2", test_cache_of_a_modern_model),
        ON("portable", test_cache_of_a_modern_model),
        ON("portable", test_reset_forgets),
        ON("portable", test_context_is_bounded),
        ON("portable", test_samples_follow_the_logits),
        ON("avx512", test_greedy_generation_agrees_with_full_passes),
        ON("portable", test_greedy_generation_agrees_with_full_passes),
        ON("avx512", test_batches_give_the_logits_of_each_sequence_alone),
        ON("avx2", test_batches_give_the_logits_of_each_sequence_alone),
        ON("portable", test_batches_give_the_logits_of_each_sequence_alone),
        cmocka_unit_test(test_frequencies_follow_the_definition),
        cmocka_unit_test(test_temperature_zero_is_greedy),
        cmocka_unit_test(test_samples_depend_on_seed_and_counter_only),
        cmocka_unit_test(test_extreme_logits),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
