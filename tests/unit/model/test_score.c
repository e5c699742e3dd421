// gpt_score: short sequences in their own shapes give the losses and the most likely tokens of a full pass.
#include "tests/support/whole_model.h"

#include "base/rng.h"

static const struct gpt_config small_config = {
    .n_layer = 2, .n_head = 2, .n_embd = 32, .vocab_size = 61, .n_positions = 70};
enum { VOCAB_SIZE = 61, SEQUENCES = 3, LENGTH = 70, TOKENS = SEQUENCES * LENGTH };

static void model_init(struct whole_model *model, struct device *device, enum dtype type) {
    whole_model_init(model, &small_config, device,
                     &(struct gpt_options){.type = type, .B = SEQUENCES, .T = LENGTH, .scoring = true}, 0);
    float *values = malloc(model->params.n_elements * sizeof *values);
    assert_non_null(values);
    for (int unit = 0; unit < model->params.n_units; unit++) {
        const size_t n = model->params.units[unit].elements;
        params_init_span(&model->params, 11, unit, 0, n, values);
        for (size_t e = 0; e < n; e++)
            values[e] += (float)(0.15 * rng_normal(12, (uint32_t)unit, e));
        whole_model_set_unit(model, unit, values);
    }
    free(values);
}

static void test_shapes(void **state) {
    (void)state;
    struct gpt_shape shapes[GPT_MOST_SHAPES];
    assert_int_equal(gpt_shapes(SEQUENCES, LENGTH, shapes), 5);
    static const struct gpt_shape expected[] = {{3, 70}, {3, 53}, {6, 35}, {7, 27}, {11, 18}};
    assert_memory_equal(shapes, expected, sizeof expected);
    assert_int_equal(gpt_shapes(5, 8, shapes), 1); // shorter than the shortest
    assert_true(shapes[0].B == 5 && shapes[0].T == 8);
    assert_int_equal(gpt_shapes(1, 1048576, shapes), GPT_MOST_SHAPES);
    for (int i = 0; i < GPT_MOST_SHAPES; i++)
        assert_int_equal(shapes[i].T, (i % 2 ? 786432 : 1048576) >> i / 2);
}

// Loss and most likely token after position t of a sequence, from the logits of full passes.
static double expected_loss(const float *logits, int32_t target, int32_t *most_likely) {
    double sum = 0;
    *most_likely = 0;
    for (int v = 0; v < VOCAB_SIZE; v++) {
        sum += exp((double)logits[v]);
        if (logits[v] > logits[*most_likely])
            *most_likely = v;
    }
    return log(sum) - (double)logits[target];
}

// Each sequence of the shape, padded to LENGTH, through gpt_logits.
static void check_shape(struct whole_model *model, struct gpt_shape shape) {
    int32_t tokens[TOKENS], targets[TOKENS], predictions[TOKENS], padded[TOKENS] = {0};
    float losses[TOKENS], *logits = malloc((size_t)TOKENS * VOCAB_SIZE * sizeof *logits);
    int rows[TOKENS], n = shape.B * shape.T;
    assert_non_null(logits);
    for (int i = 0; i < n; i++) {
        tokens[i] = (int32_t)(rng_uniform(3, 4, (uint64_t)i) * VOCAB_SIZE);
        targets[i] = (int32_t)(rng_uniform(3, 5, (uint64_t)i) * VOCAB_SIZE);
        rows[i] = n - 1 - i; // in any order, more than one tile of them
    }
    whole_model_poison(model);
    assert_ok(gpt_score(
        model->gpt, &model->stream, &model->hooks,
        &(struct gpt_scoring){shape, {.tokens = tokens, .targets = targets}, losses, rows, n, predictions}));
    const double epsilon = dtype_epsilon(model->options.type);
    for (int b = 0; b < shape.B; b++) {
        memcpy(padded, tokens + b * shape.T, (size_t)shape.T * sizeof *tokens);
        assert_ok(gpt_logits(model->gpt, &model->stream, &model->hooks,
                             whole_model_batch(model, padded, NULL), logits));
        for (int t = 0; t < shape.T; t++) {
            int32_t most_likely;
            const int at = b * shape.T + t;
            const double loss = expected_loss(logits + (size_t)t * VOCAB_SIZE, targets[at], &most_likely);
            // The bound of test_generate.c, for 2 blocks and losses of about 10.
            if (!(fabs((double)losses[at] - loss) <= 20 * 10 * epsilon))
                fail_msg("(%d, %d) at %d, %d: loss %g, expected %g", shape.B, shape.T, b, t,
                         (double)losses[at], loss);
            if (model->options.type == DTYPE_F32) // bf16: shapes may round differently, where two are close
                assert_int_equal(predictions[n - 1 - at], most_likely);
        }
    }
    free(logits);
}

static void check_type(enum dtype type) {
    struct device *device;
    struct whole_model model;
    struct gpt_shape shapes[GPT_MOST_SHAPES];
    assert_ok(cpu_device_open(NULL, 2, &device));
    model_init(&model, device, type);
    const int n = gpt_shapes(SEQUENCES, LENGTH, shapes);
    for (int i = 0; i < n; i++)
        check_shape(&model, shapes[i]);
    check_shape(&model, (struct gpt_shape){1, 1}); // no more rows than one of a tile
    whole_model_free(&model);
    device_close(device);
}

static void test_scores_of_full_passes(void **state) {
    (void)state;
    check_type(DTYPE_F32);
    check_type(DTYPE_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_scores_of_full_passes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
