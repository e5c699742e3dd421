// A whole model in memory, for tests of model/: unsharded parameters and gradients, and AdamW. whole_data,
// the norm and the update need a device whose memory the host can read (cpu, ref); the rest works on a GPU,
// too. Header only, because every test links tests/support, but only those of model/ link the model.
#ifndef ZERO_TESTS_WHOLE_MODEL_H
#define ZERO_TESTS_WHOLE_MODEL_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "model/generate.h"
#include "model/gpt.h"
#include "model/unsharded.h"
#include "tests/ref/ref.h"

// Fails the test with the recorded message.
#define assert_ok(expression)                                                                                \
    do {                                                                                                     \
        if ((expression) != STATUS_OK)                                                                       \
            fail_msg("%s", status_message());                                                                \
    } while (0)

#define WHOLE_MODEL_SEQUENCES 5 // that the generator decodes

struct whole_model {
    struct params params;
    struct device *device;
    struct gpt_options options;
    enum dtype state; // of gradients, master weights and moments: fp32, or double for DTYPE_F64
    struct region_table table;
    int param_region, master_region, grad_region, m_region,
        v_region; // master: the parameters themselves, unless they are bf16 or fp16
    void *memory[N_REGION_KINDS][N_REGION_PLACES];
    struct arena pinned[N_REGION_KINDS]; // host memory, if the device has memory of its own
    struct stream stream;
    struct gpt *gpt;
    struct generator *generator;
    struct unsharded unsharded;
    struct unit_hooks hooks; // those of `unsharded`

    // For whole_model_batch.
    int32_t document_start; // the token that begins a document, with options.mask_documents
    const float *weights;   // (B, T); NULL: none
    struct token_batch batch;
    int32_t starts[256];
};

static inline void *whole_data(const struct whole_model *model, int region) {
    return region_data(&model->table, region);
}

// For a test's own hooks: calls the model's hook, whose result the test then modifies.
static inline enum status whole_acquire(struct whole_model *model, struct stream *stream, int unit,
                                        enum gpt_pass pass, struct unit_view *view) {
    return model->hooks.params_acquire(model->hooks.context, stream, unit, pass, view);
}

// Returns whether training in this compute dtype keeps separate fp32 master weights.
static inline bool has_master_weights(enum dtype type) {
    return type == DTYPE_BF16 || type == DTYPE_F16;
}

// One element of any floating type.
static inline void state_set(void *data, enum dtype type, size_t i, double value) {
    if (type == DTYPE_F64)
        ((double *)data)[i] = value;
    else if (type == DTYPE_BF16)
        ((uint16_t *)data)[i] = bf16_from_float((float)value);
    else if (type == DTYPE_F16)
        ((uint16_t *)data)[i] = f16_from_float((float)value);
    else
        ((float *)data)[i] = (float)value;
}

static inline double state_get(const void *data, enum dtype type, size_t i) {
    return type == DTYPE_F64    ? ((const double *)data)[i]
           : type == DTYPE_BF16 ? (double)bf16_to_float(((const uint16_t *)data)[i])
           : type == DTYPE_F16  ? (double)f16_to_float(((const uint16_t *)data)[i])
                                : (double)((const float *)data)[i];
}

// Copies in either direction, and waits.
static inline void whole_copy(struct whole_model *model, void *to, const void *from, size_t bytes) {
    assert_ok(model->device->copy(&model->stream, to, from, bytes));
    assert_ok(model->device->synchronize(&model->stream));
}

static inline void whole_fill(struct whole_model *model, void *to, int byte, size_t bytes) {
    void *from = malloc(bytes);
    assert_non_null(from);
    memset(from, byte, bytes);
    whole_copy(model, to, from, bytes);
    free(from);
}

// Fills with NaN all memory that a pass must write before it reads it.
static inline void whole_model_poison(struct whole_model *model) {
    static const enum region_kind kinds[] = {REGION_ACTIVATIONS, REGION_LOGITS, REGION_WORKSPACE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int place = 0; place < N_REGION_PLACES; place++)
            if (model->memory[kinds[i]][place])
                whole_fill(model, model->memory[kinds[i]][place], 0xff,
                           model->table.arena_bytes[kinds[i]][place]);
}

