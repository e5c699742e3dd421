// data.mask_documents: packed documents with the mask are what they are in sequences of their own, at the
// same positions: their losses, and the sum of their gradients.
#include "tests/support/small_models.h"
#include "tests/support/whole_model.h"

enum { B = 2, T = 23, END_OF_TEXT = 28 };

// Positions of GPT-2 are rows of a table, those of the others rotations, of which only differences count;
// their queries share keys, and every other block has a window shorter than some documents.
#define SIZES .n_layer = 3, .n_embd = 12, .vocab_size = 29, .n_positions = T
static const struct gpt_config configs[] = {
    {SIZES, .n_head = 2},
    {SIZES, SMALL_HEADS, LLAMA_PIECES, .windows = {4, 0}},
    {SIZES, SMALL_HEADS, MODERN_PIECES, .windows = {4, 0}, .value_embeddings = {0, 2}}};
enum { N_CONFIGS = sizeof configs / sizeof *configs };
static const struct gpt_config *config;

// Where documents begin: within a sequence, at its start, one of a single token, and one at the very end.
static const bool begins[B][T] = {{[5] = true, [6] = true, [17] = true, [T - 1] = true},
                                  {[0] = true, [12] = true}};

static void make_tokens(int32_t *tokens, int32_t *targets, uint32_t stream) {
    random_tokens(tokens, B * T, END_OF_TEXT, stream);
    random_tokens(targets, B * T, config->vocab_size, 2);
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            if (begins[b][t])
                tokens[b * T + t] = END_OF_TEXT;
}

// The losses of all tokens, and the gradients of their sum.
struct outcome {
    float losses[B * T];
    double *grads; // (elements)
};

static void pass(struct whole_model *model, const int32_t *tokens, const int32_t *targets,
                 struct outcome *out) {
    double sum;
    const size_t n = model->params.n_elements;
    assert_ok(gpt_evaluate(model->gpt, &model->stream, &model->hooks,
                           whole_model_batch(model, tokens, targets), &sum, out->losses));
    whole_model_zero_grads(model);
    assert_ok(gpt_forward_backward(model->gpt, &model->stream, &model->hooks,
                                   whole_model_batch(model, tokens, targets), 1.0f, &sum));
    out->grads = calloc(n, sizeof *out->grads);
    assert_non_null(out->grads);
    for (size_t i = 0; i < n; i++)
        out->grads[i] = state_get(whole_data(model, model->grad_region), model->state, i);
}

// A model whose position embedding begins at position `first` of the others'.
static void init(struct whole_model *model, struct device *device, struct gpt_options options, int first) {
    const size_t C = (size_t)config->n_embd;
    whole_model_init(model, config, device, &options, 0);
    whole_model_perturb(model);
    const size_t size = dtype_size(options.type);
    if (config->family == FAMILY_GPT2) {
        char *wpe =
            (char *)whole_data(model, model->param_region) + param_position(&model->params, PARAM_WPE) * size;
        memmove(wpe, wpe + (size_t)first * C * size, (size_t)(T - first) * C * size);
    }
    if (options.mask_documents)
        model->document_start = END_OF_TEXT;
}

// Adds the outcome of the document [first, end) of a sequence, run by itself, to `sum`.
static void add_alone(struct device *device, enum dtype type, const int32_t *tokens, const int32_t *targets,
                      int first, int end, float *losses, double *sum) {
    struct whole_model model;
    struct outcome alone;
    const size_t C = (size_t)config->n_embd;
    init(&model, device, (struct gpt_options){.type = type, .B = 1, .T = end - first, .training = true},
         first);
    pass(&model, tokens + first, targets + first, &alone);
    memcpy(losses + first, alone.losses, (size_t)(end - first) * sizeof *losses);
    const bool has_wpe = config->family == FAMILY_GPT2;
    const size_t wpe = has_wpe ? param_position(&model.params, PARAM_WPE) : 0;
    for (size_t i = 0; i < model.params.n_elements; i++)
        if (!has_wpe || i < wpe || i >= wpe + T * C)
            sum[i] += alone.grads[i];
        else if (i < wpe + (size_t)(T - first) * C)
            sum[i + (size_t)first * C] += alone.grads[i];
    free(alone.grads);
    whole_model_free(&model);
}

