// The model states and the optimizer of one rank, on two threads of the CPU or on another device:
// what tests of whole optimizers step by hand. A test's file is of those that link zero/stages.
#ifndef ZERO_TESTS_SUPPORT_OPTIMIZER_FIXTURE_H
#define ZERO_TESTS_SUPPORT_OPTIMIZER_FIXTURE_H

#include <string.h>

#include "kernels/region_memory.h"
#include "kernels/update.h"
#include "tests/support/expect.h"
#include "zero/optimizer/optimizer.h"

struct fixture {
    struct config config;
    struct params params;
    struct comm *comm;
    struct region_memory memory;
    struct stream stream;
    struct model_states state;
    struct optimizer optimizer;
};

// json: of the config. type: compute type. device: closed with the fixture.
static inline void fixture_open_on(struct fixture *fixture, const struct gpt_config *sizes, const char *json,
                                   enum dtype type, struct device *device) {
    *fixture = (struct fixture){0};
    EXPECT_OK(config_parse(&fixture->config, json, strlen(json), "test"));
    fixture->config.logical_ranks = 1;
    fixture->config.model.n_layer = sizes->n_layer; // which a checkpoint's model is made of
    fixture->config.model.n_head = sizes->n_head;
    fixture->config.model.n_embd = sizes->n_embd;
    fixture->config.model.vocab_size = sizes->vocab_size;
    fixture->config.model.n_positions = sizes->n_positions;
    EXPECT_OK(params_init(&fixture->params, sizes));
    EXPECT_OK(optimizer_groups_freeze(&fixture->config, &fixture->params));
    fixture->comm = comm_open_self();
    EXPECT_OK(comm_attach(fixture->comm, device, true));
    fixture->stream.device = device;
    region_memory_init(&fixture->memory, device);
    struct region_table *table = &fixture->memory.table;
    const struct stage stage = {
        .config = &fixture->config, .params = &fixture->params, .type = type, .device = device, .world = 1};
    EXPECT_OK(model_states_init(&fixture->state, &stage, table));
    EXPECT_OK(optimizer_init(&fixture->optimizer, &fixture->state, table));
    EXPECT_OK(region_memory_allocate(&fixture->memory));
    EXPECT_OK(model_states_bind(&fixture->state, table, fixture->comm, device));
    EXPECT_OK(optimizer_bind(&fixture->optimizer, table));
}

// On two threads of the CPU.
static inline void fixture_open_as(struct fixture *fixture, const struct gpt_config *sizes, const char *json,
                                   enum dtype type) {
    struct device *device;
    EXPECT_OK(device_open("cpu", 2, 0, &device));
    fixture_open_on(fixture, sizes, json, type, device);
}

// In fp32.
static inline void fixture_open(struct fixture *fixture, const struct gpt_config *sizes, const char *json) {
    fixture_open_as(fixture, sizes, json, DTYPE_F32);
}

// A tensor's gradient; NULL: it is frozen.
static inline float *fixture_grad(const struct fixture *fixture, const struct param *param) {
    return param->is_frozen ? NULL
                            : fixture->state.gradients.whole +
                                  fixture->params.units[param->unit].trained_offset + param->grad_offset;
}

// The update of a step, from 1, with gradients of this norm, whose losses were not scaled.
static inline enum status fixture_update(struct fixture *fixture, int64_t step, double lr, double norm) {
    const struct update_plan plan = optimizer_plan(&fixture->optimizer, step, lr, 1, 1);
    const struct update_result result =
        update_result_of(&plan, fixture->config.train.gradient_clipping, 0, norm);
    return optimizer_update(&fixture->optimizer, &fixture->stream, &plan, &result);
}

static inline void fixture_close(struct fixture *fixture) {
    struct device *device = fixture->stream.device;
    optimizer_free(&fixture->optimizer);
    model_states_free(&fixture->state);
    EXPECT_OK(comm_close(fixture->comm, STATUS_OK));
    region_memory_free(&fixture->memory);
    device_close(device);
    params_free(&fixture->params);
    config_free(&fixture->config);
}

#endif
