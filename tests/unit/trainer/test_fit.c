// Each proposal of fit_find needs exactly the memory that it states, and its overrides give the config that
// was planned.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "options/print.h"
#include "tests/support/expect.h"
#include "trainer/plan/fit.h"
#include "trainer/plan/model_sizes.h"

struct fit_fixture {
    struct config config;
    struct params params;
    struct device *device;
    struct fit_request request;
};

// For a planned GPU or the CPU. options: further sections of the config.
static void fixture_init(struct fit_fixture *fixture, bool gpu, int world, const char *options) {
    char json[1024];
    snprintf(json, sizeof json,
             "{\"model\": {\"n_layer\": 4, \"n_head\": 2, \"n_embd\": 256, \"vocab_size\": 1000, "
             "\"n_positions\": 128}, "
             "\"precision\": {\"compute\": \"bf16\"}%s%s}",
             *options ? ", " : "", options);
    memset(fixture, 0, sizeof *fixture);
    EXPECT_OK(config_parse(&fixture->config, json, strlen(json), "test"));
    EXPECT_OK(config_resolve(&fixture->config, world));
    const struct gpt_config sizes = config_model(&fixture->config);
    EXPECT_OK(params_init(&fixture->params, &sizes));
    if (gpu)
        fixture->device = cuda_device_plan();
    else
        EXPECT_OK(device_open("cpu", 2, 0, &fixture->device));
    fixture->request = (struct fit_request){.plan = {.config = &fixture->config,
                                                     .params = &fixture->params,
                                                     .type = DTYPE_BF16,
                                                     .device = fixture->device,
                                                     .attention = ATTENTION_CUDNN,
                                                     .world = world,
                                                     .local_world = world},
                                            .given = &fixture->config,
                                            .machine = {.device = UINT64_MAX, .host = UINT64_MAX}};
}

static void fixture_free(struct fit_fixture *fixture) {
    device_close(fixture->device);
    params_free(&fixture->params);
    config_free(&fixture->config);
}

// Memory of the rank that needs most, with the overrides parsed as on a command line.
static void plan_with(const struct fit_fixture *fixture, const char *overrides,
                      size_t taken[N_REGION_PLACES]) {
    struct config config;
    struct text json = {0};
    char words[512], path[] = "/tmp/zero-fit-XXXXXX", *list[32], *state = NULL;
    int n = 0, world = fixture->request.plan.world, file = mkstemp(path);
    assert_true(file >= 0);
    config_print(&fixture->config, &json);
    EXPECT_OK(file_write_all(path, json.data, json.length));
    snprintf(words, sizeof words, "%s", overrides);
    for (char *word = strtok_r(words, " ", &state); word; word = strtok_r(NULL, " ", &state))
        list[n++] = word;
    EXPECT_OK(config_read(&config, path, n, list));
    EXPECT_OK(config_resolve(&config, world));
    struct engine_options request = fixture->request.plan;
    request.config = &config;
    memset(taken, 0, N_REGION_PLACES * sizeof *taken);
    for (request.rank = 0; request.rank < world; request.rank++) {
        struct plan plan;
        EXPECT_OK(plan_make(&request, &plan));
        for (int place = 0; place < N_REGION_PLACES; place++)
            taken[place] = plan.taken[place] > taken[place] ? plan.taken[place] : taken[place];
    }
    config_free(&config);
    text_free(&json);
    remove(path);
    close(file);
}

static void expect_as_planned(const struct fit_fixture *fixture, const struct fit_proposal *proposal) {
    size_t taken[N_REGION_PLACES];
    plan_with(fixture, proposal->overrides, taken);
    for (int place = 0; place < N_REGION_PLACES; place++)
        if (taken[place] != proposal->taken[place])
            fail_msg("\"%s\" takes %zu bytes, but the proposal states %zu", proposal->overrides, taken[place],
                     proposal->taken[place]);
}

// The steps of these walks, unless ZERO_TESTS_FULL is set.
static int stride(int of_short_run) {
    return getenv("ZERO_TESTS_FULL") ? 1 : of_short_run;
}

// That the memory of this proposal suffices to the byte.
static void expect_to_fit(struct fit_fixture *fixture, const struct fit_proposal *proposal) {
    struct fit fit;
    EXPECT_OK(fit_find(&fixture->request, &fit));
    assert_string_equal(fit.proposals[0].overrides, proposal->overrides);
    fit_free(&fit);
}

