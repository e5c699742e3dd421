// Adafactor over the model states. A run on one rank is compared with plain formulas in double. Runs on 1 to
// 4 ranks, in every stage and partition, must have bitwise the same weights and second moments as that run.
// So must runs resumed from a checkpoint of another stage and number of ranks. Gradients are synthetic.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/region_memory.h"
#include "tests/mpi/together.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/stages/adafactor.h"
#include "zero/stages/optimizer.h"

static struct comm *comm;
static struct temporary temporary;

// With these sizes, shards end inside rows and every unit has padding.
static const struct gpt_config sizes = {
    .n_layer = 2, .n_head = 1, .n_embd = 21, .vocab_size = 91, .n_positions = 7};

enum { N_STEPS = 5, N_SAVED = 3 };
#define RATE       0.02
#define LOSS_SCALE 4.0
#define CLIP       0.7

// ---- model states and optimizer, without a model

struct adafactor_fixture {
    struct config config;
    struct params params;
    struct comm *with;
    struct device *device;
    struct region_memory memory;
    struct stream stream;
    struct model_states state;
    struct optimizer optimizer;
};

static void fixture_init(struct adafactor_fixture *fixture, struct comm *with, int stage,
                         const char *partition, enum dtype type) {
    char json[512];
    snprintf(json, sizeof json,
             "{\"optimizer\": {\"type\": \"adafactor\", \"clip_threshold\": 1.1, \"weight_decay\": 0.3}, "
             "\"train\": {\"gradient_clipping\": %g}, \"zero_optimization\": {\"stage\": %d, \"partition\": "
             "\"%s\", \"reduce_bucket_size\": 1000}}",
             CLIP, stage, partition);
    *fixture = (struct adafactor_fixture){.with = with};
    together_ok(comm, config_parse(&fixture->config, json, strlen(json), "json"));
    together_ok(comm, config_resolve(&fixture->config, with->world));
    together_ok(comm, params_init(&fixture->params, &sizes));
    together_ok(comm, device_open("cpu", 2, 0, &fixture->device));
    fixture->stream.device = fixture->device;
    region_memory_init(&fixture->memory, fixture->device);
    struct region_table *table = &fixture->memory.table;
    together_ok(comm, model_states_init(&fixture->state, &fixture->params, &fixture->config, type, with->rank,
                                        with->world, NULL, fixture->device, table));
    together_ok(comm, optimizer_init(&fixture->optimizer, &fixture->config, &fixture->state, table));
    together_ok(comm, region_memory_allocate(&fixture->memory));
    together_ok(comm, comm_attach(with, fixture->device, true));
    together_ok(comm, model_states_bind(&fixture->state, table, with, fixture->device));
}

static void fixture_free(struct adafactor_fixture *fixture) {
    model_states_free(&fixture->state);
    comm_detach(fixture->with);
    region_memory_free(&fixture->memory);
    device_close(fixture->device);
    params_free(&fixture->params);
    config_free(&fixture->config);
}

static enum status first_weights(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                                 float *out) {
    (void)kind;
    params_init_span(context, 12, unit, begin, end, out);
    return STATUS_OK;
}

// The unscaled gradient of the whole batch. Some rows are zero, some tiny, and in step 4 all are larger.
static double gradient(const struct param *param, size_t element, int64_t step) {
    size_t row = element / (size_t)param->shape[param->n_dims - 1];
    double size = param->n_dims == 1 ? 0.1 : row % 5 == 1 ? 0 : row % 5 == 2 ? 1e-9 : 0.1;
    double x = rng_normal(5, (uint32_t)(100 * step + param->unit), param->offset + element);
    return (double)(float)(size * (step == 4 ? 30 : 1) * x);
}

static double norm_of(const struct params *params, int64_t step) {
    double sum = 0;
    for (int i = 0; i < params->n_params; i++)
        for (size_t k = 0; k < params->params[i].elements; k++) {
            double g = gradient(&params->params[i], k, step);
            sum += g * g;
        }
    return sqrt(sum);
}

