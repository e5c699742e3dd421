// The growing string, numbers formatted for people, numbers that read back bit for bit, and "did you mean".
#include "tests/support/expect.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/utf8.h"

static void test_growing(void **state) {
    (void)state;
    struct text text = {0};
    char expected[5001 + 11] = ""; // room for any int after the last one
    for (int i = 0; i < 1000; i++) {
        text_add(&text, "%05d", i);
        snprintf(expected + 5 * i, 12, "%05d", i);
    }
    assert_int_equal(text.length, 5000);
    assert_string_equal(text.data, expected);
    text_add_bytes(&text, "a\0b", 3);
    assert_int_equal(text.length, 5003);
    assert_memory_equal(text.data + 5000, "a\0b", 4);
    text_free(&text);
    assert_null(text.data);
}

static void random_bits(uint64_t i, void *value, size_t size) {
    uint32_t r[4];
    rng_block(5, 0, i, r);
    memcpy(value, r, size);
}

// Counts significant digits: from the first digit that is not 0 to the last.
static int significant_digits(const char *number) {
    int digits = 0, significant = 0;
    for (; *number && *number != 'e'; number++)
        if (*number >= '0' && *number <= '9' && (digits || *number != '0')) {
            digits++;
            if (*number != '0')
                significant = digits;
        }
    return significant;
}

// The text reads back to the same bits, and one digit less does not.
static void test_numbers_read_back(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 60000; i++) {
        float single;
        double both;
        char buffer[32], shorter[40];
        random_bits(i, &single, sizeof single);
        random_bits(i, &both, sizeof both);
        if (i % 3 == 0) // typical values, of a few digits
            single = (float)(i % 1000) / 64, both = (double)(i % 5000) / 1000;
        if (i % 7 == 0) // subnormal
            single = FLT_MIN * (float)(i % 97) / 97, both = DBL_MIN * (double)(i % 97) / 97;
        if (isfinite(single)) {
            float back = strtof(text_float(buffer, single), NULL);
            assert_memory_equal(&back, &single, sizeof back);
            assert_true(strlen(buffer) < 32);
            int digits = significant_digits(buffer);
            snprintf(shorter, sizeof shorter, "%.*e", digits > 1 ? digits - 2 : 0, (double)single);
            assert_true(digits <= 1 || strtof(shorter, NULL) != single);
        }
        if (isfinite(both)) {
            double back = strtod(text_double(buffer, both), NULL);
            assert_memory_equal(&back, &both, sizeof back);
            assert_true(strlen(buffer) < 32);
        }
    }
}

static void test_numbers_as_written(void **state) {
    (void)state;
    char buffer[32];
    assert_string_equal(text_float(buffer, 0.1f), "0.1");
    assert_string_equal(text_double(buffer, 0.1), "0.1");
    assert_string_equal(text_double(buffer, 6e-4), "0.0006");
    assert_string_equal(text_double(buffer, 10), "10");
    assert_string_equal(text_double(buffer, 9007199254740991.0), "9007199254740991");
    assert_string_equal(text_double(buffer, 0.1 + 0.2), "0.30000000000000004");
    assert_string_equal(text_float(buffer, 16777216.0f), "16777216");
    assert_string_equal(text_double(buffer, -0.0), "-0");
    assert_string_equal(text_float(buffer, NAN), "null");
    assert_string_equal(text_double(buffer, -INFINITY), "null");
}

static void test_human_readable_numbers(void **state) {
    (void)state;
    char buffer[32];
    const size_t size = sizeof buffer;
    assert_string_equal(text_bytes(buffer, size, 512), "512 B");
    assert_string_equal(text_bytes(buffer, size, 3.5 * 1024), "3.50 KiB");
    assert_string_equal(text_bytes(buffer, size, 4.6 * 1024 * 1024 * 1024), "4.60 GiB");
    assert_string_equal(text_bytes(buffer, size, 20.25 * 1024 * 1024), "20.2 MiB");
    assert_string_equal(text_bytes(buffer, size, 1024 * 1024 - 1), "1.00 MiB"); // not 1024.0 KiB
    assert_string_equal(text_bytes(buffer, size, 9.996 * 1024), "10.0 KiB");
    assert_string_equal(text_count(buffer, size, 999), "999");
    assert_string_equal(text_count(buffer, size, 999.6), "1.00K");
    assert_string_equal(text_count(buffer, size, 999960), "1.00M");
    assert_string_equal(text_flops(buffer, size, 372.4e9), "372.4 GFLOP"); // not 372.4B of them
    assert_string_equal(text_flops(buffer, size, 12.5414e15), "12.5 PFLOP");
    assert_string_equal(text_flops(buffer, size, 12), "12 FLOP");
    assert_string_equal(text_count(buffer, size, 124439808), "124.4M");
    assert_string_equal(text_count(buffer, size, 1557611200), "1.56B");
    assert_string_equal(text_duration(buffer, size, 7), "0:07");
    assert_string_equal(text_duration(buffer, size, 3723), "1:02:03");
    assert_string_equal(text_duration(buffer, size, 90061), "1d 01:01:01");
    assert_string_equal(text_duration(buffer, size, NAN), "-");
    assert_string_equal(text_duration(buffer, size, INFINITY), "-");
}

