// The digest of states is the tree that its header describes, and every bit of every kind counts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/expect.h"
#include "zero/checkpoint/state_digest.h"

static struct params params;
static struct comm *comm;
static unsigned char *n_moments; // v only for every other tensor

// An element whose value has another bit than otherwise.
static struct {
    int kind, unit;
    size_t element;
} flipped;

static int fails_in = -1; // a unit that cannot be read

static float value_of(int kind, int unit, size_t element) {
    float value = (float)kind * 1e6f + (float)unit * 1e5f + (float)element;
    if (flipped.kind == kind && flipped.unit == unit && flipped.element == element) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits ^= 1;
        memcpy(&value, &bits, sizeof bits);
    }
    return value;
}

static enum status read_values(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                               float *out) {
    (void)context;
    if (unit == fails_in)
        return FAIL(STATUS_FAILED, "unit %d cannot be read", unit);
    for (size_t i = begin; i < end; i++)
        out[i - begin] = value_of((int)kind, unit, i);
    return STATUS_OK;
}

static enum status compute(enum partition_kind kind, bool has_average, struct digest *root) {
    struct partition partition;
    partition_init(&partition, &params, kind, 1);
    const struct state_digest of = {.comm = comm,
                                    .params = &params,
                                    .partition = &partition,
                                    .kinds = {3, has_average, n_moments},
                                    .source = {.read = read_values},
                                    .scratch = malloc(CHECKPOINT_CHUNK * sizeof(float))};
    const enum status status = state_digest_compute(&of, root);
    free(of.scratch);
    partition_free(&partition);
    return status;
}

static struct digest root_of(enum partition_kind kind, bool has_average) {
    struct digest root = {0};
    EXPECT_OK(compute(kind, has_average, &root));
    return root;
}

static struct digest tensor_of(int kind, int param) {
    const struct param *tensor = &params.params[param];
    struct digest_stream whole, chunk;
    digest_begin(&whole, "state tensor");
    digest_add_number(&whole, (uint64_t)kind);
    digest_add_string(&whole, tensor->name);
    digest_add_number(&whole, tensor->elements);
    for (size_t i = 0, index = 0; i < tensor->elements; index++) {
        digest_begin(&chunk, "state chunk");
        digest_add_number(&chunk, (uint64_t)kind);
        digest_add_number(&chunk, (uint64_t)param);
        digest_add_number(&chunk, index);
        for (size_t n = 0; n < 16384 && i < tensor->elements; n++, i++) {
            const float value = value_of(kind, tensor->unit, tensor->offset + i);
            digest_add(&chunk, &value, sizeof value);
        }
        const struct digest digest = digest_end(&chunk);
        digest_add(&whole, digest.bytes, DIGEST_BYTES);
    }
    return digest_end(&whole);
}

static void test_it_is_the_tree_of_its_header(void **state) {
    struct digest_stream stream;
    (void)state;
    flipped.kind = -1;
    digest_begin(&stream, "state root");
    for (int kind = 0; kind < 4; kind++)
        for (int param = 0; param < params.n_params; param++)
            if (kind == CHECKPOINT_MASTER || kind == CHECKPOINT_AVERAGE || kind <= n_moments[param]) {
                const struct digest tensor = tensor_of(kind, param);
                digest_add(&stream, tensor.bytes, DIGEST_BYTES);
            }
    const struct digest expected = digest_end(&stream), root = root_of(PARTITION_EVEN, true),
                        by_tensor = root_of(PARTITION_TENSOR, true), less = root_of(PARTITION_EVEN, false);
    assert_true(digest_is_same(&expected, &root));
    assert_true(digest_is_same(&expected, &by_tensor));
    assert_false(digest_is_same(&expected, &less));
}

static void test_every_bit_counts(void **state) {
    (void)state;
    flipped.kind = -1;
    const struct digest root = root_of(PARTITION_EVEN, true);
    for (int kind = 0; kind < 4; kind++)
        for (int param = 0; param < params.n_params; param++) {
            const struct param *tensor = &params.params[param];
            const bool is_stored = (kind != CHECKPOINT_M && kind != CHECKPOINT_V) || kind <= n_moments[param];
            for (int last = 0; last < 2; last++) {
                flipped.kind = kind;
                flipped.unit = tensor->unit;
                flipped.element = tensor->offset + (last ? tensor->elements - 1 : 0);
                const struct digest other = root_of(PARTITION_EVEN, true);
                assert_int_equal(digest_is_same(&root, &other), !is_stored);
            }
        }
}

static void test_a_failure_to_read(void **state) {
    struct digest root;
    (void)state;
    fails_in = 1;
    EXPECT_FAILURE(STATUS_FAILED, compute(PARTITION_EVEN, true, &root), "unit 1 cannot be read");
    fails_in = -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_it_is_the_tree_of_its_header),
                                       cmocka_unit_test(test_every_bit_counts),
                                       cmocka_unit_test(test_a_failure_to_read)};
    const struct gpt_config config = {
        .n_layer = 2, .n_head = 2, .n_embd = 16, .vocab_size = 5000, .n_positions = 8};
    comm = comm_open_self();
    if (params_init(&params, &config) != STATUS_OK)
        return 1;
    n_moments = calloc((size_t)params.n_params, 1);
    for (int i = 0; n_moments && i < params.n_params; i++)
        n_moments[i] = i % 2 ? 2 : 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(n_moments);
    params_free(&params);
    return comm_close(comm, STATUS_OK) == STATUS_OK ? failed : 1;
}