// Lowers the memory step by step to a byte below the last proposal, until nothing fits.
static int walk_down(struct fit_fixture *fixture, enum region_place place) {
    uint64_t *limit =
        place == REGION_DEVICE ? &fixture->request.machine.device : &fixture->request.machine.host;
    for (int n = 0;; n++) {
        struct fit fit;
        EXPECT_OK(fit_find(&fixture->request, &fit));
        if (fit.n_proposals == 0)
            return n;
        const struct fit_proposal *first = &fit.proposals[0];
        uint64_t needed = first->taken[place];
        if (place == REGION_HOST)
            needed *= (uint64_t)fixture->request.plan.local_world;
        assert_true(needed <= *limit);
        for (int i = 0; i < fit.n_proposals; i++) {
            expect_as_planned(fixture, &fit.proposals[i]);
            assert_true(i == 0 ||
                        fit.proposals[i].taken[place] <= fit.proposals[i - 1].taken[place] / 10 * 9);
        }
        *limit = needed; // exactly this much must suffice
        if (n % stride(3) == 0)
            expect_to_fit(fixture, first);
        fit_free(&fit);
        *limit = needed - 1;
    }
}

static const char batch[] = "\"train\": {\"micro_batch_size\": 4, \"gradient_accumulation_steps\": 2}";

static void test_shrinking_memory(void **state) {
    (void)state;
    for (int world = 1; world <= 3; world += stride(2)) // test_samples has two ranks
        for (int gpu = 0; gpu <= 1; gpu++) {
            struct fit_fixture fixture;
            fixture_init(&fixture, gpu, world, batch);
            int n = walk_down(&fixture, gpu ? REGION_DEVICE : REGION_HOST);
            if (n < 4)
                fail_msg("%d ranks, gpu %d: only %d proposals", world, gpu, n);
            fixture_free(&fixture);
        }
}

// A size that the config leaves open for a GPU is searched from the largest that a run would choose;
// otherwise from the config's down.
static void test_open_micro_batches(void **state) {
    (void)state;
    struct fit_fixture fixture;
    struct fit fit;
    fixture_init(&fixture, true, 1, "\"train\": {\"train_batch_size\": 534}");
    EXPECT_OK(fit_find(&fixture.request, &fit));
    assert_string_equal(
        fit.proposals[0].overrides,
        "train.micro_batch_size=267 train.gradient_accumulation_steps=2"); // of 512 x 128 tokens
    fit_free(&fit);
    assert_true(walk_down(&fixture, REGION_DEVICE) > 6);
    fixture_free(&fixture);
    fixture_init(&fixture, false, 1, "\"train\": {\"train_batch_size\": 534}");
    EXPECT_OK(fit_find(&fixture.request, &fit));
    assert_string_equal(fit.proposals[0].overrides, "");
    fit_free(&fit);
    fixture_free(&fixture);
}

// With samples, rank 0 needs most, except in stage 3.
static void test_samples(void **state) {
    (void)state;
    struct fit_fixture fixture;
    fixture_init(
        &fixture, true, 2,
        "\"data\": {\"tokenizer\": \"bytes\"}, \"train\": {\"micro_batch_size\": 2, \"sample_every\": 5}");
    assert_true(walk_down(&fixture, REGION_DEVICE) > 3);
    fixture_free(&fixture);
}

// With unlimited memory nothing is offloaded, and a config that is already fastest is not changed.
static void test_unlimited_memory(void **state) {
    (void)state;
    struct fit_fixture fixture;
    struct fit fit;
    fixture_init(&fixture, true, 2, batch);
    EXPECT_OK(fit_find(&fixture.request, &fit));
    // Each rank updates half of the weights.
    assert_string_equal(fit.proposals[0].overrides, "zero_optimization.stage=1");
    assert_true(fit.proposals[0].same_bits);
    fit_free(&fit);
    fixture_free(&fixture);
    fixture_init(
        &fixture, true, 1,
        "\"recompute\": \"block\", \"offload_activations\": \"cpu\", \"zero_optimization\": {\"stage\": 3, "
        "\"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": \"cpu\"}}");
    EXPECT_OK(fit_find(&fixture.request, &fit));
    assert_string_equal(fit.proposals[0].overrides, "recompute=elementwise offload_activations=none "
                                                    "zero_optimization.stage=1 "
                                                    "zero_optimization.offload_optimizer.device=none "
                                                    "zero_optimization.offload_param.device=none");
    fit_free(&fit);
    fixture_free(&fixture);
    fixture_init(&fixture, false, 1, batch);
    EXPECT_OK(fit_find(&fixture.request, &fit));
    assert_string_equal(fit.proposals[0].overrides, "");
    fit_free(&fit);
    fixture_free(&fixture);
}

