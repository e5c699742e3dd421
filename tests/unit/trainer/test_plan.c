// Plans against formulas written by hand, on a model whose units do not divide evenly among ranks. The rank
// that plan_stages picks is compared with all ranks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "trainer/plan/fit.h"
#include "trainer/plan/model_sizes.h"
#include "trainer/plan/paper.h"
#include "trainer/plan/plan.h"

#define ODD_MODEL                                                                                            \
    "\"model\": {\"n_layer\": 3, \"n_head\": 1, \"n_embd\": 33, \"vocab_size\": 2100, \"n_positions\": 7}, " \
    "\"data\": {\"tokenizer\": \"bytes\"}, "
#define N_MICRO 3

struct plan_fixture {
    struct config config;
    struct params params;
    struct device *device;
};

// train, zero: further options of the sections train and zero_optimization.
static void fixture_init(struct plan_fixture *fixture, int world, const char *train, const char *zero) {
    char json[1024];
    snprintf(json, sizeof json,
             "{" ODD_MODEL "\"train\": {\"micro_batch_size\": 1, \"gradient_accumulation_steps\": %d%s}, "
             "\"zero_optimization\": {%s}}",
             N_MICRO, train, zero);
    EXPECT_OK(config_parse(&fixture->config, json, strlen(json), "test"));
    EXPECT_OK(config_resolve(&fixture->config, world));
    const struct gpt_config sizes = config_model(&fixture->config);
    EXPECT_OK(params_init(&fixture->params, &sizes));
    EXPECT_OK(device_open("cpu", 2, 0, &fixture->device));
}

static void fixture_free(struct plan_fixture *fixture) {
    device_close(fixture->device);
    params_free(&fixture->params);
    config_free(&fixture->config);
}

static struct engine_options request_of(const struct plan_fixture *fixture, enum dtype type, int rank,
                                        int world) {
    return (struct engine_options){.config = &fixture->config,
                                   .params = &fixture->params,
                                   .type = type,
                                   .device = fixture->device,
                                   .rank = rank,
                                   .world = world,
                                   .local_world = world};
}

// ---- memory

// Elements of tensors that stay whole in stage 3, each padded as in a unit.
static size_t persistent_elements(const struct plan_fixture *fixture) {
    size_t n = 0, threshold = (size_t)fixture->config.zero_optimization.stage3_param_persistence_threshold;
    for (int i = 0; i < fixture->params.n_params; i++)
        if (fixture->params.params[i].elements < threshold)
            n += (fixture->params.params[i].elements + 127) / 128 * 128;
    return n;
}

static void check_states(const struct plan_fixture *fixture, enum dtype type, size_t owned,
                         const struct plan *plan) {
    int stage = (int)fixture->config.zero_optimization.stage;
    bool every = fixture->config.zero_optimization.reduce_every_micro_batch;
    size_t P = fixture->params.n_elements, size = dtype_size(type), total = 0;
    assert_int_equal(plan->bytes[REGION_PARAMS],
                     size * (stage < 3 ? P : owned + persistent_elements(fixture)));
    assert_int_equal(plan->bytes[REGION_GRADS],
                     4 * (stage < 2 ? P : 0) + 4 * (stage >= 2 || every ? owned : 0));
    assert_int_equal(plan->bytes[REGION_MASTER], type == DTYPE_F32 ? 0 : 4 * (stage == 0 ? P : owned));
    assert_int_equal(plan->bytes[REGION_MOMENTS], 8 * (stage == 0 ? P : owned));
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        total += plan->bytes[kind];
    assert_int_equal(plan->total, total);
}

static void check_ranks(struct plan_fixture *fixture, int world) {
    struct partition partition;
    partition_init(&partition, &fixture->params, stage_partition(&fixture->config), world);
    for (int stage = 0; stage < N_STAGES; stage++)
        for (int rank = 0; rank < world; rank++)
            for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
                struct plan plan;
                struct engine_options request = request_of(fixture, (enum dtype)type, rank, world);
                fixture->config.zero_optimization.stage = stage;
                EXPECT_OK(plan_make(&request, &plan));
                check_states(fixture, (enum dtype)type, partition.rank_elements[rank], &plan);
            }
    partition_free(&partition);
}

static const char *const partitions[] = {"even", "layer", "tensor"};

static void test_states(void **state) {
    (void)state;
    static const char *const others[] = {"", ", \"reduce_every_micro_batch\": true",
                                         ", \"stage3_param_persistence_threshold\": 0",
                                         ", \"stage3_param_persistence_threshold\": 1000"};
    for (int world = 1; world <= 5; world++)
        for (size_t i = 0; i < N_PARTITIONS; i++)
            for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
                struct plan_fixture fixture;
                char zero[128];
                snprintf(zero, sizeof zero, "\"partition\": \"%s\"%s", partitions[i], others[k]);
                fixture_init(&fixture, world, "", zero);
                check_ranks(&fixture, world);
                fixture_free(&fixture);
            }
}

