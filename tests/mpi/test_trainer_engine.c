// The engine without the training loop, on all ranks. States saved right after loading are unchanged,
// synthetic gradients have the same norm in every stage, stage 3 prefetches units, and passes follow their
// traces. Run with 1, 2, 3 and 4 ranks.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/region_memory.h"
#include "tests/mpi/together.h"
#include "tests/support/tree_sum.h"
#include "zero/engine.h"

static struct comm *comm;
static struct temporary temporary;

struct engine_fixture {
    struct config config;
    struct params params;
    struct engine engine;
    struct region_memory memory;
    struct device *device;
    struct stream stream;
};

// zero: further options of the section zero_optimization, each preceded by a comma.
static void fixture_init_with(struct engine_fixture *fixture, int stage, const char *partition,
                              enum dtype type, const char *zero) {
    char json[1024];
    *fixture = (struct engine_fixture){0};
    snprintf(json, sizeof json,
             "{\"zero_optimization\": {\"stage\": %d, \"partition\": \"%s\"%s}, \"model\": {\"n_layer\": 3, "
             "\"n_head\": 1, \"n_embd\": 24, \"vocab_size\": 91, \"n_positions\": 8}, \"train\": "
             "{\"micro_batch_size\": 1}}",
             stage, partition, zero);
    together_ok(comm, config_parse(&fixture->config, json, strlen(json), "json"));
    together_ok(comm, config_resolve(&fixture->config, comm->world));
    together_ok(
        comm, params_init(&fixture->params,
                          &(struct gpt_config){
                              .n_layer = 3, .n_head = 1, .n_embd = 24, .vocab_size = 91, .n_positions = 8}));
    together_ok(comm, device_open("cpu", 1, 0, &fixture->device));
    fixture->stream.device = fixture->device;
    region_memory_init(&fixture->memory, fixture->device);
    const struct engine_options request = {.config = &fixture->config,
                                           .params = &fixture->params,
                                           .type = type,
                                           .device = fixture->device,
                                           .rank = comm->rank,
                                           .world = comm->world,
                                           .local_world = comm->local_world};
    together_ok(comm, engine_plan(&fixture->engine, &request, &fixture->memory.table));
    together_ok(comm, region_memory_allocate(&fixture->memory));
    together_ok(comm, comm_attach(comm, fixture->device, true));
    together_ok(
        comm, engine_bind(&fixture->engine, &fixture->memory.table, &fixture->stream, comm, fixture->device));
}

static void fixture_init(struct engine_fixture *fixture, int stage, const char *partition, enum dtype type) {
    fixture_init_with(fixture, stage, partition, type, "");
}

static void fixture_free(struct engine_fixture *fixture) {
    engine_free(&fixture->engine);
    comm_detach(comm);
    region_memory_free(&fixture->memory);
    device_close(fixture->device);
    params_free(&fixture->params);
    config_free(&fixture->config);
}

// ---- saving loaded states

static float value_of(enum checkpoint_kind kind, int unit, size_t element) {
    return (float)sin(kind * 2.1 + unit * 0.7 + (double)element * 0.013);
}

static enum status read_values(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                               float *out) {
    (void)context;
    for (size_t i = begin; i < end; i++)
        out[i - begin] = value_of(kind, unit, i);
    return STATUS_OK;
}

static bool holds_values(const char *folder) {
    struct checkpoint *checkpoint;
    if (checkpoint_open_path(NULL, folder, &checkpoint) != STATUS_OK)
        return false;
    bool right = checkpoint->world == comm->world && checkpoint->kinds.n == 3;
    for (int unit = 0; unit < checkpoint->params.n_units; unit++)
        for (int kind = 0; kind < 3; kind++) {
            size_t n = checkpoint->params.units[unit].elements;
            float *values = malloc(n * sizeof *values);
            right = right && checkpoint_read_span(checkpoint, (enum checkpoint_kind)kind, unit, 0, n,
                                                  values) == STATUS_OK;
            for (size_t i = 0; i < n && right; i++)
                right = values[i] == value_of((enum checkpoint_kind)kind, unit, i);
            free(values);
        }
    checkpoint_close(checkpoint);
    return right;
}

