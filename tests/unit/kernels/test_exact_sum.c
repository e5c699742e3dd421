// kernels/exact_sum.h: sums that no double holds are rounded once, to even, and the order of additions does
// not matter.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/exact_sum.h"

static void add(int64_t *words, double value) {
    const struct exact_parts parts = exact_parts_of(value);
    for (int i = 0; i < parts.n; i++)
        words[parts.first + i] += (int64_t)parts.part[i];
}

static double sum_of(const double *values, int n) {
    int64_t words[EXACT_WORDS] = {0};
    for (int i = 0; i < n; i++)
        add(words, values[i]);
    return exact_value(words);
}
#define SUM(...) sum_of((const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

static void test_rounding(void **state) {
    (void)state;
    assert_true(SUM(0) == 0);
    assert_true(SUM(0x1p-298) == 0x1p-298);
    assert_true(SUM(0x1p-298, 0x1p-297) == 0x1.8p-297);
    assert_true(SUM(0x1.fffffffffffffp+262) == 0x1.fffffffffffffp+262);
    assert_true(SUM(1, 0x1p-53) == 1);                              // a tie: to even
    assert_true(SUM(1, 0x1p-53, 0x1p-298) == 0x1.0000000000001p+0); // above the tie
    assert_true(SUM(0x1.0000000000001p+0, 0x1p-53) == 0x1.0000000000002p+0);
    assert_true(SUM(0x1.fffffffffffffp+0, 0x1p-53) == 2);
    assert_true(isinf(SUM(1, INFINITY)));
    assert_true(isnan(SUM(1, INFINITY, NAN)));
}

// 2^31 additions of the largest parts that a limb can get do not overflow.
static void test_carries(void **state) {
    (void)state;
    int64_t words[EXACT_WORDS] = {0};
    for (int i = 0; i < EXACT_LIMBS; i++)
        words[i] = (int64_t)0xffffffff << 31;
    // (2^(32 EXACT_LIMBS) - 1) 2^31 units, rounded up.
    assert_true(exact_value(words) == ldexp(1, 32 * EXACT_LIMBS + 31 + EXACT_LEAST));
}

// Numbers of all magnitudes, whose sum in long double is nearly exact: added in order, backwards, and in
// parts.
static void test_order(void **state) {
    (void)state;
    enum { N = 1000 };
    int64_t words[3][EXACT_WORDS] = {{0}}, half[EXACT_WORDS] = {0};
    double values[N];
    long double sum = 0;
    for (int i = 0; i < N; i++) {
        values[i] = ldexp(rng_uniform(1, 2, (uint64_t)i), (int)rng_below(1, 3, (uint64_t)i, 60));
        sum += values[i];
    }
    for (int i = 0; i < N; i++) {
        add(words[0], values[i]);
        add(words[1], values[N - 1 - i]);
        add(i % 3 ? words[2] : half, values[i]);
    }
    for (int i = 0; i < EXACT_WORDS; i++)
        words[2][i] += half[i];
    const double value = exact_value(words[0]);
    assert_true(exact_value(words[1]) == value && exact_value(words[2]) == value);
    assert_true(fabsl(sum - value) <= value * 0x1p-53L + N * 0x1p-64L * value);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounding), cmocka_unit_test(test_carries),
                                       cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
