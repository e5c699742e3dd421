// Training runs against PyTorch's in float64 (tests/golden/README.md): logits, gradients, losses, norms and
// final weights, through the model's API only, on every device of this machine.
//
// usage: test_golden [FOLDER]      FOLDER: checks one with the same files as tests/golden/llama-tiny instead
#include "tests/support/whole_model.h"

#include <stdio.h>

#include "base/json.h"
#include "model/formats/huggingface.h"
#include "tests/support/safetensors_find.h"
#include "tests/support/tensors.h"

#define GOLDEN        "tests/golden/"
#define PATH_BYTES    1024
#define SHARD_HEADER  1024 // bytes, before the uint16 tokens
#define LARGEST_SHARD ((size_t)1 << 20)

// Largest errors allowed. NAN: not checked.
struct tolerances {
    double logits;        // absolute
    double gradients;     // relative to the tensor's largest element, or to term_norm
    double losses, norms; // relative
    double weights;       // absolute
};
static const struct tolerances fp32_tolerances = {5e-6, 2e-6, 1e-6, 5e-6, 1e-5};
// Without final weights: Adam divides gradients near zero by their own size, so that fp32's rounding of them
// is as large as an update. In double the weights are compared, too.
static const struct tolerances llama_tolerances = {5e-6, 2e-6, 1e-6, 5e-6, NAN};
static const struct tolerances bf16_tolerances = {NAN, NAN, 1e-2, 1e-2, NAN};
// The same number of epsilons as for bf16.
static const struct tolerances fp16_tolerances = {NAN, NAN, 1e-2 * 0x1p-10 / 0x1p-7, 1e-2 * 0x1p-10 / 0x1p-7,
                                                  NAN};
// For a folder that is given. The gradient of a norm of heads is a sum over heads and positions in which
// terms cancel: in float32 transformers' own is off by 2.3e-6 in one of the shapes of test_transformers.py.
static const struct tolerances given_fp32_tolerances = {5e-6, 5e-6, 1e-6, 5e-6, 1e-5};
#define FP16_LOSS_SCALE 65536.0 // the default of fp16.initial_scale_power
// In double, the errors that remain come from arguments that are always fp32 (epsilon and the clipping
// factor: 3e-8, relative) and from golden tensors that were stored in fp32 (one rounding: 6e-8 of values that
// may exceed 1).
static const struct tolerances fp64_tolerances = {NAN, 1.2e-7, 1e-8, 1e-8, 2e-7};
// Where the number of tokens is no power of two, its reciprocal, by which gradients are scaled, is rounded to
// fp32, too: 6e-8.
static const struct tolerances given_fp64_tolerances = {NAN, 1.8e-7, 1e-8, 7e-8, 2e-7};

struct golden_case {
    const char *folder, *device;
    enum dtype type;
    enum gpt_recompute recompute;
    const struct tolerances *tolerances;
};

struct run {
    const struct golden_case *golden;
    int B, T, accum, n_steps;
    struct adamw_settings settings;
    double clip_norm;
    cJSON *expected;
    struct safetensors tensors; // none for gpt2-tiny-accum
    bool has_tensors;
    char *shard;
    size_t n_tokens;
    struct whole_model model;
    struct tolerances reached;
};

static const cJSON *get_object(const cJSON *parent, const char *key) {
    const cJSON *object;
    assert_ok(json_get_object(parent, key, "expected.json", &object));
    return object;
}

static double get_number(const cJSON *object, const char *key) {
    double value;
    assert_ok(json_get_number(object, key, "expected.json", &value));
    return value;
}

static void read_settings(struct run *run) {
    const cJSON *optimizer = get_object(run->expected, "optimizer"), *betas, *curve;
    assert_ok(json_get_array(optimizer, "betas", "expected.json", &betas));
    assert_ok(json_get_array(run->expected, "curve", "expected.json", &curve));
    run->B = (int)get_number(run->expected, "batch");
    run->T = (int)get_number(run->expected, "seq");
    run->accum = (int)get_number(run->expected, "accum");
    run->n_steps = cJSON_GetArraySize(curve);
    run->clip_norm = get_number(optimizer, "clip_grad_norm");
    run->settings = (struct adamw_settings){.lr = get_number(optimizer, "lr"),
                                            .beta1 = cJSON_GetArrayItem(betas, 0)->valuedouble,
                                            .beta2 = cJSON_GetArrayItem(betas, 1)->valuedouble,
                                            .epsilon = get_number(optimizer, "eps"),
                                            .weight_decay = get_number(optimizer, "weight_decay")};
}

