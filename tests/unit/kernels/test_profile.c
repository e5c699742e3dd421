// kernels/profile.h: spans' own times add up to the step; rows and tracks; the limits on events and rows; a
// device is unchanged after unwatching.
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "kernels/profile.h"
#include "tests/ref/ref.h"
#include "tests/support/expect.h"

#define N_STEPS 3

static struct profile *new_profile(int most_events, void **memory) {
    struct profile *profile;
    *memory = calloc(1, profile_bytes(most_events, N_STEPS));
    assert_non_null(*memory);
    profile = profile_new(*memory, most_events, N_STEPS);
    return profile;
}

static void pass_time(double seconds) {
    double began = clock_monotonic_s();
    while (clock_monotonic_s() - began < seconds)
        ;
}

static int row_named(const struct profile *profile, const char *name) {
    int found = -1;
    for (int i = 0; i < profile->n_rows; i++)
        if (strcmp(profile->rows[i].label.name, name) == 0) {
            assert_int_equal(found, -1);
            found = i;
        }
    assert_true(found >= 0);
    return found;
}

static const struct profile_sample *sample_of(const struct profile *profile, const char *name, int step) {
    return profile_sample_at(profile, row_named(profile, name), step);
}

static void one_step(struct profile *profile, struct stream *stream) {
    EXPECT_OK(profile_step_begin(profile, stream));
    profile_begin(profile, PROFILE_FRAME, "unit");
    profile_begin(profile, PROFILE_SPAN, "outer");
    pass_time(1e-3);
    profile_begin(profile, PROFILE_SPAN, "inner");
    pass_time(2e-3);
    profile_end(profile, (struct operation_cost){1, 2});
    profile_begin(profile, PROFILE_SPAN, "inner");
    profile_end(profile, (struct operation_cost){10, 20});
    profile_end(profile, (struct operation_cost){100, 200});
    pass_time(1e-3);
    profile_end(profile, (struct operation_cost){0});
    EXPECT_OK(profile_step_end(profile));
}

static void test_own_times(void **state) {
    (void)state;
    void *memory;
    struct profile *profile = new_profile(100, &memory);
    struct stream stream = {0};
    profile_begin(profile, PROFILE_SPAN, "outer"); // before the steps: on the timeline only
    profile_end(profile, (struct operation_cost){0});
    for (int step = 0; step < N_STEPS; step++)
        one_step(profile, &stream);
    assert_int_equal(profile->n_steps, N_STEPS);
    assert_int_equal(profile->n_rows, 2); // frames have no rows
    assert_int_equal(profile->n_events, 1 + N_STEPS * 5);
    for (int step = 0; step < N_STEPS; step++) {
        const struct profile_sample *outer = sample_of(profile, "outer", step);
        const struct profile_sample *inner = sample_of(profile, "inner", step);
        assert_int_equal(outer->calls, 1);
        assert_int_equal(inner->calls, 2);
        assert_true(outer->work.flops == 100 && outer->work.bytes == 200);
        assert_true(inner->work.flops == 11 && inner->work.bytes == 22);
        assert_true(outer->seconds >= 1e-3 && inner->seconds >= 2e-3);
        double seconds = profile->steps[step].end - profile->steps[step].begin;
        assert_true(outer->seconds + inner->seconds + 1e-3 <= seconds + 1e-9);
    }
    // A span's own time is its length minus the inner spans'; both are on the timeline.
    const struct profile_event *inner = profile->events + 1, *outer = profile->events + 3;
    assert_string_equal(outer->label.name, "outer");
    double inside = inner[0].end - inner[0].begin + inner[1].end - inner[1].begin;
    assert_true(outer->begin <= inner[0].begin && inner[1].end <= outer->end);
    assert_true(fabs(outer->end - outer->begin - inside - sample_of(profile, "outer", 0)->seconds) < 1e-9);
    profile_delete(profile);
    free(memory);
}

static void test_rows_by_phase_shape_and_operation(void **state) {
    (void)state;
    void *memory;
    struct device *device;
    struct stream stream;
    static float x[8 * 32], weight[64 * 32], out[8 * 64];
    struct profile *profile = new_profile(100, &memory);
    EXPECT_OK(ref_device_open(&device));
    EXPECT_OK(stream_init(&stream, device));
    const struct ops *ops = device->ops;
    EXPECT_OK(profile_watch(profile, device, "ref"));
    EXPECT_OK(profile_step_begin(profile, &stream));
    struct linear_forward_args args = {
        .out = out, .x = x, .weight = weight, .N = 8, .IC = 32, .OC = 64, .out_stride = 64};
    for (int i = 0; i < 5; i++) {
        profile_set_place(profile, (struct profile_place){i < 3 ? 1 : 2, i});
        EXPECT_OK(device->ops->linear_forward(&stream, &args));
    }
    args.OC = 16;
    EXPECT_OK(device->ops->linear_forward(&stream, &args));
    EXPECT_OK(device->copy(&stream, out, x, sizeof x));
    EXPECT_OK(device->synchronize(&stream));
    EXPECT_OK(profile_step_end(profile));
    assert_int_equal(profile->n_rows, 4);
    static const int calls[] = {3, 2, 1, 1}, widths[] = {64, 64, 16, 0}, phases[] = {1, 2, 2, 2};
    for (int row = 0; row < 4; row++) {
        const struct profile_sample *sample = profile_sample_at(profile, row, 0);
        assert_int_equal(sample->calls, calls[row]);
        assert_int_equal(profile->rows[row].label.shape.out, widths[row]);
        assert_int_equal(profile->rows[row].label.place.phase, phases[row]);
        assert_true(sample->work.flops == 2.0 * 8 * 32 * widths[row] * calls[row]);
    }
    assert_int_equal(profile->events[2].label.place.unit, 2);
    profile_unwatch(profile);
    EXPECT_OK(profile_scope_begin(&stream, "ignored")); // nobody watches
    EXPECT_OK(profile_scope_end(&stream));
    assert_ptr_equal(device->ops, ops);
    assert_null(device->watched);
    EXPECT_OK(device->ops->linear_forward(&stream, &args));
    assert_int_equal(profile->n_events, 8); // including the step's
    profile_delete(profile);
    device_close(device);
    free(memory);
}