// ---- communication volume

// Communication volume of all ranks together: P (N - 1) elements for each reduce-scatter or all-gather of all
// P.
static void sum_volume(struct plan_fixture *fixture, enum dtype type, int world, struct comm_volume *sum) {
    *sum = (struct comm_volume){0};
    for (int rank = 0; rank < world; rank++) {
        struct plan plan;
        struct engine_options request = request_of(fixture, type, rank, world);
        EXPECT_OK(plan_make(&request, &plan));
        for (int i = 0; i < N_COMM_OPERATIONS; i++) {
            sum->bytes[i] += plan.volume.bytes[i];
            sum->calls[i] = plan.volume.calls[i]; // the same on every rank
        }
    }
}

// Elements that stage 3 gathers per micro-batch, once for each use of a tensor, and those gathered once per
// step.
static void count_gathers(const struct plan_fixture *fixture, size_t *fetched, size_t *persistent) {
    size_t threshold = (size_t)fixture->config.zero_optimization.stage3_param_persistence_threshold;
    *fetched = *persistent = 0;
    for (int i = 0; i < fixture->params.n_params; i++) {
        const struct param *param = &fixture->params.params[i];
        bool final = param->unit == fixture->params.n_units - 1; // its forward and backward are one
        if (param->elements < threshold)
            *persistent += param->elements;
        else
            *fetched += (final ? 1 : 2) * param->elements;
    }
}

static void check_volume(struct plan_fixture *fixture, enum dtype type, int stage, int world) {
    struct comm_volume sum;
    fixture->config.zero_optimization.stage = stage;
    sum_volume(fixture, type, world, &sum);
    size_t P = fixture->params.n_elements, size = dtype_size(type), others = (size_t)world - 1;
    size_t micro = stage >= 2 ? N_MICRO : 1, fetched, persistent;
    count_gathers(fixture, &fetched, &persistent);
    assert_int_equal(sum.bytes[COMM_REDUCE_SCATTER], micro * 4 * P * others);
    assert_int_equal(sum.bytes[COMM_ALL_GATHER], stage == 0 ? 4 * P * others
                                                 : stage <= 2
                                                     ? size * P * others
                                                     : size * others * (N_MICRO * fetched + persistent));
    if (world == 1)
        assert_int_equal(sum.calls[COMM_REDUCE_SCATTER] + sum.calls[COMM_ALL_GATHER], 0);
    else if (stage < 2)
        assert_int_equal(sum.calls[COMM_REDUCE_SCATTER], 1); // the bucket holds all
    else
        assert_int_equal(sum.calls[COMM_REDUCE_SCATTER], N_MICRO * fixture->params.n_units);
    assert_int_equal(sum.bytes[COMM_BROADCAST] + sum.bytes[COMM_CONTROL], 0);
}

static void test_communication_volume(void **state) {
    (void)state;
    static const int thresholds[] = {0, 1000, 100000000};
    for (int world = 1; world <= 5; world++)
        for (size_t i = 0; i < N_PARTITIONS; i++)
            for (size_t k = 0; k < sizeof thresholds / sizeof *thresholds; k++) {
                struct plan_fixture fixture;
                char zero[128];
                snprintf(zero, sizeof zero,
                         "\"partition\": \"%s\", \"stage3_param_persistence_threshold\": %d", partitions[i],
                         thresholds[k]);
                fixture_init(&fixture, world, "", zero);
                for (int stage = 0; stage < N_STAGES; stage++)
                    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
                        check_volume(&fixture, (enum dtype)type, stage, world);
                fixture_free(&fixture);
            }
}

// With a communication dtype of bf16 or fp16, gradients take half the bytes.
static void test_communication_dtype(void **state) {
    (void)state;
    struct plan_fixture fixture;
    struct comm_volume wide, narrow;
    fixture_init(&fixture, 4, "", "");
    sum_volume(&fixture, DTYPE_F32, 4, &wide);
    static const enum config_communication_dtype types[] = {CONFIG_COMMUNICATION_DTYPE_BF16,
                                                            CONFIG_COMMUNICATION_DTYPE_FP16};
    for (int i = 0; i < 2; i++) {
        fixture.config.top.communication_data_type = types[i];
        sum_volume(&fixture, DTYPE_F32, 4, &narrow);
        assert_int_equal(wide.bytes[COMM_REDUCE_SCATTER], 2 * narrow.bytes[COMM_REDUCE_SCATTER]);
    }
    fixture_free(&fixture);
}

// ---- plan_stages

