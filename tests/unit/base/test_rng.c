// Philox against published known answers, and statistical tests of the distributions made from it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"

// Philox 4x32-10 with all four counter words, as in the paper. It is checked against the authors' test
// vectors (Random123, kat_vectors), then used as the reference for rng_block, whose fourth word is always 0.
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t first = (uint64_t)c[0] * 0xD2511F53u, second = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t next[4] = {(uint32_t)(second >> 32) ^ c[1] ^ k[0], (uint32_t)second,
                            (uint32_t)(first >> 32) ^ c[3] ^ k[1], (uint32_t)first};
        for (int i = 0; i < 4; i++)
            c[i] = next[i];
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

static void test_published_vectors(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    uint32_t out[4];
    for (int i = 0; i < 3; i++) {
        philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
    rng_block(0, 0, 0, out);
    assert_memory_equal(out, known[0].out, sizeof out);
}

static void test_layout(void **state) {
    (void)state;
    uint64_t word = 1;
    for (int i = 0; i < 1000; i++) {
        uint64_t seed = word *= 6364136223846793005u, counter = word *= 6364136223846793005u;
        uint32_t stream = (uint32_t)((word *= 6364136223846793005u) >> 32), out[4], expected[4];
        philox((uint32_t[]){(uint32_t)counter, (uint32_t)(counter >> 32), stream, 0},
               (uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32)}, expected);
        rng_block(seed, stream, counter, out);
        assert_memory_equal(out, expected, sizeof out);
    }
}

// Bounds of five standard errors: a correct generator exceeds them once in a million runs. The seed is fixed.
static void test_moments(void **state) {
    (void)state;
    enum { N = 200000 };
    double sum[2] = {0}, square[2] = {0}, fourth = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(3, RNG_STREAM_SAMPLE, i), z = rng_normal(3, RNG_STREAM_INIT, i);
        assert_true(u >= 0 && u < 1);
        sum[0] += u;
        square[0] += u * u;
        sum[1] += z;
        square[1] += z * z;
        fourth += z * z * z * z;
    }
    double root = sqrt(N);
    assert_true(fabs(sum[0] / N - 0.5) < 5 * sqrt(1.0 / 12) / root);
    assert_true(fabs(square[0] / N - 1.0 / 3) < 5 * sqrt(4.0 / 45) / root);
    assert_true(fabs(sum[1] / N) < 5 / root);
    assert_true(fabs(square[1] / N - 1) < 5 * sqrt(2) / root);
    assert_true(fabs(fourth / N - 3) < 5 * sqrt(96) / root);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Kolmogorov-Smirnov: the largest distance between the two distributions, against its 0.1 % point.
static void test_normal_distribution(void **state) {
    (void)state;
    enum { N = 20000 };
    double *values = malloc(N * sizeof *values), largest = 0;
    assert_non_null(values);
    for (uint64_t i = 0; i < N; i++)
        values[i] = rng_normal(11, RNG_STREAM_INIT + 5, i);
    qsort(values, N, sizeof *values, by_value);
    for (int i = 0; i < N; i++) {
        double expected = 0.5 * erfc(-values[i] / sqrt(2));
        largest = fmax(largest, fmax(fabs((i + 1.0) / N - expected), fabs((double)i / N - expected)));
    }
    free(values);
    assert_true(largest < 1.95 / sqrt(N));
}

static void test_below(void **state) {
    (void)state;
    static const uint64_t bounds[] = {1, 2, 3, 10, 1000003, UINT32_MAX, 1ull << 40, UINT64_MAX};
    for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++)
        for (uint64_t i = 0; i < 1000; i++) {
            uint32_t r[4];
            rng_block(9, 4, i, r);
            __extension__ unsigned __int128 product = ((unsigned __int128)r[0] << 32 | r[1]) * bounds[b];
            uint64_t value = rng_below(9, 4, i, bounds[b]);
            assert_true(value == (uint64_t)(product >> 64) && value < bounds[b]);
        }
    // Chi-square with 9 degrees of freedom: 27.9 is its 0.1 % point.
    int counts[10] = {0};
    double chi = 0;
    for (uint64_t i = 0; i < 100000; i++)
        counts[rng_below(1, RNG_STREAM_SHUFFLE, i, 10)]++;
    for (int i = 0; i < 10; i++)
        chi += (counts[i] - 1e4) * (counts[i] - 1e4) / 1e4;
    assert_true(chi < 27.9);
}

static void test_streams_and_seeds_differ(void **state) {
    (void)state;
    uint32_t a[4], b[4];
    rng_block(1, 2, 3, a);
    rng_block(1, 3, 3, b);
    assert_memory_not_equal(a, b, sizeof a);
    rng_block(2, 2, 3, b);
    assert_memory_not_equal(a, b, sizeof a);
    rng_block(1, 2, 3 + (1ull << 32), b);
    assert_memory_not_equal(a, b, sizeof a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_vectors),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_normal_distribution),
        cmocka_unit_test(test_below),
        cmocka_unit_test(test_streams_and_seeds_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
