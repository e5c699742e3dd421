// Table-driven flags: valid values in every form, and every kind of error.
#include "tests/support/expect.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/args.h"

static bool loud;
static int64_t tokens;
static double temperature;
static const char *prompt;
static uint64_t memory;
static struct arg_strings stops;
static const char *positional[2];
static int n_positional;

static const struct arg table[] = {
    {"--loud", ARG_FLAG, &loud, 0, 0, "says more"},
    {"--tokens", ARG_INTEGER, &tokens, 1, 100, "how many"},
    {"--temperature", ARG_NUMBER, &temperature, 0, 10, "how hot"},
    {"--memory", ARG_BYTES, &memory, 1, 0x1p40, "how much"},
    {"--prompt", ARG_STRING, &prompt, 0, 0, "text to continue"},
    {"--stop", ARG_STRINGS, &stops, 0, 0, "texts to stop at"},
};
#define N_TABLE 6

static enum status parse(const char *const *words) {
    char *args[ARG_MOST_STRINGS + 2];
    int n = 0;
    for (; words[n]; n++)
        args[n] = (char *)(uintptr_t)words[n];
    loud = false;
    tokens = 7;
    temperature = 1;
    prompt = "none";
    stops.n = 0;
    return args_parse("generate", table, N_TABLE, n, args, positional, 2, &n_positional);
}
#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})

static void test_values(void **state) {
    (void)state;
    EXPECT_OK(PARSE("run", "--tokens", "12", "--temperature=0.5", "--loud", "--prompt", "--tokens", "last"));
    assert_true(loud && tokens == 12 && temperature == 0.5);
    assert_string_equal(prompt, "--tokens"); // the next argument is the value, whatever it looks like
    assert_int_equal(n_positional, 2);
    assert_string_equal(positional[0], "run");
    assert_string_equal(positional[1], "last");

    EXPECT_OK(parse((const char *const[]){NULL}));
    assert_true(!loud && tokens == 7 && temperature == 1 && n_positional == 0);

    EXPECT_OK(PARSE("--prompt=a=b", "--tokens=1e2", "--", "--loud", "-x"));
    assert_string_equal(prompt, "a=b");
    assert_true(tokens == 100 && !loud && n_positional == 2);
    assert_string_equal(positional[0], "--loud");
    EXPECT_OK(PARSE("--tokens", "1", "--temperature", "10")); // bounds are inclusive
    assert_true(tokens == 1 && temperature == 10);
    EXPECT_OK(PARSE("--prompt="));
    assert_string_equal(prompt, "");
}

static void test_lists(void **state) {
    const char *many[ARG_MOST_STRINGS + 2] = {NULL};
    (void)state;
    EXPECT_OK(PARSE("--stop", "a", "run", "--stop=", "--stop=b=c"));
    assert_int_equal(stops.n, 3);
    assert_string_equal(stops.strings[0], "a");
    assert_string_equal(stops.strings[1], "");
    assert_string_equal(stops.strings[2], "b=c");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--stop"), "--stop needs a value");
    for (int i = 0; i < ARG_MOST_STRINGS + 1; i++)
        many[i] = "--stop=x";
    EXPECT_FAILURE(STATUS_INVALID, parse(many), "more than 16 times");
    many[ARG_MOST_STRINGS] = NULL;
    EXPECT_OK(parse(many));
    assert_int_equal(stops.n, ARG_MOST_STRINGS);
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"1", 1},
                {"4096", 4096},
                {"1B", 1},
                {"24G", (uint64_t)24 << 30},
                {"24g", (uint64_t)24 << 30},
                {"80GiB", (uint64_t)80 << 30},
                {"80 GB", 80000000000},
                {"1.5K", 1536},
                {"512M", (uint64_t)512 << 20},
                {"2KB", 2000},
                {"1TiB", (uint64_t)1 << 40}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        EXPECT_OK(PARSE("--memory", good[i].text));
        assert_int_equal(memory, good[i].bytes);
    }
    static const char *const bad[] = {"",      "G",    "-1",  "+1",   " 1",   "1X",    "24 GG",
                                      "1GiBs", "0x10", "nan", "1e99", "many", "1e400", "24,5G"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT_FAILURE(STATUS_INVALID, PARSE("--memory", bad[i]), "--memory", "expected a size, such as 24G");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--memory", "0"), "--memory", "from 1 B");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--memory", "2T"), "--memory", "1.00 TiB");
}

static void test_refusals(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--token", "3"), "generate", "--token;", "did you mean --tokens?");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--whatever"), "no flag --whatever", "train help generate");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--tokens"), "--tokens needs a value");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--tokens", "many"), "--tokens is \"many\"", "an integer");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--tokens", "1.5"), "\"1.5\"", "an integer");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--tokens", "0"), "--tokens is 0", "from 1 to 100");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--tokens", "12x"), "\"12x\"");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--tokens="), "\"\"");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--temperature", "-1"), "--temperature is -1", "from 0 to 10");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--temperature", "nan"), "\"nan\"", "a number");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--temperature", "1e999"), "1e999");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("--loud=yes"), "--loud takes no value");
    EXPECT_FAILURE(STATUS_INVALID, PARSE("a", "b", "c"), "unexpected argument \"c\"", "train help generate");
}

static void test_help_names_every_flag(void **state) {
    (void)state;
    char *help = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&help, &bytes);
    assert_non_null(stream);
    args_print_help(stream, table, N_TABLE);
    fclose(stream);
    for (int i = 0; i < N_TABLE; i++) {
        assert_non_null(strstr(help, table[i].name));
        assert_non_null(strstr(help, table[i].help));
    }
    free(help);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_help_names_every_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
