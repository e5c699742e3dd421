// kernels/moments.h: the values of codes; rounding to nearest inverts decoding; stochastic rounding keeps the
// mean; and neither produces a moment that would break an update.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/moments.h"

// Scales from the smallest to the largest number, with ordinary ones between.
static const float scales[] = {
    MOMENT_LEAST_SCALE, 0x1.fffffep-110f, 1.7e-30f, 0x1.234566p-20f, 0.999999f, 1, 0x1.fffffep0f, 3e5f,
    0x1p126f,           0x1.fffffep127f};
#define N_SCALES (sizeof scales / sizeof *scales)

static int n_codes(enum moment moment) {
    return moment == FIRST_MOMENT ? 128 : 256;
}

static void test_codes_are_upper_bits_of_floats(void **state) {
    (void)state;
    static const double ends[2][2] = {{1.25 * 0x1p-16, 1}, {1.25 * 0x1p-32, 1}}; // codes 1 and the largest
    for (enum moment moment = FIRST_MOMENT; moment <= SECOND_MOMENT; moment++) {
        int n = n_codes(moment);
        assert_true(moment_decode(0, moment, 1) == (moment == FIRST_MOMENT ? 0 : 1.125f * 0x1p-32f));
        assert_true(moment_decode(0, moment, 0) == 0);
        assert_true((double)moment_decode(1, moment, 1) == ends[moment][0]);
        assert_true((double)moment_decode((uint8_t)(n - 1), moment, 1) == ends[moment][1]);
        for (int code = 2; code < n; code++) {
            float below = moment_decode((uint8_t)(code - 1), moment, 1);
            float here = moment_decode((uint8_t)code, moment, 1);
            // Eight per octave: 1/16 to 1/8 apart.
            assert_true(here >= below * 1.0625f && here <= below * 1.125f);
        }
    }
    for (int code = 0; code < 128; code++)
        assert_true(moment_decode((uint8_t)(code | 0x80), FIRST_MOMENT, 3) ==
                    -moment_decode((uint8_t)code, FIRST_MOMENT, 3));
}

// Decodes and encodes blocks that contain the top code, as after a step, and all other codes.
static void expect_codes_round_trip(enum moment moment, float scale) {
    uint8_t codes[3 * MOMENT_BLOCK - 5], again[sizeof codes];
    float values[sizeof codes], block_scales[3] = {scale, scale, scale}, scales_again[3];
    size_t n = sizeof codes;
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(i % MOMENT_BLOCK == 0 ? (size_t)n_codes(moment) - 1 : i);
    moments_load(DTYPE_I8, moment, codes, block_scales, n, values);
    moments_store(DTYPE_I8, moment, values, n, again, scales_again);
    for (size_t i = 0; i < n; i++)
        if (again[i] != codes[i])
            fail_msg("moment %d, scale %a: code %d is read as %a and becomes %d", moment, (double)scale,
                     codes[i], (double)values[i], again[i]);
    assert_memory_equal(scales_again, block_scales, sizeof block_scales);
}

static void test_rounding_to_nearest_inverts_decoding(void **state) {
    (void)state;
    for (enum moment moment = FIRST_MOMENT; moment <= SECOND_MOMENT; moment++) {
        for (size_t k = 0; k < N_SCALES; k++)
            expect_codes_round_trip(moment, scales[k]);
        for (uint64_t k = 0; k < 20000; k++) { // any scale
            uint32_t words[4];
            rng_block(61, (uint32_t)moment, k, words);
            float scale = moment_float(words[0] & 0x7fffffffu);
            if (scale >= MOMENT_LEAST_SCALE && isfinite(scale))
                expect_codes_round_trip(moment, scale);
        }
    }
    for (uint32_t bits = 0; bits < 65536; bits++) { // all of bf16 but the bits of NaN
        uint16_t half = (uint16_t)bits, again;
        float value;
        moments_load(DTYPE_BF16, FIRST_MOMENT, &half, NULL, 1, &value);
        moments_store(DTYPE_BF16, FIRST_MOMENT, &value, 1, &again, NULL);
        assert_true(again == half || isnan(value));
    }
}

