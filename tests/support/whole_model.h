// A whole model in memory, for tests of model/: the plainest owner of parameters and gradients that the hooks
// allow, and AdamW over it. Relies on devices whose memory the host can read (cpu, ref). Header only, as
// every test links tests/support but only those of model/ link the model.
#ifndef ZERO_TESTS_WHOLE_MODEL_H
#define ZERO_TESTS_WHOLE_MODEL_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
// cmocka wants those above before it.
#include <cmocka.h>

#include "kernels/ops.h"
#include "model/generate.h"
#include "model/gpt.h"

// Fails the test with the recorded message.
#define assert_ok(expression)                                                                                \
    do {                                                                                                     \
        if ((expression) != STATUS_OK)                                                                       \
            fail_msg("%s", status_message());                                                                \
    } while (0)

struct whole_model {
    struct params params;
    struct device *device;
    struct gpt_options options;
    enum dtype state; // of gradients, master weights and moments: fp32, or double for DTYPE_F64
    struct region_table table;
    int param_region, master_region, grad_region, m_region,
        v_region; // master is param unless that is narrower
    void *memory[N_REGION_KINDS][N_REGION_PLACES];
    struct stream stream;
    struct gpt *gpt;
    struct generator *generator;
    struct unit_hooks hooks;
};

static inline void *whole_data(const struct whole_model *model, int region) {
    return region_data(&model->table, region);
}

static inline enum status whole_acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                                        int next, struct unit_view *view) {
    struct whole_model *model = context;
    (void)stream, (void)next;
    size_t offset = model->params.units[unit].offset;
    view->params = (char *)whole_data(model, model->param_region) + offset * dtype_size(model->options.type);
    view->grads = pass != GPT_FORWARD
                      ? (char *)whole_data(model, model->grad_region) + offset * dtype_size(model->state)
                      : NULL;
    return STATUS_OK;
}

static inline enum status whole_release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    (void)context, (void)stream, (void)unit, (void)pass;
    return STATUS_OK;
}

static inline enum status whole_ready(void *context, struct stream *stream, int unit) {
    (void)context, (void)stream, (void)unit;
    return STATUS_OK;
}

// Whether weights of this compute type have fp32 master weights beside them.
static inline bool is_narrow(enum dtype type) {
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

// Makes NaN of everything that a pass may only read after writing it.
static inline void whole_model_poison(struct whole_model *model) {
    static const enum region_kind kinds[] = {REGION_ACTIVATIONS, REGION_LOGITS, REGION_WORKSPACE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int place = 0; place < N_REGION_PLACES; place++)
            if (model->memory[kinds[i]][place])
                memset(model->memory[kinds[i]][place], 0xff, model->table.arena_bytes[kinds[i]][place]);
}

// Adds the regions, allocates and binds them. positions > 0: with a generator of so many.
static inline void whole_model_init(struct whole_model *model, const struct gpt_config *config,
                                    struct device *device, const struct gpt_options *options, int positions) {
    *model = (struct whole_model){.device = device, .options = *options, .stream = {.device = device}};
    model->state = options->type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    model->hooks = (struct unit_hooks){model, whole_acquire, whole_release, whole_ready};
    assert_ok(params_init(&model->params, config));
    struct region_table *table = &model->table;
    enum region_place place = device->place;
    size_t n = model->params.n_elements;
    region_table_init(table);
    assert_ok(region_add(table, REGION_PARAMS, place, options->type, n, &model->param_region, "params"));
    model->master_region = model->param_region;
    if (is_narrow(options->type))
        assert_ok(region_add(table, REGION_MASTER, place, DTYPE_F32, n, &model->master_region, "master"));
    assert_ok(region_add(table, REGION_GRADS, place, model->state, n, &model->grad_region, "grads"));
    assert_ok(region_add(table, REGION_MOMENTS, place, model->state, n, &model->m_region, "m"));
    assert_ok(region_add(table, REGION_MOMENTS, place, model->state, n, &model->v_region, "v"));
    assert_ok(gpt_new(&model->params, options, device, table, &model->gpt));
    if (positions > 0)
        assert_ok(generator_new(&model->params, options->type, positions, device, table, &model->generator));
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        for (int p = 0; p < N_REGION_PLACES; p++) {
            void **memory = &model->memory[kind][p];
            assert_ok(device->memory_new(device, table->arena_bytes[kind][p], "tests", memory));
            if (*memory) // nothing of this kind: nothing to bind
                region_table_bind(table, (enum region_kind)kind, (enum region_place)p, *memory);
        }
    gpt_bind(model->gpt, table, &model->stream);
    if (model->generator)
        generator_bind(model->generator, table, &model->stream);
    whole_model_poison(model);
}

static inline void whole_model_free(struct whole_model *model) {
    generator_delete(model->generator);
    gpt_delete(model->gpt);
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        for (int place = 0; place < N_REGION_PLACES; place++)
            model->device->memory_delete(model->device, model->memory[kind][place],
                                         model->table.arena_bytes[kind][place]);
    region_table_free(&model->table);
    params_free(&model->params);
}

// Takes fp32 values for a unit's span as master weights, rounded where the compute type is narrower.
static inline void whole_model_set_unit(struct whole_model *model, int unit, const float *values) {
    const struct param_unit *u = &model->params.units[unit];
    enum dtype master = is_narrow(model->options.type) ? DTYPE_F32 : model->options.type;
    for (size_t i = 0; i < u->elements; i++) {
        state_set(whole_data(model, model->master_region), master, u->offset + i, (double)values[i]);
        state_set(whole_data(model, model->param_region), model->options.type, u->offset + i,
                  (double)values[i]);
    }
}

// The model's own first values.
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
    memset(whole_data(model, model->grad_region), 0, model->params.n_elements * dtype_size(model->state));
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
        bool narrow = is_narrow(model->options.type);
        struct optimizer_state state = {.master = (char *)whole_data(model, model->master_region) + at * size,
                                        .m = (char *)whole_data(model, model->m_region) + at * size,
                                        .v = (char *)whole_data(model, model->v_region) + at * size};
        struct optimizer_step_args args = {.rule = OPTIMIZER_ADAMW,
                                           .from = state,
                                           .to = state,
                                           .param = narrow ? (char *)whole_data(model, model->param_region) +
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

// "ref", or an instruction set of the CPU backend; skips the test where the processor lacks it.
static inline struct device *device_for_test(const char *name) {
    struct device *device = NULL;
    enum status status =
        strcmp(name, "ref") == 0 ? ref_device_open(&device) : cpu_device_open(name, 2, &device);
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
