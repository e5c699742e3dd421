// GPT-2's tokenizer against published ids, from both file formats; round trips of all kinds of text;
// malformed files are refused with file and line.
#include "tests/support/expect.h"

#include <stdbool.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/tokenizer/encode.h"
#include "data/tokenizer/tables.h"
#include "tests/support/sha256.h"
#include "tests/support/shared.h"
#include "tests/support/temporary.h"

static struct temporary temporary;
static char path[300];

static int set_up(void **state) {
    (void)state;
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "tokenizer", path, sizeof path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

static void load_gpt2(struct tokenizer **out) {
    char file[400];
    if (!shared_path("data/gpt2.tiktoken", file, sizeof file)) {
        print_message("skipped: %s does not exist; set $ZERO_SHARED to the folder that contains data/\n",
                      file);
        skip();
    }
    EXPECT_OK(tokenizer_load(file, out));
}

static void expect_ids(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                       const cJSON *ids) {
    struct token_list list = {0};
    EXPECT_OK(tokenizer_encode(tokenizer, text, n_bytes, &list));
    size_t n = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, ids) {
        if (n >= list.n || list.ids[n] != id->valueint)
            fail_msg("\"%.60s\": id %zu is %d, expected %d", text, n, n < list.n ? list.ids[n] : -1,
                     id->valueint);
        n++;
    }
    token_list_free(&list);
}

static void expect_round_trip(const struct tokenizer *tokenizer, const char *text, size_t n_bytes) {
    struct token_list list = {0};
    EXPECT_OK(tokenizer_encode(tokenizer, text, n_bytes, &list));
    size_t at = 0;
    for (size_t i = 0; i < list.n; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(tokenizer, list.ids[i], &n);
        assert_non_null(bytes);
        assert_true(list.ids[i] != tokenizer_end_of_text(tokenizer));
        assert_true(n >= 1 && n <= n_bytes - at);
        assert_memory_equal(bytes, text + at, n);
        at += n;
    }
    assert_int_equal(at, n_bytes);
    token_list_free(&list);
}

static cJSON *golden(void) {
    cJSON *tree;
    EXPECT_OK(json_read_file("tests/golden/gpt2-bpe.json", &tree));
    return tree;
}

static void check_cases(const struct tokenizer *tokenizer) {
    cJSON *tree = golden();
    const cJSON *one;
    int n_cases = 0;
    cJSON_ArrayForEach(one, cJSON_GetObjectItem(tree, "cases")) {
        const char *text = cJSON_GetObjectItem(one, "text")->valuestring;
        const cJSON *ids = cJSON_GetObjectItem(one, "ids");
        struct token_list list = {0};
        EXPECT_OK(tokenizer_encode(tokenizer, text, strlen(text), &list));
        assert_int_equal(list.n, cJSON_GetArraySize(ids));
        token_list_free(&list);
        expect_ids(tokenizer, text, strlen(text), ids);
        expect_round_trip(tokenizer, text, strlen(text));
        n_cases++;
    }
    assert_true(n_cases >= 18);
    cJSON_Delete(tree);
}

static void test_gpt2_cases(void **state) {
    (void)state;
    struct tokenizer *gpt2;
    load_gpt2(&gpt2);
    assert_int_equal(tokenizer_n_ids(gpt2), 50257);
    assert_int_equal(tokenizer_end_of_text(gpt2), 50256);
    assert_string_equal(tokenizer_kind(gpt2), "byte-pair");
    size_t n;
    assert_memory_equal(tokenizer_bytes(gpt2, 50256, &n), "<|endoftext|>", 13);
    assert_int_equal(n, 13);
    check_cases(gpt2);
    tokenizer_delete(gpt2);
}

static char *read_shakespeare(size_t *n_bytes) {
    char file[400], *text;
    if (!shared_path("data/tinyshakespeare.txt", file, sizeof file)) {
        print_message("skipped: %s does not exist\n", file);
        skip();
    }
    EXPECT_OK(file_read(file, 1 << 24, &text, n_bytes));
    return text;
}