static void test_saving_right_after_loading(void **state) {
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int partition = 0; partition < N_PARTITIONS; partition++) {
            struct engine_fixture fixture;
            char folder[300];
            enum dtype type = (enum dtype)(partition % N_COMPUTE_DTYPES);
            fixture_init(&fixture, stage, partition_name((enum partition_kind)partition), type);
            struct model_states *states = &fixture.engine.state;
            together_ok(comm, model_states_load(
                                  states, &fixture.stream,
                                  &(struct checkpoint_source){.context = NULL, .read = read_values}, true));
            struct state_reader reader = {states, &fixture.stream};
            const struct checkpoint_contents contents = {.comm = comm,
                                                         .partition = states->stage.partition,
                                                         .step = 7,
                                                         .config = &fixture.config,
                                                         .params = &fixture.params,
                                                         .compute = type,
                                                         .device = "avx2",
                                                         .kinds = model_states_kinds(states),
                                                         .source = model_states_source(&reader)};
            temporary_path(&temporary, "saved", folder, sizeof folder);
            together_ok(comm, checkpoint_write(folder, &contents));
            together_true(comm, comm->rank > 0 || holds_values(folder));
            together_ok(comm, comm->rank > 0 ? STATUS_OK : file_remove_tree(folder));
            fixture_free(&fixture);
        }
}

// ---- synthetic gradients

// The contribution of rank r to element i of the model.
static float gradient_of(int rank, size_t i) {
    return (float)sin((double)i * 0.37 + rank * 1.9) * (float)(1 << (i + (size_t)rank) % 9);
}

// The norm after one step of such gradients, with one element of the last rank set to `bad` (0: none).
static double norm_of(int stage, const char *partition, float bad) {
    struct engine_fixture fixture;
    double norm = 0;
    fixture_init(&fixture, stage, partition, DTYPE_F32);
    const struct params *params = &fixture.params;
    const struct model_states *states = &fixture.engine.state;
    struct gradients *gradients = &fixture.engine.state.gradients;
    together_ok(comm, gradients_begin(gradients, &fixture.stream, 0, 1));
    for (int unit = params->n_units - 1; unit >= 0; unit--) {
        struct unit_view view;
        together_ok(comm, gradients_acquire(gradients, &fixture.stream, unit, &view));
        float *to = grad_of(&view, 0); // of its first tensor, which begins the unit
        for (size_t i = 0; i < params->units[unit].elements; i++)
            to[i] = gradient_of(comm->rank, params->units[unit].offset + i);
        if (unit == 1 && comm->rank == comm->world - 1 && bad != 0)
            to[5] = bad;
        together_ok(comm, gradients_ready(gradients, &fixture.stream, unit));
    }
    together_ok(comm, gradients_finish(gradients, &fixture.stream));
    bool right = true;
    for (int k = 0; k < states->stage.owned_trained.n && bad == 0; k++) {
        const struct stage_span *span = &states->stage.owned_trained.spans[k];
        const float *sums = gradients_at(gradients, span);
        for (size_t i = 0; i < span->end - span->begin; i++) {
            float of_ranks[MOST_RANKS];
            for (int rank = 0; rank < comm->world; rank++)
                of_ranks[rank] = gradient_of(rank, span->model_offset + i);
            right = right && sums[i] == expected_tree_sum(of_ranks, comm->world);
        }
    }
    together_true(comm, right);
    together_ok(comm, optimizer_norm(&fixture.engine.optimizer, &fixture.stream, &norm));
    double of_rank_0 = norm;
    together_ok(comm, comm_broadcast(comm, &of_rank_0, sizeof of_rank_0, 0));
    together_true(comm, memcmp(&norm, &of_rank_0, sizeof norm) == 0); // the same bits on all ranks
    fixture_free(&fixture);
    return norm;
}

