// Invalid JSON is refused with its position; valid JSON is read with checks of type and bounds.
#include "tests/support/expect.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/text.h"

static enum status parse(const char *text, cJSON **out) {
    return json_parse(text, strlen(text), "a.json", out);
}

static enum status parse_only(const char *text) {
    cJSON *tree;
    enum status status = parse(text, &tree);
    cJSON_Delete(tree);
    return status;
}

static void test_error_positions(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, parse_only(""), "a.json is empty");
    EXPECT_FAILURE(STATUS_INVALID, parse_only(" \n\t\n"), "a.json is empty");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\": 1,\n \"b\": oops}"), "a.json:2:7", "oops");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\n\n  \"a\": 1,\n}"), "a.json:3:9");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\": 1} // no"), "a.json:1:10", "// no");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\": [1, 2"), "a.json:1:11");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\": \"b"), "a.json:1:");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{'a': 1}"), "a.json:1:");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\": NaN}"), "a.json:1:7");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("[1, 2] [3]"), "a.json:1:8");
    EXPECT_OK(parse_only(" {\"a\": [1, 2.5e3, true, null, \"\\u00e9\"]} \r\n"));
    EXPECT_OK(parse_only("7"));
}

// Each mistake has its place and says what to do.
static void test_mistakes(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"{\"n_layer\": 2,}", "a.json:1:14:", "remove this trailing comma: \",}\""},
        {"{\"a\": {\"b\": 1,}, \"c\": 2}", "a.json:1:14:", "remove this trailing comma"},
        {"{\"a\": [1,\n 2,\n ]\n}", "a.json:2:3:", "remove this trailing comma: \",\""},
        {"{\n // size\n\"a\": 1}", "a.json:2:2:", "comments are not JSON; remove this: \"// size\""},
        {"{\"a\": 1, # one\n \"b\": 2}", "a.json:1:10:", "comments are not JSON"},
        {"{\"a\": 1 /* one */}", "a.json:1:9:", "comments are not JSON"},
        {"{\"a\": 1 # one\n}", "a.json:1:9:", "comments are not JSON"},
        {"{\"a\": 1} // no", "a.json:1:10:", "comments are not JSON"},
        {"{'a': 1}", "a.json:1:2:", "keys and text need double quotes"},
        {"{\"a\": 'b'}", "a.json:1:7:", "double quotes"},
        {"{\"a\": \xe2\x80\x9c"
         "b\xe2\x80\x9d}",
         "a.json:1:7:", "double quotes"},
        {"{n_layer: 2}", "a.json:1:2:", "keys and text need double quotes"},
        {"{\"a\": 1,\n b: 2}", "a.json:2:2:", "have none): \"b: 2}\""},
        {"{\"a\": cpu}",
         "a.json:1:7:", "double quotes (only numbers, true, false and null have none): \"cpu}\""},
        {"{\"a\": [False]}", "a.json:1:8:", "only numbers, true, false and null"},
        {"{\"a\": 1\n \"b\": 2}", "a.json:2:2:", "a comma, colon or quote is missing before \"\"b\": 2}\""},
        {"[[1]\n[2]]", "a.json:2:1:", "a comma"},
        {"{\"a\" 1}", "a.json:1:6:", "colon or quote is missing before \"1}\""},
        {"{\"a\": \"b,\n \"c\": 1}", "a.json:2:3:", "quote is missing before \"c\": 1}\""},
        {"{\"a\": .5}", "a.json:1:7:", "invalid JSON from here on: \".5}\""},
        {"{\"a\": 1; \"b\": 2}", "a.json:1:8:", "invalid JSON from here on: \";"},
        {"{\"a\": }", "a.json:1:7:", "invalid JSON from here on: \"}\""},
        {"{\"a\": 1,, \"b\": 2}", "a.json:1:9:", "invalid JSON from here on: \", \"b"},
        {"[1,,2]", "a.json:1:4:", "invalid JSON from here on: \",2]\""},
        {"{\"a\": [1, 2}", "a.json:1:12:", "invalid JSON from here on: \"}\""},
        {"{\"a\": 1}}", "a.json:1:9:", "invalid JSON from here on: \"}\""},
        {"{\"a\": \"C:\\dir\"}", "a.json:1:10:", "invalid JSON from here on: \"\\dir\"}\""},
        {"\xff\xfe{", "a.json:1:1:", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT_FAILURE(STATUS_INVALID, parse_only(cases[i][0]), cases[i][1], cases[i][2]);
    EXPECT_OK(parse_only("\xef\xbb\xbf{\"a\": 1}")); // a byte order mark
}

static void test_extensions(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"a\": 1, // one\n \"b\": [1, 2,], # two\n}", "{\"a\": 1,       \n \"b\": [1, 2 ]       \n}"},
        {"{\"a\": /* a\nb */ 1, /**/}", "{\"a\":     \n     1      }"},
        {"[\"/* // # ,]\", \"\\\",]\"]", "[\"/* // # ,]\", \"\\\",]\"]"},
        {"[1 /* open", "[1        "},
        {"[\"a\\", "[\"a\\"},
        {"/", "/"},
        {",", ","},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t length = strlen(cases[i][0]);
        char *text = malloc(length);
        assert_non_null(text);
        memcpy(text, cases[i][0], length);
        json_blank_extensions(text, length);
        if (strlen(cases[i][1]) != length || memcmp(text, cases[i][1], length) != 0)
            fail_msg("case %zu: \"%.*s\"", i, (int)length, text);
        free(text);
    }
}

