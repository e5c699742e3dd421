// The order of sums over ranks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "zero/comm/sum_tree.h"

// 1e16 + 1 is 1e16 in double, and 1e16 + 2 is exact: each order of these sums gives another result.
static void test_the_order(void **unused) {
    (void)unused;
    assert_true(sum_tree((double[]){7}, 1) == 7);
    assert_true(sum_tree((double[]){1e16, 1, -1e16}, 3) == 0);
    assert_true(sum_tree((double[]){1e16, 1, -1e16, 1}, 4) == 0);          // one after the other: 1
    assert_true(sum_tree((double[]){1, 1, 1e16, -1e16}, 4) == 2);          // ((0 + 1) + (2 + 3)); else 0 or 2
    assert_true(sum_tree((double[]){1, 1e16, 1, 1, -1e16}, 5) == 2);       // ((0 + 1) + (2 + 3)) + 4
    assert_true(sum_tree((double[]){0, 0, 0, 0, 1e16, 1, -1e16}, 7) == 0); // (0 to 3) + ((4 + 5) + 6)
    assert_true(sum_tree((double[]){0, 0, 0, 0, 1, 1, 1e16}, 7) == 1e16 + 2);
}

// Each partial sum of n ranks has a place of its own.
static int places(int n) {
    if (n == 1)
        return 0;
    const int left = sum_tree_left(n), of_left = places(left), of_right = places(n - left);
    assert_true(left < n && 2 * left >= n && (left & (left - 1)) == 0);
    return of_left > of_right + 1 ? of_left : of_right + (n - left > 1 || n == 2);
}

static void test_the_depth(void **unused) {
    (void)unused;
    for (int n = 1; n < 5000; n++)
        assert_true(places(n) <= sum_tree_depth(n));
    assert_int_equal(sum_tree_depth(1), 0);
    assert_int_equal(sum_tree_depth(2), 1);
    assert_int_equal(sum_tree_depth(7), 2);
    assert_int_equal(sum_tree_depth(8), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_order),
        cmocka_unit_test(test_the_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
