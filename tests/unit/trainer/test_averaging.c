// Averages of the weights: with which weights updates enter them, and schedule-free AdamW against the
// reference implementation in float64 (scripts/golden/optimizers.py), its weights for evaluation included.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "kernels/update.h"
#include "tests/support/expect.h"
#include "trainer/schedule.h"

#define GOLDEN "tests/golden/optimizers/schedule_free.json"

// ---- the weights of updates

static struct config config_of(const char *json) {
    struct config config;
    EXPECT_OK(config_parse(&config, json, strlen(json), "test"));
    return config;
}

static void expect_weights(const char *json, int n, const double *wanted) {
    struct config config = config_of(json);
    struct average_record record = {0};
    for (int update = 1; update <= n; update++) {
        const float weight = averaging_next(&config, 0.1, &record);
        if (weight != (float)wanted[update - 1])
            fail_msg("%s: update %d has the weight %g, expected %g", json, update, (double)weight,
                     wanted[update - 1]);
    }
    config_free(&config);
}

static void test_weights(void **unused) {
    (void)unused;
    expect_weights("{}", 3, (double[]){0, 0, 0});
    expect_weights("{\"train\": {\"ema\": {\"type\": \"exponential\", \"decay\": 0.75}}}", 3,
                   (double[]){1, 0.25, 0.25});
}

static void test_resumed(void **unused) {
    (void)unused;
    const struct average_record record = {.n = 3, .weight_sum = 2, .lr_max = 1};
    struct config off = config_of("{}"),
                  on = config_of("{\"train\": {\"ema\": {\"type\": \"exponential\"}}}"),
                  free_of = config_of("{\"optimizer\": {\"type\": \"schedulefree_adamw\"}}");
    assert_int_equal(averaging_resumed(&on, &record, true).n, 3);
    assert_int_equal(averaging_resumed(&on, &record, false).n, 0); // a checkpoint of schedule-free AdamW
    assert_int_equal(averaging_resumed(&off, &record, true).n, 0);
    assert_int_equal(averaging_resumed(&free_of, &record, false).n, 3);
    config_free(&off);
    config_free(&on);
    config_free(&free_of);
}

// ---- schedule-free AdamW

enum { N = 40, STEPS = 12 };

static double number(const cJSON *array, int i) {
    const cJSON *item = cJSON_GetArrayItem(array, i);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static const cJSON *member(const cJSON *object, const char *key) {
    const cJSON *array;
    EXPECT_OK(json_get_array(object, key, GOLDEN, &array));
    return array;
}

struct arrays {
    float y[N], z[N], v[N], g[N], x[N];
};

// Per step, roundings of about 16 epsilons of the weight, and of updates of at most 20 times the rate.
static void compare(const float *array, const cJSON *wanted, double lr, const char *what, int step) {
    for (int i = 0; i < N; i++) {
        const double value = number(wanted, i),
                     allowed = step * 16 * dtype_epsilon(DTYPE_F32) * (fabs(value) + 20 * lr);
        if (!(fabs((double)array[i] - value) <= allowed))
            fail_msg("%s[%d] after step %d: %.9g, expected %.9g", what, i, step, (double)array[i], value);
    }
}

static void run_case(const cJSON *one, struct device *device) {
    double lr, decay, warmup;
    struct stream stream;
    struct arrays arrays = {{0}, {0}, {0}, {0}, {0}};
    struct average_record record = {0};
    struct config config = config_of("{\"optimizer\": {\"type\": \"schedulefree_adamw\"}}");
    const cJSON *betas = member(one, "betas");
    EXPECT_OK(json_get_number(one, "lr", GOLDEN, &lr));
    EXPECT_OK(json_get_number(one, "weight_decay", GOLDEN, &decay));
    EXPECT_OK(json_get_number(one, "warmup_steps", GOLDEN, &warmup));
    EXPECT_OK(stream_init(&stream, device));
    for (int i = 0; i < N; i++)
        arrays.y[i] = (float)number(member(one, "weight"), i);
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < N; i++)
            arrays.g[i] = (float)number(cJSON_GetArrayItem(member(one, "gradients"), step - 1), i);
        struct optimizer_step_args args = {.rule = OPTIMIZER_SCHEDULE_FREE,
                                           .state = {.master = arrays.y, .m = arrays.z, .v = arrays.v},
                                           .grad = arrays.g,
                                           .n = N,
                                           .step = step,
                                           .lr = step < warmup ? lr * step / warmup : lr,
                                           .beta1 = number(betas, 0),
                                           .beta2 = number(betas, 1),
                                           .epsilon = 1e-8,
                                           .weight_decay = decay,
                                           .grad_scale = 1,
                                           .type = DTYPE_F32,
                                           .grad_type = DTYPE_F32,
                                           .state_type = DTYPE_F32};
        args.average_weight = averaging_next(&config, args.lr, &record);
        EXPECT_OK(device->ops->optimizer_step(&stream, &args));
        EXPECT_OK(device->ops->lerp(&stream, &(struct lerp_args){.out = arrays.x,
                                                                 .x = arrays.y,
                                                                 .y = arrays.z,
                                                                 .n = N,
                                                                 .weight = schedule_free_weight(args.beta1),
                                                                 .type = DTYPE_F32,
                                                                 .out_type = DTYPE_F32}));
        compare(arrays.y, cJSON_GetArrayItem(member(one, "latest"), step - 1), lr, "y", step);
        compare(arrays.x, cJSON_GetArrayItem(member(one, "average"), step - 1), lr, "x", step);
    }
    assert_int_equal(record.n, STEPS);
    stream_free(&stream);
    config_free(&config);
}

static void test_schedule_free(void **unused) {
    (void)unused;
    cJSON *tree;
    const cJSON *one;
    struct device *device;
    EXPECT_OK(json_read_file(GOLDEN, &tree));
    EXPECT_OK(device_open("cpu", 1, 0, &device));
    cJSON_ArrayForEach(one, member(tree, "cases")) run_case(one, device);
    device_close(device);
    cJSON_Delete(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_schedule_free),
    };
    return cmocka_run_group_tests_name("averaging", tests, NULL, NULL);
}