static void read_files(struct run *run) {
    char path[PATH_BYTES];
    size_t bytes;
    snprintf(path, sizeof path, "%s/expected.json", run->golden->folder);
    assert_ok(json_read_file(path, &run->expected));
    read_settings(run);
    snprintf(path, sizeof path, "%s/tokens.bin", run->golden->folder);
    assert_ok(file_read(path, LARGEST_SHARD, &run->shard, &bytes));
    assert_true(bytes > SHARD_HEADER);
    run->n_tokens = (bytes - SHARD_HEADER) / sizeof(uint16_t);
    snprintf(path, sizeof path, "%s/expected.safetensors", run->golden->folder);
    run->has_tensors = file_exists(path);
    if (run->has_tensors)
        assert_ok(safetensors_open(&run->tensors, path));
}

static int get_int(const cJSON *object, const char *key) {
    return (int)get_number(object, key);
}

static int get_list(const cJSON *object, const char *key, int *values) {
    const cJSON *list, *item;
    int n = 0;
    assert_ok(json_get_array(object, key, "config.json", &list));
    cJSON_ArrayForEach(item, list) values[n++] = item->valueint;
    return n;
}

// The config of modern-tiny, whose names are ours.
static void read_modern(const char *folder, struct gpt_config *config) {
    char path[PATH_BYTES];
    cJSON *json;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(json_read_file(path, &json));
    *config = (struct gpt_config){.n_layer = get_int(json, "n_layer"),
                                  .n_head = get_int(json, "n_head"),
                                  .n_embd = get_int(json, "n_embd"),
                                  .vocab_size = get_int(json, "vocab_size"),
                                  .n_positions = get_int(json, "n_positions"),
                                  .family = FAMILY_MODERN,
                                  .n_kv_head = get_int(json, "n_kv_head"),
                                  .head_dim = get_int(json, "head_dim"),
                                  .intermediate_size = get_int(json, "intermediate_size"),
                                  .norm_eps = get_number(json, "norm_eps"),
                                  .qk_norm = true,
                                  .untied = true,
                                  .rope = {.theta = get_number(get_object(json, "rope"), "theta")},
                                  .partial_rotary_factor = get_number(json, "partial_rotary_factor"),
                                  .soft_cap = get_number(json, "soft_cap"),
                                  .embedding_skip = true};
    config->n_windows = get_list(json, "window", config->windows);
    config->n_value_embeddings = get_list(json, "value_embeddings", config->value_embeddings);
    cJSON_Delete(json);
}

static void read_model(struct run *run, struct device *device) {
    const char *folder = run->golden->folder;
    struct gpt_config config;
    struct huggingface_weights weights;
    if (strcmp(folder, GOLDEN "modern-tiny") == 0)
        read_modern(folder, &config);
    else
        assert_ok(huggingface_read_config(folder, &config));
    whole_model_init(&run->model, &config, device,
                     &(struct gpt_options){.type = run->golden->type,
                                           .B = run->B,
                                           .T = run->T,
                                           .recompute = run->golden->recompute,
                                           .training = true},
                     0);
    assert_ok(huggingface_open(&weights, folder, &run->model.params));
    float *values = malloc(run->model.params.n_elements * sizeof *values);
    assert_non_null(values);
    for (int unit = 0; unit < run->model.params.n_units; unit++) {
        assert_ok(huggingface_span(&weights, unit, 0, run->model.params.units[unit].elements, values));
        whole_model_set_unit(&run->model, unit, values);
    }
    free(values);
    huggingface_close(&weights);
}

// Micro-batch k of the run: the B T tokens from k B T on, and as targets the tokens one position later.
static void micro_batch(const struct run *run, int k, int32_t *tokens, int32_t *targets) {
    size_t n = (size_t)run->B * (size_t)run->T, first = (size_t)k * n;
    assert_true(first + n + 1 <= run->n_tokens);
    for (size_t i = 0; i <= n; i++) {
        uint16_t token;
        memcpy(&token, run->shard + SHARD_HEADER + (first + i) * sizeof token, sizeof token);
        if (i < n)
            tokens[i] = token;
        if (i > 0)
            targets[i - 1] = token;
    }
}

