// The pre-tokenizer against the definitions of the patterns: their alternatives, tried in order, over
// characters whose classes are listed here.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/rng.h"
#include "data/tokenizer/encode.h"

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
    {"E", 'L'},
    {"r", 'L'},
    {"\xc5\xbf", 'L'},         // long s, whose capital is S
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
    {"/", 'O'},
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
    {"\xe2\x96\x81", 'O'}, // U+2581, a space for Llama 2
    {"\xed", 'O'},
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

static bool is_line_end(const struct sentence *sentence, int at) {
    return is_at(sentence, at, "\n") || is_at(sentence, at, "\r");
}

// The letter of a contraction, in lower case; 0 for others.
static char contraction_letter(const struct sentence *sentence, int at, bool any_case) {
    const char *text = at < sentence->n ? sentence->characters[at]->text : "";
    if (any_case && strcmp(text, "\xc5\xbf") == 0)
        return 's';
    return text[0] && !text[1] ? (any_case ? (char)tolower(text[0]) : text[0]) : 0;
}

static int match_contraction(const struct sentence *sentence, int at, bool any_case) {
    static const char *const contractions[] = {"s", "d", "m", "t", "ll", "ve", "re"};
    for (size_t i = 0; is_at(sentence, at, "'") && i < sizeof contractions / sizeof *contractions; i++) {
        int n = (int)strlen(contractions[i]), same = 0;
        for (; same < n; same++)
            if (contraction_letter(sentence, at + 1 + same, any_case) != contractions[i][same])
                break;
        if (same == n)
            return 1 + n;
    }
    return 0;
}

// "\s+(?!\S)": the longest one that only white space, or the end, follows; else "\s+".
//   end   a kind that counts as the end of the text
static int match_space(const struct sentence *sentence, int at, char end) {
    int run = run_of(sentence, at, 'S');
    for (int n = run; n > 0; n--)
        if (kind_at(sentence, at + n) == 'S' || kind_at(sentence, at + n) == 'E' ||
            kind_at(sentence, at + n) == end)
            return n;
    return run;
}

// The number of characters that GPT-2's pattern matches at `at`.
static int match_gpt2(const struct sentence *sentence, int at) {
    static const char kinds[] = "LNO";
    int n = match_contraction(sentence, at, false);
    if (n > 0)
        return n;
    for (int i = 0; i < 3; i++) { // " ?X+": with the space first, for ? is greedy
        int run = run_of(sentence, at + 1, kinds[i]);
        if (is_at(sentence, at, " ") && run > 0)
            return 1 + run;
        if ((run = run_of(sentence, at, kinds[i])) > 0)
            return run;
    }
    return match_space(sentence, at, 'E');
}

// Every number alone; what is between them as if the text ended there.
static int match_smollm(const struct sentence *sentence, int at) {
    const int n = match_contraction(sentence, at, false);
    if (kind_at(sentence, at) == 'N')
        return 1;
    if (n > 0)
        return n;
    const bool blank = is_at(sentence, at, " ");
    for (int i = 0; i < 2; i++) {
        const char kind = "LO"[i];
        if (blank && run_of(sentence, at + 1, kind) > 0)
            return 1 + run_of(sentence, at + 1, kind);
        if (run_of(sentence, at, kind) > 0)
            return run_of(sentence, at, kind);
    }
    return match_space(sentence, at, 'N');
}

// What follows words: numbers, others with what may be behind them, and spaces.
//   whole_end   cl100k_base's "\s++$"
static int match_rest(const struct sentence *sentence, int at, int most_digits, bool slashes,
                      bool whole_end) {
    const char kind = kind_at(sentence, at);
    if (kind == 'N')
        return run_of(sentence, at, 'N') < most_digits ? run_of(sentence, at, 'N') : most_digits;
    const int blank = is_at(sentence, at, " ") && kind_at(sentence, at + 1) == 'O';
    if (kind == 'O' || blank) {
        int n = blank + run_of(sentence, at + blank, 'O');
        while (is_line_end(sentence, at + n) || (slashes && is_at(sentence, at + n, "/")))
            n++;
        return n;
    }
    const int spaces = run_of(sentence, at, 'S');
    for (int n = spaces; n > 0; n--) // "\s*[\r\n]+"
        if (is_line_end(sentence, at + n - 1))
            return whole_end && at + spaces == sentence->n ? spaces : n;
    return match_space(sentence, at, 'E');
}

enum { CAPITAL = 1, SMALL = 2 };
static int case_at(const struct sentence *sentence, int at) {
    const char *text = at < sentence->n ? sentence->characters[at]->text : "";
    utf8proc_int32_t c;
    if (utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &c) <= 0)
        return 0;
    const char *name = utf8proc_category_string(c);
    return strcmp(name, "Ll") == 0                              ? SMALL
           : strcmp(name, "Lu") == 0 || strcmp(name, "Lt") == 0 ? CAPITAL
           : name[0] == 'L' || name[0] == 'M'                   ? CAPITAL | SMALL
                                                                : 0;
}

