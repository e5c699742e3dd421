// Values written for other programs: every type's rounding against its definition, transposed matrices of any
// size, and values that do not fit.
#include "tests/support/expect.h"

#include <math.h>

#include "base/dtype.h"
#include "base/rng.h"
#include "model/param_values.h"
#include "tests/support/temporary.h"

static struct temporary temporary;
static char path[300];
static struct params params;
static float *values; // of the parameter that a test writes

static enum status give_values(void *context, int param, size_t first, size_t n, float *out) {
    (void)context;
    assert_true(first + n <= params.params[param].elements);
    memcpy(out, values + first, n * sizeof *out);
    return STATUS_OK;
}

static const struct param_source source = {&params, "the source", NULL, give_values};

// Writes a parameter, and returns the file's bytes.
static uint8_t *written(int param, bool transposed, enum value_type type) {
    struct file_writer writer;
    char *bytes;
    size_t n;
    EXPECT_OK(file_writer_open(&writer, path));
    EXPECT_OK(param_values_write(&source, param, transposed, type, &writer));
    EXPECT_OK(file_commit(&writer));
    EXPECT_OK(file_read(path, SIZE_MAX / 2, &bytes, &n));
    assert_int_equal(n, value_bytes(type, params.params[param].elements));
    return (uint8_t *)bytes;
}

static void fill(size_t n, double scale) {
    values = malloc(n * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)(scale * rng_normal(1, 2, i));
}

static void test_small_types(void **state) {
    (void)state;
    const size_t n = params.params[PARAM_WTE].elements;
    fill(n, 0.02);
    uint8_t *f32 = written(PARAM_WTE, false, VALUE_F32), *bf16 = written(PARAM_WTE, false, VALUE_BF16),
            *f16 = written(PARAM_WTE, false, VALUE_F16);
    assert_memory_equal(f32, values, n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(((uint16_t *)(void *)bf16)[i], bf16_from_float(values[i]));
        assert_int_equal(((uint16_t *)(void *)f16)[i], f16_from_float(values[i]));
    }
    free(f32), free(bf16), free(f16), free(values);
}

// Each value is within half a step of the block's scale, and the largest has the code 127.
static void test_blocks(void **state) {
    (void)state;
    const size_t n = params.params[PARAM_WTE].elements;
    fill(n, 0.02);
    memset(values, 0, VALUE_BLOCK * sizeof *values); // a block of zeros
    values[VALUE_BLOCK] = 1e-44f;                    // and one whose scale has no inverse
    for (size_t i = VALUE_BLOCK + 1; i < 2 * (size_t)VALUE_BLOCK; i++)
        values[i] = 0;
    uint8_t *blocks = written(PARAM_WTE, false, VALUE_Q8_0);
    for (size_t block = 0; block < n / VALUE_BLOCK; block++) {
        const uint8_t *at = blocks + block * (VALUE_BLOCK + sizeof(uint16_t));
        uint16_t stored;
        int largest = 0;
        memcpy(&stored, at, sizeof stored);
        const float scale = f16_to_float(stored);
        for (size_t i = 0; i < VALUE_BLOCK; i++) {
            const int code = (int8_t)at[sizeof stored + i];
            const float value = values[block * VALUE_BLOCK + i];
            // Rounding to a code, and the scale's own rounding to fp16 over 127 steps.
            const float bound = 0.5f * scale + 127 * scale * 0x1p-11f + 0x1p-24f;
            assert_true(fabsf((float)code * scale - value) <= bound);
            largest = abs(code) > largest ? abs(code) : largest;
        }
        assert_int_equal(largest, block < 2 ? 0 : 127);
    }
    free(blocks), free(values);
}

static void test_transposed(void **state) {
    (void)state;
    // Of these sizes a chunk of the writer has several rows, but not all.
    const int param = params_find(&params, "h.0.mlp.c_fc.weight");
    const size_t rows = (size_t)params.params[param].shape[0],
                 columns = (size_t)params.params[param].shape[1];
    assert_true(rows * columns > (size_t)1 << 20);
    fill(rows * columns, 1);
    uint8_t *bytes = written(param, true, VALUE_F32);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            if (((float *)(void *)bytes)[c * rows + r] != values[r * columns + c])
                fail_msg("row %zu, column %zu", r, c);
    free(bytes), free(values);
}

static void expect_refused(enum value_type type, float value, const char *says) {
    struct file_writer writer;
    const float before = values[7];
    values[7] = value;
    EXPECT_OK(file_writer_open(&writer, path));
    enum status status = param_values_write(&source, PARAM_WTE, false, type, &writer);
    file_discard(&writer);
    values[7] = before;
    if (!says) {
        EXPECT_OK(status);
        return;
    }
    assert_int_equal(status, STATUS_INVALID);
    assert_non_null(strstr(status_message(), "the source: \"wte.weight\""));
    assert_non_null(strstr(status_message(), says));
    status_clear();
}

static void test_values_that_do_not_fit(void **state) {
    (void)state;
    fill(params.params[PARAM_WTE].elements, 0.02);
    expect_refused(VALUE_F16, 65519, NULL); // rounds to the largest, 65504
    expect_refused(VALUE_F16, -65520, "too large for fp16");
    expect_refused(VALUE_BF16, 3.3e38f, NULL);
    expect_refused(VALUE_BF16, 3.4e38f, "too large for bf16");
    expect_refused(VALUE_Q8_0, 8e6f, NULL);
    expect_refused(VALUE_Q8_0, 9e6f, "too large for q8_0");
    for (int type = 0; type < N_VALUE_TYPES; type++) {
        expect_refused((enum value_type)type, NAN, "not finite");
        expect_refused((enum value_type)type, -INFINITY, "not finite");
    }
    free(values);
}

static int set_up(void **state) {
    (void)state;
    static const struct gpt_config sizes = {
        .n_layer = 1, .n_head = 1, .n_embd = 544, .vocab_size = 70, .n_positions = 2};
    if (!temporary_init(&temporary) || params_init(&params, &sizes) != STATUS_OK)
        return -1;
    temporary_path(&temporary, "values", path, sizeof path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    params_free(&params);
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_types),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_transposed),
        cmocka_unit_test(test_values_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
