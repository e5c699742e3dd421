// Activation offload and recomputation on a GPU change no bit, in whatever order its streams run, and save
// the expected memory; a micro-batch and a decode step take the planned launches; the vocabulary's padding
// changes nothing. Runs on the simulated GPU of tests/cudasim or on a real one; skipped without either.
#include "model/gpt_buffers.h"
#include "tests/support/small_models.h"
#include "tests/support/whole_model.h"

// tests/cudasim: from now on delays and reorders the work of streams, as CUDA permits. NULL on a real GPU.
void cudasim_reorder(unsigned seed) __attribute__((weak));

#define N_SEEDS 6

// Deep enough that a buffer for activation checkpoints is filled three times in a pass.
static const struct gpt_config deep_config = {
    .n_layer = 4, .n_head = 2, .n_embd = 32, .vocab_size = 37, .n_positions = 16};

// Windows are shorter than the sequences.
static const struct gpt_config llama_config = {.n_layer = 3,
                                               .n_embd = 24,
                                               .vocab_size = 37,
                                               .n_positions = 16,
                                               SMALL_HEADS,
                                               LLAMA_PIECES,
                                               .windows = {5, 0}};

// The embedding stays on the device as long as the pass lasts.
static const struct gpt_config modern_config = {.n_layer = 4,
                                                .n_head = 2,
                                                .n_kv_head = 1,
                                                .n_embd = 32,
                                                .vocab_size = 37,
                                                .n_positions = 16,
                                                MODERN_PIECES,
                                                .windows = {5, 0},
                                                .value_embeddings = {0, 3}};

static void reorder(unsigned seed) {
    if (cudasim_reorder)
        cudasim_reorder(seed);
}

static void evaluate(struct whole_model *model, double *sum) {
    int32_t tokens[32], targets[32];
    int n = model->options.B * model->options.T;
    random_tokens(tokens, n, model->params.config.vocab_size, 3);
    random_tokens(targets, n, model->params.config.vocab_size, 4);
    assert_ok(gpt_evaluate(model->gpt, &model->stream, &model->hooks,
                           whole_model_batch(model, tokens, targets), sum, NULL));
}

// Two steps with an evaluation in between: each pass starts with what the previous one left in the buffers.
struct recording {
    struct step_result first, second;
    double evaluated;
};

static void recording_free(struct recording *recording) {
    free(recording->first.grads);
    free(recording->second.grads);
}

static void assert_same_recording(const struct recording *a, const struct recording *b) {
    assert_same_step(&a->first, &b->first);
    assert_memory_equal(&a->evaluated, &b->evaluated, sizeof a->evaluated);
    assert_same_step(&a->second, &b->second);
}

static struct recording record_with(struct device *device, const struct gpt_config *config,
                                    const struct gpt_options *options) {
    struct whole_model model;
    struct recording recording;
    whole_model_init(&model, config, device, options, 0);
    whole_model_perturb(&model);
    recording.first = whole_model_step(&model, &model.hooks);
    evaluate(&model, &recording.evaluated);
    recording.second = whole_model_step(&model, &model.hooks);
    whole_model_free(&model);
    return recording;
}

static struct gpt_options options_of(enum dtype type, enum gpt_recompute recompute, bool offload) {
    return (struct gpt_options){.type = type,
                                .B = 2,
                                .T = 16,
                                .recompute = recompute,
                                .offload_activations = offload,
                                .training = true};
}

static void check_recompute(struct device *device, const struct gpt_config *config, enum dtype type) {
    struct gpt_options options = options_of(type, RECOMPUTE_NONE, false);
    struct recording kept = record_with(device, config, &options);
    for (int recompute = 0; recompute < N_RECOMPUTE; recompute++) {
        options.recompute = (enum gpt_recompute)recompute;
        struct recording again = record_with(device, config, &options);
        assert_same_recording(&kept, &again);
        recording_free(&again);
    }
    recording_free(&kept);
}

static void test_recompute_changes_no_bit(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        check_recompute(device, &deep_config, (enum dtype)type);
    check_recompute(device, &llama_config, DTYPE_BF16);
    check_recompute(device, &modern_config, DTYPE_BF16);
    device_close(device);
}

static void check_offload(struct device *device, const struct gpt_config *of, int n_layer, enum dtype type) {
    struct gpt_config config = *of;
    config.n_layer = n_layer;
    config.n_value_embeddings = n_layer < of->n_layer ? 0 : of->n_value_embeddings;
    struct gpt_options options = options_of(type, RECOMPUTE_BLOCK, false);
    struct recording kept = record_with(device, &config, &options);
    options.offload_activations = true;
    struct recording moved = record_with(device, &config, &options);
    assert_same_recording(&kept, &moved);
    recording_free(&kept);
    recording_free(&moved);
}

