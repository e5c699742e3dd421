// Weighted sums and dropout: the reference's gradients against finite differences; the distribution of the
// mask; and that masks and sums depend on nothing but what their contract names.
#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/dropout.h"
#include "tests/ops/ref_gradients.h"

// ---- finite differences

enum { MN = 37 };

struct mix_case {
    double *x, *y, *weights, *out, *dout;
};

static double mix_loss(void *context) {
    struct mix_case *c = context;
    RUN(mix_forward, .out = c->out, .x = c->x, .y = c->y, .x_weight = c->weights, .y_weight = c->weights + 1,
        .n = MN, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, MN);
}

static void test_mix(void **state) {
    (void)state;
    struct mix_case c = {tensor(171, MN), tensor(172, MN), tensor(173, 2), zeros(MN), tensor(174, MN)};
    double *dx = zeros(MN), *dy = zeros(MN), dweights[2] = {NAN, NAN};
    for (int i = 0; i < MN; i++)
        dy[i] = NAN;
    RUN(mix_backward, .dx = dx, .dy = dy, .dx_weight = &dweights[0], .dy_weight = &dweights[1],
        .dout = c.dout, .x = c.x, .y = c.y, .x_weight = c.weights, .y_weight = c.weights + 1, .n = MN,
        .dy_zero = true, .beta_zero = true, .type = DTYPE_F64);
    expect_gradient("dx", c.x, dx, MN, mix_loss, &c);
    expect_gradient("dy", c.y, dy, MN, mix_loss, &c);
    expect_gradient("dx_weight, dy_weight", c.weights, dweights, 2, mix_loss, &c);

    // In place, and added to what is there.
    double *both = tensor(174, MN), *twice = zeros(MN), sums[2] = {dweights[0], dweights[1]};
    memcpy(twice, dy, MN * sizeof *twice);
    RUN(mix_backward, .dx = both, .dy = twice, .dx_weight = &sums[0], .dy_weight = &sums[1], .dout = both,
        .x = c.x, .y = c.y, .x_weight = c.weights, .y_weight = c.weights + 1, .n = MN, .type = DTYPE_F64);
    assert_memory_equal(both, dx, MN * sizeof *both);
    for (int i = 0; i < MN; i++)
        assert_true(twice[i] == 2 * dy[i]);
    assert_true(fabs(sums[0] - 2 * dweights[0]) < 1e-12 && fabs(sums[1] - 2 * dweights[1]) < 1e-12);
    free(c.x), free(c.y), free(c.weights), free(c.out), free(c.dout), free(dx), free(dy), free(both);
    free(twice);
}

enum { DN = 5, DC = 9 };

struct dropout_case {
    double *x, *residual, *out, *dout;
};

#define MASK                                                                                                 \
    .sequences = (const uint64_t[]){8, 1}, .N = DN, .C = DC, .rows_per_sequence = 3, .key = 77, .p = 0.4f

static double dropout_loss(void *context) {
    struct dropout_case *c = context;
    RUN(dropout_forward, .out = c->out, .x = c->x, .residual = c->residual, MASK, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, DN * DC);
}

static void test_dropout(void **state) {
    (void)state;
    struct dropout_case c = {tensor(181, DN * DC), tensor(182, DN * DC), zeros(DN * DC),
                             tensor(183, DN * DC)};
    double *dx = zeros(DN * DC);
    RUN(dropout_backward, .dx = dx, .dout = c.dout, MASK, .type = DTYPE_F64);
    expect_gradient("dx", c.x, dx, DN * DC, dropout_loss, &c);
    expect_gradient("dresidual", c.residual, c.dout, DN * DC, dropout_loss, &c);
    int n_kept = 0;
    for (int i = 0; i < DN * DC; i++)
        n_kept += dx[i] != 0;
    assert_true(n_kept > 0 && n_kept < DN * DC);
    free(c.x), free(c.residual), free(c.out), free(c.dout), free(dx);
}

static void test_every_gradient_is_checked(void **state) {
    (void)state;
    expect_all_checked(GRADIENTS_OF_MIXING);
}

// ---- the mask's distribution

// `n` independent trials that succeed with probability q do so within five standard deviations of n q times.
static void expect_binomial(const char *what, double successes, double n, double q) {
    const double bound = 5 * sqrt(n * q * (1 - q));
    if (fabs(successes - n * q) > bound)
        fail_msg("%s: %g of %g, expected %g +- %g", what, successes, n, n * q, bound);
}

static bool keeps(uint64_t key, uint64_t sequence, uint32_t position, uint32_t column, uint32_t threshold) {
    return dropout_keeps(dropout_row(key, sequence, position), column, threshold);
}