// A block whose scale was raised to the minimum decodes to the same values, without a top code.
static void test_tiny_blocks(void **state) {
    (void)state;
    const float values[3] = {0x1p-140f, 0, 0x1p-149f};
    for (enum moment moment = FIRST_MOMENT; moment <= SECOND_MOMENT; moment++) {
        uint8_t codes[3], again[3];
        float scale, read[3];
        moments_store(DTYPE_I8, moment, values, 3, codes, &scale);
        assert_true(scale == MOMENT_LEAST_SCALE);
        moments_load(DTYPE_I8, moment, codes, &scale, 3, read);
        assert_true(moment == FIRST_MOMENT ? read[1] == 0 : read[0] == values[0] && read[2] > 0);
        moments_store(DTYPE_I8, moment, read, 3, again, &scale);
        assert_memory_equal(again, codes, sizeof codes);
    }
    const float zeros[2] = {0, 0};
    uint8_t codes[2] = {7, 7};
    float scale = 1;
    moments_store(DTYPE_I8, SECOND_MOMENT, zeros, 2, codes, &scale);
    assert_true(scale == 0 && codes[0] == 0 && codes[1] == 0);
}

static void test_nonfinite_moments(void **state) {
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    for (int k = 0; k < 3; k++) {
        float values[2 * MOMENT_BLOCK], read[2 * MOMENT_BLOCK], block_scales[2];
        uint8_t codes[2 * MOMENT_BLOCK];
        for (int i = 0; i < 2 * MOMENT_BLOCK; i++)
            values[i] = i == 5 ? odd[k] : 0.5f;
        moments_store(DTYPE_I8, FIRST_MOMENT, values, 2 * MOMENT_BLOCK, codes, block_scales);
        moments_load(DTYPE_I8, FIRST_MOMENT, codes, block_scales, 2 * MOMENT_BLOCK, read);
        for (int i = 0; i < 2 * MOMENT_BLOCK; i++)
            assert_true(i < MOMENT_BLOCK ? isnan(read[i]) : read[i] == 0.5f);
        uint16_t half = moment_to_bf16(odd[k], FIRST_MOMENT, 0xffffffffu);
        assert_int_equal(half, k == 0 ? 0x7f80 : k == 1 ? 0xff80 : 0x7fc0);
    }
}

// With any noise, a normal number that equals the value of a code, or differs only by roundings, gets that
// code; the largest number of a block gets the top code.
static void test_any_noise_keeps_the_value_of_a_code(void **state) {
    (void)state;
    static const uint32_t noises[] = {8, (1u << MOMENT_CODE_SHIFT) - 8, 0x12348, MOMENT_NEAREST};
    for (enum moment moment = FIRST_MOMENT; moment <= SECOND_MOMENT; moment++)
        for (uint64_t k = 0; k < 20000; k++) {
            float scale =
                k < N_SCALES ? scales[k] : (float)exp(60 * (2 * rng_uniform(62, (uint32_t)moment, k) - 1));
            float inverse = moment_inverse(scale);
            int code = k % 2 ? n_codes(moment) - 1 : 1 + (int)(k / 2) % (n_codes(moment) - 1);
            float value = moment_decode((uint8_t)code, moment, scale);
            for (size_t j = 0; j < 4; j++)
                assert_int_equal(moment_encode(value, moment, inverse, noises[j]), code);
        }
}

static void test_below_the_first_code(void **state) {
    (void)state;
    float first = moment_decode(1, FIRST_MOMENT, 1);
    for (uint32_t j = 0; j < 2; j++) {
        uint32_t noise = j ? (1u << MOMENT_CODE_SHIFT) - 8 : 8; // the largest and the smallest noise
        assert_int_equal(moment_encode(first * 0.899f, FIRST_MOMENT, 1, noise), 0);
        assert_int_equal(moment_encode(-first, FIRST_MOMENT, 1, noise), 0x81);
        assert_int_equal(moment_encode(0, FIRST_MOMENT, 1, noise), 0);
        assert_int_equal(moment_encode(0, SECOND_MOMENT, 1, noise), 0);
        assert_int_equal(moment_encode(0x1p-149f, SECOND_MOMENT, 1, noise), 0);
        assert_int_equal(moment_encode(1e-30f, SECOND_MOMENT, moment_inverse(0x1.fffffep127f), noise), 0);
    }
}