static void test_norm_is_equal_in_all_stages(void **state) {
    (void)state;
    for (int partition = 0; partition < N_PARTITIONS; partition++) {
        const char *name = partition_name((enum partition_kind)partition);
        double first = norm_of(0, name, 0);
        together_true(comm, isfinite(first) && first > 0);
        for (int stage = 1; stage <= 3; stage++)
            together_true(comm, norm_of(stage, name, 0) == first);
        for (int stage = 0; stage <= 3; stage++) { // a bad value on one rank reaches all
            together_true(comm, isnan(norm_of(stage, name, NAN)));
            together_true(comm, isinf(norm_of(stage, name, INFINITY)));
        }
    }
}

// ---- stage 3 prefetches units

// Counts the fetches of one training pass, and the prefetches among them, with these options.
static void count_fetches(const char *options, uint64_t *all, uint64_t *prefetched) {
    struct engine_fixture fixture;
    char zero[300];
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct token_batch batch = {.tokens = tokens, .targets = tokens};
    double loss;
    snprintf(zero, sizeof zero, ", \"stage3_param_persistence_threshold\": 0%s", options);
    fixture_init_with(&fixture, 3, "even", DTYPE_F32, zero);
    struct model_states *states = &fixture.engine.state;
    together_ok(comm,
                model_states_load(states, &fixture.stream,
                                  &(struct checkpoint_source){.context = NULL, .read = read_values}, false));
    together_ok(comm, gradients_begin(&states->gradients, &fixture.stream, 0, 1));
    together_ok(
        comm, gpt_forward_backward(fixture.engine.gpt, &fixture.stream, &states->hooks, &batch, 1.0f, &loss));
    together_ok(comm, gradients_finish(&states->gradients, &fixture.stream));
    *all = states->parameters.n_fetches;
    *prefetched = states->parameters.n_ahead;
    fixture_free(&fixture);
}

// The blocks here have 8,064 elements. Embeddings, three blocks and the final norm are fetched in forward,
// embeddings and blocks again in backward. All but the first are prefetched.
static void test_units_are_prefetched(void **state) {
    (void)state;
    static const struct {
        const char *options;
        uint64_t all, prefetched;
    } cases[] = {
        {", \"stage3_prefetch_bucket_size\": 50000000", 9, 8},
        {", \"stage3_prefetch_bucket_size\": 1000", 9, 8},
        {", \"stage3_prefetch_bucket_size\": 0", 9, 0},
        {", \"overlap_comm\": false", 9, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t all, prefetched;
        count_fetches(cases[i].options, &all, &prefetched);
        together_true(comm, all == cases[i].all);
        together_true(comm, prefetched == cases[i].prefetched);
    }
}

// ---- passes follow their traces

static bool fails_naming(enum status status, const char *came, const char *expected) {
    const bool named =
        status == STATUS_FAILED && strstr(status_message(), came) && strstr(status_message(), expected);
    status_clear();
    return named;
}

// In every stage, an acquire that the trace does not have at this place ends the run with both names, before
// anything is sent.
static void test_other_orders_are_refused(void **state) {
    (void)state;
    for (int stage = 0; stage < N_STAGES; stage++) {
        struct engine_fixture fixture;
        struct unit_view view;
        fixture_init(&fixture, stage, "even", DTYPE_F32);
        const struct unit_hooks *hooks = &fixture.engine.state.hooks;
        together_ok(comm, hooks->begin(hooks->context, TRACE_EVALUATION));
        together_true(
            comm, fails_naming(hooks->params_acquire(hooks->context, &fixture.stream, 1, GPT_FORWARD, &view),
                               "acquires unit 1 for forward", "acquires unit 0 for forward"));
        together_true(comm,
                      fails_naming(hooks->params_release(hooks->context, &fixture.stream, 1, GPT_FORWARD),
                                   "releases unit 1", "acquires unit 0 for forward"));
        together_true(comm, fails_naming(hooks->begin(hooks->context, TRACE_TRAINING), "pass of training",
                                         "pass of evaluation"));
        fixture_free(&fixture);
    }
}

// The model's hooks, with a record of where each acquired unit's parameters and gradients are.
#define MOST_PLACES 512
struct places {
    const struct unit_hooks *model;
    void *at[MOST_PLACES];
    int n;
};

// Every unit has two tensors or more.
static void note_places(struct places *places, const struct unit_view *view) {
    for (int i = 0; i < 2 && places->n + 2 <= MOST_PLACES; i++) {
        places->at[places->n++] = view->params ? param_of(view, i) : NULL;
        places->at[places->n++] = view->grads ? grad_of(view, i) : NULL;
    }
}

static enum status note_begin(void *context, enum trace_kind kind) {
    const struct unit_hooks *model = ((struct places *)context)->model;
    return model->begin(model->context, kind);
}

static enum status note_acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                                struct unit_view *view) {
    const struct unit_hooks *model = ((struct places *)context)->model;
    TRY(model->params_acquire(model->context, stream, unit, pass, view));
    note_places(context, view);
    return STATUS_OK;
}