static void test_nearest(void **state) {
    (void)state;
    static const char *const names[] = {"n_layer", "n_head", "n_embd", "lr", "weight_decay"};
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("same", "same"), 0);
    assert_string_equal(text_nearest("n_layers", names, 5), "n_layer");
    assert_string_equal(text_nearest("n_emb", names, 5), "n_embd");
    assert_string_equal(text_nearest("weigth_decay", names, 5), "weight_decay");
    assert_string_equal(text_nearest("lrs", names, 5), "lr");
    assert_null(text_nearest("xy", names, 5));  // distance 2 from "lr", but no letter in common
    assert_null(text_nearest("lad", names, 5)); // two of three letters differ
    assert_null(text_nearest("completely_else", names, 5));
    assert_null(text_nearest("n_layer", names, 0));
    char longest[300];
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(text_nearest(longest, names, 5));
}

// bf16 rounds to nearest, ties to even: every upper half, with lower halves at the tie and next to it.
static void test_bf16(void **state) {
    (void)state;
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t upper = 0; upper < 0x10000; upper++)
        for (size_t i = 0; i < sizeof lower / sizeof *lower; i++) {
            uint32_t bits = upper << 16 | lower[i];
            float value;
            memcpy(&value, &bits, sizeof value);
            uint16_t got = bf16_from_float(value);
            if (isnan(value)) {
                assert_true(isnan(bf16_to_float(got)));
                continue;
            }
            bool up = lower[i] > 0x8000 || (lower[i] == 0x8000 && (upper & 1));
            assert_int_equal(got, (uint16_t)(upper + up));
            if (lower[i] == 0)
                assert_true(bf16_to_float(got) == value);
        }
}

// Every fp16 value against the formula, and back.
static void test_fp16_values(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        int exponent = (int)(bits >> 10 & 0x1f), fraction = (int)(bits & 0x3ff);
        float value = f16_to_float((uint16_t)bits);
        if (exponent == 0x1f && fraction) {
            assert_true(isnan(value));
            assert_true(isnan(f16_to_float(f16_from_float(value))));
            continue;
        }
        double expected = exponent == 0x1f ? (double)INFINITY
                          : exponent       ? ldexp(1024 + fraction, exponent - 25)
                                           : ldexp(fraction, -24);
        assert_true((double)fabsf(value) == expected && !signbit(value) == !(bits & 0x8000));
        assert_int_equal(f16_from_float(value), bits);
    }
}

// fp16 rounds to nearest, ties to even: for any two neighbors (65536 in place of infinity), the tie and the
// values next to it, with both signs.
static void test_fp16_rounding(void **state) {
    (void)state;
    for (uint16_t low = 0; low < 0x7c00; low++) {
        float from = f16_to_float(low), to = low == 0x7bff ? 65536.0f : f16_to_float((uint16_t)(low + 1));
        float tie = (from + to) / 2;
        uint16_t up = (uint16_t)(low + 1), even = low & 1 ? up : low;
        assert_int_equal(f16_from_float(nextafterf(from, to)), low);
        assert_int_equal(f16_from_float(nextafterf(tie, from)), low);
        assert_int_equal(f16_from_float(tie), even);
        assert_int_equal(f16_from_float(nextafterf(tie, to)), up);
        assert_int_equal(f16_from_float(-nextafterf(tie, from)), low | 0x8000);
        assert_int_equal(f16_from_float(-tie), even | 0x8000);
        assert_int_equal(f16_from_float(-nextafterf(tie, to)), up | 0x8000);
    }
    assert_int_equal(f16_from_float(0x1p-149f), 0);
    assert_int_equal(f16_from_float(FLT_MAX), 0x7c00);
    assert_int_equal(f16_from_float(-INFINITY), 0xfc00);
    assert_true(isnan(f16_to_float(f16_from_float(NAN))));
}

static void test_types_by_name(void **state) {
    (void)state;
    static const char *const names[N_COMPUTE_DTYPES] = {"fp32", "bf16", "fp16"};
    for (int i = 0; i < N_COMPUTE_DTYPES; i++) {
        enum dtype type = N_DTYPES;
        assert_true(dtype_from_name(names[i], &type));
        assert_int_equal(type, i);
        assert_string_equal(dtype_name(type), names[i]);
    }
    enum dtype untouched = DTYPE_U8;
    assert_false(dtype_from_name("fp64", &untouched)); // not a compute dtype
    assert_false(dtype_from_name("", &untouched));
    assert_int_equal(untouched, DTYPE_U8);
}

