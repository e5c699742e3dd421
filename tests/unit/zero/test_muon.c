// Muon over a model, whose other tensors are AdamW's: updates, memory, and which rank works on which matrix.
// The iterations and whole steps of a matrix: test_newton_schulz.c.
#include "tests/support/newton_schulz_bench.h"
#include "tests/support/optimizer_fixture.h"

static const struct gpt_config sizes = {
    .n_layer = 2, .n_head = 1, .n_embd = 24, .vocab_size = 50, .n_positions = 7};

// With fp32 parameters these are the master weights.
static float *floats_of(struct fixture *fixture, float *base, int i) {
    const struct param *param = &fixture->params.params[i];
    return base + fixture->params.units[param->unit].offset + param->offset;
}

// One step from zero momentum: the update of each matrix must be the orthogonalized gradient, q, k and v each
// by itself; that of any other tensor AdamW's first step, which is the gradient's sign.
static void check_update(const float *weight, const float *before, const float *grad,
                         const struct param *param, struct matrix_shape shape, int64_t first_row) {
    const double lr = 0.01, decay = 0.1, scale = 0.2 * sqrt(fmax((double)shape.rows, (double)shape.columns));
    const size_t begin = (size_t)(first_row * param->shape[1]), n = (size_t)(shape.rows * shape.columns);
    struct bench bench;
    bench_open(&bench, "cpu", DTYPE_F32, shape, false);
    double *x = calloc(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)grad[begin + i];
    bench_orthogonalize(&bench, x);
    for (size_t i = 0; i < n; i++) {
        const double w = (double)before[begin + i], wanted = w * (1 - lr * decay) - lr * scale * x[i];
        if (!(fabs((double)weight[begin + i] - wanted) <=
              lr * scale * newton_schulz_tolerance(DTYPE_F32, shape) + 8 * 0x1p-24 * (fabs(w) + 1)))
            fail_msg("%s, element %zu: %.9g, expected %.9g", param->name, begin + i,
                     (double)weight[begin + i], wanted);
    }
    free(x);
    bench_close(&bench);
}

static void test_over_a_model(void **unused) {
    (void)unused;
    struct fixture fixture;
    fixture_open(&fixture, &sizes,
                 "{\"optimizer\": {\"type\": \"muon\", \"lr\": 0.01, \"adamw_lr\": 0.03}, \"train\": "
                 "{\"gradient_clipping\": 0}}");
    assert_int_equal(fixture.state.placement.n_kinds, 3);
    float *weights = fixture.state.parameters.stored, *grads = fixture.state.gradients.whole;
    EXPECT_OK(gradients_begin(&fixture.state.gradients, &fixture.stream, 0, 1));
    for (int unit = 0; unit < fixture.params.n_units; unit++)
        params_init_span(&fixture.params, 3, unit, 0, fixture.params.units[unit].elements,
                         weights + fixture.params.units[unit].offset);
    for (int i = 0; i < fixture.params.n_params; i++) {
        float *grad = floats_of(&fixture, grads, i);
        for (size_t k = 0; k < fixture.params.params[i].elements; k++)
            grad[k] = (float)sin(1.7 * (double)k * (double)(k + 3) + i) * 0.1f;
    }
    float *before = malloc(fixture.params.n_elements * sizeof *before);
    assert_non_null(before);
    memcpy(before, weights, fixture.params.n_elements * sizeof *before);
    EXPECT_OK(fixture_update(&fixture, 1, 0.01, 1));
    int n_matrices = 0;
    for (int i = 0; i < fixture.params.n_params; i++) {
        const struct param *param = &fixture.params.params[i];
        const float *weight = floats_of(&fixture, weights, i), *old = floats_of(&fixture, before, i),
                    *grad = floats_of(&fixture, grads, i);
        struct matrix_shape shapes[PARAM_PARTS_MOST];
        int64_t first_row[PARAM_PARTS_MOST];
        const bool in_block = param->unit > 0 && param->unit < fixture.params.n_units - 1;
        for (int part = in_block && param->n_dims == 2 ? muon_matrices(param, shapes, first_row) - 1 : -1;
             part >= 0; part--, n_matrices++)
            check_update(weight, old, grad, param, shapes[part], first_row[part]);
        for (size_t k = 0; k < param->elements && !(in_block && param->n_dims == 2); k++) {
            const double decay = param->decay ? 0.1 : 0, w = (double)old[k], g = (double)grad[k],
                         wanted = w - 0.03 * (g / (fabs(g) + 1e-8) + decay * w);
            assert_true(fabs((double)weight[k] - wanted) <= 0x1p-20 * (fabs(w) + 0.03));
        }
    }
    assert_int_equal(n_matrices, 2 * 6);
    free(before);
    fixture_close(&fixture);
}