static void check(const char *name, enum dtype type, double tolerance) {
    struct device *device = device_for_test(name);
    struct whole_model model;
    struct outcome packed;
    int32_t tokens[B * T], targets[B * T];
    float losses[B * T];
    make_tokens(tokens, targets, 1);
    init(&model, device,
         (struct gpt_options){.type = type, .B = B, .T = T, .mask_documents = true, .training = true}, 0);
    pass(&model, tokens, targets, &packed);
    double *sum = calloc(model.params.n_elements, sizeof *sum), largest = 0, worst = 0;
    assert_non_null(sum);
    for (int b = 0; b < B; b++)
        for (int first = 0, t = 1; t <= T; t++)
            if (t == T || begins[b][t]) {
                add_alone(device, type, tokens + b * T, targets + b * T, first, t, losses + b * T, sum);
                first = t;
            }
    for (int i = 0; i < B * T; i++)
        if (fabs((double)(packed.losses[i] - losses[i])) > fmax(tolerance, 1e-6) * (double)losses[i])
            fail_msg("token %d: loss %.9g packed, %.9g alone", i, (double)packed.losses[i],
                     (double)losses[i]);
    for (size_t i = 0; i < model.params.n_elements; i++) {
        largest = fmax(largest, fabs(sum[i]));
        worst = fmax(worst, fabs(sum[i] - packed.grads[i]));
    }
    if (!(worst <= tolerance * largest))
        fail_msg("a gradient is off by %g of the largest, allowed %g", worst / largest, tolerance);
    free(sum);
    free(packed.grads);
    whole_model_free(&model);
    device_close(device);
}

// fp32: a gradient is a sum of B T = 46 terms, each of a chain of some 100 roundings.
static void test_packed_documents(void **state) {
    const bool exact = strcmp(*state, "ref") == 0;
    for (config = configs; config < configs + N_CONFIGS; config++)
        check(*state, exact ? DTYPE_F64 : DTYPE_F32, exact ? 1e-12 : 5000 * dtype_epsilon(DTYPE_F32));
}

// What stands in other documents of the sequence changes no bit of a document's losses; without the mask, it
// does. Recomputation changes nothing about it.
static void check_other_documents(struct device *device) {
    for (int masked = 0; masked < 2; masked++)
        for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
            struct whole_model model;
            struct outcome one, two;
            int32_t tokens[B * T], others[B * T], targets[B * T];
            int n_differ = 0;
            make_tokens(tokens, targets, 1);
            make_tokens(others, targets, 9);
            for (int t = 6; t < 17; t++) // the same document, at the same place
                others[t] = tokens[t];
            init(&model, device,
                 (struct gpt_options){.type = (enum dtype)type,
                                      .B = B,
                                      .T = T,
                                      .recompute = RECOMPUTE_BLOCK,
                                      .mask_documents = masked,
                                      .training = true},
                 0);
            pass(&model, tokens, targets, &one);
            pass(&model, others, targets, &two);
            for (int t = 6; t < 17; t++)
                n_differ += one.losses[t] != two.losses[t];
            assert_true(masked ? n_differ == 0 : n_differ > 0);
            free(one.grads);
            free(two.grads);
            whole_model_free(&model);
        }
}

static void test_other_documents_change_no_bit(void **state) {
    struct device *device = device_for_test(*state);
    for (config = configs; config < configs + N_CONFIGS; config++)
        check_other_documents(device);
    device_close(device);
}

static const enum gpt_recompute levels[] = {RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_BLOCK};

static void check_recompute(struct device *device) {
    struct outcome outcomes[3];
    size_t n = 0;
    for (int i = 0; i < 3; i++) {
        struct whole_model model;
        int32_t tokens[B * T], targets[B * T];
        make_tokens(tokens, targets, 1);
        init(&model, device,
             (struct gpt_options){.type = DTYPE_BF16,
                                  .B = B,
                                  .T = T,
                                  .recompute = levels[i],
                                  .mask_documents = true,
                                  .training = true},
             0);
        pass(&model, tokens, targets, &outcomes[i]);
        n = model.params.n_elements;
        whole_model_free(&model);
    }
    for (int i = 1; i < 3; i++)
        assert_memory_equal(outcomes[0].grads, outcomes[i].grads, n * sizeof(double));
    for (int i = 0; i < 3; i++)
        free(outcomes[i].grads);
}

static void test_recompute_changes_no_bit(void **state) {
    struct device *device = device_for_test(*state);
    for (config = configs; config < configs + N_CONFIGS; config++)
        check_recompute(device);
    device_close(device);
}

#define ON(device, test)                                                                                     \
    { #test " on " device, test, NULL, NULL, (void *)(uintptr_t)device }
#define ON_ALL(test)                                                                                         \
    ON("amx", test), ON("avx512_bf16", test), ON("avx512", test), ON("avx2", test), ON("portable", test)

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("ref", test_packed_documents),
        ON_ALL(test_packed_documents),
        ON_ALL(test_other_documents_change_no_bit),
        ON_ALL(test_recompute_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