static void test_readable(void **state) {
    (void)state;
    assert_true(text_is_readable("one\ttwo\r\n", 9));
    assert_true(text_is_readable("\xc3\x84rger \xe6\x97\xa5 \xf0\x9f\x98\x80", 15));
    assert_true(text_is_readable("\xe6\x97", 2)); // cut at the end
    assert_false(text_is_readable("", 0));
    assert_false(text_is_readable("a\0b", 3));
    assert_false(text_is_readable("a\x01", 2));
    assert_false(text_is_readable("\xe6\x97 ", 3));
    assert_false(text_is_readable("\x80", 1));
    assert_false(text_is_readable("\xc0\xaf", 2));
    assert_false(text_is_readable("\xff\xfe"
                                  "a",
                                  3));
}

static void expect_folded(const char *line, size_t columns, const char *mark, const char *expected) {
    struct text text = {0};
    text_add_folded(&text, line, columns, "  ", mark);
    assert_string_equal(text.data, expected);
    text_free(&text);
}

static void test_folding(void **state) {
    (void)state;
    expect_folded("", 10, "", "");
    expect_folded("one two", 7, "", "one two");
    expect_folded("one two", 6, "", "one\n  two");
    expect_folded("one two three four", 10, "", "one two\n  three\n  four");
    expect_folded("  one two three", 9, "", "  one two\n  three");
    expect_folded("a 'b c d e' f", 9, "", "a\n  'b c d e'\n  f");
    expect_folded("x averyverylongword y", 8, "", "x\n  averyverylongword\n  y");
    expect_folded("one two", 6, " \\", "one \\\n  two");
    expect_folded("one two x", 10, " \\", "one two \\\n  x"); // every line leaves room for the mark
}

static void test_ends_and_blanks(void **state) {
    (void)state;
    assert_true(text_has_word("one two", "one", 3) && text_has_word("one two", "two", 3));
    assert_false(text_has_word("one two", "tw", 2) || text_has_word("one two", "ne", 2) ||
                 text_has_word("", "a", 1) || text_has_word("one", "one two", 7));
    assert_true(text_ends_with("a.json", ".json"));
    assert_true(text_ends_with(".json", ".json"));
    assert_true(text_ends_with("a", ""));
    assert_false(text_ends_with("json", ".json"));
    assert_false(text_ends_with("a.JSON", ".json"));
    assert_true(text_is_blank("", 0));
    assert_true(text_is_blank(" \t\r\n", 4));
    assert_true(text_is_blank("  x", 2));
    assert_false(text_is_blank(" x ", 3));
    assert_false(text_is_blank("\0", 1));
}

// Text that anything may have written, as a terminal may get it.
static void test_visible(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *escaped, *replaced;
    } cases[] = {
        {"plain\ttext\nof two lines", "plain\ttext\nof two lines", "plain\ttext\nof two lines"},
        {"\x1b[2Ja\rb\b\x7f", "\\x1b[2Ja\\x0db\\x08\\x7f", "?[2Ja?b??"},
        {"\xc3\xa9\xc2\x9b\xc2\xa0\xe2\x82\xac", "\xc3\xa9\\xc2\\x9b\xc2\xa0\xe2\x82\xac",
         "\xc3\xa9?\xc2\xa0\xe2\x82\xac"},
        {"\x9b\xe2\x82 \xc2", "\\x9b\\xe2\\x82 \\xc2", "??? ?"},
        {"\xe2\x80\xa7\xe2\x80\xae\xe2\x81\xa6", "\xe2\x80\xa7\\xe2\\x80\\xae\\xe2\\x81\\xa6",
         "\xe2\x80\xa7??"},
        {"", "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text escaped = {0}, replaced = {0};
        text_add(&escaped, "%s", "");
        text_add(&replaced, "%s", "");
        utf8_add_visible(&escaped, cases[i].bytes, strlen(cases[i].bytes), NULL);
        utf8_add_visible(&replaced, cases[i].bytes, strlen(cases[i].bytes), "?");
        assert_string_equal(escaped.data, cases[i].escaped);
        assert_string_equal(replaced.data, cases[i].replaced);
        text_free(&escaped);
        text_free(&replaced);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_and_blanks),
        cmocka_unit_test(test_visible),
        cmocka_unit_test(test_folding),
        cmocka_unit_test(test_growing),
        cmocka_unit_test(test_numbers_read_back),
        cmocka_unit_test(test_human_readable_numbers),
        cmocka_unit_test(test_numbers_as_written),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_fp16_values),
        cmocka_unit_test(test_fp16_rounding),
        cmocka_unit_test(test_readable),
        cmocka_unit_test(test_types_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
