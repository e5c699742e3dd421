// Partitions and buckets are pure functions: checked on thousands of combinations of model sizes and numbers
// of ranks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "zero/partition/buckets.h"

static const int worlds[] = {1, 2, 3, 4, 5, 7, 8, 16, 61, 300};
#define N_WORLDS (sizeof worlds / sizeof *worlds)

// Small sizes, many of them odd, that grow and shrink with i.
static struct gpt_config sizes_of(int i) {
    int n_head = 1 + i % 3;
    return (struct gpt_config){.n_layer = 1 + i % 5,
                               .n_head = n_head,
                               .n_embd = n_head * (1 + i * 7 % 41),
                               .vocab_size = 1 + i * 31 % 3001,
                               .n_positions = 1 + i * 13 % 97};
}

// Spans cover each unit once, in order and aligned; shards have no gaps; rank_elements are their sizes.
static void check_partition(const struct params *params, const struct partition *partition) {
    size_t *shard_ends = calloc((size_t)partition->world, sizeof *shard_ends);
    assert_non_null(shard_ends);
    for (int unit = 0; unit < params->n_units; unit++) {
        size_t end = 0;
        for (int i = partition->first_span[unit]; i < partition->first_span[unit + 1]; i++) {
            const struct partition_span *span = &partition->spans[i];
            assert_int_equal(span->unit, unit);
            assert_in_range(span->owner, 0, partition->world - 1);
            assert_true(span->begin == end && span->end > span->begin);
            assert_true(span->begin % PARAM_ALIGNMENT == 0 && span->shard_offset % PARAM_ALIGNMENT == 0);
            assert_true(span->shard_offset == shard_ends[span->owner]);
            shard_ends[span->owner] += span->end - span->begin;
            end = span->end;
        }
        assert_true(end == params->units[unit].elements);
    }
    assert_int_equal(partition->first_span[params->n_units], partition->n_spans);
    assert_memory_equal(shard_ends, partition->rank_elements, (size_t)partition->world * sizeof *shard_ends);
    free(shard_ends);
}

static int owner_of(const struct partition *partition, int unit, size_t element) {
    for (int i = partition->first_span[unit]; i < partition->first_span[unit + 1]; i++)
        if (element < partition->spans[i].end)
            return partition->spans[i].owner;
    return -1;
}

