// Kinds of files by their start: what users bring is recognized, and token ids without a header are not
// mistaken for it. Where text stops being UTF-8.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/file_kind.h"
#include "base/rng.h"
#include "base/utf8.h"

#define OF(kind, bytes)                                                                                      \
    { FILE_KIND_##kind, bytes, sizeof bytes - 1 }
static const struct {
    enum file_kind kind;
    const char *bytes;
    size_t n;
} files[] = {
    OF(SHARD, "\x88\xd8\x34\x01\1\0\0\0"),
    OF(SHARD, "\xa1\xd9\x34\x01\7\0\0\0"),
    OF(LLMC_MODEL, "\xc6\xd7\x34\x01\3\0\0\0"),
    OF(SAFETENSORS, "\x40\0\0\0\0\0\0\0{\"wte\":"),
    OF(PYTORCH, "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0archive/data.pkl"),
    OF(PYTORCH, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."),
    OF(NPZ, "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0arr_0.npy"),
    OF(ZIP, "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0notes.txt"),
    OF(PICKLE, "\x80\4\x95\x40\0\0\0\0\0\0\0}\x94("),
    OF(PICKLE, "\x80\2}q\0X"),
    OF(NPY, "\x93NUMPY\1\0"),
    OF(GZIP, "\x1f\x8b\x08\0\0"),
    OF(TEXT, "{\"model\": {}}"),
    OF(TEXT, "\xc3\x84rger"),
    OF(TEXT, "\x01\x02\xc3\x84\x03\x04"), // valid beyond ASCII
    OF(TEXT, "\x01\x02\xc3\x84\x03\xe6\x97"),
    OF(UNKNOWN, "\x01\x02\x03\x04"),
    OF(UNKNOWN, "\x01\x02\xc3\x84\x03\0"),
    OF(TEXT_8_BIT, "\xc4rger, line after line"),
    OF(TEXT_UTF_16, "\xff\xfeH\0a\0"),
    OF(TEXT_UTF_16, "H\0e\0l\0l\0o\0 \0y\0o\0u\0"),
    OF(TEXT_UTF_16, "\0H\0e\0l\0l\0o\0 \0y\0o\0u"),
    OF(ARROW, "\xff\xff\xff\xff\x78\2\0\0\x10\0\0\0"), // a stream
    OF(PICTURE, "\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
    OF(PICTURE, "\xff\xd8\xff\xe0\0\x10JFIF\0"),
    OF(PICTURE, "GIF89a\x0a\0\x0a\0"),
    OF(PDF, "%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"),
    OF(TEXT, "GGUF is a format of llama.cpp's"),
    OF(TEXT, "PAR1 and ARROW1 are signatures"),
    OF(TEXT_8_BIT, "\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0"), // CP1251
    OF(UNKNOWN, ""),
    OF(UNKNOWN, "\x80\2\1\0\7\0\2\0"),                                     // ids 640, 1, 7, 2
    OF(UNKNOWN, "\x12\0\x01\0\x2f\0\x05\0\x2e\0\x2b\0\x3a\0\x1e\0\x33\0"), // nanoGPT's characters
};

static void test_kinds(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (file_kind_of(files[i].bytes, files[i].n) != files[i].kind)
            fail_msg("case %zu is taken for %s", i, file_kind_name(file_kind_of(files[i].bytes, files[i].n)));
}

static void test_ids_are_unknown(void **state) {
    (void)state;
    uint16_t ids[2048];
    for (uint64_t seed = 0; seed < 200; seed++) {
        for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
            ids[i] = (uint16_t)rng_below(seed, 0, i, seed % 2 ? 50257 : 65);
        assert_int_equal(file_kind_of((const char *)ids, sizeof ids), FILE_KIND_UNKNOWN);
    }
}

static void test_tar(void **state) {
    (void)state;
    char start[512] = "t.txt";
    memcpy(start + 257, "ustar", 6);
    assert_int_equal(file_kind_of(start, sizeof start), FILE_KIND_TAR);
}

static void test_advice_has_the_path(void **state) {
    (void)state;
    char *advice = file_kind_advice(FILE_KIND_ZIP, "a/b.bin");
    assert_string_equal(advice, "unpack it first: unzip a/b.bin");
    free(advice);
    advice = file_kind_advice(FILE_KIND_PYTORCH, "a/b.bin");
    assert_non_null(strstr(advice, "(\"a\")"));
    free(advice);
    advice = file_kind_advice(FILE_KIND_PYTORCH, "b.bin");
    assert_non_null(strstr(advice, "(\".\")"));
    free(advice);
    for (enum file_kind kind = FILE_KIND_UNKNOWN; kind < N_FILE_KINDS; kind++) {
        assert_non_null(file_kind_name(kind));
        advice = file_kind_advice(kind, "x");
        assert_non_null(advice);
        assert_null(strchr(advice, '{'));
        free(advice);
    }
}

static void test_utf_8(void **state) {
    (void)state;
    static const char text[] = "ASCII only, \xc3\x84rger \xe2\x80\x94 \xf0\x9f\x98\x80 end";
    const size_t n = sizeof text - 1;
    assert_int_equal(utf8_valid_bytes(text, n), n);
    assert_int_equal(utf8_valid_bytes("", 0), 0);
    assert_int_equal(utf8_valid_bytes(text, 13), 12);                   // a character is cut
    assert_int_equal(utf8_valid_bytes("12345678\xe4 and more", 18), 8); // Latin-1
    assert_int_equal(utf8_valid_bytes("a\xc0\x80", 3), 1);              // overlong
    assert_int_equal(utf8_valid_bytes("a\xed\xa0\x80", 4), 1);          // a surrogate
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds), cmocka_unit_test(test_ids_are_unknown),
        cmocka_unit_test(test_tar),   cmocka_unit_test(test_advice_has_the_path),
        cmocka_unit_test(test_utf_8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