// One rank contributes the whole gradient and the others zeros, so that the sum has the same bits for any
// number of ranks.
static void set_gradients(struct adafactor_fixture *fixture, int64_t step) {
    const struct params *params = &fixture->params;
    struct gradients *gradients = &fixture->state.gradients;
    bool has_all = step % fixture->with->world == fixture->with->rank;
    together_ok(comm, gradients_begin(gradients, &fixture->stream, 0, 1));
    for (int unit = params->n_units - 1; unit >= 0; unit--) {
        const struct param_unit *u = &params->units[unit];
        struct unit_view view;
        together_ok(comm, gradients_acquire(gradients, &fixture->stream, unit, &view));
        float *to = grad_of(&view, 0); // of its first tensor, which begins the unit
        memset(to, 0, u->elements * sizeof *to);
        for (int i = u->first_param; i < u->first_param + u->n_params && has_all; i++)
            for (size_t k = 0; k < params->params[i].elements; k++)
                to[params->params[i].offset + k] =
                    (float)(LOSS_SCALE * gradient(&params->params[i], k, step));
        together_ok(comm, gradients_ready(gradients, &fixture->stream, unit));
    }
    together_ok(comm, gradients_finish(gradients, &fixture->stream));
}

// Steps `from` to `to`, with a skipped step before the second. The norm is passed in, because its last bit
// depends on the partition.
static void run_steps(struct adafactor_fixture *fixture, int64_t from, int64_t to) {
    uint64_t bytes, calls;
    adafactor_traffic(&fixture->state, &bytes, &calls);
    for (int64_t step = from; step <= to; step++) {
        const struct comm_traffic before = fixture->with->traffic;
        set_gradients(fixture, step);
        if (step == from + 1)
            together_ok(comm, optimizer_skip(&fixture->optimizer, &fixture->stream));
        together_ok(comm, optimizer_update(&fixture->optimizer, &fixture->stream, step, RATE,
                                           norm_of(&fixture->params, step), LOSS_SCALE));
        uint64_t n = step == from + 1 ? 2 : 1;
        const struct comm_traffic *after = &fixture->with->traffic;
        together_true(comm, after->bytes[COMM_ALL_REDUCE] - before.bytes[COMM_ALL_REDUCE] == n * bytes);
        together_true(comm, after->calls[COMM_ALL_REDUCE] - before.calls[COMM_ALL_REDUCE] == n * calls);
    }
}

// ---- one rank alone

// What every run must reproduce: weights and second moments of the whole model, and the sums of the last
// step, because the moments alone would hide differences in their last bits.
struct adafactor_states {
    float *weights, *second_moments;
    double *sums, *norms;
    size_t n_weights, n_moments, n_sums, n_norms;
};

static void states_free(struct adafactor_states *states) {
    free(states->weights);
    free(states->second_moments);
    free(states->sums);
    free(states->norms);
}

static void *copy_of(const void *from, size_t bytes) {
    void *copy = malloc(bytes);
    assert_non_null(copy);
    return memcpy(copy, from, bytes);
}

static struct adafactor_states run_alone(enum dtype type, int64_t steps) {
    struct comm *self;
    struct adafactor_fixture fixture;
    assert_int_equal(comm_open_self(&self), STATUS_OK);
    fixture_init(&fixture, self, 0, "even", type);
    together_ok(comm,
                model_states_load(
                    &fixture.state, &fixture.stream,
                    &(struct checkpoint_source){.context = &fixture.params, .read = first_weights}, false));
    run_steps(&fixture, 1, steps);
    const struct second_moments *moments = &fixture.state.second_moments;
    struct adafactor_states states = {.n_weights = fixture.params.n_elements,
                                      .n_moments = moments->n,
                                      .n_sums = 2 * moments->n,
                                      .n_norms = UPDATE_NORMS * (size_t)fixture.params.n_params};
    // In stage 0 placement spans are contiguous.
    states.weights =
        copy_of(model_states_optimizer_at(&fixture.state, &fixture.state.placement.spans[0], 0).master,
                states.n_weights * sizeof(float));
    states.second_moments = copy_of(moments->values, states.n_moments * sizeof(float));
    states.sums = copy_of(moments->host.sums, states.n_sums * sizeof(double));
    states.norms = copy_of(moments->host.norms, states.n_norms * sizeof(double));
    fixture_free(&fixture);
    (void)comm_close(self, STATUS_OK);
    return states;
}

// ---- plain formulas

struct plain_states {
    double *weights, *changes; // changes: per weight, the sum of |change| over all steps
    double *rows, *columns;
};

static double root_mean_square(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)n);
}