static void expect_shakespeare(const struct tokenizer *tokenizer, const char *text, size_t n_bytes) {
    cJSON *tree = golden();
    const cJSON *expected = cJSON_GetObjectItem(tree, "tinyshakespeare");
    struct token_list list = {0};
    double start = clock_monotonic_s();
    EXPECT_OK(tokenizer_encode(tokenizer, text, n_bytes, &list));
    print_message("reached %.1f MB/s encoding tinyshakespeare\n",
                  (double)n_bytes / 1e6 / (clock_monotonic_s() - start));
    assert_int_equal(list.n, cJSON_GetObjectItem(expected, "count")->valueint);
    expect_ids(tokenizer, text, n_bytes, cJSON_GetObjectItem(expected, "first"));
    uint8_t *bytes = malloc(2 * list.n);
    assert_non_null(bytes);
    for (size_t i = 0; i < list.n; i++) {
        bytes[2 * i] = (uint8_t)list.ids[i];
        bytes[2 * i + 1] = (uint8_t)(list.ids[i] >> 8);
    }
    char hex[65];
    sha256_hex(bytes, 2 * list.n, hex);
    assert_string_equal(hex, cJSON_GetObjectItem(expected, "sha256_of_u16le")->valuestring);
    free(bytes);
    token_list_free(&list);
    cJSON_Delete(tree);
}

static void test_gpt2_tinyshakespeare(void **state) {
    (void)state;
    struct tokenizer *gpt2;
    char hex[65];
    sha256_hex("abc", 3, hex); // SHA-256 itself, by the example of its standard
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    load_gpt2(&gpt2);
    size_t n_bytes;
    char *text = read_shakespeare(&n_bytes);
    expect_shakespeare(gpt2, text, n_bytes);
    expect_round_trip(gpt2, text, n_bytes);
    free(text);
    tokenizer_delete(gpt2);
}

// ---- vocab.bpe

// A byte in GPT-2's alphabet, as UTF-8: itself if printable, else the next code point from 256 on.
static void add_letter(struct text *out, unsigned char byte) {
    int code_point = 256;
    for (int b = 0; b <= byte; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        if (b == byte && prints)
            code_point = b;
        else if (b < byte)
            code_point += !prints;
    }
    if (code_point < 128)
        text_add(out, "%c", code_point);
    else
        text_add(out, "%c%c", 0xC0 | code_point >> 6, 0x80 | (code_point & 63));
}

// The two tokens that a token was merged from: its bytes, merged by all lower ranks.
static void halves(const struct tokenizer *tokenizer, int32_t id, size_t *cut) {
    size_t n, ends[256], n_parts = 0;
    const char *bytes = tokenizer_bytes(tokenizer, id, &n);
    assert_true(n < sizeof ends / sizeof *ends);
    while (n_parts < n)
        ends[n_parts] = n_parts + 1, n_parts++;
    while (n_parts > 2) {
        int32_t best = id;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n_parts; i++) {
            size_t begin = i ? ends[i - 1] : 0;
            int32_t found = tokenizer_find(tokenizer, bytes + begin, ends[i + 1] - begin);
            if (found >= 0 && found < best) {
                best = found;
                at = i;
            }
        }
        assert_true(best < id);
        memmove(ends + at, ends + at + 1, (--n_parts - at) * sizeof *ends);
    }
    assert_int_equal(n_parts, 2);
    *cut = ends[0];
}

static void add_letters(struct text *out, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        add_letter(out, (unsigned char)bytes[i]);
}

