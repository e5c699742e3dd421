// GPT-2's pattern, hand-written, because a regular expression engine would dominate the time of encoding:
// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
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

static size_t contraction(const char *text, size_t n_bytes) {
    if (n_bytes >= 2 && strchr("sdmt", text[1]) && text[1])
        return 2;
    if (n_bytes >= 3 &&
        (memcmp(text + 1, "ll", 2) == 0 || memcmp(text + 1, "ve", 2) == 0 || memcmp(text + 1, "re", 2) == 0))
        return 3;
    return 0;
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

size_t tokenizer_next_pretoken(const char *text, size_t n_bytes) {
    size_t length, last = 0;
    if (text[0] == '\'' && (length = contraction(text, n_bytes)) > 0)
        return length;
    enum kind first = classify(text, n_bytes, &length);
    if (first != KIND_SPACE)
        return kind_end(text, n_bytes, 0, first, &last);
    if (text[0] == ' ' && n_bytes > 1) {
        enum kind second = classify(text + 1, n_bytes - 1, &length);
        if (second != KIND_SPACE)
            return kind_end(text, n_bytes, 1, second, &last);
    }
    // White space: all of it at the end of the text; else all but the last character, which belongs to the
    // next pre-token.
    size_t end = kind_end(text, n_bytes, 0, KIND_SPACE, &last);
    return end < n_bytes && last > 0 ? last : end;
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

size_t tokenizer_next_boundary(const char *text, size_t n_bytes, size_t from) {
    for (size_t at = from; at < n_bytes; at++)
        if ((text[at] == ' ' || text[at] == '\n') && !space_ends_at(text, at))
            return at;
    return n_bytes;
}
