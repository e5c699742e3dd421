// cJSON parses the text. This file adds line numbers, rejects duplicate keys and checks types.
#include "base/json.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#define LARGEST_JSON ((size_t)256 << 20)

static const char *type_name(const cJSON *item) {
    return cJSON_IsBool(item)     ? "true or false"
           : cJSON_IsNull(item)   ? "null"
           : cJSON_IsNumber(item) ? "a number"
           : cJSON_IsString(item) ? "a string"
           : cJSON_IsArray(item)  ? "a list"
                                  : "an object";
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// ---- syntax errors

static bool starts_word(char c) {
    return isalpha((unsigned char)c) || (unsigned char)c >= 0x80 || c == '_' || c == '\'';
}

// The last non-space byte before `p`; NUL if there is none.
static char before(const char *text, const char *p) {
    while (p > text && is_space(p[-1]))
        p--;
    return p > text ? p[-1] : '\0';
}

// Returns a message about the likely mistake near *at, where the parser stopped. Moves *at to the mistake.
static const char *find_mistake(const char *text, const char *end, const char **at) {
    const char *p = *at;
    // Where a key is expected, cJSON points one byte past the start of what it found instead.
    if (p > text && (starts_word(p[-1]) || strchr("/#,}", p[-1]))) {
        const char last = before(text, p - 1);
        p -= last == ',' || (last == '{' && p[-1] != '}');
    }
    while (is_space(*p)) // the loop ends, because the last byte of the text is not a space
        p++;
    *at = p;
    const char last = before(text, p);
    if (*p == '#' || (*p == '/' && p + 1 < end && (p[1] == '/' || p[1] == '*')))
        return "comments are not JSON; remove this:";
    if ((*p == '}' || *p == ']') && last == ',') {
        while (**at != ',')
            --*at;
        return "remove this trailing comma:";
    }
    if (starts_word(*p) && strchr("{[:,", last))
        return "keys and text need double quotes (only numbers, true, false and null have none):";
    if ((starts_word(*p) || isdigit((unsigned char)*p) || strchr("\"{[", *p)) && last &&
        !strchr("{[:,", last))
        return "a comma, colon or quote is missing before";
    return "invalid JSON from here on:";
}

enum status json_syntax_error(const char *text, size_t length, const char *at, const char *source,
                              uint64_t line) {
    size_t column = 1, shown = 0;
    const char *end = text + length;
    while (end > text && is_space(end[-1]))
        end--;
    if (end == text)
        return FAIL(STATUS_INVALID, "%s is empty, expected JSON", source);
    if (end - text > 1 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
        return FAIL(STATUS_INVALID, "%s:%llu:1: the text is UTF-16; save it as UTF-8", source,
                    (unsigned long long)line);
    if (at >= end)
        at = end - 1;
    const char *what = find_mistake(text, end, &at);
    for (const char *p = text; p < at; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    while (at + shown < end && shown < 20 && (unsigned char)at[shown] >= ' ')
        shown++;
    return FAIL(STATUS_INVALID, "%s:%llu:%zu: %s \"%.*s\"", source, (unsigned long long)line, column, what,
                (int)shown, at);
}

void json_blank_extensions(char *text, size_t length) {
    char *comma = NULL, *end = text + length;
    for (char *p = text; p < end; p++) {
        const bool block = end - p > 1 && p[0] == '/' && p[1] == '*';
        if (block || *p == '#' || (end - p > 1 && p[0] == '/' && p[1] == '/')) {
            char *stop =
                block ? memmem(p + 2, (size_t)(end - p - 2), "*/", 2) : memchr(p, '\n', (size_t)(end - p));
            for (stop = !stop ? end : block ? stop + 2 : stop; p < stop; p++)
                *p = *p == '\n' ? '\n' : ' ';
            p--;
        } else if (*p == '"') {
            for (p++; p < end && *p != '"'; p++)
                p += *p == '\\' && p + 1 < end;
            comma = NULL;
        } else if (!is_space(*p)) {
            if (comma && (*p == '}' || *p == ']'))
                *comma = ' ';
            comma = *p == ',' ? p : NULL;
        }
    }
}

// ---- line numbers of keys

// Adds to *n the number of keys up to `item`, itself included, in the order of the text. Returns whether
// `item` was reached.
static bool count_keys(const cJSON *node, const cJSON *item, size_t *n) {
    *n += node->string != NULL;
    if (node == item)
        return true;
    const cJSON *child;
    cJSON_ArrayForEach(child, node) if (count_keys(child, item, n)) return true;
    return false;
}

size_t json_line(const char *text, size_t length, const cJSON *root, const cJSON *item) {
    size_t n = 0, line = 1, string_line = 1;
    bool after_string = false; // the last token was a string; it is a key if a colon follows
    if (!count_keys(root, item, &n))
        return 0;
    for (const char *p = text, *end = text + length; p < end; p++) {
        if (*p == '"') {
            string_line = line;
            for (p++; p < end && *p != '"'; p++) {
                line += *p == '\n';
                p += *p == '\\';
            }
            after_string = true;
        } else if (!is_space(*p)) {
            if (*p == ':' && after_string && --n == 0)
                return string_line;
            after_string = false;
        } else
            line += *p == '\n';
    }
    return 0;
}

static int by_key(const void *a, const void *b) {
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

// A parsed text and its tree, for the checks of json_parse.
struct parsed {
    const char *text;
    size_t length;
    const cJSON *root;
    const char *source;
};

static enum status given_twice(const cJSON *a, const cJSON *b, const struct parsed *parsed) {
    const size_t x = json_line(parsed->text, parsed->length, parsed->root, a),
                 y = json_line(parsed->text, parsed->length, parsed->root, b);
    if (x == y)
        return FAIL(STATUS_INVALID, "%s: the key \"%s\" is given twice, in line %zu; remove one",
                    parsed->source, b->string, x);
    return FAIL(STATUS_INVALID, "%s: the key \"%s\" is given twice, in lines %zu and %zu; remove one",
                parsed->source, b->string, x < y ? x : y, x < y ? y : x);
}

// Fails if an object has a key twice. Sorting finds duplicates in O(n log n) for any input.
static enum status check_keys(const cJSON *object, const struct parsed *parsed) {
    int n = cJSON_GetArraySize(object), i = 0;
    if (n < 2)
        return STATUS_OK;
    const cJSON **items = allocate((size_t)n, sizeof *items), *item;
    cJSON_ArrayForEach(item, object) items[i++] = item;
    qsort(items, (size_t)n, sizeof *items, by_key);
    enum status status = STATUS_OK;
    for (i = 1; i < n && status == STATUS_OK; i++)
        if (strcmp(items[i - 1]->string, items[i]->string) == 0)
            status = given_twice(items[i - 1], items[i], parsed);
    free(items);
    return status;
}

// Checks the keys of all objects. cJSON's limit of nesting (CJSON_NESTING_LIMIT) bounds the recursion.
static enum status check_tree(const cJSON *node, const struct parsed *parsed) {
    if (cJSON_IsObject(node))
        TRY(check_keys(node, parsed));
    const cJSON *item;
    cJSON_ArrayForEach(item, node) TRY(check_tree(item, parsed));
    return STATUS_OK;
}

// Rejects \u0000, because cJSON's strings are NUL-terminated and would be silently truncated. `text` has been
// parsed already, so every quote and backslash is valid syntax.
static enum status check_no_nul(const char *text, size_t length, const char *source) {
    size_t line = 1;
    for (const char *p = text, *end = text + length; p < end; p++) {
        if (*p == '\0' || (end - p >= 6 && memcmp(p, "\\u0000", 6) == 0))
            return FAIL(STATUS_INVALID,
                        "%s:%zu: a string contains a zero byte (\\u0000), which is not allowed", source,
                        line);
        line += *p == '\n';
        p += *p == '\\' && p + 1 < end; // skip the escaped character
    }
    return STATUS_OK;
}

enum status json_parse(const char *text, size_t length, const char *source, cJSON **out) {
    const char *end = text;
    *out = cJSON_ParseWithLengthOpts(text, length, &end, false);
    if (!*out)
        return json_syntax_error(text, length, end, source, 1);
    while (end < text + length && is_space(*end))
        end++;
    enum status status = end < text + length ? json_syntax_error(text, length, end, source, 1) : STATUS_OK;
    if (status == STATUS_OK)
        status = check_no_nul(text, length, source);
    if (status == STATUS_OK)
        status = check_tree(*out, &(struct parsed){text, length, *out, source});
    if (status != STATUS_OK) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return status;
}

enum status json_read_file(const char *path, cJSON **out) {
    char *text = NULL;
    size_t length;
    *out = NULL;
    TRY(file_read(path, LARGEST_JSON, &text, &length));
    enum status status = json_parse(text, length, path, out);
    free(text);
    return status;
}

static enum status get(const cJSON *object, const char *key, const char *source,
                       cJSON_bool (*has_type)(const cJSON *), const char *expected, const cJSON **out) {
    *out = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!*out)
        return FAIL(STATUS_INVALID, "%s: \"%s\" is missing, expected %s", source, key, expected);
    if (!has_type(*out))
        return FAIL(STATUS_INVALID, "%s: \"%s\" is %s, expected %s", source, key, type_name(*out), expected);
    return STATUS_OK;
}

enum status json_get_integer(const cJSON *object, const char *key, int64_t minimum, int64_t maximum,
                             const char *source, int64_t *out) {
    const cJSON *item;
    TRY(get(object, key, source, cJSON_IsNumber, "an integer", &item));
    const double value = item->valuedouble;
    if (!(fabs(value) <= 0x1p53) || value != floor(value) || (int64_t)value < minimum ||
        (int64_t)value > maximum)
        return FAIL(STATUS_INVALID, "%s: \"%s\" is %.17g, expected an integer from %lld to %lld", source, key,
                    value, (long long)minimum, (long long)maximum);
    *out = (int64_t)value;
    return STATUS_OK;
}

enum status json_get_number(const cJSON *object, const char *key, const char *source, double *out) {
    const cJSON *item;
    TRY(get(object, key, source, cJSON_IsNumber, "a number", &item));
    if (!isfinite(item->valuedouble))
        return FAIL(STATUS_INVALID, "%s: \"%s\" is out of range: numbers must be below 1.8e308 in magnitude",
                    source, key);
    *out = item->valuedouble;
    return STATUS_OK;
}

enum status json_get_string(const cJSON *object, const char *key, const char *source, const char **out) {
    const cJSON *item;
    TRY(get(object, key, source, cJSON_IsString, "a string", &item));
    *out = item->valuestring;
    return STATUS_OK;
}

enum status json_get_array(const cJSON *object, const char *key, const char *source, const cJSON **out) {
    return get(object, key, source, cJSON_IsArray, "a list", out);
}

enum status json_get_object(const cJSON *object, const char *key, const char *source, const cJSON **out) {
    return get(object, key, source, cJSON_IsObject, "an object", out);
}

void json_add_escaped(struct text *text, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\')
            text_add(text, "\\%c", c);
        else if (c == '\n')
            text_add(text, "\\n");
        else if (c == '\t')
            text_add(text, "\\t");
        else if (c < 0x20 || c == 0x7f)
            text_add(text, "\\u%04x", c);
        else
            text_add_bytes(text, bytes + i, 1);
    }
}

void json_warn_of_unknown(const cJSON *object, const char *known, const char *source) {
    struct text unknown = {0};
    for (const cJSON *item = cJSON_IsObject(object) ? object->child : NULL; item; item = item->next)
        if (!cJSON_IsNull(item) && !text_has_word(known, item->string, strlen(item->string)))
            text_add(&unknown, "%s\"%.60s\"", unknown.length ? ", " : "", item->string);
    if (unknown.length)
        log_warning_once("%s has keys that this program ignores: %s", source, unknown.data);
    text_free(&unknown);
}

void json_add_string(struct text *text, const char *string) {
    text_add_bytes(text, "\"", 1);
    json_add_escaped(text, string, strlen(string));
    text_add_bytes(text, "\"", 1);
}
