// The patterns (data/tokenizer.h), hand-written, because a regular expression engine would dominate the time
// of encoding. Each function takes the alternatives of its pattern in their order.
#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer_internal.h"

enum kind { KIND_OTHER, KIND_LETTER, KIND_NUMBER, KIND_SPACE };

// Unicode's White_Space property.
static bool is_space(utf8proc_int32_t c) {
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static enum kind classify_unicode(utf8proc_int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return KIND_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return KIND_NUMBER;
    default:
        return is_space(c) ? KIND_SPACE : KIND_OTHER;
    }
}

// The kind and length of the first character. A byte that does not start a valid character counts as one of
// its own.
static enum kind classify(const char *text, size_t n_bytes, size_t *length) {
    unsigned char first = (unsigned char)text[0];
    *length = 1;
    if (first < 0x80) {
        if ((first | 0x20) >= 'a' && (first | 0x20) <= 'z')
            return KIND_LETTER;
        if (first >= '0' && first <= '9')
            return KIND_NUMBER;
        return first == ' ' || (first >= '\t' && first <= '\r') ? KIND_SPACE : KIND_OTHER;
    }
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n_bytes, &c);
    if (n <= 0)
        return KIND_OTHER;
    *length = (size_t)n;
    return classify_unicode(c);
}