// A tensor of the golden file, or a part of a fused one.
struct golden_tensor {
    const char *prefix;
    const struct param *param;
    int part; // -1: all of it
};

static uint8_t *load_tensor(const struct run *run, const struct golden_tensor *which,
                            const struct safetensor **tensor) {
    char name[64], full[96];
    snprintf(name, sizeof name, "%s", which->param->name);
    if (which->part >= 0)
        params_part_name(which->param, which->part, name, sizeof name);
    const char *of = run->model.params.config.family == FAMILY_GPT2 ? "transformer."
                     : strcmp(name, "lm_head.weight") == 0          ? ""
                                                                    : "model.";
    snprintf(full, sizeof full, "%s.%s%s", which->prefix, of, name);
    *tensor = safetensors_find(&run->tensors, full);
    if (!*tensor)
        fail_msg("the golden file has no %s", full);
    uint8_t *values = tensor_load(&run->tensors, *tensor);
    assert_non_null(values);
    return values;
}

// The largest difference from a part of one of our tensors, and the largest of its golden values.
static void part_error(const struct run *run, const char *prefix, int index, int part, const void *data,
                       enum dtype type, double *error, double *largest) {
    const struct params *params = &run->model.params;
    const struct param *param = &params->params[index];
    const struct safetensor *expected;
    uint8_t *wanted = load_tensor(run, &(struct golden_tensor){prefix, param, part}, &expected);
    const size_t columns = (size_t)param->shape[1];
    const size_t n = (size_t)param->parts[part].n_rows * columns;
    const size_t at = param_position(params, index) + (size_t)param->parts[part].first_row * columns;
    const bool is_key_bias = param->n_dims == 1 && strcmp(param->parts[part].name, "k_proj") == 0;
    assert_int_equal(expected->elements, n);
    for (size_t i = 0; i < n; i++) {
        double value = (double)safetensor_value(expected, wanted, i);
        *largest = worse(*largest, fabs(value));
        if (!is_key_bias || strcmp(prefix, "grad") == 0)
            *error = worse(*error, fabs(state_get(data, type, at + i) - value));
    }
    free(wanted);
}

// The same for a tensor that the golden file keeps in parts. The error is relative to the largest element of
// all parts: they are rows of one product.
static double parts_error(const struct run *run, const char *prefix, int index, const void *data,
                          enum dtype type, bool relative) {
    double error = 0, largest = 0;
    for (int part = 0; part < run->model.params.params[index].n_parts; part++)
        part_error(run, prefix, index, part, data, type, &error, &largest);
    return relative ? error / largest : error;
}

// The norm of the terms whose sum is the gradient `name`, where the golden file has it: of scalars that mix
// the residual stream, a product of all its elements in which terms cancel. Terms are rounded independently,
// so the error of their sum is in proportion to it. 0 elsewhere, and not used in double, which rounds none.
static double term_norm(const struct run *run, const char *name) {
    const cJSON *norms = cJSON_GetObjectItemCaseSensitive(run->expected, "gradient_term_norms");
    const cJSON *norm = cJSON_GetObjectItemCaseSensitive(norms, name);
    return cJSON_IsNumber(norm) ? norm->valuedouble : 0;
}

// Compares one of our tensors with the golden one. The error is absolute, or relative to the tensor's largest
// element, or to its term_norm if that is larger. skip_keys: leaves out the keys' third of c_attn.bias, whose
// true gradient is zero, so that its updates are rounding noise.
static double tensor_error(const struct run *run, const char *prefix, int index, const void *data,
                           enum dtype type, bool relative, bool skip_keys) {
    const struct params *params = &run->model.params;
    const struct param *param = &params->params[index];
    if (param->hf_parts)
        return parts_error(run, prefix, index, data, type, relative);
    const struct safetensor *expected;
    uint8_t *wanted = load_tensor(run, &(struct golden_tensor){prefix, param, -1}, &expected);
    assert_int_equal(expected->elements, param->elements);
    size_t rows = (size_t)param->shape[0], columns = (size_t)param->shape[1];
    size_t C = (size_t)params->config.n_embd, at = param_position(params, index);
    skip_keys = skip_keys && strstr(param->name, "c_attn.bias");
    double error = 0,
           largest = relative && type != DTYPE_F64 ? term_norm(run, strchr(expected->name, '.') + 1) : 0;
    for (size_t i = 0; i < param->elements; i++) {
        size_t source = param->hf_transposed ? i % columns * rows + i / columns : i;
        double value = (double)safetensor_value(expected, wanted, source);
        largest = worse(largest, fabs(value));
        if (!(skip_keys && i >= C && i < 2 * C))
            error = worse(error, fabs(state_get(data, type, at + i) - value));
    }
    free(wanted);
    return relative ? error / largest : error;
}

