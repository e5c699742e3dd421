// kernels/cost.h: FLOPs and bytes against formulas counted by hand, and the roofline's limit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/processors.h"
#include "kernels/cost.h"
#include "tests/support/expect.h"

static char any; // target of non-NULL pointers
#define P (&any)
#define EXPECT_COST(expected_flops, expected_bytes, name, ...)                                               \
    do {                                                                                                     \
        const struct operation_cost cost_ =                                                                  \
            cost_of_operation(OP_##name, &(const struct name##_args){__VA_ARGS__});                          \
        assert_true(cost_.flops == (expected_flops));                                                        \
        assert_true(cost_.bytes == (expected_bytes));                                                        \
    } while (0)

static void test_linear_layers(void **state) {
    (void)state;
    enum { N = 5, IC = 7, OC = 11 };
    EXPECT_COST(2 * N * IC * OC, 2 * (N * IC + IC * OC + N * OC), linear_forward, .out = P, .x = P,
                .weight = P, .bias = P, .N = N, .IC = IC, .OC = OC, .type = DTYPE_BF16,
                .out_type = DTYPE_BF16);
    EXPECT_COST(2 * N * IC * OC, 2 * (N * IC + IC * OC) + 4 * N * OC, linear_forward, .out = P, .x = P,
                .weight = P, .N = N, .IC = IC, .OC = OC, .type = DTYPE_BF16, .out_type = DTYPE_F32);
    EXPECT_COST(2 * N * IC * OC, 4 * (N * IC + IC * OC + 2 * N * OC), linear_forward, .out = P, .x = P,
                .weight = P, .pre_activation = P, .activation = ACTIVATION_GELU, .N = N, .IC = IC, .OC = OC);
    EXPECT_COST(2 * N * IC * OC, 4 * (N * IC + IC * OC + 2 * N * OC), linear_forward, .out = P, .x = P,
                .weight = P, .residual = P, .N = N, .IC = IC, .OC = OC);
    EXPECT_COST(4 * N * IC * OC, 2 * (N * OC + 2 * N * IC + IC * OC) + 8 * IC * OC, linear_backward, .dx = P,
                .dweight = P, .dbias = P, .dout = P, .x = P, .weight = P, .N = N, .IC = IC, .OC = OC,
                .type = DTYPE_BF16);
    EXPECT_COST(2 * N * IC * OC, 2 * (N * OC + N * IC + IC * OC), linear_backward, .dx = P, .dout = P,
                .weight = P, .N = N, .IC = IC, .OC = OC, .type = DTYPE_F16);
    EXPECT_COST(2 * N * IC * OC, 4 * (N * OC + N * IC + 2 * IC * OC), linear_backward, .dweight = P,
                .dout = P, .x = P, .N = N, .IC = IC, .OC = OC);
    EXPECT_COST(2 * N * IC * OC, 4 * (N * OC + N * IC + IC * OC), linear_backward, .dweight = P, .dout = P,
                .x = P, .N = N, .IC = IC, .OC = OC, .beta_zero = true);
    const struct linear_backward_args args = {.N = N, .IC = IC, .OC = OC};
    const struct linear_shape shape = operation_linear_shape(OP_linear_backward, &args);
    assert_int_equal(shape.in, IC);
    assert_int_equal(shape.out, OC);
}

// Pairs of queries and keys, counted one by one.
static void test_attention(void **state) {
    (void)state;
    enum { B = 2, T = 6, S = 9, H = 3, D = 4 };
    int pairs = 0, square = 0;
    for (int i = 0; i < T; i++)
        for (int j = 0; j < S; j++) {
            pairs += j <= S - T + i;
            square += j < T && j <= i;
        }
    EXPECT_COST(2 * 2 * B * H * D * pairs, 2 * B * H * D * (2 * T + 2 * S), attention_forward, .B = B, .T = T,
                .S = S, .H = H, .K = H, .D = D, .type = DTYPE_BF16);
    EXPECT_COST(2 * 2 * B * H * D * pairs, 2 * B * H * D * (5 * T + 2 * S), attention_forward,
                .rope = {.table = P}, .B = B, .T = T, .S = S, .H = H, .K = H, .D = D, .type = DTYPE_BF16);
    EXPECT_COST(5 * 2 * B * H * D * square, 4 * 8 * B * H * D * T, attention_backward, .B = B, .T = T, .H = H,
                .K = H, .D = D);
    // Sequences of 6 and of 9 positions: reads 5 and 8 of each cache; q, k, v and out; writes one of each.
    EXPECT_COST(2 * 2 * H * D * (T + S), 2 * H * D * (2 * (T - 1 + S - 1) + 4 * B + 2 * B), attention_decode,
                .n_keys = T + S, .B = B, .H = H, .K = H, .D = D, .type = DTYPE_BF16);
}

// Keys that each query sees of a window, counted one by one; of key-value heads each is read once.
static void test_attention_of_groups_and_windows(void **state) {
    (void)state;
    enum { B = 2, T = 6, S = 9, H = 6, D = 4 };
    for (int window = 0; window <= S + 1; window++)
        for (int K = 1; K <= H; K++) {
            if (H % K != 0)
                continue;
            int pairs = 0, square = 0;
            for (int i = 0; i < S; i++)
                for (int j = 0; j <= i; j++) {
                    const bool seen = window == 0 || i - j < window;
                    pairs += seen && i >= S - T;
                    square += seen && i < T;
                }
            EXPECT_COST(2 * 2 * B * H * D * pairs, 2 * B * D * (2 * T * H + 2 * S * K), attention_forward,
                        .B = B, .T = T, .S = S, .H = H, .K = K, .D = D, .window = window, .type = DTYPE_BF16);
            EXPECT_COST(5 * 2 * B * H * D * square, 4 * B * D * T * (4 * H + 4 * K), attention_backward,
                        .B = B, .T = T, .H = H, .K = K, .D = D, .window = window);
            // n_keys has the windows; each sequence reads all but one of its keys, and writes that.
            EXPECT_COST(2 * 2 * H * D * (T + S), 2 * D * (2 * K * (T - 1 + S - 1) + B * (2 * H + 4 * K)),
                        attention_decode, .n_keys = T + S, .B = B, .H = H, .K = K, .D = D, .window = window,
                        .type = DTYPE_BF16);
        }
}

static void test_memory_bound_operations(void **state) {
    (void)state;
    const struct optimizer_state both = {.master = P, .m = P, .v = P}, one = {.master = P, .m = P};
    EXPECT_COST(0, 2 * 60 * 2, layernorm_forward, .N = 6, .C = 10, .type = DTYPE_BF16);
    EXPECT_COST(0, 4 * 60 * 4, layernorm_backward, .dresidual = P, .N = 6, .C = 10);
    EXPECT_COST(0, 3 * 60 * 4, layernorm_backward, .N = 6, .C = 10);
    EXPECT_COST(0, 5 * 60 * 2, layernorm_backward, .dresidual = P, .out = P, .N = 6, .C = 10,
                .type = DTYPE_BF16);
    const struct add_span spans[] = {{.n = 60}, {.n = 5}};
    EXPECT_COST(0, 3 * 65 * 4, add_spans, .spans = spans, .n_spans = 2);
    EXPECT_COST(0, 30 * (4 + 2), cross_entropy, .dlogits = P, .N = 3, .V = 10, .type = DTYPE_BF16);
    EXPECT_COST(0, 30 * 4, cross_entropy, .N = 3, .V = 10, .type = DTYPE_BF16);
    EXPECT_COST(0, 30 * (2 + 2), cross_entropy, .dlogits = P, .N = 3, .V = 10, .type = DTYPE_BF16,
                .logits_type = DTYPE_BF16);
    EXPECT_COST(0, 100 * 28, optimizer_step, .state = both, .n = 100);
    EXPECT_COST(0, 100 * 30, optimizer_step, .state = both, .param = P, .n = 100, .type = DTYPE_BF16);
    EXPECT_COST(0, 100 * 12, optimizer_step, .state = {.master = P}, .n = 100);
    EXPECT_COST(0, 100 * 16, optimizer_step, .state = one, .n = 100, .state_type = DTYPE_BF16);
    EXPECT_COST(0, 128 * 12 + 4 * (128 + 4), optimizer_step, .state = both, .n = 128, .state_type = DTYPE_I8);
    EXPECT_COST(0, 100 * 6, cast, .n = 100, .type = DTYPE_F32, .out_type = DTYPE_BF16);
    EXPECT_COST(0, 100 * 10, lerp, .n = 100, .type = DTYPE_F32, .out_type = DTYPE_BF16);
    EXPECT_COST(0, 100 * 10, add, .n = 100, .type = DTYPE_BF16);
}

static void test_the_slower_limit_decides(void **state) {
    (void)state;
    const struct device_peak limits = {.flops_per_s = 100, .bytes_per_s = 10};
    enum cost_limit which;
    assert_true(cost_least_seconds(&(struct operation_cost){200, 10}, &limits, &which) == 2);
    assert_int_equal(which, COST_LIMIT_GEMM);
    assert_true(cost_least_seconds(&(struct operation_cost){200, 30}, &limits, &which) == 3);
    assert_int_equal(which, COST_LIMIT_BANDWIDTH);
    assert_true(cost_least_seconds(&(struct operation_cost){0, 0}, &limits, &which) == 0);
    assert_int_equal(which, COST_LIMIT_NONE);
}

// Checks plausibility only: cache bandwidth would be several times higher.
static void test_bandwidth_is_measured(void **state) {
    (void)state;
    struct device *device;
    double bytes_per_s = 0;
    EXPECT_OK(cpu_device_open(NULL, 0, &device));
    EXPECT_OK(device_measure_bandwidth(device, &bytes_per_s));
    assert_true(bytes_per_s > 0);
    print_message("memory: %.1f GB/s, with caches of %zu bytes\n", bytes_per_s / 1e9,
                  processors_cache_bytes());
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_layers),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_of_groups_and_windows),
        cmocka_unit_test(test_memory_bound_operations),
        cmocka_unit_test(test_the_slower_limit_decides),
        cmocka_unit_test(test_bandwidth_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