static enum status note_release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    const struct unit_hooks *model = ((struct places *)context)->model;
    return model->params_release(model->context, stream, unit, pass);
}

static enum status note_ready(void *context, struct stream *stream, int unit) {
    const struct unit_hooks *model = ((struct places *)context)->model;
    return model->grads_ready(model->context, stream, unit);
}

static void train_and_note(struct engine_fixture *fixture, struct places *places) {
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct token_batch batch = {.tokens = tokens, .targets = tokens};
    const struct unit_hooks hooks = {places, note_begin, note_acquire, note_release, note_ready};
    struct model_states *states = &fixture->engine.state;
    double loss;
    *places = (struct places){.model = &states->hooks};
    together_ok(comm, gradients_begin(&states->gradients, &fixture->stream, 0, 1));
    together_ok(comm,
                gpt_forward_backward(fixture->engine.gpt, &fixture->stream, &hooks, &batch, 1.0f, &loss));
    together_ok(comm, gradients_finish(&states->gradients, &fixture->stream));
}

// CUDA graphs rely on it. Passes of another kind come between.
static void test_tensors_are_at_the_same_places_in_each_pass(void **state) {
    (void)state;
    static const char *const options[] = {"", ", \"overlap_comm\": false"};
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const struct token_batch batch = {.tokens = tokens, .targets = tokens};
    for (int stage = 0; stage < N_STAGES; stage++)
        for (int i = 0; i < 2; i++) {
            struct engine_fixture fixture;
            struct places first, second;
            char zero[200];
            double loss;
            snprintf(zero, sizeof zero, ", \"stage3_param_persistence_threshold\": 30%s", options[i]);
            fixture_init_with(&fixture, stage, "even", DTYPE_F32, zero);
            struct model_states *states = &fixture.engine.state;
            together_ok(comm, model_states_load(
                                  states, &fixture.stream,
                                  &(struct checkpoint_source){.context = NULL, .read = read_values}, false));
            train_and_note(&fixture, &first);
            together_ok(
                comm, gpt_evaluate(fixture.engine.gpt, &fixture.stream, &states->hooks, &batch, &loss, NULL));
            train_and_note(&fixture, &second);
            together_true(comm, first.n > 0 && first.n < MOST_PLACES && first.n == second.n);
            together_true(comm, memcmp(first.at, second.at, (size_t)first.n * sizeof *first.at) == 0);
            fixture_free(&fixture);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saving_right_after_loading),
        cmocka_unit_test(test_norm_is_equal_in_all_stages),
        cmocka_unit_test(test_units_are_prefetched),
        cmocka_unit_test(test_other_orders_are_refused),
        cmocka_unit_test(test_tensors_are_at_the_same_places_in_each_pass),
    };
    return together_main(&comm, &temporary, NULL, tests);
}
