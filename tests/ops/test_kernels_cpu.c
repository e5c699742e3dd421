// Every operation of the CPU backend, with each instruction set of this processor, against the reference; and
// the reference's own fp32, bf16 and fp16 against its double. The checks are in op_check_*.c.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"
#include "tests/ops/op_case.h"
#include "tests/ops/op_check_optimizer.h"
#include "tests/support/expect.h"

// sum_squares must not depend on the number of threads (kernels/ops.h), because ranks compare its bits.
static void test_sum_squares_and_threads(void **state) {
    (void)state;
    enum { N = 5 * SUM_SQUARES_BLOCK + 4321, N_PARTIALS = 6 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < N; i++)
        x[i] = (float)rng_normal(1, 1, (uint64_t)i);
    double partial[2][N_PARTIALS];
    for (int k = 0; k < 2; k++) {
        struct device *device = op_device_or_skip("portable", 1 + 2 * k);
        struct stream stream = {.device = device};
        struct sum_squares_args args = {.partial = partial[k], .x = x, .n = N, .type = DTYPE_F32};
        assert_int_equal(device->ops->sum_squares(&stream, &args), STATUS_OK);
        device_close(device);
    }
    assert_memory_equal(partial[0], partial[1], sizeof partial[0]);
    free(x);
}

// Fills too large for the caches use non-temporal stores: they must write all of the span and nothing beside
// it, at any alignment.
static void check_long_fill(struct device *device) {
    enum { N = (6 << 20) + 5, BEFORE = 32, AFTER = 32, WHOLE = BEFORE + N + AFTER };
    struct stream stream = {.device = device};
    float *x = aligned_alloc(64, (WHOLE * sizeof *x + 63) / 64 * 64);
    assert_non_null(x);
    for (int shift = 0; shift < 2; shift++) {
        memset(x, 0x7f, WHOLE * sizeof *x);
        float beside = x[0];
        struct fill_args args = {.out = x + BEFORE - shift, .n = N, .value = 1.5f, .type = DTYPE_F32};
        assert_int_equal(device->ops->fill(&stream, &args), STATUS_OK);
        int wrong = 0;
        for (int i = 0; i < WHOLE; i++)
            wrong += x[i] != (i >= BEFORE - shift && i < BEFORE - shift + N ? 1.5f : beside);
        assert_int_equal(wrong, 0);
    }
    free(x);
}

static const char *const instruction_sets[] = {"portable", "avx2", "avx512"};

// ---- attention's bits do not depend on the number of threads, however they divide the heads

enum { AB = 2, AT = 200, AH = 6, AD = 12, AC = AH * AD, AROWS = AB * AT };
#define OP_BYTES (AROWS * AC * sizeof(float))

struct attention_results {
    char out[OP_BYTES], dq[OP_BYTES], dk[OP_BYTES], dv[OP_BYTES], decoded[OP_BYTES / AT];
    float lse[AROWS * AH];
};

static void run_attention(struct device *device, enum operation operation, void *args) {
    struct stream stream = {.device = device};
    EXPECT_OK(device->ops->workspace_bytes(device, operation, args, &stream.workspace_bytes));
    EXPECT_OK(device->memory_new(device, stream.workspace_bytes, "tests", &stream.workspace));
    EXPECT_OK(operation == OP_attention_forward    ? device->ops->attention_forward(&stream, args)
              : operation == OP_attention_backward ? device->ops->attention_backward(&stream, args)
                                                   : device->ops->attention_decode(&stream, args));
    device->memory_delete(device, stream.workspace, stream.workspace_bytes);
}

// q, k, v and the output's gradient: (AROWS, AC) each, of which K heads are read. Decoding overwrites the
// last keys and values of each sequence.
static void attend(struct device *device, enum dtype type, int K, int window, char *const qkvd[4],
                   struct attention_results *results) {
    static const int32_t sequences[AB] = {0, 1}, lengths[AB] = {AT - 1, AT - 1};
    const size_t last = (AT - 1) * AC * dtype_size(type);
#define ATTENDED                                                                                             \
    .q = qkvd[0], .k = qkvd[1], .v = qkvd[2], .q_stride = AC, .k_stride = AC, .v_stride = AC,                \
    .q_batch_stride = AT * AC, .k_batch_stride = AT * AC, .v_batch_stride = AT * AC, .B = AB, .T = AT,       \
    .H = AH, .D = AD, .K = K, .window = window, .type = type
    struct attention_forward_args forward = {.out = results->out, .lse = results->lse, .S = AT, ATTENDED};
    struct attention_backward_args backward = {.dq = results->dq,
                                               .dk = results->dk,
                                               .dv = results->dv,
                                               .dout = qkvd[3],
                                               .out = results->out,
                                               .lse = results->lse,
                                               ATTENDED};
#undef ATTENDED
    struct attention_decode_args decode = {.out = results->decoded,
                                           .keys = qkvd[1],
                                           .values = qkvd[2],
                                           .q = qkvd[0] + last,
                                           .k = qkvd[3] + last,
                                           .v = qkvd[3] + last,
                                           .sequences = sequences,
                                           .lengths = lengths,
                                           .q_stride = AT * AC,
                                           .k_stride = AT * AC,
                                           .v_stride = AT * AC,
                                           .cache_stride = AC,
                                           .cache_batch_stride = AT * AC,
                                           .n_keys = AB * (size_t)(window ? window : AT),
                                           .B = AB,
                                           .H = AH,
                                           .D = AD,
                                           .K = K,
                                           .window = window,
                                           .type = type};
    run_attention(device, OP_attention_decode, &decode);
    run_attention(device, OP_attention_forward, &forward);
    run_attention(device, OP_attention_backward, &backward);
}