// As kernels/region_memory.c: page-locked where the device copies.
static inline void whole_memory_new(struct whole_model *model, enum region_kind kind,
                                    enum region_place place) {
    size_t bytes = model->table.arena_bytes[kind][place];
    void **memory = &model->memory[kind][place];
    if (place == model->device->place) {
        assert_ok(model->device->memory_new(model->device, bytes, "tests", memory));
    } else {
        assert_ok(arena_init(&model->pinned[kind], bytes, "tests"));
        assert_ok(device_pin(model->device, model->pinned[kind].data, bytes));
        *memory = model->pinned[kind].data;
    }
    if (*memory) // nothing of this kind: nothing to bind
        region_table_bind(&model->table, kind, place, *memory);
}

// Adds the regions, allocates and binds them. Frozen tensors have room for gradients, which nothing writes.
//   positions   > 0: also creates a generator with that context length
//   is_frozen   (n_params) or NULL: none is
static inline void whole_model_init_frozen(struct whole_model *model, const struct gpt_config *config,
                                           struct device *device, const struct gpt_options *options,
                                           int positions, const bool *is_frozen) {
    *model = (struct whole_model){.device = device, .options = *options};
    assert_ok(stream_init(&model->stream, device));
    model->state = options->type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    assert_ok(params_init(&model->params, config));
    struct region_table *table = &model->table;
    enum region_place place = device->place;
    size_t n = model->params.n_elements, n_grads = params_grad_memory(&model->params, place);
    for (int i = 0; is_frozen && i < model->params.n_params; i++)
        model->params.params[i].is_frozen = is_frozen[i];
    params_lay_out_gradients(&model->params);
    region_table_init(table);
    assert_ok(region_add(table, REGION_PARAMS, place, options->type, params_memory(&model->params, place),
                         &model->param_region, "params"));
    model->master_region = model->param_region;
    if (has_master_weights(options->type))
        assert_ok(region_add(table, REGION_MASTER, place, DTYPE_F32, n, &model->master_region, "master"));
    assert_ok(region_add(table, REGION_GRADS, place, model->state, n_grads, &model->grad_region, "grads"));
    assert_ok(region_add(table, REGION_MOMENTS, place, model->state, n, &model->m_region, "m"));
    assert_ok(region_add(table, REGION_MOMENTS, place, model->state, n, &model->v_region, "v"));
    assert_ok(gpt_new(&model->params, options, device, table, &model->gpt));
    if (positions > 0)
        assert_ok(generator_new(&model->params,
                                &(struct generator_options){options->type, positions, WHOLE_MODEL_SEQUENCES,
                                                            options->mask_documents, options->attention},
                                device, table, &model->generator));
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        for (int p = 0; p < N_REGION_PLACES; p++)
            whole_memory_new(model, (enum region_kind)kind, (enum region_place)p);
    unsharded_init(&model->unsharded, &model->params, options->type, whole_data(model, model->param_region),
                   model->state, whole_data(model, model->grad_region));
    model->hooks = unsharded_hooks(&model->unsharded);
    assert_ok(gpt_bind(model->gpt, table, &model->stream));
    if (model->generator)
        assert_ok(generator_bind(model->generator, table, &model->stream));
    whole_model_poison(model);
}

static inline void whole_model_init(struct whole_model *model, const struct gpt_config *config,
                                    struct device *device, const struct gpt_options *options, int positions) {
    whole_model_init_frozen(model, config, device, options, positions, NULL);
}

static inline void whole_model_free(struct whole_model *model) {
    unsharded_free(&model->unsharded);
    generator_delete(model->generator);
    gpt_delete(model->gpt);
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        device_unpin(model->device, model->pinned[kind].data);
        arena_free(&model->pinned[kind]);
        model->device->memory_delete(model->device, model->memory[kind][model->device->place],
                                     model->table.arena_bytes[kind][model->device->place]);
    }
    stream_free(&model->stream);
    region_table_free(&model->table);
    params_free(&model->params);
}

