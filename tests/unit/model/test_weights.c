// Weights of targets: of training, evaluation and scoring. A target of weight 0 takes no part, and one global
// batch gives the same mean loss and gradient however it is split and padded.
#include "tests/support/small_models.h"
#include "tests/support/whole_model.h"

enum { ROWS = 5, T = 8, V = 29, MOST_ROWS = 6 };
static const struct gpt_config config = {
    .n_layer = 2, .n_head = 2, .n_embd = 16, .vocab_size = V, .n_positions = T};

// Fractions, and zeros: also a row of nothing else.
static void make_batch(int32_t *tokens, int32_t *targets, float *weights) {
    random_tokens(tokens, ROWS * T, V, 1);
    random_tokens(targets, ROWS * T, V, 2);
    for (int i = 0; i < ROWS * T; i++)
        weights[i] = i % 3 == 0 || i / T == 1 ? 0 : 0.25f * (float)(i % 7 + 1);
}

static void init(struct whole_model *model, struct device *device, enum dtype type, int B) {
    whole_model_init(model, &config, device,
                     &(struct gpt_options){.type = type,
                                           .B = B,
                                           .T = T,
                                           .label_smoothing = 0.1f,
                                           .z_loss = 1e-2f,
                                           .training = true,
                                           .scoring = true},
                     0);
    whole_model_perturb(model);
    whole_model_zero_grads(model);
}

struct outcome {
    double loss, *grads;
};

// A step of the batch in micro-batches of B rows, of which the last one is padded.
static struct outcome train(struct device *device, enum dtype type, int B, const int32_t *tokens,
                            const int32_t *targets, const float *weights, double weight) {
    struct whole_model model;
    struct outcome outcome = {0};
    init(&model, device, type, B);
    const size_t n = model.params.n_elements;
    for (int row = 0; row < ROWS; row += B) {
        int32_t t[MOST_ROWS * T], u[MOST_ROWS * T];
        float w[MOST_ROWS * T];
        double sum;
        for (int i = 0; i < B * T; i++) {
            const bool padding = row * T + i >= ROWS * T;
            t[i] = padding ? i % V : tokens[row * T + i];
            u[i] = padding ? 3 * i % V : targets[row * T + i];
            w[i] = padding ? 0 : weights ? weights[row * T + i] : 1;
        }
        model.weights = weights || row + B > ROWS ? w : NULL;
        assert_ok(gpt_forward_backward(model.gpt, &model.stream, &model.hooks,
                                       whole_model_batch(&model, t, u), (float)(1 / weight), &sum));
        outcome.loss += sum / weight;
    }
    outcome.grads = calloc(n, sizeof *outcome.grads);
    assert_non_null(outcome.grads);
    char *grads = malloc(n * dtype_size(model.state));
    whole_copy(&model, grads, whole_data(&model, model.grad_region), n * dtype_size(model.state));
    for (size_t i = 0; i < n; i++)
        outcome.grads[i] = state_get(grads, model.state, i);
    free(grads);
    whole_model_free(&model);
    return outcome;
}

// n additions in the accumulation dtype, in another order, of numbers whose sum of magnitudes is at most that
// of the batch's rows: relative to the largest gradient.
static void expect_same(const struct outcome *a, const struct outcome *b, size_t n, double epsilon) {
    double largest = 0, error = 0;
    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(b->grads[i]));
        error = fmax(error, fabs(a->grads[i] - b->grads[i]));
    }
    assert_true(largest > 0 && fabs(a->loss - b->loss) <= ROWS * T * epsilon * fabs(b->loss));
    assert_true(error <= ROWS * T * epsilon * largest);
}

static size_t n_elements(void) {
    struct params params;
    assert_ok(params_init(&params, &config));
    const size_t n = params.n_elements;
    params_free(&params);
    return n;
}