// Memory: the matrices have no second moment.
static void test_matrices_have_one_moment(void **unused) {
    (void)unused;
    struct fixture fixture;
    fixture_open(&fixture, &sizes, "{\"optimizer\": {\"type\": \"muon\"}}");
    size_t in_matrices = 0;
    for (int i = 0; i < fixture.params.n_params; i++) {
        const struct param *param = &fixture.params.params[i];
        if (param->unit > 0 && param->unit < fixture.params.n_units - 1 && param->n_dims == 2)
            in_matrices += (param->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
    }
    const struct placement_side *side = &fixture.state.placement.device;
    assert_int_equal(side->elements, fixture.params.n_elements);
    assert_int_equal(side->with_moment[0], fixture.params.n_elements);
    assert_int_equal(side->with_moment[1], fixture.params.n_elements - in_matrices);
    fixture_close(&fixture);
}

// ---- who works on what

#define MOST_WORLD 16

// The first and the last rank that may work on a tensor: those that own some of it. In stage 0 any.
static void find_owners(const struct muon_rounds *rounds, const struct partition *partition, int tensor,
                        int *first, int *last) {
    const struct param *param = &rounds->params->params[rounds->tensors[tensor].param];
    *first = rounds->whole ? 0 : rounds->world;
    *last = rounds->whole ? rounds->world - 1 : -1;
    for (int i = partition->first_span[param->unit]; i < partition->first_span[param->unit + 1]; i++) {
        const struct partition_span *span = &partition->spans[i];
        if (span->begin >= param->offset + param->elements || span->end <= param->offset)
            continue;
        *first = span->owner < *first ? span->owner : *first;
        *last = span->owner > *last ? span->owner : *last;
    }
}

// The least that the most loaded rank can have: of any ranks [a, b], the average of the work that only they
// may do. (With partition even a unit's spans are in the order of ranks.)
static double least_load(const struct muon_rounds *rounds, const struct partition *partition) {
    double within[MOST_WORLD][MOST_WORLD] = {{0}}, least = 0; // [a][b]: work that only ranks a .. b may do
    for (int i = 0; i < rounds->n_tensors; i++) {
        int first, last;
        find_owners(rounds, partition, i, &first, &last);
        assert_true(rounds->tensors[i].worker >= first && rounds->tensors[i].worker <= last);
        for (int a = 0; a <= first; a++)
            for (int b = last; b < rounds->world; b++)
                within[a][b] += rounds->tensors[i].flops;
    }
    for (int a = 0; a < rounds->world; a++)
        for (int b = a; b < rounds->world; b++)
            least = fmax(least, within[a][b] / (b - a + 1));
    return least;
}

// A rank's tensors of a round do not overlap in its buffer. Several have at most most_elements.
static void check_buffers(const struct muon_rounds *rounds) {
    for (int k = 0; k < rounds->n_rounds; k++) {
        const struct muon_round *round = &rounds->rounds[k];
        size_t end[MOST_WORLD] = {0};
        int n[MOST_WORLD] = {0};
        for (int i = round->first_tensor; i < round->first_tensor + round->n_tensors; i++) {
            const struct muon_tensor *tensor = &rounds->tensors[i];
            assert_true(tensor->at >= end[tensor->worker] && tensor->at % REGION_ALIGNMENT == 0);
            end[tensor->worker] = tensor->at + rounds->params->params[tensor->param].elements;
            assert_true(end[tensor->worker] <= rounds->tensor_elements);
            assert_true(++n[tensor->worker] == 1 || end[tensor->worker] <= rounds->most_elements);
        }
        for (int i = 0; i < round->back.n_spans; i++) {
            const struct comm_span *span = &round->back.spans[i];
            assert_true(span->in + span->elements <= end[span->owner]);
            assert_true(span->out + span->elements <= rounds->slice_elements);
        }
    }
}

// The work is spread: no rank has more than the least possible and the dearest tensor. In stage 0 that least
// is an equal share, with partitions layer and tensor what a rank owns, and then nothing is sent.
static void check_rounds(const struct params *params, const struct optimizer_groups *groups, int world,
                         enum partition_kind kind, bool whole, size_t most_elements) {
    struct partition partition;
    struct muon_rounds rounds;
    uint64_t elements, calls = 0, sent = 0;
    double load[MOST_WORLD] = {0}, total = 0, dearest = 0;
    partition_init(&partition, params, kind, world);
    const struct config config = {.zero_optimization.stage = whole ? 0 : 1};
    const struct stage stage = {.config = &config, .params = params, .partition = &partition, .world = world};
    muon_rounds_init(&rounds, &stage, groups, most_elements);
    assert_int_equal(rounds.n_tensors, 12 * 4);
    check_buffers(&rounds);
    for (int i = 0; i < rounds.n_tensors; i++) {
        load[rounds.tensors[i].worker] += rounds.tensors[i].flops;
        total += rounds.tensors[i].flops;
        dearest = fmax(dearest, rounds.tensors[i].flops);
    }
    const double least = least_load(&rounds, &partition);
    const bool stays = world == 1 || (!whole && kind != PARTITION_EVEN);
    if (whole)
        assert_true(fabs(least - total / world) <= 1e-12 * total);
    for (int rank = 0; rank < world; rank++) {
        muon_rounds_traffic(&rounds, rank, &elements, &calls);
        sent += elements;
        if (!(load[rank] <= (stays ? least : least + dearest) * (1 + 1e-12)))
            fail_msg("%s%s, rank %d of %d: %.3f of an equal share, possible %.3f, the dearest tensor %.3f",
                     partition_name(kind), whole ? ", stage 0" : "", rank, world,
                     load[rank] / (total / world), least / (total / world), dearest / (total / world));
    }
    if (stays)
        assert_true(sent == 0 && calls == 0);
    else
        assert_true(sent > 0 && calls > 0);
    muon_rounds_free(&rounds);
    partition_free(&partition);
}

static void test_rounds(void **unused) {
    (void)unused;
    struct fixture fixture;
    struct gpt_config large = {.n_layer = 12, .n_head = 12, .n_embd = 768, .vocab_size = 50257};
    large.n_positions = 1024;
    fixture_open(&fixture, &sizes, "{\"optimizer\": {\"type\": \"muon\"}}");
    struct params params;
    struct optimizer_groups groups;
    EXPECT_OK(params_init(&params, &large));
    EXPECT_OK(optimizer_groups_init(&groups, &fixture.config, &params));
    for (int world = 1; world <= MOST_WORLD; world++)
        for (int kind = 0; kind < N_PARTITIONS; kind++)
            for (int whole = 0; whole < 2; whole++)
                check_rounds(&params, &groups, world, (enum partition_kind)kind, whole,
                             world % 2 ? 0 : (size_t)3 * 3072 * 768);
    optimizer_groups_free(&groups);
    params_free(&params);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_over_a_model),
        cmocka_unit_test(test_matrices_have_one_moment),
        cmocka_unit_test(test_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