static void plain_moments(const struct param *param, const double *g, double weight, struct plain_states *p,
                          double *v) {
    size_t columns = (size_t)param->shape[param->n_dims - 1], rows = param->elements / columns;
    for (size_t i = 0; i < rows; i++)
        p->rows[i] += weight * (pow(root_mean_square(g + i * columns, columns), 2) - p->rows[i]);
    for (size_t j = 0; j < columns; j++) {
        double sum = 0;
        for (size_t i = 0; i < rows; i++)
            sum += g[i * columns + j] * g[i * columns + j];
        p->columns[j] += weight * (sum / (double)rows - p->columns[j]);
    }
    double mean = 0;
    for (size_t i = 0; i < rows; i++)
        mean += p->rows[i] / (double)rows;
    for (size_t k = 0; k < param->elements; k++)
        v[k] = param->n_dims == 1 ? p->columns[k]
                                  : p->rows[k / columns] * p->columns[k % columns] / fmax(mean, 0x1p-23);
}

static void plain_step(const struct param *param, int64_t step, double factor, struct plain_states *p) {
    size_t n = param->elements;
    double *g = calloc(2 * n, sizeof *g), *u = g + n;
    assert_non_null(g);
    for (size_t k = 0; k < n; k++)
        g[k] = gradient(param, k, step) * factor;
    plain_moments(param, g, pow((double)step, -0.8), p, u);
    for (size_t k = 0; k < n; k++)
        u[k] = g[k] / fmax(sqrt(u[k]), 0x1p-23);
    double size = fmax(1e-3, root_mean_square(p->weights, n)) * fmin(RATE, 1 / sqrt((double)step)) /
                  fmax(1, root_mean_square(u, n) / 1.1);
    for (size_t k = 0; k < n; k++) {
        double change = size * u[k] + (param->n_dims > 1 ? RATE * 0.3 * p->weights[k] : 0);
        p->changes[k] += fabs(change);
        p->weights[k] -= change;
    }
    free(g);
}

static void check_tensor(const struct params *params, const struct param *param,
                         const struct adafactor_states *states) {
    size_t n = param->elements;
    float *first = calloc(n, sizeof *first);
    double *memory = calloc(4 * n, sizeof *memory);
    assert_true(first && memory);
    struct plain_states p = {memory, memory + n, memory + 2 * n, memory + 3 * n};
    params_init_span(params, 12, param->unit, param->offset, param->offset + n, first);
    for (size_t k = 0; k < n; k++)
        p.weights[k] = (double)first[k];
    for (int64_t step = 1; step <= N_STEPS; step++) {
        double clipping = CLIP / (norm_of(params, step) + 1e-6);
        plain_step(param, step, fmin(1, clipping), &p);
    }
    const float *got = states->weights + params->units[param->unit].offset + param->offset;
    for (size_t k = 0; k < n; k++) {
        // Each step has a dozen fp32 roundings, most of them in moments and scales, and rounds the weight
        // once.
        double allowed = 0x1p-24 * (16 * p.changes[k] + N_STEPS * (fabs(p.weights[k]) + p.changes[k]));
        if (!(fabs((double)got[k] - p.weights[k]) <= allowed))
            fail_msg("%s[%zu] is %.9g, expected %.9g, off by %.3g of %.3g allowed", param->name, k,
                     (double)got[k], p.weights[k], fabs((double)got[k] - p.weights[k]), allowed);
    }
    free(first);
    free(memory);
}

static void test_one_rank_matches_the_formulas(void **state) {
    (void)state;
    struct params params;
    assert_int_equal(params_init(&params, &sizes), STATUS_OK);
    struct adafactor_states states = run_alone(DTYPE_F32, N_STEPS);
    size_t n = 0;
    for (int i = 0; i < params.n_params; i++) {
        const struct param *param = &params.params[i];
        check_tensor(&params, param, &states);
        n += param->n_dims > 1 ? (size_t)(param->shape[0] + param->shape[1]) : param->elements;
    }
    assert_int_equal(states.n_moments, n); // all optimizer states but the weights
    states_free(&states);
    params_free(&params);
}

// ---- ranks