// Sets a unit's master weights to `values`, and its parameters to the same in the compute dtype.
static inline void whole_model_set_unit(struct whole_model *model, int unit, const float *values) {
    const struct param_unit *u = &model->params.units[unit];
    enum dtype type = model->options.type, master = has_master_weights(type) ? DTYPE_F32 : type;
    double *converted = malloc(u->elements * sizeof *converted);
    assert_non_null(converted);
    const struct {
        enum dtype type;
        int region;
    } copies[] = {{master, model->master_region}, {type, model->param_region}};
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < u->elements; i++)
            state_set(converted, copies[k].type, i, (double)values[i]);
        size_t size = dtype_size(copies[k].type);
        whole_copy(model, (char *)whole_data(model, copies[k].region) + u->offset * size, converted,
                   u->elements * size);
    }
    free(converted);
}

// The model's initial values.
static inline void whole_model_randomize(struct whole_model *model, uint64_t seed) {
    float *values = malloc(model->params.n_elements * sizeof *values);
    assert_non_null(values);
    for (int unit = 0; unit < model->params.n_units; unit++) {
        params_init_span(&model->params, seed, unit, 0, model->params.units[unit].elements, values);
        whole_model_set_unit(model, unit, values);
    }
    free(values);
}

static inline void whole_model_zero_grads(struct whole_model *model) {
    whole_fill(model, whole_data(model, model->grad_region), 0,
               model->params.n_elements * dtype_size(model->state));
}

// Where a tensor begins in the concatenation of all units.
static inline size_t param_position(const struct params *params, int index) {
    return params->units[params->params[index].unit].offset + params->params[index].offset;
}

static inline double whole_model_grad_norm(struct whole_model *model) {
    double total = 0;
    for (int unit = 0; unit < model->params.n_units; unit++) {
        const struct param_unit *u = &model->params.units[unit];
        size_t n = (u->elements + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK;
        double *partial = malloc(n * sizeof *partial);
        assert_non_null(partial);
        struct sum_squares_args args = {.partial = partial,
                                        .x = (char *)whole_data(model, model->grad_region) +
                                             u->offset * dtype_size(model->state),
                                        .n = u->elements,
                                        .type = model->state};
        assert_ok(model->device->ops->sum_squares(&model->stream, &args));
        assert_ok(model->device->synchronize(&model->stream));
        for (size_t i = 0; i < n; i++)
            total += partial[i];
        free(partial);
    }
    return sqrt(total);
}

static inline void random_tokens(int32_t *tokens, int n, int vocab_size, uint32_t stream) {
    for (int i = 0; i < n; i++)
        tokens[i] = (int32_t)rng_below(7, stream, (uint64_t)i, (uint64_t)vocab_size);
}

// Adds noise to the initial weights, because norm weights of 1 and biases of 0 hide wrong gradients.
static inline void whole_model_perturb(struct whole_model *model) {
    float *values = malloc(model->params.n_elements * sizeof *values);
    assert_non_null(values);
    for (int unit = 0; unit < model->params.n_units; unit++) {
        const struct param_unit *u = &model->params.units[unit];
        params_init_span(&model->params, 3, unit, 0, u->elements, values);
        for (int i = u->first_param; i < u->first_param + u->n_params; i++)
            for (size_t e = 0; e < model->params.params[i].elements; e++)
                values[model->params.params[i].offset + e] += (float)(0.2 * rng_normal(4, (uint32_t)i, e));
        whole_model_set_unit(model, unit, values);
    }
    free(values);
}

// The batch of these tokens for a pass of the model; valid until the next one.
static inline const struct token_batch *whole_model_batch(struct whole_model *model, const int32_t *tokens,
                                                          const int32_t *targets) {
    const int B = model->options.B, T = model->options.T;
    model->batch = (struct token_batch){.tokens = tokens, .targets = targets, .weights = model->weights};
    if (model->options.mask_documents) {
        assert_true((size_t)(B * T) * sizeof *tokens <= sizeof model->starts);
        token_batch_find_starts(tokens, B, T, model->document_start, model->starts);
        model->batch.starts = model->starts;
    }
    return &model->batch;
}

struct step_result {
    double loss;
    void *grads;
    size_t bytes;
};

// One forward and backward pass over fixed tokens, with buffers poisoned before.
static inline struct step_result whole_model_step(struct whole_model *model, const struct unit_hooks *hooks) {
    int32_t tokens[64], targets[64];
    int n = model->options.B * model->options.T;
    assert_true(n <= 64);
    random_tokens(tokens, n, model->params.config.vocab_size, 1);
    random_tokens(targets, n, model->params.config.vocab_size, 2);
    struct step_result result = {.bytes = model->params.n_elements * dtype_size(model->state)};
    whole_model_poison(model);
    whole_model_zero_grads(model);
    assert_ok(gpt_forward_backward(model->gpt, &model->stream, hooks,
                                   whole_model_batch(model, tokens, targets), 1.0f / (float)n, &result.loss));
    result.grads = malloc(result.bytes);
    assert_non_null(result.grads);
    whole_copy(model, result.grads, whole_data(model, model->grad_region), result.bytes);
    return result;
}

static inline void assert_same_step(const struct step_result *a, const struct step_result *b) {
    assert_memory_equal(&a->loss, &b->loss, sizeof a->loss);
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->grads, b->grads, a->bytes);
}