// Each way to match one of its two alternatives for words, in the order in which a regular expression tries.
static int match_o200k(const struct sentence *sentence, int at) {
    const char kind = kind_at(sentence, at);
    for (int alternative = 0; alternative < 2; alternative++)
        for (int before = kind != 'L' && kind != 'N' && !is_line_end(sentence, at); before >= 0; before--) {
            int capitals = 0;
            while (case_at(sentence, at + before + capitals) & CAPITAL)
                capitals++;
            for (int end = before + capitals; end >= before + alternative; end--) {
                int small = 0;
                while (case_at(sentence, at + end + small) & SMALL)
                    small++;
                if (small > 0 || alternative == 1)
                    return end + small + match_contraction(sentence, at + end + small, true);
            }
        }
    return match_rest(sentence, at, 3, true, false);
}

// Llama 3's; Qwen's with most_digits 1; cl100k_base's with whole_end.
static int match_llama3(const struct sentence *sentence, int at, int most_digits, bool whole_end) {
    const int n = match_contraction(sentence, at, true);
    if (n > 0)
        return n;
    const char kind = kind_at(sentence, at);
    if ((kind == 'S' || kind == 'O') && !is_line_end(sentence, at) && kind_at(sentence, at + 1) == 'L')
        return 1 + run_of(sentence, at + 1, 'L');
    return kind == 'L' ? run_of(sentence, at, 'L') : match_rest(sentence, at, most_digits, false, whole_end);
}

static bool is_blank(const struct sentence *sentence, int at) {
    return is_at(sentence, at, " ") || is_at(sentence, at, "\xe2\x96\x81");
}

// Blanks and what is up to the next.
static int match_spaces(const struct sentence *sentence, int at, bool lines) {
    int n = 0;
    if (lines && is_at(sentence, at, "\n"))
        return 1;
    while (is_blank(sentence, at + n))
        n++;
    while (at + n < sentence->n && !is_blank(sentence, at + n) && !(lines && is_at(sentence, at + n, "\n")))
        n++;
    return n;
}

static int match(enum token_pattern pattern, const struct sentence *sentence, int at) {
    switch (pattern) {
    case TOKEN_PATTERN_LLAMA3:
        return match_llama3(sentence, at, 3, false);
    case TOKEN_PATTERN_CL100K:
        return match_llama3(sentence, at, 3, true);
    case TOKEN_PATTERN_O200K:
        return match_o200k(sentence, at);
    case TOKEN_PATTERN_QWEN2:
        return match_llama3(sentence, at, 1, false);
    case TOKEN_PATTERN_SMOLLM:
        return match_smollm(sentence, at);
    case TOKEN_PATTERN_SPACES:
    case TOKEN_PATTERN_SPACES_AND_LINES:
        return match_spaces(sentence, at, pattern == TOKEN_PATTERN_SPACES_AND_LINES);
    default:
        return match_gpt2(sentence, at);
    }
}

static void check_pattern(const struct sentence *sentence, enum token_pattern pattern) {
    const struct token_rules rules = {.pattern = pattern};
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
        for (int n = match(pattern, sentence, i); n > 0; n--)
            wanted += strlen(sentence->characters[i++]->text);
        size_t got = tokenizer_next_pretoken(rules, text + at, n_bytes - at);
        if (got != wanted)
            fail_msg("pattern %d, \"%s\": the pre-token at byte %zu has %zu bytes, expected %zu",
                     (int)pattern, joined, at, got, wanted);
        at += got;
        begins[at] = true;
    }
    assert_int_equal(at, n_bytes);
    for (size_t from = 1; from <= n_bytes;
         from++) { // the text may be split there without changing pre-tokens
        size_t cut = tokenizer_next_boundary(rules, text, n_bytes, from);
        if (cut < from || cut > n_bytes || !begins[cut])
            fail_msg("pattern %d, \"%s\": the boundary from byte %zu on is %zu, where no pre-token begins",
                     (int)pattern, joined, from, cut);
    }
    free(text);
}

static void check(const struct sentence *sentence) {
    for (int pattern = TOKEN_PATTERN_GPT2; pattern <= TOKEN_PATTERN_O200K; pattern++)
        check_pattern(sentence, (enum token_pattern)pattern);
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
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){0}, cut, 3), 1);
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){0}, cut + 1, 2), 2);
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){0}, cut + 2, 1), 1);
    memcpy(cut, "'ll", 3);
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){0}, cut, 3), 3);
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){0}, cut, 2), 1);
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){0}, cut, 1), 1);
    memcpy(cut, "\xed\xa0\x80", 3); // a surrogate: three bytes, none of them UTF-8
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){0}, cut, 3), 3);
    memcpy(cut, "\xed\xa0Z", 3);
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){.pattern = TOKEN_PATTERN_LLAMA3}, cut, 3),
                     2);
    memcpy(cut, "'\0s", 3); // a NUL is a character like any other
    assert_int_equal(tokenizer_next_pretoken((struct token_rules){0}, cut, 3), 2);
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
