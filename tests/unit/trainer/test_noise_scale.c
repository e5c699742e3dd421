// The estimates of the gradient noise scale, when a batch grows, and the record in a checkpoint's manifest.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "tests/support/expect.h"
#include "trainer/schedule.h"

// E |g|^2 of a mean gradient of n sequences, where |G|^2 = 2 and tr(Sigma) = 96.
static double square_of(double n) {
    return 2 + 96 / n;
}

static void test_exact_norms_give_the_exact_scale(void **state) {
    (void)state;
    struct noise_record record = {0};
    assert_true(isnan(noise_scale(&record)));
    for (int i = 0; i < 10; i++) {
        noise_record_add(&record, square_of(2 + i), 2 + i, square_of(64), 64);
        assert_true(fabs(noise_scale(&record) - 48) < 1e-9);
    }
}

static void test_a_scale_without_a_gradient_is_none(void **state) {
    (void)state;
    struct noise_record record = {0};
    noise_record_add(&record, 8, 1, 1, 8); // 8 |G_8|^2 = |G_1|^2: only noise
    assert_true(isnan(noise_scale(&record)));
    assert_false(noise_wants_more(&record, 1, 1000));
    memset(&record, 0, sizeof record);
    noise_record_add(&record, 1, 1, 2, 8); // a larger batch with a larger norm: no noise is seen
    assert_true(noise_scale(&record) == 0);
}

static void test_the_batch_grows_with_patience_and_within_its_bound(void **state) {
    (void)state;
    struct noise_record record = {0};
    for (int i = 0; i < NOISE_PATIENCE; i++) {
        assert_false(noise_wants_more(&record, 8, 1000));
        noise_record_add(&record, square_of(2), 2, square_of(8), 8);
    }
    assert_true(noise_wants_more(&record, 8, 16));
    assert_false(noise_wants_more(&record, 8, 15));
    assert_true(noise_wants_more(&record, 23, 1000));
    assert_false(noise_wants_more(&record, 25, 1000)); // twice that is above the scale, 48
    record.n_since = 0;
    assert_false(noise_wants_more(&record, 8, 1000));
}

static enum status parse(const char *member, int64_t step, struct noise_record *record) {
    cJSON *root;
    struct text text = {0};
    text_add(&text, "{%s\"step\": 1}", member);
    EXPECT_OK(json_parse(text.data, text.length, "test", &root));
    struct run_state state = {0};
    const enum status status = run_state_parse(&state, root, step, "test");
    *record = state.noise;
    cJSON_Delete(root);
    text_free(&text);
    return status;
}

static void test_a_record_is_read_as_written(void **state) {
    (void)state;
    struct noise_record record = {0}, read;
    struct text text = {0};
    run_state_print(&(struct run_state){.noise = record}, &text);
    assert_null(text.data);
    noise_record_add(&record, square_of(2), 2, square_of(8), 8);
    record.grown = (struct config_stages){2, {{3, 16}, {8, 32}}};
    run_state_print(&(struct run_state){.noise = record}, &text);
    EXPECT_OK(parse(text.data, 7, &read));
    struct text again = {0};
    run_state_print(&(struct run_state){.noise = read}, &again);
    assert_string_equal(again.data, text.data);
    assert_true(read.variance == record.variance && read.square == record.square && read.grown.n == 2);
    text_free(&again);
    EXPECT_FAILURE(STATUS_INVALID, parse(text.data, 6, &read), "batch_sizes"); // a size from the far future
    text_free(&text);
}

static void test_a_forged_record_is_refused(void **state) {
    (void)state;
    static const char *const sizes[] = {"[[1]]",     "[[1, 0]]", "[[1, 1.5]]", "[[2, 8], [2, 16]]",
                                        "[[-1, 8]]", "[3]",      "{}",         "[[1, 1e300]]"};
    struct noise_record record;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct text text = {0};
        text_add(&text,
                 "\"noise_scale\": {\"variance\": 1, \"square\": 1, \"n\": 2, \"n_since\": 1, "
                 "\"batch_sizes\": %s}, ",
                 sizes[i]);
        EXPECT_FAILURE(STATUS_INVALID, parse(text.data, 9, &record), "test");
        text_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_norms_give_the_exact_scale),
        cmocka_unit_test(test_a_scale_without_a_gradient_is_none),
        cmocka_unit_test(test_the_batch_grows_with_patience_and_within_its_bound),
        cmocka_unit_test(test_a_record_is_read_as_written),
        cmocka_unit_test(test_a_forged_record_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