// Operations inside a scope have rows of their own, whatever their shape.
static void test_scopes(void **state) {
    (void)state;
    void *memory;
    struct device *device;
    struct stream stream;
    static float x[8 * 32], weight[64 * 32], out[8 * 64];
    struct profile *profile = new_profile(100, &memory);
    EXPECT_OK(ref_device_open(&device));
    EXPECT_OK(stream_init(&stream, device));
    EXPECT_OK(profile_watch(profile, device, "ref"));
    EXPECT_OK(profile_step_begin(profile, &stream));
    struct linear_forward_args args = {
        .out = out, .x = x, .weight = weight, .N = 8, .IC = 32, .OC = 64, .out_stride = 64};
    static const char scope[] = "scope";
    for (int i = 0; i < 6; i++) {
        if (i % 2)
            EXPECT_OK(profile_scope_begin(&stream, scope));
        args.OC = i < 3 ? 64 : 16;
        EXPECT_OK(device->ops->linear_forward(&stream, &args));
        if (i % 2)
            EXPECT_OK(profile_scope_end(&stream));
    }
    EXPECT_OK(profile_step_end(profile));
    assert_int_equal(profile->n_rows, 3); // 64 wide; in the scope; 16 wide
    static const int widths[] = {64, 0, 16}, calls[] = {2, 3, 1};
    for (int row = 0; row < 3; row++) {
        assert_int_equal(profile->rows[row].label.shape.out, widths[row]);
        assert_ptr_equal(profile->rows[row].label.scope, row == 1 ? scope : NULL);
        assert_int_equal(profile_sample_at(profile, row, 0)->calls, calls[row]);
    }
    assert_true(profile_sample_at(profile, 1, 0)->work.flops == 2.0 * 8 * 32 * (64 + 16 + 16));
    profile_delete(profile);
    device_close(device);
    free(memory);
}

static void *on_a_thread(void *argument) {
    struct profile *profile = argument;
    profile_name_thread(profile, "other");
    for (int i = 0; i < 1000; i++) {
        profile_begin(profile, PROFILE_SPAN, "there");
        profile_end(profile, (struct operation_cost){1, 0});
    }
    return NULL;
}

static void test_threads_and_the_limit_on_events(void **state) {
    (void)state;
    void *memory;
    pthread_t thread;
    struct stream stream = {0};
    struct profile *profile = new_profile(50, &memory);
    EXPECT_OK(profile_step_begin(profile, &stream));
    assert_int_equal(pthread_create(&thread, NULL, on_a_thread, profile), 0);
    for (int i = 0; i < 1000; i++) {
        profile_begin(profile, PROFILE_SPAN, "here");
        profile_end(profile, (struct operation_cost){1, 0});
    }
    pthread_join(thread, NULL);
    EXPECT_OK(profile_step_end(profile));
    assert_int_equal(profile->n_tracks, 2);
    assert_string_equal(profile->tracks[0].name, "main");
    assert_string_equal(profile->tracks[1].name, "other");
    assert_int_equal(profile->n_events, 50);
    assert_int_equal(profile->n_left_out, 2 * 1000 + 1 - 50);
    assert_true(sample_of(profile, "here", 0)->work.flops == 1000);
    assert_true(sample_of(profile, "there", 0)->work.flops == 1000);
    assert_int_equal(profile->rows[row_named(profile, "there")].track, 1);
    profile_delete(profile);
    free(memory);
}

// If all rows are used, the last one collects further spans.
static void test_the_limit_on_rows(void **state) {
    (void)state;
    void *memory;
    struct stream stream = {0};
    struct profile *profile = new_profile(0, &memory);
    EXPECT_OK(profile_step_begin(profile, &stream));
    for (int i = 0; i < PROFILE_MOST_ROWS + 10; i++) {
        profile_set_place(profile, (struct profile_place){i, 0});
        profile_begin(profile, PROFILE_SPAN, "span");
        profile_end(profile, (struct operation_cost){0});
    }
    EXPECT_OK(profile_step_end(profile));
    assert_int_equal(profile->n_rows, PROFILE_MOST_ROWS);
    assert_int_equal(profile_sample_at(profile, 0, 0)->calls, 1);
    assert_int_equal(profile_sample_at(profile, PROFILE_MOST_ROWS - 1, 0)->calls, 11);
    profile_delete(profile);
    free(memory);
}

static void test_without_a_profile(void **state) {
    (void)state;
    void *memory;
    struct profile *other = new_profile(100, &memory); // must ignore calls with NULL on its thread
    profile_begin(other, PROFILE_SPAN, "span");
    profile_begin(NULL, PROFILE_SPAN, "span");
    profile_end(NULL, (struct operation_cost){0});
    profile_name_thread(NULL, "thread");
    profile_set_place(NULL, (struct profile_place){0, 0});
    profile_delete(NULL);
    assert_int_equal(other->n_rows, 0);
    profile_end(other, (struct operation_cost){0});
    assert_int_equal(other->n_steps, 0);
    assert_string_equal(status_message(), "");
    profile_delete(other);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_times),
        cmocka_unit_test(test_rows_by_phase_shape_and_operation),
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_threads_and_the_limit_on_events),
        cmocka_unit_test(test_the_limit_on_rows),
        cmocka_unit_test(test_without_a_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