static void check_attention_and_threads(const char *instruction_set, char *const qkvd[4], enum dtype type) {
    static struct attention_results results[2];
    static const int groups[] = {AH, 2, 1}, windows[] = {0, 50};
    for (int i = 0; i < 6; i++)
        for (int n_threads = 1; n_threads <= 5;
             n_threads += 2) { // 1: whole heads; 5: more than heads of K = 1
            struct attention_results *result = &results[n_threads > 1];
            struct device *device = op_device_or_skip(instruction_set, n_threads);
            memset(result, 0, sizeof *result);
            attend(device, type, groups[i % 3], windows[i / 3], qkvd, result);
            device_close(device);
            if (n_threads > 1)
                assert_memory_equal(&results[0], &results[1], sizeof results[0]);
        }
}

static void test_attention_and_threads(void **state) {
    (void)state;
    struct device *device = op_device_or_skip("portable", 1);
    struct stream stream = {.device = device};
    char *qkvd[4];
    float *x = malloc(OP_BYTES);
    assert_non_null(x);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++) {
        for (uint32_t k = 0; k < 4; k++) {
            for (size_t i = 0; i < OP_BYTES / sizeof *x; i++)
                x[i] = (float)rng_normal(81, k, i);
            qkvd[k] = malloc(OP_BYTES);
            assert_non_null(qkvd[k]);
            struct cast_args cast = {.out = qkvd[k],
                                     .x = x,
                                     .n = OP_BYTES / sizeof *x,
                                     .type = DTYPE_F32,
                                     .out_type = (enum dtype)type};
            EXPECT_OK(device->ops->cast(&stream, &cast));
        }
        check_attention_and_threads("portable", qkvd, (enum dtype)type);
        for (int k = 0; k < 4; k++)
            free(qkvd[k]);
    }
    free(x);
    device_close(device);
}

static void test_long_fills(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct device *device;
        if (cpu_device_open(instruction_sets[i], 2, &device) != STATUS_OK) {
            status_clear();
            continue;
        }
        check_long_fill(device);
        device_close(device);
    }
}

// Generation must give the same text for any batch size: in a skinny GEMM, the bits of a row do not depend on
// the other rows.
static void check_rows_are_independent(struct device *devices[2], enum dtype type, bool gelu) {
    enum { N = CPU_SKINNY_ROWS, IC = 75, OC = 300 };
    static float x[N * IC], weight[OC * IC], bias[OC], residual[N * OC], out[2][N * OC], workspace[N * IC];
    static float wide[OC * IC]; // the size of the largest
    struct stream streams[2];
    size_t size = dtype_size(type);
    for (int k = 0; k < 2; k++)
        streams[k] = (struct stream){
            .device = devices[k], .workspace = workspace, .workspace_bytes = sizeof workspace};
    const struct {
        float *data;
        size_t n;
    } inputs[] = {{x, N * IC}, {weight, OC * IC}, {bias, OC}, {residual, N * OC}};
    for (uint32_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < inputs[k].n; i++)
            wide[i] = (float)rng_normal(61, k, i);
        struct cast_args downcast = {
            .out = inputs[k].data, .x = wide, .n = inputs[k].n, .type = DTYPE_F32, .out_type = type};
        assert_int_equal(devices[0]->ops->cast(&streams[0], &downcast), STATUS_OK);
    }
    for (int n = N; n >= 1; n--) {
        struct linear_forward_args args = {.out = out[n < N],
                                           .x = x,
                                           .weight = weight,
                                           .bias = bias,
                                           .residual = gelu ? NULL : residual,
                                           .N = n,
                                           .IC = IC,
                                           .OC = OC,
                                           .out_stride = OC,
                                           .activation = gelu ? ACTIVATION_GELU : ACTIVATION_NONE,
                                           .type = type,
                                           .out_type = type};
        assert_int_equal(devices[n < N]->ops->linear_forward(&streams[n < N], &args), STATUS_OK);
        assert_memory_equal(out[0], args.out, (size_t)n * OC * size);
    }
}

static void test_skinny_gemm_rows_are_independent(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct device *devices[2];
        if (cpu_device_open(instruction_sets[i], 2, &devices[0]) != STATUS_OK) {
            status_clear();
            continue;
        }
        assert_int_equal(cpu_device_open(instruction_sets[i], 1, &devices[1]), STATUS_OK);
        for (int type = 0; type < N_COMPUTE_DTYPES; type++)
            for (int gelu = 0; gelu < 2; gelu++)
                check_rows_are_independent(devices, (enum dtype)type, gelu);
        device_close(devices[0]);
        device_close(devices[1]);
    }
}