static void write_vocab_bpe(const struct tokenizer *tokenizer, int n_merges, const char *line_end) {
    struct text out = {0};
    text_add(&out, "#version: 0.2%s", line_end);
    for (int32_t id = 256; id < 256 + n_merges; id++) {
        size_t n, cut;
        const char *bytes = tokenizer_bytes(tokenizer, id, &n);
        halves(tokenizer, id, &cut);
        add_letters(&out, bytes, cut);
        text_add(&out, " ");
        add_letters(&out, bytes + cut, n - cut);
        text_add(&out, "%s", line_end);
    }
    EXPECT_OK(file_write_all(path, out.data, out.length));
    static const char published[] =
        "#version: 0.2\n\xc4\xa0 t\n\xc4\xa0 a\nh e\ni n\nr e\no n\n\xc4\xa0t he\n";
    if (*line_end == '\n')
        assert_memory_equal(out.data, published, sizeof published - 1);
    text_free(&out);
}

static void test_gpt2_from_vocab_bpe(void **state) {
    (void)state;
    struct tokenizer *gpt2, *merges;
    load_gpt2(&gpt2);
    write_vocab_bpe(gpt2, 50000, "\n");
    EXPECT_OK(tokenizer_load(path, &merges));
    assert_int_equal(tokenizer_n_ids(merges), 50257);
    for (int32_t id = 0; id < 50257; id++) {
        size_t n, m;
        const char *a = tokenizer_bytes(gpt2, id, &n), *b = tokenizer_bytes(merges, id, &m);
        assert_int_equal(n, m);
        assert_memory_equal(a, b, n);
    }
    check_cases(merges);
    tokenizer_delete(merges);
    write_vocab_bpe(gpt2, 300, "\r\n");
    EXPECT_OK(tokenizer_load(path, &merges));
    assert_int_equal(tokenizer_n_ids(merges), 557);
    tokenizer_delete(merges);
    tokenizer_delete(gpt2);
}

// ---- round trips

// Ids do not depend on chunks, on threads or on the cache of pre-tokens.
static void test_long_texts(void **state) {
    enum { BYTES = 7 << 20 };
    (void)state;
    struct tokenizer *tokenizer;
    struct token_list lists[3] = {{0}};
    char *text = malloc(BYTES);
    assert_non_null(text);
    static const char *const parts[] = {" the", " there",        "\n", "  ",  "theme",
                                        "'ll",  " \xe6\x97\xa5", "42", "\xff"};
    for (size_t n = 0, counter = 0; n < BYTES;) {
        const char *part = parts[rng_below(9, 1, counter++, 9)];
        size_t length = strlen(part) < BYTES - n ? strlen(part) : BYTES - n;
        memcpy(text + n, part, length);
        n += length;
    }
    EXPECT_OK(tokenizer_train(text, 1 << 16, NULL, 0, 300, &tokenizer));
    for (int k = 0; k < 2; k++) {
        parallel_set_threads(k ? 3 : 1);
        EXPECT_OK(tokenizer_encode(tokenizer, text, BYTES, &lists[k]));
    }
    for (size_t at = 0, n; at < BYTES; at += n) {
        n = tokenizer_next_boundary((struct token_rules){0}, text + at, BYTES - at, 30000);
        EXPECT_OK(tokenizer_encode(tokenizer, text + at, n, &lists[2]));
    }
    for (int k = 1; k < 3; k++) {
        assert_int_equal(lists[k].n, lists[0].n);
        assert_memory_equal(lists[k].ids, lists[0].ids, lists[0].n * sizeof(int32_t));
    }
    for (int k = 0; k < 3; k++)
        token_list_free(&lists[k]);
    tokenizer_delete(tokenizer);
    free(text);
}

