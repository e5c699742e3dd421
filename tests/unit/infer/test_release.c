// Which bytes of a growing text are shown: stop strings in every cut into tokens, and whole characters.
#include "tests/support/expect.h"

#include <stdio.h>
#include <string.h>

#include "infer/release.h"

struct shown {
    char text[256];
    bool stopped;
};

// Adds `text` in pieces whose lengths the bits of `cuts` decide: bit i set, a cut after byte i. Checks that
// nothing shown is taken back or part of a character.
static struct shown show(const char *text, uint32_t cuts, const char *const *stops, int n_stops) {
    struct release release;
    struct shown shown = {0};
    size_t length = strlen(text), n, shown_bytes = 0;
    release_init(&release, stops, n_stops);
    for (size_t begin = 0, end; begin < length; begin = end) {
        for (end = begin + 1; end < length && !(cuts >> (end - 1) & 1);)
            end++;
        n = release_add(&release, text + begin, end - begin);
        memcpy(shown.text + shown_bytes, release.held.data, n);
        shown_bytes += n;
        release_drop(&release, n);
    }
    shown.stopped = release.stopped;
    if (!release.stopped) {
        memcpy(shown.text + shown_bytes, release.held.data, release.held.length);
        shown_bytes += release.held.length;
    }
    shown.text[shown_bytes] = '\0';
    release_free(&release);
    return shown;
}

static void test_stop_strings_in_every_cut(void **state) {
    (void)state;
    static const char *const ab[] = {"aab"}, *const several[] = {"abcd", "c", "xyz"},
                             *const nested[] = {"bc", "abc"}, *const umlaut[] = {"\xc3\xa4"};
    static const struct {
        const char *text, *expected;
        const char *const *stops;
        int n_stops;
        bool stopped;
    } cases[] = {
        {"xaaaabyy", "xaa", ab, 1, true},       // a prefix that fails overlaps the next try
        {"xaaaacaa", "xaaaacaa", ab, 1, false}, // what was held is shown at the end
        {"ababcdab", "abab", several, 3, true}, // "c" is complete before "abcd"
        {"xabcyyyy", "x", nested, 2, true},     // complete with the same byte: before the longer one
        {"aab", "", ab, 1, true},
        {"o\xc3\xa4u", "o", umlaut, 1, true},
        {"abc", "abc", ab, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t cuts = 0; cuts < 1u << (strlen(cases[i].text) - 1); cuts++) {
            struct shown shown = show(cases[i].text, cuts, cases[i].stops, cases[i].n_stops);
            assert_string_equal(shown.text, cases[i].expected);
            assert_int_equal(shown.stopped, cases[i].stopped);
        }
}

static void test_whole_characters(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n; // shown after the last byte
    } cases[] = {
        {"a", 1},
        {"\xc3", 0},
        {"\xc3\xa4", 2},
        {"x\xe2\x82", 1},
        {"x\xe2\x82\xac", 4},
        {"\xf0\x9f\x98", 0},
        {"\xf0\x9f\x98\x80", 4},
        {"\xe2\x41", 2}, // cut short by another character
        {"\x80\x80", 2}, // continues nothing
        {"\xff", 0},     // may begin one of four bytes, and is shown once it cannot
        {"\xff\x80\x80\x80", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct release release;
        size_t n;
        release_init(&release, NULL, 0);
        n = release_add(&release, cases[i].bytes, strlen(cases[i].bytes));
        assert_int_equal(n, cases[i].n);
        release_free(&release);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_strings_in_every_cut),
        cmocka_unit_test(test_whole_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