static void check_logits(struct run *run, const int32_t *tokens) {
    const struct safetensor *expected = safetensors_find(&run->tensors, "logits");
    assert_non_null(expected);
    float *logits = malloc(expected->elements * sizeof *logits);
    uint8_t *wanted = tensor_load(&run->tensors, expected);
    assert_true(logits && wanted);
    assert_int_equal(expected->elements,
                     (size_t)run->B * (size_t)run->T * (size_t)run->model.params.config.vocab_size);
    assert_ok(gpt_logits(run->model.gpt, &run->model.stream, &run->model.hooks,
                         whole_model_batch(&run->model, tokens, NULL), logits));
    for (size_t i = 0; i < expected->elements; i++)
        run->reached.logits = worse(run->reached.logits,
                                    fabs((double)logits[i] - (double)safetensor_value(expected, wanted, i)));
    free(logits);
    free(wanted);
}

// Returns the mean loss of a step. The gradients are left in the model.
static double run_micro_batches(struct run *run, int step) {
    struct whole_model *model = &run->model;
    size_t n = (size_t)run->B * (size_t)run->T;
    int32_t *tokens = malloc(n * sizeof *tokens), *targets = malloc(n * sizeof *targets);
    assert_true(tokens && targets);
    double sum = 0, n_tokens = (double)n * run->accum;
    double loss_scale = model->options.type == DTYPE_F16 ? FP16_LOSS_SCALE : 1;
    whole_model_zero_grads(model);
    for (int k = 0; k < run->accum; k++) {
        double loss_sum;
        micro_batch(run, step * run->accum + k, tokens, targets);
        if (step == 0 && k == 0 && run->has_tensors && model->options.type != DTYPE_F64)
            check_logits(run, tokens);
        whole_model_poison(model);
        assert_ok(gpt_forward_backward(model->gpt, &model->stream, &model->hooks,
                                       whole_model_batch(model, tokens, targets),
                                       (float)(loss_scale / n_tokens), &loss_sum));
        sum += loss_sum;
    }
    void *grads = whole_data(model, model->grad_region);
    // Exact, because the scale is a power of two.
    for (size_t i = 0; loss_scale != 1 && i < model->params.n_elements; i++)
        state_set(grads, model->state, i, state_get(grads, model->state, i) / loss_scale);
    free(tokens);
    free(targets);
    return sum / n_tokens;
}

static void train(struct run *run) {
    struct whole_model *model = &run->model;
    const cJSON *curve = cJSON_GetObjectItemCaseSensitive(run->expected, "curve");
    for (int step = 0; step < run->n_steps; step++) {
        const cJSON *expected = cJSON_GetArrayItem(curve, step);
        double loss = run_micro_batches(run, step), norm = whole_model_grad_norm(model);
        double expected_loss = get_number(expected, "loss"),
               expected_norm = get_number(expected, "grad_norm");
        run->reached.losses = worse(run->reached.losses, fabs(loss / expected_loss - 1));
        run->reached.norms = worse(run->reached.norms, fabs(norm / expected_norm - 1));
        for (int i = 0; step == 0 && run->has_tensors && i < model->params.n_params; i++)
            run->reached.gradients = worse(run->reached.gradients,
                                           tensor_error(run, "grad", i, whole_data(model, model->grad_region),
                                                        model->state, true, false));
        // As in PyTorch's clip_grad_norm_.
        double scale = run->clip_norm / (norm + 1e-6);
        whole_model_update(model, &run->settings, step + 1, scale < 1 ? scale : 1);
    }
    for (int i = 0; run->has_tensors && i < model->params.n_params; i++)
        run->reached.weights =
            worse(run->reached.weights, tensor_error(run, "final", i, whole_data(model, model->master_region),
                                                     model->state, false, true));
}

static void expect_at_most(const char *what, double reached, double wanted) {
    if (!isnan(wanted) && !(reached <= wanted))
        fail_msg("the error of the %s is %.2g, expected at most %.2g", what, reached, wanted);
}

