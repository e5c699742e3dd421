// Which source each row comes from: every source gets its share of any number of rows, and its own rows in
// order.
#include "tests/support/expect.h"

#include <math.h>
#include <stdbool.h>

#include "data/order.h"

#define N_ROWS 20000

static const struct {
    int n;
    double weights[8];
} cases[] = {
    {1, {3}},
    {2, {1, 1}},
    {2, {0.7, 0.3}},
    {3, {1, 1, 1}},
    {3, {1e-12, 1, 1e12}},
    {5, {5e9, 1e9, 3e9, 2.5e9, 0.1e9}},
    {8, {1, 2, 3, 4, 5, 6, 7, 8}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static double share_of(size_t i, int source) {
    double total = 0;
    for (int s = 0; s < cases[i].n; s++)
        total += cases[i].weights[s];
    return cases[i].weights[source] / total;
}

// Each prefix of the rows has the sources in proportion; each source's rows are numbered 0, 1, 2, ...; and
// the count of any prefix is known without going through it.
static void test_every_prefix_is_in_proportion(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct mixture mixture;
            uint64_t counts[8] = {0};
            mixture_init(&mixture, cases[i].weights, cases[i].n, seed);
            for (uint64_t row = 0; row < N_ROWS; row++) {
                uint64_t index;
                for (int s = 0; s < cases[i].n; s++) {
                    assert_int_equal(mixture_count(&mixture, s, row), counts[s]);
                    // A node's error is below a row, and halves or so with each node below it.
                    assert_true(fabs((double)counts[s] - share_of(i, s) * (double)row) < 4);
                }
                const int source = mixture_at(&mixture, row, &index);
                assert_in_range(source, 0, cases[i].n - 1);
                assert_int_equal(index, counts[source]);
                counts[source]++;
            }
        }
}

// The largest number of sources keeps within the bound, and no source waits long for its next row.
static void test_many_sources(void **state) {
    (void)state;
    struct mixture mixture;
    double weights[MIXTURE_MAX_SOURCES], total = 0;
    uint64_t counts[MIXTURE_MAX_SOURCES] = {0};
    for (int s = 0; s < MIXTURE_MAX_SOURCES; s++)
        total += weights[s] = 1 + s * 7919 % 101;
    mixture_init(&mixture, weights, MIXTURE_MAX_SOURCES, 5);
    for (uint64_t row = 0; row < 3 * N_ROWS; row++) {
        uint64_t index;
        const int source = mixture_at(&mixture, row, &index);
        assert_int_equal(index, counts[source]++);
        const double expected = weights[source] / total * (double)(row + 1);
        assert_true(fabs((double)counts[source] - expected) < MIXTURE_DISCREPANCY);
    }
}

// Proportions are exact in the long run: after 2^40 rows no source is off by more than at the start.
static void test_far_rows(void **state) {
    (void)state;
    struct mixture mixture;
    const uint64_t far = UINT64_C(1) << 40;
    for (size_t i = 0; i < N_CASES; i++) {
        uint64_t sum = 0;
        mixture_init(&mixture, cases[i].weights, cases[i].n, 1);
        for (int s = 0; s < cases[i].n; s++) {
            const uint64_t n = mixture_count(&mixture, s, far);
            assert_true(fabs((double)n - share_of(i, s) * (double)far) < 4);
            sum += n;
        }
        assert_int_equal(sum, far);
    }
}

// Only proportions count, and seeds differ.
static void test_weights_and_seeds(void **state) {
    (void)state;
    struct mixture mixtures[3];
    int n_differ = 0;
    mixture_init(&mixtures[0], (const double[]){1, 2, 5}, 3, 1);
    mixture_init(&mixtures[1], (const double[]){2, 4, 10}, 3, 1);
    mixture_init(&mixtures[2], (const double[]){1, 2, 5}, 3, 2);
    for (uint64_t row = 0; row < 1000; row++) {
        uint64_t index[3];
        int sources[3];
        for (int i = 0; i < 3; i++)
            sources[i] = mixture_at(&mixtures[i], row, &index[i]);
        assert_int_equal(sources[0], sources[1]);
        n_differ += sources[0] != sources[2];
    }
    assert_true(n_differ > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_prefix_is_in_proportion),
        cmocka_unit_test(test_many_sources),
        cmocka_unit_test(test_far_rows),
        cmocka_unit_test(test_weights_and_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