// Any change of a byte, and any end: read, or refused with a place.
static void test_any_mistake(void **state) {
    (void)state;
    static const char good[] = "{\"a\": [1, -2.5e3, true],\n \"b\\n\": {\"c\": \"d\", \"e\": null}}",
                      bytes[] = "{}[],:\"'\\/#0.-e+ntx\n\x80";
    const size_t length = strlen(good);
    for (size_t i = 0; i < length; i++)
        for (size_t k = 0; k < sizeof bytes; k++) { // the NUL too; then the text ends here
            const size_t n = k + 1 < sizeof bytes ? length : i;
            char *text = malloc(n ? n : 1); // exact size, so that the sanitizer sees an overread
            cJSON *tree;
            assert_non_null(text);
            memcpy(text, good, n);
            if (i < n)
                text[i] = bytes[k];
            if (json_parse(text, n, "a.json", &tree) != STATUS_OK) {
                if (n && !strstr(status_message(), "a.json:1:") && !strstr(status_message(), "a.json:2:") &&
                    !strstr(status_message(), "a.json:3:") && !strstr(status_message(), "given twice"))
                    fail_msg("\"%.*s\": %s", (int)n, text, status_message());
                status_clear();
            }
            cJSON_Delete(tree);
            free(text);
        }
}

static void test_lines(void **state) {
    (void)state;
    static const char text[] =
        "{\"a\": \"x: \\\"\", \"b\":\n{\n \"c\" : [{\"d\": 1},\n{\"d\"\n: {}}], \"e\": null\n}}";
    cJSON *tree;
    EXPECT_OK(parse(text, &tree));
    const cJSON *b = cJSON_GetObjectItem(tree, "b"), *c = cJSON_GetObjectItem(b, "c");
    const size_t length = strlen(text);
    assert_int_equal(json_line(text, length, tree, cJSON_GetObjectItem(tree, "a")), 1);
    assert_int_equal(json_line(text, length, tree, b), 1);
    assert_int_equal(json_line(text, length, tree, c), 3);
    assert_int_equal(json_line(text, length, tree, cJSON_GetObjectItem(cJSON_GetArrayItem(c, 0), "d")), 3);
    assert_int_equal(json_line(text, length, tree, cJSON_GetObjectItem(cJSON_GetArrayItem(c, 1), "d")), 4);
    assert_int_equal(json_line(text, length, tree, cJSON_GetObjectItem(b, "e")), 5);
    assert_int_equal(json_line(text, length, b, tree), 0);
    cJSON_Delete(tree);
}

// The text ends at its length; it needs no NUL.
static void test_length(void **state) {
    (void)state;
    const char text[] = {'{', '}', 'x', 'y'};
    cJSON *tree;
    EXPECT_OK(json_parse(text, 2, "part", &tree));
    cJSON_Delete(tree);
    char *exact = malloc(5); // exact size, so that the sanitizer sees an overread
    assert_non_null(exact);
    memcpy(exact, "{}abc", 5);
    EXPECT_FAILURE(STATUS_INVALID, json_parse(exact, 5, "part", &tree), "part:1:3", "\"abc\"");
    assert_null(tree);
    memcpy(exact, "{\"a\":", 5);
    EXPECT_FAILURE(STATUS_INVALID, json_parse(exact, 5, "part", &tree), "part:1:5");
    free(exact);
}

static void test_keys_given_twice(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\": 1, \"b\": 2, \"a\": 3}"),
                   "\"a\" is given twice, in line 1;");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\": 1,\n\"b\": 2,\n\"a\": 3}"),
                   "lines 1 and 3; remove one");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("[{\"x\": {\"k\": 1, \"k\": 1}}]"), "\"k\" is given twice");
    EXPECT_OK(parse_only("{\"a\": 1, \"A\": 2, \"b\": {\"a\": 3}}"));
}

// Zero bytes are refused, because C code would see only the part of a string before them.
static void test_zero_bytes(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\":\n \"b\\u0000c\"}"), "a.json:2", "zero byte");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"a\\u0000\": 1}"), "zero byte");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("[\"\\\\\\u0000\"]"), "zero byte");
    EXPECT_OK(parse_only("[\"\\\\u0000\", \"\\u0001\"]"));
    cJSON *tree;
    static const char raw[] = "[\"b\0c\"]";
    EXPECT_FAILURE(STATUS_INVALID, json_parse(raw, sizeof raw - 1, "raw", &tree), "raw:1", "zero byte");
    assert_null(tree);
}