// Small models, too: with one block nothing is offloaded, with two only the output of the embeddings.
static void test_offload_changes_no_bit(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    for (int n_layer = 1; n_layer < deep_config.n_layer; n_layer++)
        check_offload(device, &deep_config, n_layer, DTYPE_BF16);
    check_offload(device, &modern_config, 2, DTYPE_BF16);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        check_offload(device, &deep_config, deep_config.n_layer, (enum dtype)type);
    check_offload(device, &modern_config, modern_config.n_layer, DTYPE_BF16);
    device_close(device);
}

// If an event is missing in model/activations.c, the bits differ for some seed.
static void check_offload_reordered(struct device *device, const struct gpt_config *config,
                                    unsigned n_seeds) {
    struct gpt_options options = options_of(DTYPE_F32, RECOMPUTE_BLOCK, false);
    reorder(0);
    struct recording kept = record_with(device, config, &options);
    options.offload_activations = true;
    for (unsigned seed = 1; seed <= n_seeds; seed++) {
        reorder(seed);
        struct recording moved = record_with(device, config, &options);
        assert_same_recording(&kept, &moved);
        recording_free(&moved);
    }
    reorder(0);
    recording_free(&kept);
}

static void test_offload_waits_for_what_it_needs(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    check_offload_reordered(device, &deep_config, N_SEEDS);
    check_offload_reordered(device, &modern_config, 2);
    device_close(device);
}

// Counts how often the host waits for the device in a pass.
static int n_waits;
static enum status (*wait_for)(struct stream *stream);

static enum status count_wait(struct stream *stream) {
    n_waits++;
    return wait_for(stream);
}

static int waits_of_a_pass(struct device *device, bool offload) {
    struct gpt_options options = options_of(DTYPE_F32, RECOMPUTE_BLOCK, offload);
    struct whole_model model;
    double sum;
    int32_t tokens[32] = {0};
    whole_model_init(&model, &deep_config, device, &options, 0);
    whole_model_perturb(&model);
    wait_for = device->synchronize;
    device->synchronize = count_wait;
    n_waits = 0;
    assert_ok(gpt_forward_backward(model.gpt, &model.stream, &model.hooks,
                                   whole_model_batch(&model, tokens, tokens), 1, &sum));
    device->synchronize = wait_for;
    whole_model_free(&model);
    return n_waits;
}

static void test_offload_adds_no_waits_of_the_host(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    assert_int_equal(waits_of_a_pass(device, true), waits_of_a_pass(device, false));
    device_close(device);
}

// Of n_layer + 1 activation checkpoints, the device has buffers for two and the host for all but the last
// two.
static void test_offload_keeps_two_checkpoints_on_the_device(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    for (int n_layer = 1; n_layer <= deep_config.n_layer; n_layer++) {
        struct gpt_config config = deep_config;
        config.n_layer = n_layer;
        size_t bytes[2][N_REGION_PLACES], moved = (size_t)(n_layer - 1) * 2 * 16 * 32 * sizeof(float);
        for (int offload = 0; offload < 2; offload++) {
            struct gpt_options options = options_of(DTYPE_F32, RECOMPUTE_BLOCK, offload == 1);
            struct params params;
            struct region_table table;
            struct gpt *gpt;
            assert_ok(params_init(&params, &config));
            region_table_init(&table);
            assert_ok(gpt_new(&params, &options, device, &table, &gpt));
            for (int place = 0; place < N_REGION_PLACES; place++)
                bytes[offload][place] = region_bytes(&table, REGION_ACTIVATIONS, (enum region_place)place);
            gpt_delete(gpt);
            region_table_free(&table);
            params_free(&params);
        }
        assert_int_equal(bytes[0][REGION_HOST], 0);
        assert_int_equal(bytes[1][REGION_HOST], moved);
        assert_int_equal(bytes[0][REGION_DEVICE] - bytes[1][REGION_DEVICE], moved);
    }
    device_close(device);
}

// ---- launches

// The first micro-batch of a step: gradients hold arbitrary values.
static enum status lend_beta_zero(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                                  struct unit_view *view) {
    TRY(whole_acquire(context, stream, unit, pass, view));
    view->beta_zero = pass != GPT_FORWARD;
    return STATUS_OK;
}