static void test_golden(void **state) {
    struct run run = {.golden = *state};
    struct device *device = device_for_test(run.golden->device);
    read_files(&run);
    read_model(&run, device);
    train(&run);
    const struct tolerances *reached = &run.reached, *wanted = run.golden->tolerances;
    print_message("%s, %s, %s%s: errors of ", run.golden->folder, run.golden->device,
                  dtype_name(run.golden->type), run.golden->recompute ? ", recompute" : "");
    if (run.has_tensors && run.golden->type != DTYPE_F64)
        print_message("logits %.2g, ", reached->logits);
    if (run.has_tensors)
        print_message("gradients %.2g, weights %.2g, ", reached->gradients, reached->weights);
    print_message("losses %.2g, norms %.2g\n", reached->losses, reached->norms);
    expect_at_most("logits", reached->logits, wanted->logits);
    expect_at_most("gradients", reached->gradients, wanted->gradients);
    expect_at_most("losses", reached->losses, wanted->losses);
    expect_at_most("norms", reached->norms, wanted->norms);
    expect_at_most("final weights", reached->weights, wanted->weights);
    if (run.has_tensors)
        safetensors_close(&run.tensors);
    cJSON_Delete(run.expected);
    free(run.shard);
    whole_model_free(&run.model);
    device_close(device);
}

// X(folder, device, type, recompute, tolerances)
#define ON_DEVICE(X, device)                                                                                 \
    X("gpt2-tiny", device, DTYPE_F32, RECOMPUTE_NONE, fp32_tolerances)                                       \
    X("gpt2-tiny-accum", device, DTYPE_F32, RECOMPUTE_NONE, fp32_tolerances)                                 \
    X("gpt2-tiny", device, DTYPE_BF16, RECOMPUTE_NONE, bf16_tolerances)                                      \
    X("gpt2-tiny-accum", device, DTYPE_BF16, RECOMPUTE_BLOCK, bf16_tolerances)                               \
    X("gpt2-tiny", device, DTYPE_F16, RECOMPUTE_NONE, fp16_tolerances)                                       \
    X("gpt2-tiny-accum", device, DTYPE_F16, RECOMPUTE_BLOCK, fp16_tolerances)
// Llama's operations in each compute type.
#define LLAMA_ON_DEVICE(X, device)                                                                           \
    X("llama-tiny", device, DTYPE_F32, RECOMPUTE_NONE, llama_tolerances)                                     \
    X("qwen2-tiny", device, DTYPE_F32, RECOMPUTE_ATTENTION, llama_tolerances)                                \
    X("qwen3-tiny", device, DTYPE_F32, RECOMPUTE_BLOCK, llama_tolerances)                                    \
    X("llama-tiny", device, DTYPE_BF16, RECOMPUTE_BLOCK, bf16_tolerances)                                    \
    X("qwen2-tiny", device, DTYPE_BF16, RECOMPUTE_NONE, bf16_tolerances)                                     \
    X("qwen3-tiny", device, DTYPE_BF16, RECOMPUTE_ELEMENTWISE, bf16_tolerances)                              \
    X("llama-tiny", device, DTYPE_F16, RECOMPUTE_ATTENTION, fp16_tolerances)                                 \
    X("qwen2-tiny", device, DTYPE_F16, RECOMPUTE_NONE, fp16_tolerances)                                      \
    X("qwen3-tiny", device, DTYPE_F16, RECOMPUTE_BLOCK, fp16_tolerances)
#define MODERN_ON_DEVICE(X, device)                                                                          \
    X("modern-tiny", device, DTYPE_F32, RECOMPUTE_NONE, fp32_tolerances)                                     \
    X("modern-tiny", device, DTYPE_F32, RECOMPUTE_BLOCK, fp32_tolerances)                                    \
    X("modern-tiny", device, DTYPE_BF16, RECOMPUTE_ELEMENTWISE, bf16_tolerances)                             \
    X("modern-tiny", device, DTYPE_F16, RECOMPUTE_ATTENTION, fp16_tolerances)