static void test_round_trips(void **state) {
    (void)state;
    struct tokenizer *tokenizers[2];
    const char *text = "the theme of these themes, l\xc3\xa0-bas; \xe6\x97\xa5\xe6\x9c\xac the end\n";
    EXPECT_OK(tokenizer_load("bytes", &tokenizers[0]));
    EXPECT_OK(tokenizer_train(text, strlen(text), NULL, 0, 280, &tokenizers[1]));
    uint64_t counter = 0;
    for (int i = 0; i < 400; i++) {
        size_t n = (size_t)rng_below(5, 1, counter++, 300);
        char *bytes = malloc(n + 1);
        assert_non_null(bytes);
        for (size_t k = 0; k < n;
             k++) // random bytes; and the text's own, so that there is something to merge
            bytes[k] = i % 2 ? (char)rng_below(5, 1, counter++, 256)
                             : text[rng_below(5, 1, counter++, 8) ? (k + (size_t)i) % strlen(text)
                                                                  : rng_below(5, 1, counter++, strlen(text))];
        expect_round_trip(tokenizers[0], bytes, n);
        expect_round_trip(tokenizers[1], bytes, n);
        free(bytes);
    }
    tokenizer_delete(tokenizers[0]);
    tokenizer_delete(tokenizers[1]);
    tokenizer_delete(NULL);
}

static void test_gpt2_round_trips(void **state) {
    (void)state;
    struct tokenizer *gpt2;
    char bytes[2000];
    load_gpt2(&gpt2);
    for (uint64_t i = 0; i < 200; i++) {
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (char)rng_below(i, 1, k, i % 2 ? 256 : 4);
        expect_round_trip(gpt2, bytes, sizeof bytes);
    }
    // One word of 1 MB: quadratic time would take minutes.
    char *word = malloc(1 << 20);
    assert_non_null(word);
    memset(word, 'a', 1 << 20);
    expect_round_trip(gpt2, word, 1 << 20);
    for (size_t k = 0; k < 1 << 20; k++)
        word[k] = (char)('a' + rng_below(3, 1, k, 26));
    expect_round_trip(gpt2, word, 1 << 20);
    free(word);
    tokenizer_delete(gpt2);
}

static void test_bytes(void **state) {
    (void)state;
    struct tokenizer *bytes;
    EXPECT_OK(tokenizer_load("bytes", &bytes));
    assert_int_equal(tokenizer_n_ids(bytes), 257);
    assert_int_equal(tokenizer_end_of_text(bytes), 256);
    assert_string_equal(tokenizer_kind(bytes), "bytes");
    struct token_list list = {0};
    EXPECT_OK(tokenizer_encode(bytes, "A \xff", 3, &list));
    EXPECT_OK(tokenizer_encode(bytes, "", 0, &list));
    EXPECT_OK(tokenizer_encode(bytes, "\0z", 2, &list)); // appends
    assert_int_equal(list.n, 5);
    const int32_t expected[5] = {65, 32, 255, 0, 122};
    assert_memory_equal(list.ids, expected, sizeof expected);
    token_list_free(&list);
    // Text that spells the end-of-text token is encoded as text.
    EXPECT_OK(tokenizer_encode(bytes, "<|endoftext|>", 13, &list));
    assert_int_equal(list.n, 13);
    token_list_free(&list);
    size_t n;
    assert_null(tokenizer_bytes(bytes, -1, &n));
    assert_null(tokenizer_bytes(bytes, 257, &n));
    assert_null(tokenizer_bytes(bytes, INT32_MIN, &n));
    EXPECT_OK(tokenizer_save(bytes, path));
    struct tokenizer *again;
    EXPECT_OK(tokenizer_load(path, &again));
    assert_int_equal(tokenizer_n_ids(again), 257);
    tokenizer_delete(again);
    tokenizer_delete(bytes);
}

// ---- bad files

// The 256 bytes as a tiktoken file, then `more`. Byte b is on line b + 1 with rank b.
static enum status load_with(const char *more) {
    struct tokenizer *bytes, *loaded;
    struct text out = {0};
    EXPECT_OK(tokenizer_load("bytes", &bytes));
    EXPECT_OK(tokenizer_save(bytes, path));
    tokenizer_delete(bytes);
    char *content;
    size_t n;
    EXPECT_OK(file_read(path, 1 << 20, &content, &n));
    text_add(&out, "%s%s", content, more);
    EXPECT_OK(file_write_all(path, out.data, out.length));
    free(content);
    text_free(&out);
    enum status status = tokenizer_load(path, &loaded);
    if (status != STATUS_OK)
        assert_null(loaded);
    tokenizer_delete(loaded);
    return status;
}

