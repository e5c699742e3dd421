// The pre-tokenizer against the definition of GPT-2's pattern: its alternatives, tried in order, over
// characters whose classes are listed here.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "data/tokenizer_internal.h"

// L letter, N number, S white space, O other, from the Unicode database (general categories L* and N*,
// property White_Space), for characters that have not changed since Unicode 6.
static const struct character {
    const char *text;
    char kind;
} alphabet[] = {
    {"a", 'L'},
    {"Z", 'L'},
    {"s", 'L'},
    {"d", 'L'},
    {"m", 'L'},
    {"t", 'L'},
    {"l", 'L'},
    {"v", 'L'},
    {"e", 'L'},
    {"r", 'L'},
    {"\xc3\xa9", 'L'},         // é
    {"\xc2\xaa", 'L'},         // feminine ordinal indicator (Lo)
    {"\xc7\x85", 'L'},         // titlecase digraph (Lt)
    {"\xca\xb0", 'L'},         // modifier letter (Lm)
    {"\xe6\x97\xa5", 'L'},     // 日
    {"\xf0\x90\x90\x80", 'L'}, // Deseret
    {"0", 'N'},
    {"7", 'N'},
    {"\xd9\xa3", 'N'},     // Arabic-Indic digit (Nd)
    {"\xe2\x85\xa7", 'N'}, // Roman numeral (Nl)
    {"\xc2\xbd", 'N'},     // one half (No)
    {" ", 'S'},
    {" ", 'S'},
    {"\n", 'S'},
    {"\t", 'S'},
    {"\r", 'S'},
    {"\v", 'S'},
    {"\f", 'S'},
    {"\xc2\x85", 'S'},     // next line
    {"\xc2\xa0", 'S'},     // no-break space
    {"\xe1\x9a\x80", 'S'}, // Ogham space
    {"\xe2\x80\x83", 'S'}, // em space
    {"\xe2\x80\xa8", 'S'}, // line separator
    {"\xe3\x80\x80", 'S'}, // ideographic space
    {"'", 'O'},
    {"'", 'O'},
    {".", 'O'},
    {"_", 'O'},
    {"\x01", 'O'},
    {"\x1c", 'O'},             // Python's isspace, but not White_Space
    {"\xe2\x80\x8b", 'O'},     // zero width space: not White_Space
    {"\xef\xbb\xbf", 'O'},     // byte order mark
    {"\xcc\x81", 'O'},         // combining accent (Mn)
    {"\xe2\x80\x99", 'O'},     // typographic apostrophe
    {"\xf0\x9f\x98\x80", 'O'}, // emoji
    {"\xc3", 'O'},             // bytes that are not UTF-8
    {"\xff", 'O'},
    {"\xed\xa0\x80", 'O'}, // a surrogate: three bytes, none of them UTF-8
};
enum { N_ALPHABET = sizeof alphabet / sizeof *alphabet, LONGEST = 40 };

struct sentence {
    const struct character *characters[LONGEST];
    int n;
};

static char kind_at(const struct sentence *sentence, int at) {
    return at < sentence->n ? sentence->characters[at]->kind : 'E';
}

static bool is_at(const struct sentence *sentence, int at, const char *text) {
    return at < sentence->n && strcmp(sentence->characters[at]->text, text) == 0;
}

static int run_of(const struct sentence *sentence, int at, char kind) {
    int n = 0;
    while (kind_at(sentence, at + n) == kind)
        n++;
    return n;
}

// The number of characters that the pattern matches at `at`.
static int match(const struct sentence *sentence, int at) {
    static const char *const contractions[] = {"s", "d", "m", "t", "ll", "ve", "re"};
    for (size_t i = 0; is_at(sentence, at, "'") && i < sizeof contractions / sizeof *contractions; i++) {
        int n = (int)strlen(contractions[i]), same = 0;
        for (; same < n; same++)
            if (!is_at(sentence, at + 1 + same, (const char[]){contractions[i][same], 0}))
                break;
        if (same == n)
            return 1 + n;
    }
    static const char kinds[] = "LNO";
    for (int i = 0; i < 3; i++) { // " ?X+": with the space first, for ? is greedy
        int run = run_of(sentence, at + 1, kinds[i]);
        if (is_at(sentence, at, " ") && run > 0)
            return 1 + run;
        if ((run = run_of(sentence, at, kinds[i])) > 0)
            return run;
    }
    int run = run_of(sentence, at, 'S');
    for (int n = run; n > 0; n--) // "\s+(?!\S)": the longest one that only white space, or the end, follows
        if (kind_at(sentence, at + n) == 'S' || kind_at(sentence, at + n) == 'E')
            return n;
    return run;
}

