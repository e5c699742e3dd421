#include "infer/tasks/words.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

static size_t next_character(const char *text, size_t n, utf8proc_int32_t *code) {
    const utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, code);
    return used > 0 ? (size_t)used : 1;
}

// Implements Python's str.isspace for one character: returns true for separators (categories Zs, Zl, Zp)
// and for the control characters that count as white space.
static bool is_space(utf8proc_int32_t code) {
    if ((code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x1f) || code == 0x85)
        return true;
    const utf8proc_category_t category = utf8proc_category(code);
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

size_t words_characters(const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

size_t words_without_space_at_end(const char *text, size_t n) {
    size_t end = 0; // offset of the end of the last character that is not white space
    utf8proc_int32_t code;
    for (size_t at = 0; at < n;) {
        at += next_character(text + at, n - at, &code);
        if (!is_space(code))
            end = at;
    }
    return end;
}

static size_t space_at_start(const char *text, size_t n) {
    utf8proc_int32_t code;
    for (size_t at = 0; at < n;) {
        const size_t used = next_character(text + at, n - at, &code);
        if (!is_space(code))
            return at;
        at += used;
    }
    return n;
}

void words_add_capitalized(struct text *out, const char *text) {
    const size_t n = strlen(text);
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t code;
        utf8proc_uint8_t bytes[4];
        const size_t used = next_character(text + at, n - at, &code);
        const utf8proc_int32_t other = at == 0 ? utf8proc_totitle(code) : utf8proc_tolower(code);
        text_add_bytes(out, bytes, (size_t)utf8proc_encode_char(other, bytes));
        at += used;
    }
}

// Appends the result of Python's text.replace(what, with).
static void replace(struct text *out, const char *text, size_t n, const char *what, const char *with) {
    const size_t length = strlen(what);
    for (size_t at = 0; at < n;) {
        if (n - at >= length && memcmp(text + at, what, length) == 0) {
            text_add(out, "%s", with);
            at += length;
        } else
            text_add_bytes(out, text + at++, 1);
    }
}

static size_t find(const char *text, size_t at, size_t n, char what) {
    const char *found = memchr(text + at, what, n - at);
    return found ? (size_t)(found - text) : n;
}

// Appends the result of Python's re.sub("\\[.*?\\]", "", text): removes brackets and what is between them,
// but not across a line end.
static void remove_brackets(struct text *out, const char *text, size_t n) {
    size_t close = 0, line_end = 0; // offsets of the ']' and '\n' found last, used again while after `at`
    for (size_t at = 0; at < n;) {
        if (text[at] == '[' && close <= at)
            close = find(text, at, n, ']');
        if (text[at] == '[' && line_end <= at)
            line_end = find(text, at, n, '\n');
        if (text[at] == '[' && close < n && close < line_end)
            at = close + 1;
        else
            text_add_bytes(out, text + at++, 1);
    }
}

void words_add_hellaswag(struct text *out, const char *text) {
    struct text titled = {0}, plain = {0};
    const size_t start = space_at_start(text, strlen(text));
    replace(&titled, text + start, words_without_space_at_end(text + start, strlen(text + start)), " [title]",
            ". ");
    remove_brackets(&plain, titled.data, titled.length);
    replace(out, plain.data, plain.length, "  ", " ");
    text_free(&titled);
    text_free(&plain);
}