// A formula for 16-bit types, counted from the passes by hand: 19 launches per block, 7 of them forward (two
// norms, four products, attention) and 12 backward (eight products, two norms, two of attention); 5 for the
// lm_head and loss, which fit into one tile, and the sum of the losses; 5 for embeddings (1 and 2) and final
// norm (1 and 1). Each further micro-batch adds the bias gradients of a block to those that are there. Norms
// are recomputed by their backward.
static int launches_expected(int n_layer, bool further) {
    return 19 * n_layer + 10 + (further ? n_layer : 0);
}

static void check_launches(struct device *device, const struct gpt_config *config, enum dtype type,
                           enum gpt_recompute recompute, bool further, enum attention_kernel attention,
                           int expected) {
    struct gpt_options options = options_of(type, recompute, false);
    struct whole_model model;
    options.attention = attention;
    whole_model_init(&model, config, device, &options, 0);
    whole_model_perturb(&model);
    struct unit_hooks hooks = {.context = &model,
                               .params_acquire = lend_beta_zero,
                               .params_release = model.hooks.params_release,
                               .grads_ready = model.hooks.grads_ready};
    uint64_t before = device_launches(device);
    struct step_result result = whole_model_step(&model, further ? &model.hooks : &hooks);
    int n = (int)(device_launches(device) - before);
    assert_int_equal(n, gpt_work_sum(gpt_work_of(model.gpt, further)).launches);
    if (expected > 0)
        assert_int_equal(n, expected);
    free(result.grads);
    whole_model_free(&model);
}

static void test_launches_are_those_planned(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    const enum gpt_recompute recomputed[] = {RECOMPUTE_NONE, RECOMPUTE_ELEMENTWISE};
    assert_true(launches_expected(12, true) <= 250); // GPT-2 124M
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        for (int further = 0; further < 2; further++)
            for (size_t i = 0; i < 2; i++)
                check_launches(device, &deep_config, (enum dtype)type, recomputed[i], further,
                               ATTENTION_FLASH,
                               type == DTYPE_F32 ? 0 : launches_expected(deep_config.n_layer, further));
    check_launches(device, &llama_config, DTYPE_BF16, RECOMPUTE_ELEMENTWISE, true, ATTENTION_FLASH, 0);
    check_launches(device, &modern_config, DTYPE_BF16, RECOMPUTE_ELEMENTWISE, false, ATTENTION_FLASH, 0);
    check_launches(device, &modern_config, DTYPE_BF16, RECOMPUTE_ELEMENTWISE, true, ATTENTION_FLASH, 0);
    device_close(device);
}

// cuDNN's plan for the backward pass is one launch, where flash has two kernels.
static void test_launches_with_cudnn(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    const struct gpt_options options = options_of(DTYPE_BF16, RECOMPUTE_NONE, false);
    const struct attention_shape shape = {.B = options.B,
                                          .T = options.T,
                                          .H = deep_config.n_head,
                                          .K = deep_config.n_head,
                                          .D = deep_config.n_embd / deep_config.n_head,
                                          .type = options.type};
    const int n_layer = deep_config.n_layer;
    struct cudnn_support support;
    assert_ok(device->cudnn_support(device, &shape, &support));
    if (support.usable) {
        check_launches(device, &deep_config, options.type, options.recompute, true, ATTENTION_CUDNN,
                       launches_expected(n_layer, true) - n_layer);
    } else {
        print_message("skipped: cuDNN: %s\n", support.reason);
    }
    device_close(device);
    if (!support.usable)
        skip();
}

// Copies between host and device, as the launches are counted.
static int n_copies;
static enum status (*copy_by)(struct stream *stream, void *to, const void *from, size_t bytes);

static enum status count_copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    n_copies++;
    return copy_by(stream, to, from, bytes);
}