static void test_splits(void **state) {
    struct device *device = device_for_test(*state);
    int32_t tokens[ROWS * T], targets[ROWS * T];
    float weights[ROWS * T];
    double weight = 0;
    make_batch(tokens, targets, weights);
    for (int i = 0; i < ROWS * T; i++)
        weight += (double)weights[i];
    for (int weighted = 0; weighted < 2; weighted++) {
        const float *of = weighted ? weights : NULL;
        const double by = weighted ? weight : ROWS * T;
        struct outcome whole = train(device, DTYPE_F32, ROWS, tokens, targets, of, by);
        for (int B = 1; B <= MOST_ROWS; B++) {
            struct outcome split = train(device, DTYPE_F32, B, tokens, targets, of, by);
            expect_same(&split, &whole, n_elements(), dtype_epsilon(DTYPE_F32));
            free(split.grads);
        }
        free(whole.grads);
    }
    device_close(device);
}

// To the bit: what a target of weight 0 is changes nothing; weights of 1 are none; weights of 2 double losses
// and gradients.
static void check_bits(struct device *device, enum dtype type) {
    int32_t tokens[ROWS * T], targets[ROWS * T], others[ROWS * T];
    float weights[ROWS * T], ones[ROWS * T], twos[ROWS * T];
    const size_t n = n_elements();
    make_batch(tokens, targets, weights);
    for (int i = 0; i < ROWS * T; i++) {
        others[i] = weights[i] > 0 ? targets[i] : (targets[i] + 5) % V;
        ones[i] = 1, twos[i] = 2;
    }
    struct outcome a = train(device, type, ROWS, tokens, targets, weights, 1),
                   b = train(device, type, ROWS, tokens, others, weights, 1),
                   c = train(device, type, ROWS, tokens, targets, NULL, 1),
                   d = train(device, type, ROWS, tokens, targets, ones, 1),
                   e = train(device, type, ROWS, tokens, targets, twos, 1);
    assert_true(a.loss == b.loss && c.loss == d.loss && e.loss == 2 * c.loss && a.loss != c.loss);
    assert_memory_equal(a.grads, b.grads, n * sizeof *a.grads);
    assert_memory_equal(c.grads, d.grads, n * sizeof *a.grads);
    for (size_t i = 0; i < n; i++)
        assert_true(type == DTYPE_F16 || e.grads[i] == 2 * c.grads[i]);
    free(a.grads), free(b.grads), free(c.grads), free(d.grads), free(e.grads);
}

// Losses of an evaluation and of scoring are those without weights, times the weights.
static void check_losses(struct device *device, enum dtype type) {
    int32_t tokens[ROWS * T], targets[ROWS * T];
    float weights[ROWS * T], plain[ROWS * T], weighted[ROWS * T], scored[ROWS * T];
    struct whole_model model;
    double sum, expected = 0;
    make_batch(tokens, targets, weights);
    init(&model, device, type, ROWS);
    assert_ok(gpt_evaluate(model.gpt, &model.stream, &model.hooks, whole_model_batch(&model, tokens, targets),
                           &sum, plain));
    model.weights = weights;
    assert_ok(gpt_evaluate(model.gpt, &model.stream, &model.hooks, whole_model_batch(&model, tokens, targets),
                           &sum, weighted));
    assert_ok(gpt_score(model.gpt, &model.stream, &model.hooks,
                        &(struct gpt_scoring){.shape = {ROWS, T}, .batch = model.batch, .losses = scored}));
    for (int i = 0; i < ROWS * T; i++) {
        const double loss = (double)plain[i] * (double)weights[i];
        assert_true(weights[i] > 0 ? fabs((double)weighted[i] - loss) <= 0x1p-22 * loss : weighted[i] == 0);
        assert_true(scored[i] == weighted[i]);
        expected += (double)weighted[i];
    }
    assert_true(sum == expected);
    whole_model_free(&model);
}

static void test_bits(void **state) {
    struct device *device = device_for_test(*state);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        check_bits(device, (enum dtype)type);
    device_close(device);
}

static void test_losses(void **state) {
    struct device *device = device_for_test(*state);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        check_losses(device, (enum dtype)type);
    device_close(device);
}

#define ON(device, test)                                                                                     \
    { #test " on " device, test, NULL, NULL, (void *)(uintptr_t)device }
#define ON_ALL(test)                                                                                         \
    ON("amx", test), ON("avx512_bf16", test), ON("avx512", test), ON("avx2", test), ON("portable", test),    \
        ON("cuda", test)

int main(void) {
    const struct CMUnitTest tests[] = {ON_ALL(test_splits), ON_ALL(test_bits), ON_ALL(test_losses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