// The mean over many elements and steps equals the value.
static void mean_is_kept(enum dtype type, enum moment moment, float value) {
    enum { N = 1 << 16, STEPS = 4 };
    static float values[N], read[N], block_scales[N / MOMENT_BLOCK];
    static uint16_t kept[N];
    double sum = 0, squares = 0;
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < N; i++)
            values[i] = i % MOMENT_BLOCK == 0 ? 1 : value;
        moments_store_step(type, moment, values, N, moment_noise_key(step), (uint64_t)step << 33, kept,
                           block_scales);
        moments_load(type, moment, kept, block_scales, N, read);
        for (int i = 0; i < N; i++) {
            double off = (double)read[i] - (double)values[i];
            sum += off;
            squares += off * off;
        }
    }
    if (fabs(sum) > 5 * sqrt(squares) + 1e-5 * (double)fabsf(value) * N * STEPS)
        fail_msg("%s, moment %d: %a is off by %.3g on average, with deviations of %.3g", dtype_name(type),
                 moment, (double)value, sum / (N * STEPS), sqrt(squares / (N * STEPS)));
}

static void test_stochastic_rounding_keeps_the_mean(void **state) {
    (void)state;
    for (int k = 0; k < 40; k++) {
        float value = (float)exp(-10 * rng_uniform(63, 1, (uint64_t)k));
        mean_is_kept(DTYPE_BF16, FIRST_MOMENT, -value);
        mean_is_kept(DTYPE_BF16, SECOND_MOMENT, value);
        mean_is_kept(DTYPE_I8, FIRST_MOMENT, k % 2 ? value : -value);
        mean_is_kept(DTYPE_I8, SECOND_MOMENT, value * value);
    }
}

// Noise as numbers from -1/2 to 1/2: for either moment the mean is zero, and correlations with the other
// moment, other elements and other steps are no larger than chance allows.
static double noise_at(enum dtype type, int moment, int64_t step, uint64_t element) {
    uint32_t noise = moment_noise(moment_noise_key(step), element);
    noise = moment == FIRST_MOMENT ? noise & 0xffffu : noise >> 16;
    if (type == DTYPE_I8)
        noise = moment_code_noise((enum moment)moment, moment_noise_key(step), element) >> 4;
    return ((double)noise + 0.5) / 65536 - 0.5;
}

static void noise_is_random(enum dtype type) {
    enum { N = 1 << 16, N_OTHERS = 8 };
    static const uint64_t distances[] = {1, 2, 16, MOMENT_BLOCK, 768};
    double mean[2] = {0}, products[2][N_OTHERS] = {{0}};
    for (uint64_t i = 0; i < N; i++)
        for (int moment = 0; moment < 2; moment++) {
            double here = noise_at(type, moment, 1000, i), others[N_OTHERS];
            for (int k = 0; k < 5; k++)
                others[k] = noise_at(type, moment, 1000, i + distances[k]);
            others[5] = noise_at(type, moment, 1001, i);
            others[6] = noise_at(type, moment, 1000 + ((int64_t)1 << 32), i);
            others[7] = noise_at(type, 1 - moment, 1000, i);
            mean[moment] += here;
            for (int k = 0; k < N_OTHERS; k++)
                products[moment][k] += here * others[k];
        }
    for (int moment = 0; moment < 2; moment++) {
        assert_true(fabs(mean[moment]) < 5 * sqrt(N / 12.0));
        // Pairs of codes share their hash, so that their products count twice.
        for (int k = 0; k < N_OTHERS; k++)
            assert_true(fabs(products[moment][k]) < 5 * sqrt(2 * N) / 12);
    }
}

static void test_noise_is_random(void **state) {
    (void)state;
    noise_is_random(DTYPE_BF16);
    noise_is_random(DTYPE_I8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_are_upper_bits_of_floats),
        cmocka_unit_test(test_rounding_to_nearest_inverts_decoding),
        cmocka_unit_test(test_tiny_blocks),
        cmocka_unit_test(test_nonfinite_moments),
        cmocka_unit_test(test_any_noise_keeps_the_value_of_a_code),
        cmocka_unit_test(test_below_the_first_code),
        cmocka_unit_test(test_stochastic_rounding_keeps_the_mean),
        cmocka_unit_test(test_noise_is_random),
    };
    return cmocka_run_group_tests_name("moments", tests, NULL, NULL);
}