// The first proposal where the GPU has a byte less than `words` take.
static void expect_below(struct fit_fixture *fixture, const char *words, const char *expected) {
    struct fit fit;
    size_t taken[N_REGION_PLACES];
    plan_with(fixture, words, taken);
    fixture->request.machine.device = taken[REGION_DEVICE] - 1;
    EXPECT_OK(fit_find(&fixture->request, &fit));
    assert_true(fit.n_proposals > 0);
    assert_string_equal(fit.proposals[0].overrides, expected);
    fit_free(&fit);
}

// In the order of the prices, and without the rungs that a dearer one makes needless.
static void test_order(void **state) {
    (void)state;
    struct fit_fixture fixture;
    fixture_init(&fixture, true, 4, batch);
    expect_below(&fixture, "zero_optimization.stage=1", "zero_optimization.stage=2");
    expect_below(&fixture, "zero_optimization.stage=2", "zero_optimization.stage=3");
    expect_below(&fixture, "zero_optimization.stage=3",
                 "train.micro_batch_size=2 train.gradient_accumulation_steps=4 zero_optimization.stage=1");
    fixture_free(&fixture);
    fixture_init(&fixture, true, 1, "\"train\": {\"micro_batch_size\": 1}");
    expect_below(&fixture, "", "recompute=attention");
    expect_below(&fixture, "recompute=attention", "recompute=block");
    expect_below(&fixture, "recompute=block", "recompute=block offload_activations=cpu");
    fixture_free(&fixture);
}

static void test_host_memory_counts(void **state) {
    (void)state;
    struct fit_fixture fixture;
    struct fit fit;
    size_t taken[N_REGION_PLACES];
    fixture_init(&fixture, true, 2, "\"train\": {\"micro_batch_size\": 1}");
    plan_with(&fixture,
              "zero_optimization.stage=3 recompute=block zero_optimization.offload_optimizer.device=cpu",
              taken);
    fixture.request.machine =
        (struct fit_machine){.device = taken[REGION_DEVICE], .host = 2 * taken[REGION_HOST]};
    EXPECT_OK(fit_find(&fixture.request, &fit));
    assert_true(fit.n_proposals > 0);
    fit_free(&fit);
    fixture.request.machine.host = 1 << 20;
    EXPECT_OK(fit_find(&fixture.request, &fit));
    assert_int_equal(fit.n_proposals, 0);
    fixture_free(&fixture);
}

// If nothing fits, the largest preset that does is named.
static void test_preset(void **state) {
    (void)state;
    struct config config;
    struct fit_fixture fixture;
    struct fit fit;
    fixture_init(&fixture, true, 1, "");
    EXPECT_OK(config_read(&config, "configs/gpt3-2.7b.json", 0, NULL));
    EXPECT_OK(config_resolve(&config, 1));
    const struct gpt_config sizes = config_model(&config);
    params_free(&fixture.params);
    EXPECT_OK(params_init(&fixture.params, &sizes));
    fixture.request.plan.config = fixture.request.given = &config;
    fixture.request.machine = (struct fit_machine){.device = (uint64_t)2 << 30, .host = (uint64_t)8 << 30};
    EXPECT_OK(fit_find(&fixture.request, &fit));
    assert_int_equal(fit.n_proposals, 0);
    assert_string_equal(fit.preset, "configs/gpt3-medium.json");
    fixture.request.machine.device = (uint64_t)1 << 20;
    EXPECT_OK(fit_find(&fixture.request, &fit));
    assert_null(fit.preset);
    config_free(&config);
    fixture_free(&fixture);
}