// Elements are kept with probability 1 - p, and independently of their neighbours: in the row, in the next
// position, in the next sequence, and under the next key.
static void test_distribution(void **state) {
    (void)state;
    static const char *const names[] = {"kept", "column", "position", "sequence", "key"};
    static const float ps[] = {0.1f, 0.5f, 0.9f};
    enum { ROWS = 200, COLUMNS = 768 };
    for (size_t i = 0; i < sizeof ps / sizeof *ps; i++) {
        const uint32_t threshold = dropout_threshold(ps[i]);
        double n_kept[5] = {0};
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t column = 0; column < COLUMNS; column++) {
                const uint64_t key = 1337, sequence = row / 16;
                const uint32_t position = row % 16;
                if (!keeps(key, sequence, position, column, threshold))
                    continue;
                n_kept[0]++;
                n_kept[1] += keeps(key, sequence, position, column + 1, threshold);
                n_kept[2] += keeps(key, sequence, position + 1, column, threshold);
                n_kept[3] += keeps(key, sequence + 1, position, column, threshold);
                n_kept[4] += keeps(key + 1, sequence, position, column, threshold);
            }
        const double q = 1 - (double)ps[i];
        expect_binomial(names[0], n_kept[0], ROWS * COLUMNS, q);
        for (int k = 1; k < 5; k++)
            expect_binomial(names[k], n_kept[k], ROWS * COLUMNS, q * q);
    }
    assert_int_equal(dropout_threshold(0), 0);
}

// ---- on the CPU: masks and sums do not depend on threads, batch and instruction set

enum { T = 6, SEQUENCES = 5, ROWS = T * SEQUENCES, C = 700, N_INSTRUCTION_SETS = 5 };
static const char *const instruction_sets[N_INSTRUCTION_SETS] = {"portable", "avx2", "avx512", "avx512_bf16",
                                                                 "amx"};
static const uint64_t sequences[SEQUENCES] = {3, 0, 9999999999, 17, 4};

// NULL: this machine lacks it.
static struct device *open_cpu(int instruction_set, int n_threads) {
    struct device *cpu = NULL;
    if (cpu_device_open(instruction_sets[instruction_set], n_threads, &cpu) != STATUS_OK)
        status_clear();
    return cpu;
}

// The rows of sequences [first, first + n) of x.
static void drop(struct device *cpu, enum dtype type, char *out, const char *x, int first, int n) {
    struct stream on_cpu = {.device = cpu};
    const size_t offset = (size_t)first * T * C * dtype_size(type);
    struct dropout_forward_args args = {.out = out + offset,
                                        .x = x + offset,
                                        .sequences = sequences + first,
                                        .N = n * T,
                                        .C = C,
                                        .rows_per_sequence = T,
                                        .key = 5,
                                        .p = 0.3f,
                                        .type = type};
    EXPECT_OK(cpu->ops->dropout_forward(&on_cpu, &args));
}

static bool is_zero(const char *x, size_t i, enum dtype type) {
    static const char zero[sizeof(float)];
    return memcmp(x + i * dtype_size(type), zero, dtype_size(type)) == 0;
}

static void check_masks(int instruction_set, enum dtype type) {
    static char ones[ROWS * C * sizeof(float)], whole[sizeof ones], apart[sizeof ones];
    struct device *one = open_cpu(instruction_set, 1), *three = open_cpu(instruction_set, 3);
    if (!one)
        return;
    struct stream on_cpu = {.device = one};
    EXPECT_OK(one->ops->fill(&on_cpu, &(struct fill_args){ones, ROWS * C, 1.0f, type}));
    drop(one, type, whole, ones, 0, SEQUENCES);
    for (int first = SEQUENCES - 1; first >= 0; first -= 2) // of two, two and one sequence
        drop(three, type, apart, ones, first > 0 ? first - 1 : 0, first > 0 ? 2 : 1);
    assert_memory_equal(whole, apart, ROWS * C * dtype_size(type));
    for (uint32_t i = 0; i < ROWS * C; i++) {
        const bool kept = keeps(5, sequences[i / C / T], i / C % T, i % C, dropout_threshold(0.3f));
        assert_int_equal(kept, !is_zero(whole, i, type));
    }
    device_close(one), device_close(three);
}

static void test_masks(void **state) {
    (void)state;
    for (int i = 0; i < N_INSTRUCTION_SETS; i++)
        for (int type = 0; type < N_COMPUTE_DTYPES; type++)
            check_masks(i, (enum dtype)type);
}

static void test_sums_and_threads(void **state) {
    (void)state;
    enum { N = 9 * MIX_BLOCK + 123 };
    static float x[N], y[N], dout[N], dx[N], dy[N], workspace[64];
    for (uint32_t i = 0; i < N; i++) {
        x[i] = (float)rng_normal(191, 0, i);
        y[i] = (float)rng_normal(191, 1, i);
        dout[i] = (float)rng_normal(191, 2, i);
    }
    for (int i = 0; i < N_INSTRUCTION_SETS; i++) {
        float sums[2][2];
        for (int k = 0; k < 2; k++) {
            struct device *cpu = open_cpu(i, 1 + 3 * k);
            if (!cpu)
                return;
            struct stream on_cpu = {
                .device = cpu, .workspace = workspace, .workspace_bytes = sizeof workspace};
            const float weights[] = {0.5f, 0.25f};
            struct mix_backward_args args = {.dx = dx,
                                             .dy = dy,
                                             .dx_weight = &sums[k][0],
                                             .dy_weight = &sums[k][1],
                                             .dout = dout,
                                             .x = x,
                                             .y = y,
                                             .x_weight = &weights[0],
                                             .y_weight = &weights[1],
                                             .n = N,
                                             .dy_zero = true,
                                             .beta_zero = true,
                                             .type = DTYPE_F32};
            EXPECT_OK(cpu->ops->mix_backward(&on_cpu, &args));
            device_close(cpu);
        }
        assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mix),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_every_gradient_is_checked),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_sums_and_threads),
    };
    return cmocka_run_group_tests_name("mixing and dropout", tests, open_device, close_device);
}