// even: no rank has more than PARAM_ALIGNMENT elements beyond 1 / world of each unit. layer: one owner per
// unit. tensor: one owner per tensor.
static void check_kind(const struct params *params, const struct partition *partition) {
    size_t largest = 0, most = 0, all = params->n_elements, world = (size_t)partition->world;
    for (int rank = 0; rank < partition->world; rank++)
        most = partition->rank_elements[rank] > most ? partition->rank_elements[rank] : most;
    if (partition->kind == PARTITION_EVEN) {
        assert_true(most <= all / world + (size_t)params->n_units * PARAM_ALIGNMENT);
        return;
    }
    bool layer = partition->kind == PARTITION_LAYER;
    for (int unit = 0; unit < params->n_units && layer; unit++) {
        assert_int_equal(partition->first_span[unit + 1] - partition->first_span[unit], 1);
        largest = params->units[unit].elements > largest ? params->units[unit].elements : largest;
    }
    for (int i = 0; i < params->n_params && !layer; i++) {
        const struct param *param = &params->params[i];
        assert_int_equal(owner_of(partition, param->unit, param->offset),
                         owner_of(partition, param->unit, param->offset + param->elements - 1));
        size_t padded = (param->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
        largest = padded > largest ? padded : largest;
    }
    assert_true(most <= all / world + largest); // greedy: the largest first, to the least loaded rank
}

static void test_partitions(void **state) {
    (void)state;
    int n = 0, idle = 0;
    for (int shape = 0; shape < 200; shape++) {
        const struct gpt_config sizes = sizes_of(shape);
        struct params params;
        EXPECT_OK(params_init(&params, &sizes));
        for (size_t w = 0; w < N_WORLDS; w++)
            for (int kind = 0; kind < N_PARTITIONS; kind++, n++) {
                struct partition partition, again;
                partition_init(&partition, &params, (enum partition_kind)kind, worlds[w]);
                check_partition(&params, &partition);
                check_kind(&params, &partition);
                partition_init(&again, &params, (enum partition_kind)kind, worlds[w]);
                assert_int_equal(again.n_spans, partition.n_spans);
                assert_memory_equal(again.spans, partition.spans,
                                    (size_t)again.n_spans * sizeof *again.spans);
                for (int rank = 0; rank < worlds[w]; rank++)
                    idle += partition.rank_elements[rank] == 0;
                partition_free(&again);
                partition_free(&partition);
            }
        params_free(&params);
    }
    assert_true(n == 6000 && idle > 1000); // the cases include ranks that own nothing
}

// ---- frozen tensors

enum { N_WAYS = 6 };

// 0: none; then the first units, every other tensor, all but a few, all but the last, and the last unit.
static bool is_frozen(const struct params *params, int i, int way) {
    const struct param *param = &params->params[i];
    const bool ways[N_WAYS] = {false,      param->unit <= 1,         i % 2 == 1,
                               i % 7 != 3, i + 1 < params->n_params, param->unit + 1 == params->n_units};
    return ways[way];
}

static void freeze(struct params *params, int way) {
    for (int i = 0; i < params->n_params; i++)
        params->params[i].is_frozen = is_frozen(params, i, way);
    params_lay_out_gradients(params);
}

// The tensor that an element belongs to, with the padding behind it.
static const struct param *tensor_of(const struct params *params, int unit, size_t element) {
    int i = params->units[unit].first_param + params->units[unit].n_params - 1;
    while (params->params[i].offset > element)
        i--;
    return &params->params[i];
}

// Checks a unit's spans.
//   shard_ends   [rw] (world) where each rank's shard ends
static size_t check_trained_unit(const struct params *params, const struct partition *partition,
                                 const struct partition *trained, int unit, size_t *shard_ends) {
    size_t n = 0, begins[300];
    memcpy(begins, shard_ends, (size_t)partition->world * sizeof *begins);
    const struct partition_span *span = trained->spans + trained->first_span[unit],
                                *end = trained->spans + trained->first_span[unit + 1];
    for (size_t e = 0; e < params->units[unit].elements; e += PARAM_ALIGNMENT) {
        if (tensor_of(params, unit, e)->is_frozen) {
            assert_true(span == end || span->begin > e);
            continue;
        }
        assert_true(span < end && span->unit == unit && span->begin <= e && e < span->end);
        assert_int_equal(span->owner, owner_of(partition, unit, e));
        assert_true(span->unit_offset + (e - span->begin) == n);
        assert_true(params_grad_position(params, unit, e) == n);
        assert_true(span->shard_offset + (e - span->begin) == shard_ends[span->owner]);
        assert_true(span->unit_shard_offset == begins[span->owner]);
        shard_ends[span->owner] += PARAM_ALIGNMENT;
        n += PARAM_ALIGNMENT;
        span += span->end == e + PARAM_ALIGNMENT;
    }
    assert_ptr_equal(span, end);
    return n;
}

// The owners of `partition`, of trained tensors alone, one after another in gradients and shards.
static void check_trained(const struct params *params, const struct partition *partition) {
    const struct partition *trained = partition_trained(partition);
    size_t n = 0, shard_ends[300] = {0};
    assert_int_equal(trained == partition, params->n_trained == params->n_elements);
    for (int unit = 0; unit < params->n_units; unit++) {
        assert_true(params->units[unit].trained_offset == n);
        const size_t of_unit = check_trained_unit(params, partition, trained, unit, shard_ends);
        assert_true(params->units[unit].trained == of_unit);
        n += of_unit;
    }
    assert_true(params->n_trained == n);
    assert_memory_equal(shard_ends, trained->rank_elements, (size_t)partition->world * sizeof *shard_ends);
}

static void test_trained(void **state) {
    (void)state;
    for (int shape = 0; shape < 40; shape++)
        for (int way = 0; way < N_WAYS; way++) {
            const struct gpt_config sizes = sizes_of(shape);
            struct params params;
            EXPECT_OK(params_init(&params, &sizes));
            freeze(&params, way);
            assert_int_equal(params.n_trained == params.n_elements, way == 0);
            for (size_t w = 0; w < N_WORLDS; w++)
                for (int kind = 0; kind < N_PARTITIONS; kind++) {
                    struct partition partition;
                    partition_init(&partition, &params, (enum partition_kind)kind, worlds[w]);
                    check_trained(&params, &partition);
                    partition_free(&partition);
                }
            params_free(&params);
        }
}

static void test_names(void **state) {
    (void)state;
    for (int i = 0; i < N_PARTITIONS; i++) {
        enum partition_kind kind;
        EXPECT_OK(partition_find(partition_name((enum partition_kind)i), &kind));
        assert_int_equal(kind, i);
    }
    enum partition_kind kind;
    EXPECT_FAILURE(STATUS_INVALID, partition_find("evne", &kind), "evne", "tensor");
}

// ---- buckets

// Counts how often each element of the model is sent, and checks that all buckets but the last are full.
static void count_elements(const struct buckets *buckets, size_t bucket_elements, unsigned char *counts) {
    size_t elements = 0;
    for (int c = 0; c < buckets->n_calls; c++) {
        const struct comm_transfer *call = &buckets->calls[c];
        size_t in_call = 0;
        for (int i = 0; i < call->n_spans; i++) {
            for (size_t e = 0; e < call->spans[i].elements; e++)
                counts[call->spans[i].in + e]++;
            in_call += call->spans[i].elements;
        }
        assert_true(in_call == call->elements);
        assert_true(c + 1 == buckets->n_calls ? in_call <= bucket_elements : in_call == bucket_elements);
        elements += in_call;
    }
    assert_true(elements > 0);
}

static void check_buckets(const struct params *params, enum partition_kind kind, int world,
                          size_t bucket_elements) {
    struct partition partition;
    struct buckets buckets;
    partition_init(&partition, params, kind, world);
    buckets_init(&buckets, bucket_elements);
    for (int unit = params->n_units - 1; unit >= 0; unit--)
        buckets_add(&buckets, &partition, unit, 0, params->units[unit].elements,
                    BUFFER_AT(params->units[unit].offset), BUFFER_SHARD);
    buckets_finish(&buckets);
    unsigned char *counts = calloc(params->n_elements, 1);
    assert_non_null(counts);
    count_elements(&buckets, bucket_elements, counts);
    for (size_t e = 0; e < params->n_elements; e++)
        assert_int_equal(counts[e], 1);
    // Offsets in the owner's shard are those of the partition.
    for (int p = 0; p < buckets.n_spans; p++) {
        const struct comm_span *span = &buckets.spans[p];
        assert_true(span->out + span->elements <= partition.rank_elements[span->owner]);
        int unit = params->n_units - 1;
        while (params->units[unit].offset > span->in)
            unit--;
        size_t element = span->in - params->units[unit].offset;
        assert_int_equal(owner_of(&partition, unit, element), span->owner);
        for (int i = partition.first_span[unit]; i < partition.first_span[unit + 1]; i++)
            if (element >= partition.spans[i].begin && element < partition.spans[i].end)
                assert_true(span->out ==
                            partition.spans[i].shard_offset + element - partition.spans[i].begin);
    }
    // last_unit is the unit of a call's last elements; units are added in descending order.
    for (int c = 1; c < buckets.n_calls; c++)
        assert_true(buckets.last_unit[c] <= buckets.last_unit[c - 1]);
    assert_int_equal(buckets.last_unit[buckets.n_calls - 1], 0);
    free(counts);
    buckets_free(&buckets);
    partition_free(&partition);
}

// Bucket sizes include odd ones, one larger than the model, and one smaller than any tensor.
static void test_buckets(void **state) {
    (void)state;
    static const size_t buckets[] = {1, 777, 1001, 128, 1 << 20, 500000000};
    for (int shape = 1; shape < 12; shape++) {
        const struct gpt_config sizes = sizes_of(shape);
        struct params params;
        EXPECT_OK(params_init(&params, &sizes));
        for (size_t b = params.n_elements > 20000; b < sizeof buckets / sizeof *buckets; b++)
            for (int kind = 0; kind < N_PARTITIONS; kind++)
                for (size_t w = 0; w < 5; w++)
                    check_buckets(&params, (enum partition_kind)kind, worlds[w], buckets[b]);
        params_free(&params);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partitions),
        cmocka_unit_test(test_trained),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