// The length of a contraction whose apostrophe is the first byte, or 0.
//   any_case   also 'S; and with U+017F, the long s, whose capital is S
static size_t contraction(const char *text, size_t n_bytes, bool any_case) {
    const char bit = any_case ? 0x20 : 0; // of the lower case
    const char first = n_bytes >= 2 ? (char)(text[1] | bit) : 0,
               second = n_bytes >= 3 ? (char)(text[2] | bit) : 0;
    if (first == 's' || first == 'd' || first == 'm' || first == 't')
        return 2;
    if ((first == 'l' && second == 'l') || ((first == 'v' || first == 'r') && second == 'e'))
        return 3;
    return any_case && n_bytes >= 3 && memcmp(text + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

// The end of the consecutive characters of kind `wanted` from `at` on. *last: the start of the last one.
static size_t kind_end(const char *text, size_t n_bytes, size_t at, enum kind wanted, size_t *last) {
    size_t length;
    while (at < n_bytes && classify(text + at, n_bytes - at, &length) == wanted) {
        *last = at;
        at += length;
    }
    return at;
}

// White space: all of it at the end of the text; else all but the last character, which belongs to the next
// pre-token.
static size_t space_pretoken(const char *text, size_t n_bytes) {
    size_t last = 0;
    const size_t end = kind_end(text, n_bytes, 0, KIND_SPACE, &last);
    return end < n_bytes && last > 0 ? last : end;
}

static size_t next_gpt2(const char *text, size_t n_bytes) {
    size_t length, last;
    if (text[0] == '\'' && (length = contraction(text, n_bytes, false)) > 0)
        return length;
    enum kind first = classify(text, n_bytes, &length);
    if (first != KIND_SPACE)
        return kind_end(text, n_bytes, 0, first, &last);
    if (text[0] == ' ' && n_bytes > 1) {
        enum kind second = classify(text + 1, n_bytes - 1, &length);
        if (second != KIND_SPACE)
            return kind_end(text, n_bytes, 1, second, &last);
    }
    return space_pretoken(text, n_bytes);
}

// White space goes up to a number, where GPT-2's pattern would leave the last character to it.
static size_t next_smollm(const char *text, size_t n_bytes) {
    size_t length, last;
    const enum kind first = classify(text, n_bytes, &length);
    if (first == KIND_NUMBER)
        return length;
    if (first != KIND_SPACE)
        return next_gpt2(text, n_bytes);
    const size_t end = kind_end(text, n_bytes, 0, KIND_SPACE, &last);
    if (end < n_bytes && classify(text + end, n_bytes - end, &length) == KIND_NUMBER)
        return end;
    return next_gpt2(text, n_bytes);
}

// The pre-token of white space: up to its last line end, if it has one.
static size_t next_space(const char *text, size_t n_bytes) {
    size_t at = 0, lines = 0, length;
    while (at < n_bytes && classify(text + at, n_bytes - at, &length) == KIND_SPACE) {
        const bool is_line_end = text[at] == '\n' || text[at] == '\r';
        at += length;
        lines = is_line_end ? at : lines;
    }
    return lines > 0 ? lines : space_pretoken(text, n_bytes);
}

static size_t next_others(const char *text, size_t n_bytes, size_t at) {
    size_t last;
    at = kind_end(text, n_bytes, at, KIND_OTHER, &last);
    while (at < n_bytes && (text[at] == '\n' || text[at] == '\r'))
        at++;
    return at;
}

// Llama 3's pattern, and Qwen's with most_digits 1.
static size_t next_llama3(const char *text, size_t n_bytes, int most_digits) {
    size_t length, next, last;
    if (text[0] == '\'' && (length = contraction(text, n_bytes, true)) > 0)
        return length;
    const enum kind first = classify(text, n_bytes, &length);
    if (first == KIND_LETTER)
        return kind_end(text, n_bytes, 0, KIND_LETTER, &last);
    if (first == KIND_NUMBER) {
        size_t at = length;
        for (int n = 1;
             n < most_digits && at < n_bytes && classify(text + at, n_bytes - at, &length) == KIND_NUMBER;
             n++)
            at += length;
        return at;
    }
    const enum kind second = length < n_bytes ? classify(text + length, n_bytes - length, &next) : KIND_SPACE;
    if (second == KIND_LETTER && text[0] != '\n' && text[0] != '\r')
        return kind_end(text, n_bytes, length, KIND_LETTER, &last);
    if (first == KIND_OTHER)
        return next_others(text, n_bytes, 0);
    return text[0] == ' ' && second == KIND_OTHER ? next_others(text, n_bytes, 1) : next_space(text, n_bytes);
}

// U+2581, which stands for a space.
#define LOWER_BLOCK "\xe2\x96\x81"

static bool is_lower_block(const char *text, size_t n_bytes) {
    return n_bytes >= 3 && memcmp(text, LOWER_BLOCK, 3) == 0;
}

static size_t next_spaces(const char *text, size_t n_bytes, bool lines) {
    size_t at = 0;
    if (lines && text[0] == '\n')
        return 1;
    for (size_t n = 1; at < n_bytes && n > 0; at += n)
        n = text[at] == ' ' ? 1 : is_lower_block(text + at, n_bytes - at) ? 3 : 0;
    while (at < n_bytes && text[at] != ' ' && !(lines && text[at] == '\n') &&
           !(text[at] == LOWER_BLOCK[0] && is_lower_block(text + at, n_bytes - at)))
        at++;
    return at;
}

size_t tokenizer_next_pretoken(struct token_rules rules, const char *text, size_t n_bytes) {
    switch (rules.pattern) {
    case TOKEN_PATTERN_LLAMA3:
        return next_llama3(text, n_bytes, 3);
    case TOKEN_PATTERN_QWEN2:
        return next_llama3(text, n_bytes, 1);
    case TOKEN_PATTERN_SMOLLM:
        return next_smollm(text, n_bytes);
    case TOKEN_PATTERN_SPACES:
    case TOKEN_PATTERN_SPACES_AND_LINES:
        return next_spaces(text, n_bytes, rules.pattern == TOKEN_PATTERN_SPACES_AND_LINES);
    default:
        return next_gpt2(text, n_bytes);
    }
}

// Whether the character that ends before `at` is white space. False for bytes that are not part of a
// character.
static bool space_ends_at(const char *text, size_t at) {
    for (size_t n = 1; n <= 4 && n <= at; n++) {
        size_t length;
        if (((unsigned char)text[at - n] & 0xC0) != 0x80)
            return classify(text + at - n, n, &length) == KIND_SPACE && length == n;
    }
    return false;
}

static bool starts_word(const char *text, size_t n_bytes) {
    size_t length;
    const enum kind kind = classify(text, n_bytes, &length);
    return kind == KIND_LETTER || kind == KIND_NUMBER;
}

// No normalization reaches over these places either: neither a blank nor a line end composes with a
// neighbour.
static bool is_boundary(struct token_rules rules, const char *text, size_t n_bytes, size_t at) {
    switch (rules.pattern) {
    case TOKEN_PATTERN_LLAMA3:
    case TOKEN_PATTERN_QWEN2: // a line end may belong to what comes before it
        return (text[at] == ' ' && !space_ends_at(text, at)) ||
               (text[at - 1] == '\n' && starts_word(text + at, n_bytes - at));
    case TOKEN_PATTERN_SPACES:
    case TOKEN_PATTERN_SPACES_AND_LINES:
        return (text[at] == ' ' && text[at - 1] != ' ' && !(at >= 3 && is_lower_block(text + at - 3, 3))) ||
               (text[at] == '\n' && rules.pattern == TOKEN_PATTERN_SPACES_AND_LINES);
    default:
        return (text[at] == ' ' || text[at] == '\n') && !space_ends_at(text, at);
    }
}

size_t tokenizer_next_boundary(struct token_rules rules, const char *text, size_t n_bytes, size_t from) {
    for (size_t at = from; at < n_bytes; at++)
        if (is_boundary(rules, text, n_bytes, at))
            return at;
    return n_bytes;
}
