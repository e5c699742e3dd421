// Checkpoints of optimizers whose tensors have different numbers of moments: those that do not exist take no
// bytes, and a run goes on to the same bits.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/support/optimizer_fixture.h"
#include "tests/support/temporary.h"
#include "zero/checkpoint/checkpoint.h"

static const struct gpt_config sizes = {
    .n_layer = 2, .n_head = 1, .n_embd = 24, .vocab_size = 50, .n_positions = 7};
static struct temporary temporary;

static void update(struct fixture *fixture, int step) {
    EXPECT_OK(gradients_begin(&fixture->state.gradients, &fixture->stream, 0, 1));
    for (int i = 0; i < fixture->params.n_params; i++) {
        const struct param *param = &fixture->params.params[i];
        float *grad = fixture_grad(fixture, param);
        for (size_t k = 0; grad && k < param->elements; k++)
            grad[k] = (float)sin(1.7 * (double)k * (double)(k + 3) + i + 10 * step) * 0.1f;
    }
    EXPECT_OK(fixture_update(fixture, step, 0.01, 1));
}

static void start(struct fixture *fixture, const char *json) {
    fixture_open(fixture, &sizes, json);
    for (int unit = 0; unit < fixture->params.n_units; unit++)
        params_init_span(&fixture->params, 3, unit, 0, fixture->params.units[unit].elements,
                         (float *)fixture->state.parameters.stored + fixture->params.units[unit].offset);
    update(fixture, 1);
    update(fixture, 2);
}

// Writes FOLDER/step-2.
static void save(struct fixture *fixture) {
    struct state_reader reader = {&fixture->state, &fixture->stream};
    EXPECT_OK(checkpoint_write(temporary.folder,
                               &(struct checkpoint_contents){.comm = fixture->comm,
                                                             .partition = fixture->state.stage.partition,
                                                             .step = 2,
                                                             .config = &fixture->config,
                                                             .params = &fixture->params,
                                                             .compute = DTYPE_F32,
                                                             .device = "avx2",
                                                             .kinds = model_states_kinds(&fixture->state),
                                                             .source = model_states_source(&reader)}));
}

// The bytes of the file of rank 0, after an update from the checkpoint that must give the weights of `whole`.
static uint64_t go_on(const char *json, const struct fixture *whole) {
    struct checkpoint *checkpoint;
    struct fixture fixture;
    char *path = checkpoint_path(temporary.folder, 2);
    assert_non_null(path);
    EXPECT_OK(checkpoint_open(NULL, path, &checkpoint));
    free(path);
    fixture_open(&fixture, &sizes, json);
    const struct checkpoint_source source = checkpoint_source_of(checkpoint);
    EXPECT_OK(model_states_load(&fixture.state, &fixture.stream, &source, true));
    update(&fixture, 3);
    assert_memory_equal(fixture.state.parameters.stored, whole->state.parameters.stored,
                        fixture.params.n_elements * sizeof(float));
    const uint64_t bytes = checkpoint->files[0].bytes;
    fixture_close(&fixture);
    checkpoint_close(checkpoint);
    return bytes;
}

// In floats: the moments that tensors have, with the padding behind them.
static uint64_t count_moments(const struct fixture *fixture) {
    const struct params *params = &fixture->params;
    uint64_t existing = 0;
    for (int i = 0; i < params->n_params; i++) {
        const struct param_unit *unit = &params->units[params->params[i].unit];
        const bool is_last = i + 1 == unit->first_param + unit->n_params;
        const uint64_t elements =
            (is_last ? unit->elements : params->params[i + 1].offset) - params->params[i].offset;
        existing += (uint64_t)optimizer_group_of(&fixture->state.groups, i)->n_moments * elements;
    }
    return existing;
}

static void check(const char *json) {
    struct fixture fixture;
    start(&fixture, json);
    save(&fixture);
    update(&fixture, 3);
    const uint64_t existing = count_moments(&fixture);
    assert_true(existing < (uint64_t)fixture.state.groups.n_moments * fixture.params.n_elements);
    assert_int_equal(go_on(json, &fixture), (fixture.params.n_elements + existing) * sizeof(float));
    fixture_close(&fixture);
}

static void test_muon(void **state) {
    (void)state;
    check("{\"optimizer\": {\"type\": \"muon\"}}");
    check(
        "{\"optimizer\": {\"type\": \"muon\", \"state_dtype\": \"int8\", \"groups\": "
        "[{\"match\": \"h.0.attn.*\", \"type\": \"adamw\"}, {\"match\": \"h.1.mlp.*\", \"freeze\": true}]}}");
}

static void test_frozen_tensors(void **state) {
    (void)state;
    check("{\"optimizer\": {\"type\": \"adamw\", \"groups\": [{\"match\": \"h.0.*\", \"freeze\": true}]}}");
    check("{\"optimizer\": {\"type\": \"lion\", \"groups\": [{\"match\": \"w*\", \"freeze\": true}]}}");
}

static int make_folder(void **state) {
    (void)state;
    return temporary_init(&temporary) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_frozen_tensors),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
