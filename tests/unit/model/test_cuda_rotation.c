// Models whose attention rotates queries as it loads them, and gradients as it stores them, on a GPU: no bit
// differs from those that rotate in passes of their own, with one launch per block more. These are for cuDNN,
// whose library is not loaded here, so that the same kernels multiply. Runs on the
// simulated GPU of tests/cudasim or on a real one; skipped without either.
#include "tests/support/small_models.h"
#include "tests/support/whole_model.h"

enum { T = 10, V = 29 };

// Groups of query heads, windows, and half of each head rotated.
static const struct gpt_config llama = {SMALL_SIZES, SMALL_HEADS, .family = FAMILY_LLAMA, .untied = true};
static const struct gpt_config windows = {SMALL_SIZES, SMALL_HEADS, .family = FAMILY_LLAMA, .n_windows = 2,
                                          .windows = {3, 0}};
static const struct gpt_config half_rotated = {SMALL_SIZES, SMALL_HEADS, .family = FAMILY_MODERN,
                                               .partial_rotary_factor = 0.5};

struct results {
    struct step_result step;
    uint64_t launches; // of the step
    float full[T * V], cached[T * V];
};

// A step, the logits of a sequence in one pass, and those of a prompt, more of it and single positions.
static struct results results_of(struct device *device, const struct gpt_config *config, enum dtype type,
                                 enum gpt_recompute recompute, bool documents,
                                 enum attention_kernel attention) {
    const struct gpt_options options = {.type = type,
                                        .B = 2,
                                        .T = T,
                                        .recompute = recompute,
                                        .attention = attention,
                                        .mask_documents = documents,
                                        .training = true};
    const int sequence = 0;
    struct results results = {0};
    struct whole_model model;
    int32_t tokens[2 * T];
    whole_model_init(&model, config, device, &options, T);
    whole_model_perturb(&model);
    random_tokens(tokens, 2 * T, V, 6);
    if (documents) {
        model.document_start = tokens[4];
        generator_set_end_of_text(model.generator, tokens[4]);
    }
    const uint64_t before = device_launches(device);
    results.step = whole_model_step(&model, &model.hooks);
    results.launches = device_launches(device) - before;
    assert_ok(gpt_logits(model.gpt, &model.stream, &model.hooks, whole_model_batch(&model, tokens, NULL),
                         results.full));
    generator_reset(model.generator, sequence);
    for (int t = 0, n = 4; t < 8; t += n)
        assert_ok(generator_append(model.generator, &model.stream, &model.hooks, sequence, tokens + t, n));
    for (int t = 8; t < T; t++)
        assert_ok(generator_step(model.generator, &model.stream, &model.hooks, &sequence, tokens + t, 1,
                                 results.cached + t * V));
    whole_model_free(&model);
    return results;
}

static void compare(struct device *device, const struct gpt_config *config, enum dtype type,
                    enum gpt_recompute recompute, bool documents) {
    struct results in_attention = results_of(device, config, type, recompute, documents, ATTENTION_FLASH);
    struct results apart = results_of(device, config, type, recompute, documents, ATTENTION_CUDNN);
    assert_same_step(&in_attention.step, &apart.step);
    assert_memory_equal(in_attention.full, apart.full, sizeof apart.full);
    assert_memory_equal(in_attention.cached, apart.cached, sizeof apart.cached);
    const int fewer = (int)(apart.launches - in_attention.launches);
    assert_int_equal(fewer, type == DTYPE_F32 || config->qk_norm ? 0 : config->n_layer);
    free(in_attention.step.grads);
    free(apart.step.grads);
}

static void test_rotation_in_attention_changes_no_bit(void **state) {
    (void)state;
    struct device *device = device_for_test("cuda");
    assert_true(device->tensor_core_heads >= 128);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        for (int documents = 0; documents < 2; documents++) {
            compare(device, &llama, (enum dtype)type, RECOMPUTE_NONE, documents);
            compare(device, &windows, (enum dtype)type, RECOMPUTE_ATTENTION, documents);
            compare(device, &half_rotated, (enum dtype)type, RECOMPUTE_BLOCK, documents);
        }
    compare(device, &small_llama, DTYPE_BF16, RECOMPUTE_NONE, false); // with qk-norm
    device_close(device);
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_rotation_in_attention_changes_no_bit)};
    return cmocka_run_group_tests_name("rotation in a model's attention", tests, NULL, NULL);
}
