// A scanner that follows the grammar of RFC 8259 up to the first byte that breaks it.
#include "base/json_syntax.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// What may come next.
enum want { WANT_VALUE, WANT_FIRST_VALUE, WANT_FIRST_KEY, WANT_KEY, WANT_COLON, WANT_NEXT, WANT_END };

enum { DEEPEST = 1000 }; // cJSON's limit (CJSON_NESTING_LIMIT)

struct scan {
    const char *text, *p, *end;
    enum want want;
    const char *comma;  // the last comma
    const char *string; // the last string, with its quotes
    size_t string_length;
    const char *key; // opening quote of the last key
    int key_length;
    const char *open[DEEPEST]; // the brackets that are open
    int depth;
    struct json_mistake *mistake;
};

void json_line_and_column(const char *text, const char *at, size_t *line, size_t *column) {
    *line = *column = 1;
    for (const char *p = text; p < at; p++) {
        *column = *p == '\n' ? 1 : *column + 1;
        *line += *p == '\n';
    }
}

// Each of the steps below returns false at the end of the scan. A mistake is recorded here.
static bool found(const struct scan *s, const char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool found(const struct scan *s, const char *at, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    s->mistake->at = at;
    vsnprintf(s->mistake->what, sizeof s->mistake->what, format, arguments);
    va_end(arguments);
    return false;
}

static size_t line_of(const struct scan *s, const char *at) {
    size_t line, column;
    json_line_and_column(s->text, at, &line, &column);
    return line;
}

static bool in_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.' || c == '+';
}

static size_t word_length(const struct scan *s) {
    size_t length = 0;
    while (s->p + length < s->end && in_word(s->p[length]))
        length++;
    return length;
}

static bool is_word(const char *word, size_t length, const char *const *words) {
    for (; *words; words++)
        if (strlen(*words) == length && memcmp(*words, word, length) == 0)
            return true;
    return false;
}

// Checks the escapes of the string that opens at `p`, and moves behind it.
static bool scan_string(struct scan *s) {
    s->string = s->p;
    for (const char *q = s->p + 1; q < s->end; q++) {
        if (*q == '"') {
            s->p = q + 1;
            s->string_length = (size_t)(s->p - s->string);
            return true;
        }
        if (*q != '\\')
            continue;
        if (q + 1 < s->end && !strchr("\"\\/bfnrtu", q[1]))
            return found(s, q, "this is no escape of JSON; write \\\\ for a backslash:");
        q++;
    }
    return found(s, s->string, "the closing \" of this string is missing:");
}

// -?(0|[1-9]d*)(.d+)?([eE][+-]?d+)?
static bool is_number(const char *p, size_t length) {
    const char *end = p + length;
    p += p < end && *p == '-';
    const char *digits = p;
    while (p < end && isdigit((unsigned char)*p))
        p++;
    if (p == digits || (*digits == '0' && p - digits > 1))
        return false;
    if (p < end && *p == '.') {
        const char *fraction = ++p;
        while (p < end && isdigit((unsigned char)*p))
            p++;
        if (p == fraction)
            return false;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '+' || *p == '-');
        const char *exponent = p;
        while (p < end && isdigit((unsigned char)*p))
            p++;
        if (p == exponent)
            return false;
    }
    return p == end;
}

static bool scan_word(struct scan *s) {
    static const char *const json[] = {"true", "false", "null", NULL},
                             *const yes[] = {"True", "TRUE", "yes", "on", NULL},
                             *const no[] = {"False", "FALSE", "no", "off", NULL},
                             *const nothing[] = {"None", "NULL", "Null", "nil", "undefined", NULL},
                             *const infinite[] = {"NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", NULL};
    const size_t length = word_length(s);
    const bool number =
        isdigit((unsigned char)*s->p) ||
        (length > 1 && strchr("+-.", *s->p) && (isdigit((unsigned char)s->p[1]) || s->p[1] == '.'));
    if (is_word(s->p, length, json) || is_number(s->p, length)) {
        s->p += length;
        return true;
    }
    if (is_word(s->p, length, yes))
        return found(s, s->p, "write true, or quotes around text, instead of");
    if (is_word(s->p, length, no))
        return found(s, s->p, "write false, or quotes around text, instead of");
    if (is_word(s->p, length, nothing))
        return found(s, s->p, "JSON writes null; to keep an option's default, leave the option out:");
    if (is_word(s->p, length, infinite))
        return found(s, s->p, "JSON has no such number:");
    if (number)
        return found(s, s->p, "this is no JSON number; expected digits, as in 12, 0.5 or 1e-3:");
    if (length == 0)
        return found(s, s->p, "expected a value, such as 12, true or \"text\", here:");
    return found(s, s->p, "text needs double quotes:");
}

// Mistakes that look the same wherever they are.
static bool check_foreign(const struct scan *s) {
    const char *p = s->p;
    const size_t left = (size_t)(s->end - p);
    if (*p == '#' || (*p == '/' && left > 1 && (p[1] == '/' || p[1] == '*')))
        return found(s, p, "comments are not JSON; remove this:");
    if (*p == '\'')
        return found(s, p, "write double quotes (\") instead of single ones:");
    // U+201C to U+201E, which word processors write
    if (left > 2 && memcmp(p, "\xe2\x80", 2) == 0 && (unsigned char)p[2] >= 0x9c &&
        (unsigned char)p[2] <= 0x9e)
        return found(s, p, "write straight double quotes (\") instead of curly ones:");
    return true;
}