#define GOLDEN_CASES(X)                                                                                      \
    ON_DEVICE(X, "amx")                                                                                      \
    ON_DEVICE(X, "avx512_bf16")                                                                              \
    ON_DEVICE(X, "avx512")                                                                                   \
    ON_DEVICE(X, "avx2")                                                                                     \
    ON_DEVICE(X, "portable")                                                                                 \
    X("gpt2-tiny", "portable", DTYPE_F32, RECOMPUTE_BLOCK, fp32_tolerances)                                  \
    ON_DEVICE(X, "ref")                                                                                      \
    X("gpt2-tiny", "ref", DTYPE_F64, RECOMPUTE_NONE, fp64_tolerances)                                        \
    X("gpt2-tiny-accum", "ref", DTYPE_F64, RECOMPUTE_NONE, fp64_tolerances)                                  \
    LLAMA_ON_DEVICE(X, "amx")                                                                                \
    LLAMA_ON_DEVICE(X, "avx512_bf16")                                                                        \
    LLAMA_ON_DEVICE(X, "avx512")                                                                             \
    LLAMA_ON_DEVICE(X, "avx2")                                                                               \
    LLAMA_ON_DEVICE(X, "portable")                                                                           \
    LLAMA_ON_DEVICE(X, "ref")                                                                                \
    MODERN_ON_DEVICE(X, "amx")                                                                               \
    MODERN_ON_DEVICE(X, "avx512_bf16")                                                                       \
    MODERN_ON_DEVICE(X, "avx512")                                                                            \
    MODERN_ON_DEVICE(X, "avx2")                                                                              \
    MODERN_ON_DEVICE(X, "portable")                                                                          \
    MODERN_ON_DEVICE(X, "ref")                                                                               \
    X("modern-tiny", "ref", DTYPE_F64, RECOMPUTE_NONE, fp64_tolerances)                                      \
    X("modern-tiny", "ref", DTYPE_F64, RECOMPUTE_ATTENTION, fp64_tolerances)                                 \
    X("llama-tiny", "ref", DTYPE_F64, RECOMPUTE_NONE, fp64_tolerances)                                       \
    X("qwen2-tiny", "ref", DTYPE_F64, RECOMPUTE_ELEMENTWISE, fp64_tolerances)                                \
    X("qwen3-tiny", "ref", DTYPE_F64, RECOMPUTE_ATTENTION, fp64_tolerances)

// For a folder that is given: X(device, type, recompute, tolerances)
#define GIVEN_CASES(X)                                                                                       \
    X("avx512_bf16", DTYPE_F32, RECOMPUTE_NONE, given_fp32_tolerances)                                       \
    X("avx512", DTYPE_F32, RECOMPUTE_ATTENTION, given_fp32_tolerances)                                       \
    X("avx2", DTYPE_F32, RECOMPUTE_ELEMENTWISE, given_fp32_tolerances)                                       \
    X("portable", DTYPE_F32, RECOMPUTE_BLOCK, given_fp32_tolerances)                                         \
    X("amx", DTYPE_BF16, RECOMPUTE_BLOCK, bf16_tolerances)                                                   \
    X("avx512_bf16", DTYPE_BF16, RECOMPUTE_BLOCK, bf16_tolerances)                                           \
    X("avx512", DTYPE_BF16, RECOMPUTE_NONE, bf16_tolerances)                                                 \
    X("avx2", DTYPE_BF16, RECOMPUTE_NONE, bf16_tolerances)                                                   \
    X("portable", DTYPE_BF16, RECOMPUTE_NONE, bf16_tolerances)                                               \
    X("ref", DTYPE_F64, RECOMPUTE_NONE, given_fp64_tolerances)

static int test_given(const char *folder) {
#define CASE(device, type, recompute, tolerances) {NULL, device, type, recompute, &tolerances},
    static struct golden_case cases[] = {GIVEN_CASES(CASE)};
#undef CASE
#define TEST(device, type, recompute, tolerances)                                                            \
    {device " " #type " " #recompute, test_golden, NULL, NULL, NULL},
    struct CMUnitTest tests[] = {GIVEN_CASES(TEST)};
#undef TEST
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        cases[i].folder = folder;
        tests[i].initial_state = &cases[i];
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv) {
    if (argc > 1)
        return test_given(argv[1]);
#define CASE(folder, device, type, recompute, tolerances)                                                    \
    {GOLDEN folder, device, type, recompute, &tolerances},
    static const struct golden_case cases[] = {GOLDEN_CASES(CASE)};
#undef CASE
#define TEST(folder, device, type, recompute, tolerances)                                                    \
    {folder " " device " " #type " " #recompute, test_golden, NULL, NULL, NULL},
    struct CMUnitTest tests[] = {GOLDEN_CASES(TEST)};
#undef TEST
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        tests[i].initial_state = (void *)(uintptr_t)&cases[i];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