static void check_stages(struct plan_fixture *fixture, enum dtype type, int world) {
    struct plan_stage stages[N_STAGES];
    struct engine_options request = request_of(fixture, type, 0, world);
    EXPECT_OK(plan_stages(&request, stages));
    for (int stage = 0; stage < N_STAGES; stage++) {
        size_t most = 0, least = SIZE_MAX;
        struct plan of_rank = {.total = 0};
        fixture->config.zero_optimization.stage = stage;
        for (request.rank = 0; request.rank < world; request.rank++) {
            struct plan plan;
            EXPECT_OK(plan_make(&request, &plan));
            most = plan.total > most ? plan.total : most;
            least = plan.total < least ? plan.total : least;
            if (request.rank == stages[stage].rank)
                of_rank = plan;
        }
        assert_int_equal(stages[stage].most.total, most);
        assert_int_equal(stages[stage].least, least);
        assert_memory_equal(&stages[stage].most, &of_rank, sizeof of_rank);
    }
}

// Rank 0 holds the generator of samples, and in some partitions fewer elements than others.
static void test_stages(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 7, 13, 48};
    static const char *const trains[] = {"", ", \"sample_every\": 2"};
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (size_t i = 0; i < N_PARTITIONS; i++)
            for (size_t k = 0; k < 2; k++) {
                struct plan_fixture fixture;
                char zero[128];
                snprintf(zero, sizeof zero, "\"partition\": \"%s\", \"stage\": 1", partitions[i]);
                fixture_init(&fixture, worlds[w], trains[k], zero);
                check_stages(&fixture, (enum dtype)(w % N_COMPUTE_DTYPES), worlds[w]);
                fixture_free(&fixture);
            }
}

// A bucket so small that there would be too many calls is refused.
static void test_tiny_buckets(void **state) {
    (void)state;
    struct plan_fixture fixture;
    struct plan plan;
    fixture_init(&fixture, 2, "", "\"reduce_bucket_size\": 1");
    struct engine_options request = request_of(&fixture, DTYPE_F32, 0, 2);
    EXPECT_OK(plan_make(&request, &plan));
    assert_int_equal(plan.volume.calls[COMM_REDUCE_SCATTER], fixture.params.n_elements);
    params_free(&fixture.params);
    const struct gpt_config larger = {
        .n_layer = 1, .n_head = 1, .n_embd = 512, .vocab_size = 100, .n_positions = 7};
    EXPECT_OK(params_init(&fixture.params, &larger));
    EXPECT_FAILURE(STATUS_INVALID, plan_make(&request, &plan), "reduce_bucket_size", "1 elements");
    fixture_free(&fixture);
}

// Advice for a run that does not fit: the next stage if that is enough, a smaller model if nothing is.
static void expect_advice(const struct plan_fixture *fixture, int world, uint64_t available, const char *fact,
                          const char *other) {
    struct engine_options request = request_of(fixture, DTYPE_BF16, 0, world);
    struct text advice = {0};
    const struct fit_machine machine = {.host = available * (uint64_t)world};
    EXPECT_OK(fit_advise(&request, &machine, &advice));
    if (!strstr(advice.data, fact) || !strstr(advice.data, other))
        fail_msg("%llu bytes: the advice is \"%s\", expected %s and %s", (unsigned long long)available,
                 advice.data, fact, other);
    text_free(&advice);
}

static void test_advice(void **state) {
    (void)state;
    struct plan_fixture fixture;
    struct plan plans[2];
    fixture_init(&fixture, 4, "", "\"stage\": 0");
    for (int stage = 0; stage < 2; stage++) {
        struct engine_options request = request_of(&fixture, DTYPE_BF16, 0, 4);
        fixture.config.zero_optimization.stage = stage;
        EXPECT_OK(plan_make(&request, &plans[stage]));
    }
    fixture.config.zero_optimization.stage = 0;
    assert_true(plans[1].total < plans[0].total);
    expect_advice(&fixture, 4, plans[1].taken[REGION_HOST], "it would fit", "zero_optimization.stage=1");
    expect_advice(&fixture, 4, 1000, "smaller", "train.seq_len");
    fixture_free(&fixture);
}

static void test_paper(void **state) {
    (void)state;
    for (int stage = 0; stage < N_STAGES; stage++)
        assert_true(paper_bytes(stage, 7, 1) == 16 * 7);
    assert_true(paper_bytes(0, 1e9, 64) == 16e9);
    assert_true(paper_bytes(1, 1e9, 64) == 4e9 + 12e9 / 64);
    assert_true(paper_bytes(2, 1e9, 64) == 2e9 + 14e9 / 64);
    assert_true(paper_bytes(3, 1e9, 64) == 16e9 / 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_communication_volume),
        cmocka_unit_test(test_communication_dtype),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_tiny_buckets),
        cmocka_unit_test(test_advice),
        cmocka_unit_test(test_paper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
