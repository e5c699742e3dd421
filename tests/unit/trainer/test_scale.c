// Plans a run of a trillion parameters on thousands of ranks. For the first and the last rank: bucket lists
// are right, planning takes little time and memory, and the plan fits GPUs of 80 GB.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/support/expect.h"
#include "trainer/plan/plan.h"
#include "zero/comm/backend.h"
#include "zero/comm/comm.h"
#include "zero/comm/ring.h"

static const char config_json[] =
    "{\"model\": {\"n_layer\": 128, \"n_head\": 160, \"n_embd\": 25600, \"vocab_size\": 51200, "
    "\"n_positions\": 2048}, \"precision\": {\"compute\": \"bf16\"}, \"recompute\": \"block\", "
    "\"run\": {\"threads\": 1}, \"train\": {\"micro_batch_size\": 1, \"seq_len\": 2048}, "
    "\"zero_optimization\": {\"stage\": 3}}";

struct scale_fixture {
    struct config config;
    struct params params;
    struct device *device;
};

static void fixture_init(struct scale_fixture *fixture, int world) {
    EXPECT_OK(config_parse(&fixture->config, config_json, strlen(config_json), "json"));
    EXPECT_OK(config_resolve(&fixture->config, world));
    EXPECT_OK(params_init(
        &fixture->params,
        &(struct gpt_config){
            .n_layer = 128, .n_head = 160, .n_embd = 25600, .vocab_size = 51200, .n_positions = 2048}));
    EXPECT_OK(device_open("cpu", 1, 0, &fixture->device));
}

static void fixture_free(struct scale_fixture *fixture) {
    device_close(fixture->device);
    params_free(&fixture->params);
    config_free(&fixture->config);
}

// The calls of a bucket list hold `elements` elements of the unit in total, and each span lies inside its
// owner's shard of the unit. to_shard: spans are sent to shards (reduce-scatter), otherwise from them
// (all-gather).
static void check_calls(const struct model_states *state, const struct buckets *calls, int unit,
                        size_t elements, bool to_shard) {
    const struct partition *partition = state->stage.partition;
    size_t shards[4096] = {0}, sum = 0;
    for (int i = partition->first_span[unit]; i < partition->first_span[unit + 1]; i++)
        shards[partition->spans[i].owner] += partition->spans[i].end - partition->spans[i].begin;
    for (int c = 0; c < calls->n_calls; c++)
        for (int i = 0; i < calls->calls[c].n_spans; i++) {
            const struct comm_span *span = &calls->calls[c].spans[i];
            size_t in_shard = to_shard ? span->out : span->in;
            assert_true(in_shard + span->elements <= shards[span->owner]);
            sum += span->elements;
        }
    assert_int_equal(sum, elements);
}

struct list_sizes {
    size_t n_spans, n_unshared; // in all bucket lists; and if no unit shared the list of another
};

static size_t spans_of(const struct buckets *calls) {
    size_t n = 0;
    for (int c = 0; c < calls->n_calls; c++)
        n += (size_t)calls->calls[c].n_spans;
    return n;
}

static struct list_sizes check_lists(const struct model_states *state) {
    const struct parameters *parameters = &state->parameters;
    const struct gradients *gradients = &state->gradients;
    const struct params *params = state->stage.params;
    struct list_sizes lists = {spans_of(&parameters->update_buckets), spans_of(&parameters->update_buckets)};
    for (int unit = 0; unit < params->n_units; unit++) {
        const struct fetch *fetch = &parameters->fetches[unit];
        const struct param_unit *u = &params->units[unit];
        size_t elements = 0;
        for (int i = u->first_param; i < u->first_param + u->n_params; i++)
            if (parameters->persistent_offset[i] == NOT_PERSISTENT)
                elements += params->params[i].elements;
        check_calls(state, fetch->buckets, unit, elements, false);
        lists.n_spans += spans_of(&fetch->own_buckets);
        lists.n_unshared += spans_of(fetch->buckets);
        const struct reduction *reduction = &gradients->reductions[unit];
        check_calls(state, reduction->buckets, unit, u->elements, true);
        lists.n_spans += spans_of(&reduction->own_buckets);
        lists.n_unshared += spans_of(reduction->buckets);
    }
    return lists;
}

// Iterates over a bucket list as a collective does, with a cursor per owner, but sends nothing. Every element
// must occur once.
static size_t walk_list(const struct buckets *calls, int world, int *first, size_t *owned) {
    size_t sum = 0;
    for (int c = 0; c < calls->n_calls; c++) {
        const struct comm_transfer *call = &calls->calls[c];
        size_t in_call = 0;
        comm_transfer_owners(call, world, first, owned);
        for (int owner = 0; owner < world; owner++) {
            struct comm_cursor cursor = {.transfer = call, .span = first[owner]};
            size_t n = 0;
            for (struct comm_span span; (span = comm_transfer_next(&cursor, SIZE_MAX)).elements > 0;)
                n += span.elements;
            assert_int_equal(n, owned[owner]);
            in_call += n;
        }
        assert_int_equal(in_call, call->elements);
        sum += in_call;
    }
    return sum;
}