struct adamw_settings {
    double lr, beta1, beta2, epsilon, weight_decay;
};

// Update number `step` (from 1) of every tensor.
static inline void whole_model_update(struct whole_model *model, const struct adamw_settings *settings,
                                      int64_t step, double grad_scale) {
    size_t size = dtype_size(model->state);
    for (int i = 0; i < model->params.n_params; i++) {
        const struct param *param = &model->params.params[i];
        size_t at = param_position(&model->params, i);
        bool has_master = has_master_weights(model->options.type);
        struct optimizer_state state = {.master = (char *)whole_data(model, model->master_region) + at * size,
                                        .m = (char *)whole_data(model, model->m_region) + at * size,
                                        .v = (char *)whole_data(model, model->v_region) + at * size};
        struct optimizer_step_args args = {.rule = OPTIMIZER_ADAMW,
                                           .state = state,
                                           .param = has_master
                                                        ? (char *)whole_data(model, model->param_region) +
                                                              at * dtype_size(model->options.type)
                                                        : NULL,
                                           .grad = (char *)whole_data(model, model->grad_region) + at * size,
                                           .n = param->elements,
                                           .first = at,
                                           .step = step,
                                           .lr = settings->lr,
                                           .beta1 = settings->beta1,
                                           .beta2 = settings->beta2,
                                           .epsilon = settings->epsilon,
                                           .weight_decay = param->decay ? settings->weight_decay : 0,
                                           .grad_scale = (float)grad_scale,
                                           .type = model->options.type};
        assert_ok(model->device->ops->optimizer_step(&model->stream, &args));
    }
    assert_ok(model->device->synchronize(&model->stream));
}

// "ref", "cuda", or an instruction set of the CPU backend; skips the test if this machine lacks it.
static inline struct device *device_for_test(const char *name) {
    struct device *device = NULL;
    enum status status = strcmp(name, "ref") == 0    ? ref_device_open(&device)
                         : strcmp(name, "cuda") == 0 ? cuda_device_open(0, &device)
                                                     : cpu_device_open(name, 2, &device);
    if (status == STATUS_UNSUPPORTED) {
        print_message("skipped: %s\n", status_message());
        status_clear();
        skip();
    }
    assert_ok(status);
    return device;
}

// The larger of two errors; NaN is the largest.
static inline double worse(double a, double b) {
    return isnan(a) || isnan(b) ? (double)INFINITY : a > b ? a : b;
}

#endif