static void check(const struct sentence *sentence) {
    char joined[4 * LONGEST + 1] = "";
    for (int i = 0; i < sentence->n; i++)
        strcat(joined, sentence->characters[i]->text);
    size_t n_bytes = strlen(joined), at = 0;
    bool begins[4 * LONGEST + 1] = {false};     // a pre-token, at this offset
    char *text = malloc(n_bytes ? n_bytes : 1); // exact size, so that the sanitizer sees an overread
    assert_non_null(text);
    memcpy(text, joined, n_bytes);
    for (int i = 0; i < sentence->n;) {
        size_t wanted = 0;
        for (int n = match(sentence, i); n > 0; n--)
            wanted += strlen(sentence->characters[i++]->text);
        size_t got = tokenizer_next_pretoken(text + at, n_bytes - at);
        if (got != wanted)
            fail_msg("\"%s\": the pre-token at byte %zu has %zu bytes, expected %zu", joined, at, got,
                     wanted);
        at += got;
        begins[at] = true;
    }
    assert_int_equal(at, n_bytes);
    for (size_t from = 1; from <= n_bytes;
         from++) { // the text may be split there without changing pre-tokens
        size_t cut = tokenizer_next_boundary(text, n_bytes, from);
        if (cut < from || cut > n_bytes || !begins[cut])
            fail_msg("\"%s\": the boundary from byte %zu on is %zu, where no pre-token begins", joined, from,
                     cut);
    }
    free(text);
}

static void test_every_short_text(void **state) {
    (void)state;
    for (int a = 0; a < N_ALPHABET; a++)
        for (int b = 0; b < N_ALPHABET; b++)
            for (int c = 0; c < N_ALPHABET; c++)
                check(&(struct sentence){{&alphabet[a], &alphabet[b], &alphabet[c]}, 1 + (b > 0) + (c > 0)});
}

static void test_random_texts(void **state) {
    (void)state;
    uint64_t counter = 0;
    for (int i = 0; i < 30000; i++) {
        struct sentence sentence = {.n = (int)rng_below(1, 1, counter++, LONGEST + 1)};
        // Few kinds of characters per text, so that pre-tokens are long.
        uint64_t n_kinds = 1 + rng_below(1, 1, counter++, 12), kinds[12];
        for (uint64_t k = 0; k < n_kinds; k++)
            kinds[k] = rng_below(1, 1, counter++, N_ALPHABET);
        for (int k = 0; k < sentence.n; k++)
            sentence.characters[k] = &alphabet[kinds[rng_below(1, 1, counter++, n_kinds)]];
        check(&sentence);
    }
}

// A character truncated by the end of the text counts as single bytes.
static void test_truncated_characters(void **state) {
    (void)state;
    char *cut = malloc(3);
    assert_non_null(cut);
    memcpy(cut, "a\xe6\x97", 3);
    assert_int_equal(tokenizer_next_pretoken(cut, 3), 1);
    assert_int_equal(tokenizer_next_pretoken(cut + 1, 2), 2);
    assert_int_equal(tokenizer_next_pretoken(cut + 2, 1), 1);
    memcpy(cut, "'ll", 3);
    assert_int_equal(tokenizer_next_pretoken(cut, 3), 3);
    assert_int_equal(tokenizer_next_pretoken(cut, 2), 1);
    assert_int_equal(tokenizer_next_pretoken(cut, 1), 1);
    memcpy(cut, "'\0s", 3); // a NUL is a character like any other
    assert_int_equal(tokenizer_next_pretoken(cut, 3), 2);
    free(cut);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_short_text),
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_truncated_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