static bool scan_close(struct scan *s) {
    if (s->depth == 0)
        return found(s, s->p, "nothing is open that this could close:");
    const char *open = s->open[s->depth - 1];
    const char expected = *open == '{' ? '}' : ']';
    if (s->want == WANT_COLON || (s->want == WANT_VALUE && *open == '{'))
        return found(s, s->p, "the value of the key %.*s is missing before", s->key_length, s->key);
    if (*s->p != expected)
        return found(s, s->p, "expected %c, which closes the %c of line %zu, instead of", expected, *open,
                     line_of(s, open));
    if (s->want == WANT_KEY || s->want == WANT_VALUE) {
        size_t line, column;
        json_line_and_column(s->text, s->comma, &line, &column);
        return found(s, s->p, "remove the trailing comma (line %zu, column %zu) before", line, column);
    }
    s->depth--;
    s->want = s->depth ? WANT_NEXT : WANT_END;
    s->p++;
    return true;
}

static bool scan_key(struct scan *s) {
    if (*s->p == ',')
        return found(s, s->p, "expected a key, here is a comma too many:");
    if (*s->p != '"')
        return found(s, s->p,
                     word_length(s) ? "a key needs double quotes:" : "expected a key in double quotes:");
    if (!scan_string(s))
        return false;
    s->key = s->string;
    s->key_length = s->p - s->string < 60 ? (int)(s->p - s->string) : 60;
    s->want = WANT_COLON;
    return true;
}

// After a value.
static bool scan_next(struct scan *s) {
    if (*s->p == ',') {
        s->comma = s->p++;
        s->want = *s->open[s->depth - 1] == '{' ? WANT_KEY : WANT_VALUE;
        return true;
    }
    // A string without its closing quote ends at the next string's opening one.
    const char *last = s->p - 1;
    while (last > s->text && strchr(" \t\r\n", *last))
        last--;
    if (*last == '"' && s->string && memchr(s->string, '\n', s->string_length))
        return found(s, s->string, "the closing \" of this string is missing:");
    if (*s->p == ':')
        return found(s, s->p, "expected a comma; a list ([]) has no keys, an object ({}) has:");
    if (*s->p == ';')
        return found(s, s->p, "expected a comma instead of");
    return found(s, s->p, "a comma is missing before");
}

static bool scan_value(struct scan *s) {
    if (*s->p == ',')
        return found(s, s->p, "expected a value, here is a comma too many:");
    if (*s->p == '{' || *s->p == '[') {
        if (s->depth == DEEPEST)
            return false;
        s->open[s->depth++] = s->p;
        s->want = *s->p++ == '{' ? WANT_FIRST_KEY : WANT_FIRST_VALUE;
        return true;
    }
    if (!(*s->p == '"' ? scan_string(s) : scan_word(s)))
        return false;
    s->want = s->depth ? WANT_NEXT : WANT_END;
    return true;
}

static bool scan_one(struct scan *s) {
    while (s->p < s->end && strchr(" \t\r\n", *s->p) && *s->p)
        s->p++;
    if (s->p == s->end)
        return s->want == WANT_END
                   ? false
                   : found(s, s->end - 1, "the JSON is incomplete: %s is still open where it ends:",
                           s->depth == 0                   ? "it"
                           : *s->open[s->depth - 1] == '{' ? "a {"
                                                           : "a [");
    if (s->want == WANT_END)
        return found(s, s->p, "expected nothing after the end of the JSON, here is");
    if (!check_foreign(s))
        return false;
    if (*s->p == '}' || *s->p == ']')
        return scan_close(s);
    switch (s->want) {
    case WANT_FIRST_KEY:
    case WANT_KEY:
        return scan_key(s);
    case WANT_COLON:
        if (*s->p != ':' && memchr(s->string, '\n', s->string_length))
            return found(s, s->string, "the closing \" of this string is missing:");
        if (*s->p != ':')
            return found(s, s->p, "expected : after the key %.*s, here is", s->key_length, s->key);
        s->p++;
        s->want = WANT_VALUE;
        return true;
    case WANT_NEXT:
        return scan_next(s);
    default:
        return scan_value(s);
    }
}

bool json_find_mistake(const char *text, size_t length, struct json_mistake *mistake) {
    struct scan s = {.text = text, .p = text, .end = text + length, .mistake = mistake};
    mistake->at = NULL;
    if (length > 1 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        return !found(&s, text, "the text is UTF-16; save it as UTF-8");
    if (length > 2 && memcmp(text, "\xef\xbb\xbf", 3) == 0) // a byte order mark, which cJSON skips too
        s.p += 3;
    while (scan_one(&s))
        ;
    return mistake->at != NULL;
}

// The length of the comment at `p`, without the end of its line; 0 if there is none.
static size_t comment_length(const char *p, const char *end) {
    const char *q = p;
    if (end - p > 1 && p[0] == '/' && p[1] == '*') {
        for (q = p + 2; q < end && !(q[0] == '/' && q[-1] == '*' && q > p + 2); q++)
            ;
        return (size_t)(q < end ? q + 1 - p : end - p);
    }
    if (*p != '#' && !(end - p > 1 && p[0] == '/' && p[1] == '/'))
        return 0;
    while (q < end && *q != '\n')
        q++;
    return (size_t)(q - p);
}

void json_blank_extensions(char *text, size_t length) {
    char *comma = NULL, *end = text + length;
    for (char *p = text; p < end; p++) {
        const size_t comment = comment_length(p, end);
        for (size_t i = 0; i < comment; i++)
            p[i] = p[i] == '\n' ? '\n' : ' ';
        if (*p == '"')
            for (p++; p < end && *p != '"'; p++)
                p += *p == '\\' && p + 1 < end;
        if (p < end && comma && (*p == '}' || *p == ']'))
            *comma = ' ';
        if (p < end && !strchr(" \t\r\n", *p))
            comma = *p == ',' ? p : NULL;
    }
}