// An error of the config itself is reported, whatever fits.
static void test_bad_config(void **state) {
    (void)state;
    struct fit_fixture fixture;
    struct fit fit;
    fixture_init(&fixture, true, 2, "\"zero_optimization\": {\"reduce_bucket_size\": 1}");
    EXPECT_FAILURE(STATUS_INVALID, fit_find(&fixture.request, &fit), "reduce_bucket_size");
    fixture_free(&fixture);
}

// The device of a planned GPU answers workspace sizes and refuses everything else.
static void test_planned_gpu(void **state) {
    (void)state;
    struct device *device;
    struct stream stream;
    void *memory;
    size_t bytes;
    device = cuda_device_plan();
    assert_int_equal(device->place, REGION_DEVICE);
    EXPECT_OK(stream_init(&stream, device));
    const struct sample_args sample = {.N = 3, .V = 1000};
    EXPECT_OK(device->ops->workspace_bytes(device, OP_sample, &sample, &bytes));
    assert_int_equal(bytes, 2 * 3 * 1000 * 8);
    EXPECT_FAILURE(STATUS_UNSUPPORTED, device->ops->sample(&stream, &sample), "for planning only");
    EXPECT_FAILURE(STATUS_UNSUPPORTED, device->memory_new(device, 1, "tests", &memory), "for planning only");
    EXPECT_FAILURE(STATUS_UNSUPPORTED, device->copy(&stream, NULL, NULL, 1), "for planning only");
    EXPECT_FAILURE(STATUS_UNSUPPORTED, device->synchronize(&stream), "for planning only");
    stream_free(&stream);
    device_close(device);
}

// What a micro-batch computes, of the config with these further sections.
struct work {
    double flops, update_flops;
};

static struct work work_of(const char *options, double *per_token) {
    struct fit_fixture fixture;
    struct work work;
    struct plan plan = {.total = 0};
    fixture_init(&fixture, false, 2, options);
    EXPECT_OK(plan_add_model(&fixture.request.plan, &plan));
    work.flops = step_work_count(&plan.work[0]);
    EXPECT_OK(update_flops_estimate(&fixture.request.plan, &work.update_flops));
    EXPECT_OK(gpt_flops_per_token(&fixture.params, 128, per_token));
    fixture_free(&fixture);
    return work;
}

// The FLOPs are those of the recorded passes: backward costs twice forward, and
// block-wise recomputation as much as the forward of all blocks but the last, without their last product.
// Muon's products are shared by the ranks.
static void test_work_is_that_of_the_passes(void **state) {
    (void)state;
    static const char batch_of_4[] = "\"train\": {\"micro_batch_size\": 4}";
    const double tokens = 4 * 128, lm_head = 2.0 * 256 * 1000, last = 2.0 * 256 * 1024;
    double per_token;
    char options[512];
    const struct work plain = work_of(batch_of_4, &per_token);
    // Attention's backward has five products to forward's two.
    assert_true(fabs(plain.flops / (tokens * per_token) - 1) < 0.01);
    assert_true(plain.update_flops == 0);
    snprintf(options, sizeof options, "%s, \"recompute\": \"block\"", batch_of_4);
    const struct work recomputed = work_of(options, &per_token);
    const double block = (per_token / 3 - lm_head) / 4;
    assert_true(fabs((recomputed.flops - plain.flops) / (tokens * 3 * (block - last)) - 1) < 0.01);
    snprintf(options, sizeof options, "%s, \"optimizer\": {\"type\": \"muon\"}", batch_of_4);
    double products = 0;
    static const struct matrix_shape shapes[] = {{256, 256}, {256, 256},  {256, 256},
                                                 {256, 256}, {1024, 256}, {256, 1024}};
    struct device *two_threads; // as in fixture_init
    EXPECT_OK(device_open("cpu", 2, 0, &two_threads));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        products += 4 * newton_schulz_flops(shapes[i], two_threads->symmetric_strips[DTYPE_BF16]);
    device_close(two_threads);
    const struct work muon = work_of(options, &per_token);
    assert_true(fabs(muon.update_flops / (products / 2) - 1) < 1e-12);
    assert_true(muon.flops == plain.flops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shrinking_memory),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_open_micro_batches),
        cmocka_unit_test(test_unlimited_memory),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_host_memory_counts),
        cmocka_unit_test(test_preset),
        cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_planned_gpu),
        cmocka_unit_test(test_work_is_that_of_the_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