static bool has_bits(const struct adafactor_fixture *fixture, const struct adafactor_states *wanted) {
    const struct placement *placement = &fixture->state.placement;
    const struct second_moments *moments = &fixture->state.second_moments;
    bool right = memcmp(moments->values, wanted->second_moments, wanted->n_moments * sizeof(float)) == 0 &&
                 memcmp(moments->host.sums, wanted->sums, wanted->n_sums * sizeof(double)) == 0 &&
                 memcmp(moments->host.norms, wanted->norms, wanted->n_norms * sizeof(double)) == 0;
    for (int i = 0; i < placement->n_spans && right; i++) {
        const struct placement_span *placed = &placement->spans[i];
        size_t n = placed->span.end - placed->span.begin;
        const float *weights =
            wanted->weights + fixture->params.units[placed->span.unit].offset + placed->span.begin;
        right = memcmp(model_states_optimizer_at(&fixture->state, placed, 0).master, weights,
                       n * sizeof(float)) == 0;
        const uint16_t *narrow = model_states_params_at(&fixture->state, placed, 0);
        for (size_t k = 0; k < n && right && fixture->state.type == DTYPE_BF16; k++)
            right = narrow[k] == bf16_from_float(weights[k]);
    }
    return right;
}

static enum status read_checkpoint(void *context, enum checkpoint_kind kind, int unit, size_t begin,
                                   size_t end, float *out) {
    return checkpoint_read_span(context, kind, unit, begin, end, out);
}

static void save(struct adafactor_fixture *fixture, const char *folder) {
    struct state_reader reader = {&fixture->state, &fixture->stream};
    const struct checkpoint_contents contents = {.comm = fixture->with,
                                                 .partition = &fixture->state.partition,
                                                 .step = N_SAVED,
                                                 .config = &fixture->config,
                                                 .params = &fixture->params,
                                                 .compute = fixture->state.type,
                                                 .kinds = model_states_kinds(&fixture->state),
                                                 .source = model_states_source(&reader)};
    together_ok(comm, checkpoint_write(folder, &contents));
}

static void resume(struct comm *with, const char *folder, int stage, const char *partition, enum dtype type,
                   const struct adafactor_states *wanted) {
    struct adafactor_fixture fixture;
    struct checkpoint *checkpoint;
    fixture_init(&fixture, with, stage, partition, type);
    together_ok(comm, checkpoint_open_path(with, folder, &checkpoint));
    together_true(comm, checkpoint->kinds.n == 1 && checkpoint->kinds.has_factors);
    const struct checkpoint_source source = {.context = checkpoint, .read = read_checkpoint};
    together_ok(comm, model_states_load(&fixture.state, &fixture.stream, &source, true));
    checkpoint_close(checkpoint);
    run_steps(&fixture, N_SAVED + 1, N_STEPS);
    together_true(comm, has_bits(&fixture, wanted));
    fixture_free(&fixture);
}

static void check_runs(int stage, enum partition_kind partition, enum dtype type,
                       const struct adafactor_states *saved, const struct adafactor_states *wanted) {
    struct adafactor_fixture fixture;
    char folder[300];
    struct comm *self;
    temporary_path(&temporary, "saved", folder, sizeof folder);
    fixture_init(&fixture, comm, stage, partition_name(partition), type);
    together_ok(comm,
                model_states_load(
                    &fixture.state, &fixture.stream,
                    &(struct checkpoint_source){.context = &fixture.params, .read = first_weights}, false));
    run_steps(&fixture, 1, N_SAVED);
    together_true(comm, has_bits(&fixture, saved));
    save(&fixture, folder);
    run_steps(&fixture, N_SAVED + 1, N_STEPS);
    together_true(comm, has_bits(&fixture, wanted));
    fixture_free(&fixture);
    resume(comm, folder, 3 - stage, partition_name((enum partition_kind)((partition + 1) % N_PARTITIONS)),
           type, wanted);
    assert_int_equal(comm_open_self(&self), STATUS_OK);
    resume(self, folder, 1, "even", type, wanted);
    (void)comm_close(self, STATUS_OK);
    together_ok(comm, comm->rank > 0 ? STATUS_OK : file_remove_tree(folder));
}

static void test_every_stage_and_partition_has_the_same_bits(void **state) {
    (void)state;
    for (enum dtype type = DTYPE_F32; type <= DTYPE_BF16; type++) {
        struct adafactor_states saved = run_alone(type, N_SAVED), wanted = run_alone(type, N_STEPS);
        for (int stage = 0; stage <= 3; stage++)
            for (int partition = 0; partition < N_PARTITIONS; partition++)
                check_runs(stage, (enum partition_kind)partition, type, &saved, &wanted);
        states_free(&saved);
        states_free(&wanted);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_matches_the_formulas),
        cmocka_unit_test(test_every_stage_and_partition_has_the_same_bits),
    };
    return together_main(&comm, &temporary, NULL, tests);
}