// Every rule, on the best available instruction set.
static void test_long_spans(void **state) {
    (void)state;
    struct op_bench bench = {.reference = op_device_or_skip("ref", 1)};
    assert_int_equal(cpu_device_open(NULL, 0, &bench.device), STATUS_OK);
    for (int rule = 0; rule < N_OP_OPTIMIZERS; rule++)
        op_check_long_span(&bench, &op_optimizers[rule]);
    device_close(bench.device);
    device_close(bench.reference);
}

// A regression whose inputs differ in size by four orders of magnitude, in noisy batches. After 400 steps of
// AdamW the loss with bf16 or int8 moments is at most 1% above that with fp32. It may be lower: rounding
// noise shortens the steps of weights whose gradient is mostly noise.
enum { N_WEIGHTS = 1024, N_STEPS = 400, N_BATCH = 8 };

static double input(uint32_t row, int i) {
    return rng_normal(71, row, (uint64_t)i) * pow(10, -4.0 * (i % 64) / 64);
}

static double error_of(const float *weights, uint32_t row, double *inputs) {
    double error = 0;
    for (int i = 0; i < N_WEIGHTS; i++) {
        inputs[i] = input(row, i);
        error += inputs[i] * ((double)weights[i] - rng_normal(72, 1, (uint64_t)i));
    }
    return error + 0.1 * rng_normal(73, 1, row);
}

static double loss_after(struct device *device, enum dtype state_type) {
    struct stream stream = {.device = device};
    static float weights[N_WEIGHTS], grad[N_WEIGHTS], m[N_WEIGHTS], v[N_WEIGHTS], m_scales[8], v_scales[8];
    static double inputs[N_WEIGHTS];
    float *const arrays[] = {weights, m, v};
    for (int k = 0; k < 3; k++)
        memset(arrays[k], 0, sizeof weights);
    memset(m_scales, 0, sizeof m_scales), memset(v_scales, 0, sizeof v_scales);
    struct optimizer_step_args args = {.rule = OPTIMIZER_ADAMW,
                                       .grad = grad,
                                       .n = N_WEIGHTS,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .epsilon = 1e-8,
                                       .grad_scale = 1.0f / N_BATCH,
                                       .state_type = state_type};
    args.state = (struct optimizer_state){weights, m, v, m_scales, v_scales};
    double loss = 0;
    for (int step = 1; step <= N_STEPS; step++) {
        memset(grad, 0, sizeof grad);
        for (int b = 0; b < N_BATCH; b++) {
            double error = error_of(weights, (uint32_t)(step * N_BATCH + b), inputs);
            loss += step > N_STEPS - 50 ? error * error / (50 * N_BATCH) : 0;
            for (int i = 0; i < N_WEIGHTS; i++)
                grad[i] += (float)(error * inputs[i]);
        }
        args.step = step;
        args.lr = 0.02 * (1 - 0.9 * step / N_STEPS);
        assert_int_equal(device->ops->optimizer_step(&stream, &args), STATUS_OK);
    }
    return loss;
}

static void test_small_moments_converge(void **state) {
    (void)state;
    struct device *device = op_device_or_skip("portable", 1);
    double fp32 = loss_after(device, DTYPE_F32), bf16 = loss_after(device, DTYPE_BF16);
    double int8 = loss_after(device, DTYPE_I8);
    device_close(device);
    print_message("loss %.5g with fp32 moments, %.5g with bf16, %.5g with int8\n", fp32, bf16, int8);
    assert_true(fp32 < 10); // starts at 55
    assert_true(bf16 < 1.01 * fp32 && int8 < 1.01 * fp32);
}

#define CASE_REF(name)      OP_CASE("ref", 1, name)
#define CASE_PORTABLE(name) OP_CASE("portable", 1, name)
#define CASE_AVX2(name)     OP_CASE("avx2", 3, name)
#define CASE_AVX512(name)   OP_CASE("avx512", 2, name)
#define CASE_BF16(name)     OP_CASE("avx512_bf16", 2, name)
#define CASE_AMX(name)      OP_CASE("amx", 2, name)

// Generated from the list of operations, so that none can lack a check.
static const struct CMUnitTest tests[] = {
    OPERATIONS(CASE_REF) OPERATIONS(CASE_PORTABLE) OPERATIONS(CASE_AVX2) OPERATIONS(CASE_AVX512)
        OPERATIONS(CASE_BF16) OPERATIONS(CASE_AMX) cmocka_unit_test(test_sum_squares_and_threads),
    cmocka_unit_test(test_attention_and_threads),
    cmocka_unit_test(test_skinny_gemm_rows_are_independent),
    cmocka_unit_test(test_long_fills),
    cmocka_unit_test(test_long_spans),
    cmocka_unit_test(test_small_moments_converge)};

// The reference's own tests take as long as those of two other devices, whose tests run the reference, too,
// in double.
int main(void) {
    if (op_leaves_repeats())
        cmocka_set_skip_filter("ref: *");
    return cmocka_run_group_tests_name("operations", tests, NULL, NULL);
}