static void test_depth(void **state) {
    (void)state;
    enum { DEPTH = 200000 };
    char *deep = malloc(DEPTH + 1);
    assert_non_null(deep);
    memset(deep, '[', DEPTH);
    deep[DEPTH] = '\0';
    EXPECT_FAILURE(STATUS_INVALID, parse_only(deep), "a.json:1:");
    free(deep);
}

static void test_getters(void **state) {
    (void)state;
    cJSON *tree;
    const char *string;
    const cJSON *part;
    int64_t integer = 0;
    double number = 0;
    EXPECT_OK(parse("{\"n\": 12, \"big\": 9007199254740992, \"half\": 0.5, \"s\": \"text\", \"list\": [1],"
                    "\"object\": {}, \"huge\": 1e999, \"yes\": true}",
                    &tree));
    EXPECT_OK(json_get_integer(tree, "n", 1, 12, "f", &integer));
    assert_int_equal(integer, 12);
    EXPECT_OK(json_get_integer(tree, "big", 0, INT64_MAX, "f", &integer));
    assert_true(integer == 9007199254740992);
    EXPECT_FAILURE(STATUS_INVALID, json_get_integer(tree, "n", 13, 20, "f", &integer), "f", "\"n\" is 12",
                   "13", "20");
    EXPECT_FAILURE(STATUS_INVALID, json_get_integer(tree, "half", 0, 9, "f", &integer), "0.5", "an integer");
    EXPECT_FAILURE(STATUS_INVALID, json_get_integer(tree, "huge", 0, 9, "f", &integer), "huge");
    EXPECT_FAILURE(STATUS_INVALID, json_get_integer(tree, "s", 0, 9, "f", &integer), "\"s\" is a string");
    EXPECT_FAILURE(STATUS_INVALID, json_get_integer(tree, "N", 0, 9, "f", &integer), "\"N\" is missing");
    EXPECT_OK(json_get_number(tree, "half", "f", &number));
    assert_true(number == 0.5);
    EXPECT_FAILURE(STATUS_INVALID, json_get_number(tree, "huge", "f", &number), "\"huge\"", "out of range");
    EXPECT_FAILURE(STATUS_INVALID, json_get_number(tree, "yes", "f", &number), "\"yes\" is true or false");
    EXPECT_OK(json_get_string(tree, "s", "f", &string));
    assert_string_equal(string, "text");
    EXPECT_FAILURE(STATUS_INVALID, json_get_string(tree, "n", "f", &string), "a number", "a string");
    EXPECT_OK(json_get_array(tree, "list", "f", &part));
    EXPECT_OK(json_get_object(tree, "object", "f", &part));
    EXPECT_FAILURE(STATUS_INVALID, json_get_array(tree, "object", "f", &part), "an object", "a list");
    EXPECT_FAILURE(STATUS_INVALID, json_get_object(tree, "list", "f", &part), "a list", "an object");
    cJSON_Delete(tree);
}

static void test_strings_round_trip(void **state) {
    (void)state;
    char every[256];
    for (int i = 1; i < 256; i++)
        every[i - 1] = (char)i;
    every[255] = '\0';
    struct text text = {0};
    cJSON *tree;
    json_add_string(&text, every);
    EXPECT_OK(parse(text.data, &tree));
    assert_string_equal(tree->valuestring, every);
    cJSON_Delete(tree);
    text_free(&text);
}

static void test_files(void **state) {
    (void)state;
    cJSON *tree;
    EXPECT_FAILURE(STATUS_INVALID, json_read_file("tests/no-such.json", &tree), "tests/no-such.json",
                   "No such");
    EXPECT_FAILURE(STATUS_INVALID, json_read_file("tests", &tree), "tests", "folder");
    EXPECT_OK(json_read_file("configs/quickstart.json", &tree));
    assert_true(cJSON_IsObject(tree));
    cJSON_Delete(tree);
}

static int allocations_left;

static void *limited_malloc(size_t bytes) {
    return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

// Whichever allocation fails, parsing reports it and leaks nothing (the sanitizer build checks for leaks).
static void test_out_of_memory(void **state) {
    (void)state;
    const char *text = "{\"model\": {\"n_layer\": 12, \"name\": \"x\"}, \"list\": [1, [2, \"three\"], {}]}";
    int n = 0;
    bool parsed = false;
    for (; !parsed && n < 1000; n++) {
        cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = limited_malloc, .free_fn = free});
        allocations_left = n;
        cJSON *tree;
        parsed = parse(text, &tree) == STATUS_OK;
        assert_true(parsed == (tree != NULL));
        assert_true(parsed == (status_message()[0] == '\0'));
        cJSON_Delete(tree);
        status_clear();
    }
    cJSON_InitHooks(NULL);
    assert_true(parsed && n > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_positions),    cmocka_unit_test(test_length),
        cmocka_unit_test(test_zero_bytes),         cmocka_unit_test(test_depth),
        cmocka_unit_test(test_mistakes),           cmocka_unit_test(test_extensions),
        cmocka_unit_test(test_any_mistake),        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_keys_given_twice),   cmocka_unit_test(test_getters),
        cmocka_unit_test(test_strings_round_trip), cmocka_unit_test(test_files),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