static enum status load_text(const char *text) {
    struct tokenizer *loaded;
    EXPECT_OK(file_write_all(path, text, strlen(text)));
    enum status status = tokenizer_load(path, &loaded);
    tokenizer_delete(loaded);
    return status;
}

#define AT_LINE(n) "/tokenizer:" #n ":"

static void test_bad_tiktoken_files(void **state) {
    (void)state;
    EXPECT_OK(load_with(""));
    EXPECT_OK(load_with("YWI= 256\n\nYWJj 257")); // an empty line, no newline at the end
    EXPECT_OK(load_with("YWI= 256\r\n"));
    static const char *const malformed[] = {
        "YWI=\n",         // no rank
        "YWI= \n",        // the same
        " 256\n",         // no token
        "YWI= x\n",       // not a number
        "YWI= 256x\n",    // more than a number
        "YWI= 256 1\n",   // two numbers
        "YW I= 256\n",    // a space too many
        "YWI 256\n",      // not padded
        "Y=I= 256\n",     // padding in the middle
        "YWI=YWI= 256\n", // likewise
        "==== 256\n",     // nothing but padding
        "YW*= 256\n",     // not base64
        "YWI= 99999999999999999999\n",
    };
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++)
        EXPECT_FAILURE(STATUS_INVALID, load_with(malformed[i]), AT_LINE(257));
    EXPECT_FAILURE(STATUS_INVALID, load_with("YWI= 257\n"), AT_LINE(257), "257", "expected 256");
    EXPECT_FAILURE(STATUS_INVALID, load_with("YWI= -1\n"), AT_LINE(257), "-1", "expected 256");
    EXPECT_FAILURE(STATUS_INVALID, load_with("YWI= 256\nYWJj 256\n"), AT_LINE(258), "256", "expected 257");
    EXPECT_FAILURE(STATUS_INVALID, load_text("IQ== 0\nIg== 1\n"), "/tokenizer", "0x00", "256");
}

// A duplicate token is refused with its line number, which the blank line before it makes different from its
// rank.
static void test_tokens_given_twice(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, load_with("YWI= 256\n\nYWI= 257\n"), AT_LINE(259), "257", "256");
    EXPECT_FAILURE(STATUS_INVALID, load_with("QQ== 256\n"), AT_LINE(257), "65");
    EXPECT_FAILURE(STATUS_INVALID, load_text("#version: 0.2\na b\nb c\nab c\na bc\n"), AT_LINE(5),
                   "same bytes");
}

static void test_bad_merges(void **state) {
    (void)state;
    EXPECT_OK(load_text("#version: 0.2\na b\nab c\n"));
    EXPECT_OK(load_text("#version: 0.2\n"));
    static const char *const malformed[] = {
        "a\n",      "a \n",   " b\n",         "a b c\n", "a \xe6\x97\xa5\n",
        "a \xff\n", "a\tb\n", "a \xc5\x84\n", // code point 324, beyond GPT-2's alphabet
    };
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        char text[64];
        snprintf(text, sizeof text, "#version: 0.2\nt h\n%s", malformed[i]);
        EXPECT_FAILURE(STATUS_INVALID, load_text(text), AT_LINE(3), "merge");
    }
    char *wide = malloc(5000);
    assert_non_null(wide);
    strcpy(wide, "#version: 0.2\n");
    memset(wide + 14, 'x', 4000);
    strcpy(wide + 4014, " y\n");
    EXPECT_FAILURE(STATUS_INVALID, load_text(wide), AT_LINE(2));
    free(wide);
}