// A decode step takes the embeddings, some launches per block, the final norm and lm_head, and copies the
// tokens and where each sequence is, and with documents what it sees, whatever the sequences' lengths are.
static void check_decode_launches(struct device *device, const struct gpt_config *config, int per_block,
                                  const int lengths[WHOLE_MODEL_SEQUENCES], int n, bool documents) {
    struct gpt_options options = options_of(DTYPE_BF16, RECOMPUTE_NONE, false);
    options.mask_documents = documents;
    const int sequences[WHOLE_MODEL_SEQUENCES] = {0, 1, 2, 3, 4};
    const int32_t tokens[16] = {0};
    struct whole_model model;
    whole_model_init(&model, config, device, &options, 16);
    whole_model_perturb(&model);
    generator_set_end_of_text(model.generator, 1);
    for (int s = 0; s < n; s++)
        if (lengths[s] > 0)
            assert_ok(generator_append(model.generator, &model.stream, &model.hooks, s, tokens, lengths[s]));
    uint64_t before = device_launches(device);
    copy_by = device->copy;
    device->copy = count_copy;
    n_copies = 0;
    assert_ok(generator_step(model.generator, &model.stream, &model.hooks, sequences, tokens, n, NULL));
    device->copy = copy_by;
    assert_int_equal(device_launches(device) - before, per_block * config->n_layer + 3);
    assert_int_equal(n_copies, 2);
    whole_model_free(&model);
}

static void test_decode_launches_do_not_depend_on_lengths(void **state) {
    (void)state;
    static const int equal[WHOLE_MODEL_SEQUENCES] = {7, 7, 7, 7, 7}, mixed[] = {15, 0, 3, 7, 1};
    struct device *device = device_for_test("cuda");
    const int gpt2 = 7;         // as in training
    const int llama = gpt2 + 1; // SwiGLU; attention rotates
    check_decode_launches(device, &deep_config, gpt2, equal, 1, false);
    check_decode_launches(device, &deep_config, gpt2, equal, WHOLE_MODEL_SEQUENCES, false);
    check_decode_launches(device, &deep_config, gpt2, mixed, WHOLE_MODEL_SEQUENCES, true);
    check_decode_launches(device, &llama_config, llama, mixed, WHOLE_MODEL_SEQUENCES, false);
    device_close(device);
}

// ---- a Llama against the reference

// A step in fp32 on a device: loss and gradients.
static struct step_result llama_step_on(const char *name) {
    struct device *device = device_for_test(name);
    const struct gpt_options options = options_of(DTYPE_F32, RECOMPUTE_NONE, false);
    struct whole_model model;
    whole_model_init(&model, &llama_config, device, &options, 0);
    whole_model_perturb(&model);
    struct step_result result = whole_model_step(&model, &model.hooks);
    whole_model_free(&model);
    device_close(device);
    return result;
}

// Some 40 operations, each with sums of up to 40 products whose errors are at most fp32's epsilon each.
static void test_gradients_of_a_llama(void **state) {
    (void)state;
    const double tolerance = 40 * 40 * dtype_epsilon(DTYPE_F32);
    struct step_result found = llama_step_on("cuda"), expected = llama_step_on("ref");
    assert_int_equal(found.bytes, expected.bytes);
    assert_true(fabs(found.loss / expected.loss - 1) <= tolerance);
    const float *x = found.grads, *y = expected.grads;
    double largest = 0, error = 0;
    for (size_t i = 0; i < found.bytes / sizeof *x; i++) {
        largest = worse(largest, fabs((double)y[i]));
        error = worse(error, fabs((double)x[i] - (double)y[i]));
    }
    print_message("gradients within %.2g of the largest, %.2g allowed\n", error / largest, tolerance);
    assert_true(error <= tolerance * largest);
    free(found.grads);
    free(expected.grads);
}

// Prompts of every length, and steps after them: the logits of a full pass. In fp32 also within documents.
static void test_cache_of_a_llama(void **state) {
    (void)state;
    enum { T = 16, V = 37 };
    struct device *device = device_for_test("cuda");
    for (int i = 0; i <= N_COMPUTE_DTYPES; i++) {
        const bool documents = i == N_COMPUTE_DTYPES;
        const enum dtype type = documents ? DTYPE_F32 : (enum dtype)i;
        const struct gpt_options options = {.type = type, .B = 1, .T = T, .mask_documents = documents};
        float expected[T * V], logits[V];
        int32_t tokens[T];
        struct whole_model model;
        const int sequence = 1;
        double largest = 0, error = 0;
        random_tokens(tokens, T, V, 6);
        whole_model_init(&model, &llama_config, device, &options, T);
        whole_model_perturb(&model);
        model.document_start = tokens[6];
        generator_set_end_of_text(model.generator, tokens[6]);
        assert_ok(gpt_logits(model.gpt, &model.stream, &model.hooks, whole_model_batch(&model, tokens, NULL),
                             expected));
        for (int prompt = 1; prompt < T; prompt += 4) {
            generator_reset(model.generator, sequence);
            assert_ok(
                generator_append(model.generator, &model.stream, &model.hooks, sequence, tokens, prompt));
            for (int t = prompt; t < T; t++) {
                assert_ok(generator_step(model.generator, &model.stream, &model.hooks, &sequence, tokens + t,
                                         1, logits));
                for (int v = 0; v < V; v++) {
                    largest = worse(largest, fabs((double)expected[t * V + v]));
                    error = worse(error, fabs((double)logits[v] - (double)expected[t * V + v]));
                }
            }
        }
        // 10 values per block, and those of embedding and last norm, are rounded to the type in both passes.
        double allowed =
            largest * (10 * llama_config.n_layer + 2) * (dtype_epsilon(type) + 40 * dtype_epsilon(DTYPE_F32));
        print_message("%s: cached logits within %.2g of a full pass's, %.2g allowed\n", dtype_name(type),
                      error, allowed);
        assert_true(error <= allowed);
        whole_model_free(&model);
    }
    device_close(device);
}