// The all-gathers of forward and backward and the reduce-scatters of one micro-batch.
static void check_units(const struct model_states *state, int rank, int world) {
    int *first = calloc((size_t)world, sizeof *first);
    size_t *owned = calloc((size_t)world, sizeof *owned), n = 0;
    const struct parameters *parameters = &state->parameters;
    const struct gradients *gradients = &state->gradients;
    assert_true(first && owned);
    double began = clock_monotonic_s();
    for (int pass = 0; pass < 2; pass++)
        for (int unit = 0; unit < state->stage.params->n_units; unit++)
            n += walk_list(parameters->fetches[unit].buckets, world, first, owned);
    for (int unit = 0; unit < state->stage.params->n_units; unit++)
        n += walk_list(gradients->reductions[unit].buckets, world, first, owned);
    double seconds = clock_monotonic_s() - began;
    size_t links = comm_memory_bytes(world, 8, false);
    print_message(
        "rank %d of %d: the calls of one micro-batch, %.3g elements, walked by owner in %.3f s; links "
        "take %.1f MiB, their chunks are %zu KiB\n",
        rank, world, (double)n, seconds, (double)links / 0x1p20, link_chunk_bytes(world, false) >> 10);
    assert_true(links < (size_t)100 << 20);
    assert_true(seconds < 30);
    free(first);
    free(owned);
}

static void plan_states(struct scale_fixture *fixture, int rank, int world) {
    struct model_states state;
    struct region_table table;
    region_table_init(&table);
    double began = clock_monotonic_s();
    const struct stage stage = {.config = &fixture->config,
                                .params = &fixture->params,
                                .type = DTYPE_BF16,
                                .device = fixture->device,
                                .rank = rank,
                                .world = world};
    EXPECT_OK(model_states_init(&state, &stage, &table));
    parameters_build_buckets(&state.parameters);
    gradients_build_buckets(&state.gradients);
    double seconds = clock_monotonic_s() - began;
    struct list_sizes lists = check_lists(&state);
    // All blocks share their lists. So there is one list of gathers and one of reductions for the embeddings,
    // for the final norm and for a block, and one of the persistent tensors. A list has
    // a span per owner, and one more wherever a tensor or a bucket ends.
    size_t n_cuts = (size_t)fixture->params.n_params * 2 + 200;
    assert_true(lists.n_spans <= 2 * 3 * (size_t)world + n_cuts);
    assert_true(seconds < 30);
    print_message(
        "rank %d of %d: bucket lists built in %.3f s, %zu spans in %.1f MiB (%.1f MiB if none were shared), "
        "%d spans in %.1f MiB\n",
        rank, world, seconds, lists.n_spans, (double)(lists.n_spans * sizeof(struct comm_span)) / 0x1p20,
        (double)(lists.n_unshared * sizeof(struct comm_span)) / 0x1p20, state.stage.partition->n_spans,
        (double)((size_t)state.stage.partition->n_spans * sizeof(struct partition_span)) / 0x1p20);
    check_units(&state, rank, world);
    model_states_free(&state);
    region_table_free(&table);
}

static void plan_rank(struct scale_fixture *fixture, int rank, int world) {
    const struct engine_options request = {.config = &fixture->config,
                                           .params = &fixture->params,
                                           .type = DTYPE_BF16,
                                           .device = fixture->device,
                                           .rank = rank,
                                           .world = world,
                                           .local_world = 8};
    struct plan plan;
    double began = clock_monotonic_s();
    EXPECT_OK(plan_make(&request, &plan));
    double seconds = clock_monotonic_s() - began;
    print_message("rank %d of %d: planned in %.3f s, %.1f GiB, sends %.2f TiB in %llu calls\n", rank, world,
                  seconds, (double)plan.total / 0x1p30, (double)comm_volume_bytes(&plan.volume) / 0x1p40,
                  (unsigned long long)comm_volume_calls(&plan.volume));
    assert_true((double)(plan.total + plan.host) < 141e9); // an H200
    assert_true(seconds < 30);
}

static void test_a_trillion_parameters_on_thousands_of_ranks(void **state) {
    (void)state;
    for (int world = 1024; world <= 4096; world *= 4) {
        struct scale_fixture fixture;
        fixture_init(&fixture, world);
        for (int rank = 0; rank < world; rank += world - 1) {
            plan_states(&fixture, rank, world);
            plan_rank(&fixture, rank, world);
        }
        fixture_free(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_trillion_parameters_on_thousands_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
