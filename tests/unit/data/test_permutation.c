// The shuffle's permutation: bijective for every size, and statistically uniform.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/order.h"

static void check_bijection(uint64_t seed, uint64_t epoch, size_t n) {
    bool *seen = calloc(n, sizeof *seen);
    assert_non_null(seen);
    for (size_t i = 0; i < n; i++) {
        size_t at = permutation_at(seed, epoch, n, i);
        assert_true(at < n);
        assert_false(seen[at]);
        seen[at] = true;
        assert_int_equal(permutation_at(seed, epoch, n, i), at);
    }
    free(seen);
}

static void test_bijection(void **state) {
    (void)state;
    for (size_t n = 1; n <= 300; n++)
        check_bijection(n, n % 7, n);
    const size_t sizes[] = {1023, 1024, 1025, 4095, 4097, 65536, 65537, 100003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_bijection(UINT64_MAX - i, (uint64_t)1 << 40, sizes[i]);
}

// Sizes above 32 bits, too large to check completely: the images of a sample are distinct and in range.
static void test_large(void **state) {
    (void)state;
    enum { N_SAMPLES = 2000 };
    const size_t sizes[] = {((size_t)1 << 32) + 1, (size_t)1 << 40, ((size_t)1 << 52) - 3};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t seen[N_SAMPLES], upper = 0;
        for (size_t i = 0; i < N_SAMPLES; i++) {
            seen[i] = permutation_at(1, 0, sizes[k], i);
            assert_true(seen[i] < sizes[k]);
            upper += seen[i] >= sizes[k] / 2;
            for (size_t j = 0; j < i; j++)
                assert_int_not_equal(seen[i], seen[j]);
        }
        assert_in_range(upper, N_SAMPLES / 2 - 150, N_SAMPLES / 2 + 150); // 6.7 standard deviations
    }
}

static size_t n_equal(uint64_t seed, uint64_t epoch, uint64_t other_seed, uint64_t other_epoch) {
    size_t equal = 0;
    for (size_t i = 0; i < 1000; i++)
        equal += permutation_at(seed, epoch, 1000, i) == permutation_at(other_seed, other_epoch, 1000, i);
    return equal;
}

// Two random permutations of any size agree in one place on average.
static void test_seeds_and_epochs_differ(void **state) {
    (void)state;
    for (uint64_t k = 0; k < 20; k++) {
        assert_true(n_equal(k, 0, k + 1, 0) < 10);
        assert_true(n_equal(7, k, 7, k + 1) < 10);
        assert_true(n_equal(k, 1, k + ((uint64_t)1 << 32), 1) < 10);
    }
}

// Over many epochs, all values are equally frequent at every position, and all differences between neighbors,
// too.
static void test_values_are_equally_frequent(void **state) {
    (void)state;
    enum { EPOCHS = 4000 };
    const size_t sizes[] = {5, 10, 16, 17};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k];
        for (size_t place = 0; place < n; place++) {
            double counts[17] = {0}, gaps[17] = {0}, by_value = 0, by_gap = 0;
            for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
                size_t here = permutation_at(42, epoch, n, place);
                size_t next = permutation_at(42, epoch, n, (place + 1) % n);
                counts[here]++;
                gaps[(next + n - here) % n]++;
            }
            assert_true(gaps[0] == 0);
            for (size_t i = 0; i < n; i++) {
                double expected = (double)EPOCHS / (double)n, expected_gap = (double)EPOCHS / (double)(n - 1);
                by_value += (counts[i] - expected) * (counts[i] - expected) / expected;
                if (i > 0)
                    by_gap += (gaps[i] - expected_gap) * (gaps[i] - expected_gap) / expected_gap;
            }
            // Chi-squared with at most 16 degrees of freedom exceeds 60 once in two million times.
            if (by_value > 60 || by_gap > 60)
                fail_msg("n = %zu, place %zu: chi-squared %.1f of values, %.1f of gaps", n, place, by_value,
                         by_gap);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bijection),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_seeds_and_epochs_differ),
        cmocka_unit_test(test_values_are_equally_frequent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