// ---- the modern family

// A step and generation, in fp32, against the oracle: rounding of sums of some hundred terms.
static void test_a_modern_model_agrees_with_the_oracle(void **state) {
    (void)state;
    enum { N = 16, V = 37 };
    const double tolerance = 1e-4;
    const struct gpt_options options = options_of(DTYPE_F32, RECOMPUTE_ELEMENTWISE, false);
    struct recording of[2];
    static float logits[2][V];
    for (int i = 0; i < 2; i++) {
        struct device *device = device_for_test(i == 0 ? "cuda" : "ref");
        struct whole_model model;
        int32_t tokens[N];
        const int sequence = 1;
        of[i] = record_with(device, &modern_config, &options);
        random_tokens(tokens, N, V, 5);
        whole_model_init(&model, &modern_config, device, &options, N);
        whole_model_perturb(&model);
        assert_ok(generator_append(model.generator, &model.stream, &model.hooks, sequence, tokens, N - 1));
        assert_ok(generator_step(model.generator, &model.stream, &model.hooks, &sequence, tokens + N - 1, 1,
                                 logits[i]));
        whole_model_free(&model);
        device_close(device);
    }
    const float *x = of[0].first.grads, *y = of[1].first.grads;
    assert_true(fabs(of[0].first.loss - of[1].first.loss) < tolerance * of[1].first.loss);
    for (size_t i = 0; i < of[0].first.bytes / sizeof *x; i++)
        assert_true(fabsf(x[i] - y[i]) < tolerance * (1 + fabsf(y[i])));
    for (int v = 0; v < V; v++)
        assert_true(fabsf(logits[0][v] - logits[1][v]) < tolerance);
    recording_free(&of[0]);
    recording_free(&of[1]);
}

// ---- padding of the vocabulary

// 48 rows short of a multiple of 128. What follows wte: positions; the first block. Then two lm_heads of
// their own, which nothing follows.
#define MANY_TOKENS 2000
#define HEAD_OF(...)                                                                                         \
    { .n_layer = 1, .n_head = 2, .n_embd = 16, .vocab_size = MANY_TOKENS, .n_positions = 16, __VA_ARGS__ }
static const struct gpt_config many_tokens[] = {
    HEAD_OF(.family = FAMILY_GPT2), HEAD_OF(.family = FAMILY_LLAMA),
    HEAD_OF(.family = FAMILY_LLAMA, .untied = true),
    HEAD_OF(.family = FAMILY_MODERN, .untied = true, .soft_cap = 2)};

static int products_with(const struct gpt *gpt, enum operation operation, int columns) {
    const struct gpt_work *work = gpt_work_of(gpt, false);
    int n = 0;
    for (int i = 0; i < work->n_rows; i++)
        if (work->rows[i].shape.out == columns && work->rows[i].operation == operation)
            n += work->rows[i].calls;
    return n;
}

// Sets what is beyond the parameters to values that would show in a result.
static void fill_beyond(struct whole_model *model) {
    const size_t n = model->params.n_elements, size = dtype_size(model->options.type),
                 bytes = (params_memory(&model->params, REGION_DEVICE) - n) * size;
    if (bytes > 0)
        whole_fill(model, (char *)whole_data(model, model->param_region) + n * size, 0x3f, bytes);
}

