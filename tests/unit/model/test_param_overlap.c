// The iterator over tensors that overlap a span, against a search of every element.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "model/params.h"
#include "tests/support/expect.h"

// The tensor that holds an element of a unit, or -1 for padding.
static int tensor_of(const struct params *params, int unit, size_t element) {
    const struct param_unit *u = &params->units[unit];
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct param *param = &params->params[i];
        if (element >= param->offset && element < param->offset + param->elements)
            return i;
    }
    return -1;
}

static int check_span(const struct params *params, int unit, size_t begin, size_t end) {
    size_t at = begin;
    int n = 0, last = -1;
    for (struct param_overlap it = {0}; params_next_overlap(params, unit, begin, end, &it); n++) {
        assert_true(it.begin >= at && it.begin < it.end && it.end <= end && it.param > last);
        for (; at < it.begin; at++)
            assert_int_equal(tensor_of(params, unit, at), -1);
        for (; at < it.end; at++)
            assert_int_equal(tensor_of(params, unit, at), it.param);
        last = it.param;
    }
    for (; at < end; at++)
        assert_int_equal(tensor_of(params, unit, at), -1);
    return n;
}

static void test_overlaps(void **state) {
    (void)state;
    const struct gpt_config sizes = {
        .n_layer = 1, .n_head = 1, .n_embd = 9, .vocab_size = 41, .n_positions = 7};
    struct params params;
    EXPECT_OK(params_init(&params, &sizes));
    uint64_t counter = 0;
    int empty = 0, several = 0;
    for (int unit = 0; unit < params.n_units; unit++) {
        size_t elements = params.units[unit].elements;
        assert_int_equal(check_span(&params, unit, 0, elements), params.units[unit].n_params);
        for (int i = 0; i < 300; i++) {
            size_t begin = rng_below(1, 1, counter++, elements);
            int n =
                check_span(&params, unit, begin, begin + rng_below(1, 1, counter++, elements - begin + 1));
            empty += n == 0;
            several += n > 1;
        }
    }
    assert_true(empty > 0 && several > 0); // spans inside padding, and spans over several tensors
    params_free(&params);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overlaps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
