// Log-probabilities against sums in long double, and the repetition penalty.
#include "tests/support/expect.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "infer/logprobs.h"

enum { N = 300 };

static void give(float *logits, double scale) {
    for (int i = 0; i < N; i++)
        logits[i] = (float)(scale * rng_normal(9, 1, (uint64_t)i));
    logits[17] = logits[203]; // a tie
}

static void test_logprobs(void **state) {
    (void)state;
    static const double scales[] = {0, 1, 30, 1e30};
    for (size_t k = 0; k < sizeof scales / sizeof *scales; k++) {
        float logits[N];
        struct logprobs logprobs;
        long double sum = 0, largest = -INFINITY;
        give(logits, scales[k]);
        for (int i = 0; i < N; i++)
            largest = fmaxl(largest, (long double)logits[i]);
        for (int i = 0; i < N; i++)
            sum += expl((long double)logits[i] - largest);
        logprobs_of(logits, N, MOST_TOP_LOGPROBS, &logprobs);
        assert_int_equal(logprobs.n_top, MOST_TOP_LOGPROBS);
        for (int32_t i = 0; i < N; i++) {
            long double expected = (long double)logits[i] - largest - logl(sum);
            // one rounding to fp32, and those of the double sum relative to the logits
            long double allowed = fabsl(expected) * 0x1p-24L + fabsl(largest) * 0x1p-50L + N * 0x1p-52L;
            assert_true(fabsl((long double)logprob_of(&logprobs, logits, i) - expected) <= allowed);
        }
        for (int i = 0; i < logprobs.n_top; i++) {
            int better = 0;
            int32_t id = logprobs.top[i].id;
            for (int32_t j = 0; j < N; j++)
                better += logits[j] > logits[id] || (logits[j] == logits[id] && j < id);
            assert_int_equal(better, i); // its rank
            assert_true(logprobs.top[i].logprob == logprob_of(&logprobs, logits, id));
        }
    }
}

static void test_few(void **state) {
    (void)state;
    const float logits[] = {1, -INFINITY, 2};
    struct logprobs logprobs;
    logprobs_of(logits, 3, 5, &logprobs);
    assert_int_equal(logprobs.n_top, 3);
    assert_int_equal(logprobs.top[0].id, 2);
    assert_int_equal(logprobs.top[2].id, 1);
    assert_true(logprobs.top[2].logprob == -INFINITY);
    logprobs_of(logits, 3, 0, &logprobs);
    assert_int_equal(logprobs.n_top, 0);
}

static void test_penalty(void **state) {
    (void)state;
    float logits[] = {2, -2, 0, 3, -3};
    const float expected[] = {1, -4, 0, 3, -3};
    const int32_t ids[] = {0, 1, 0, 2, 0, 1, 99}; // once per token; ids that are never drawn are left out
    uint8_t seen[5] = {0}, zero[5] = {0};
    penalize_repetition(logits, 5, ids, 7, 2, seen);
    assert_memory_equal(logits, expected, sizeof logits);
    assert_memory_equal(seen, zero, sizeof seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_few),
        cmocka_unit_test(test_penalty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