// On a real GPU another width may choose another algorithm, whose sums differ in their last bits.
static void check_padding(struct device *device, const struct gpt_config *config, enum dtype type) {
    struct gpt_options options = options_of(type, RECOMPUTE_NONE, false);
    struct whole_model padded, plain;
    double evaluated[2];
    whole_model_init(&padded, config, device, &options, 0);
    whole_model_init(&plain, config, device, &options, 0);
    // Two products of lm_head and, of a matrix of its own, a third.
    assert_int_equal(products_with(padded.gpt, OP_linear_forward, 2048), 1);
    assert_int_equal(products_with(padded.gpt, OP_linear_backward, 2048), config->untied ? 2 : 1);
    plain.gpt->logits.columns = MANY_TOKENS;
    whole_model_perturb(&padded);
    whole_model_perturb(&plain);
    fill_beyond(&padded);
    struct step_result with = whole_model_step(&padded, &padded.hooks),
                       without = whole_model_step(&plain, &plain.hooks);
    evaluate(&padded, &evaluated[0]);
    evaluate(&plain, &evaluated[1]);
    assert_true(fabs(with.loss / without.loss - 1) <= dtype_epsilon(type));
    assert_true(fabs(evaluated[0] / evaluated[1] - 1) <= dtype_epsilon(type));
    if (cudasim_reorder)
        assert_memory_equal(with.grads, without.grads, with.bytes);
    free(with.grads);
    free(without.grads);
    whole_model_free(&padded);
    whole_model_free(&plain);
}

static void test_padding_of_the_vocabulary_changes_no_bit(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    for (size_t i = 0; i < sizeof many_tokens / sizeof *many_tokens; i++)
        for (int type = 0; type < N_COMPUTE_DTYPES; type++)
            check_padding(device, &many_tokens[i], (enum dtype)type);
    device_close(device);
}

// ---- 16-bit logits

// The logits that gpt_logits returns are those of the tile, upcast: representable in the compute type, and
// within its rounding of fp32's.
static void test_logits_have_the_compute_type(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    enum { N = 2 * 16, V = 37 };
    static float logits[N_COMPUTE_DTYPES][N * V];
    int32_t tokens[N];
    random_tokens(tokens, N, V, 5);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        struct gpt_options options = options_of((enum dtype)type, RECOMPUTE_NONE, false);
        struct whole_model model;
        whole_model_init(&model, &deep_config, device, &options, 0);
        whole_model_randomize(&model, 3);
        assert_ok(gpt_logits(model.gpt, &model.stream, &model.hooks, whole_model_batch(&model, tokens, NULL),
                             logits[type]));
        whole_model_free(&model);
        for (int i = 0; i < N * V; i++) {
            float value = logits[type][i], exact = logits[DTYPE_F32][i];
            float rounded = type == DTYPE_BF16  ? bf16_to_float(bf16_from_float(value))
                            : type == DTYPE_F16 ? f16_to_float(f16_from_float(value))
                                                : value;
            assert_true(rounded == value);
            // The errors of 4 blocks and a product of initial weights, with room: another element is far off.
            assert_true(fabsf(value - exact) <= 16 * (float)dtype_epsilon((enum dtype)type));
        }
    }
    device_close(device);
}

// The only test, skipped, when there is no GPU.
static void test_models_on_a_gpu(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    assert_int_equal(device->place, REGION_DEVICE);
    device_close(device);
}

int main(void) {
    static const struct CMUnitTest without_a_gpu[] = {cmocka_unit_test(test_models_on_a_gpu)};
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute_changes_no_bit),
        cmocka_unit_test(test_offload_changes_no_bit),
        cmocka_unit_test(test_offload_waits_for_what_it_needs),
        cmocka_unit_test(test_offload_adds_no_waits_of_the_host),
        cmocka_unit_test(test_offload_keeps_two_checkpoints_on_the_device),
        cmocka_unit_test(test_launches_are_those_planned),
        cmocka_unit_test(test_launches_with_cudnn),
        cmocka_unit_test(test_decode_launches_do_not_depend_on_lengths),
        cmocka_unit_test(test_gradients_of_a_llama),
        cmocka_unit_test(test_cache_of_a_llama),
        cmocka_unit_test(test_a_modern_model_agrees_with_the_oracle),
        cmocka_unit_test(test_padding_of_the_vocabulary_changes_no_bit),
        cmocka_unit_test(test_logits_have_the_compute_type),
    };
    struct device *device = NULL;
    setenv("CUDASIM_CUDNN", "91900", 0); // the simulated machine has cuDNN
    enum status status = cuda_device_open(0, &device);
    status_clear(); // each test reports it
    if (status == STATUS_UNSUPPORTED)
        return cmocka_run_group_tests_name("models on a GPU", without_a_gpu, NULL, NULL);
    device_close(device);
    return cmocka_run_group_tests_name("models on a GPU", tests, NULL, NULL);
}