static void test_files_that_are_not_tokenizers(void **state) {
    (void)state;
    struct tokenizer *loaded;
    char absent[400];
    snprintf(absent, sizeof absent, "%s/absent", temporary.folder);
    EXPECT_FAILURE(STATUS_INVALID, tokenizer_load(absent, &loaded), absent, "No such file", "tokenizer.json",
                   "a folder");
    assert_null(loaded);
    EXPECT_FAILURE(STATUS_INVALID, tokenizer_load(temporary.folder, &loaded), temporary.folder,
                   "holds no tokenizer");
    EXPECT_FAILURE(STATUS_INVALID, load_text(""), "/tokenizer", "no tokens");
    EXPECT_FAILURE(STATUS_INVALID, load_text("\n\n"), "/tokenizer", "no tokens");
    EXPECT_FAILURE(STATUS_INVALID, load_text("\"model\": {}\n"), AT_LINE(1), "base64");
    EXPECT_FAILURE(STATUS_INVALID, load_text("{\"model\": {}}\n"), "/tokenizer",
                   "not a Hugging Face tokenizer.json");
    EXPECT_FAILURE(STATUS_INVALID, load_text("{\"model\": }\n"), AT_LINE(1),
                   "invalid JSON from here on: \"}\"");
}

// One token of 256 KiB: loading must not take quadratic time.
static void test_long_tokens(void **state) {
    (void)state;
    struct text more = {0};
    for (int i = 0; i < 1 << 16; i++)
        text_add_bytes(&more, "YWFh", 4);
    text_add(&more, " 256\n");
    double start = clock_monotonic_s();
    EXPECT_OK(load_with(more.data));
    assert_true(clock_monotonic_s() - start < 1);
    text_free(&more);
}

static void expect_shown(const struct tokenizer *tokenizer, int32_t before, int32_t id,
                         const char *expected) {
    size_t n;
    const char *bytes = tokenizer_shown_bytes(tokenizer, before, id, &n);
    assert_int_equal(n, strlen(expected));
    assert_memory_equal(n > 0 ? bytes : "", expected, n);
}

// Of Llama 2's form: <s> is 1, " the" 268, "the" 267, two spaces 269; the byte 0x61 has a token beside "a".
static void test_shown_and_named(void **state) {
    (void)state;
    struct tokenizer *tokenizer;
    char *json;
    size_t n;
    EXPECT_OK(file_read("tests/fuzz/corpus/data_tokenizer/json_llama2", 1 << 20, &json, &n));
    EXPECT_OK(file_write_all(path, json + 1, n - 1)); // after the fuzzer's byte
    EXPECT_OK(tokenizer_load(path, &tokenizer));
    expect_shown(tokenizer, -1, 268, "the");
    expect_shown(tokenizer, 1, 268, "the");
    expect_shown(tokenizer, 267, 268, " the");
    expect_shown(tokenizer, -1, 269, " ");
    expect_shown(tokenizer, 267, 1, "");
    expect_shown(tokenizer, -1, 400, "");
    assert_int_equal(tokenizer_named(tokenizer, "the", 3), 267);
    assert_int_equal(tokenizer_named(tokenizer, "a", 1), 263);
    assert_int_equal(tokenizer_named(tokenizer, "\n", 1), 3 + '\n');
    assert_int_equal(tokenizer_named(tokenizer, "<s>", 3), 1);
    assert_int_equal(tokenizer_named(tokenizer, "thee", 4), -1);
    tokenizer_delete(tokenizer);
    free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_cases),
        cmocka_unit_test(test_gpt2_tinyshakespeare),
        cmocka_unit_test(test_gpt2_from_vocab_bpe),
        cmocka_unit_test(test_gpt2_round_trips),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bad_tiktoken_files),
        cmocka_unit_test(test_tokens_given_twice),
        cmocka_unit_test(test_bad_merges),
        cmocka_unit_test(test_files_that_are_not_tokenizers),
        cmocka_unit_test(test_long_tokens),
        cmocka_unit_test(test_shown_and_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
