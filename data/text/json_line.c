// cJSON parses the line. Its strings end at the first zero byte. So lines with \u0000 are parsed twice, by
// read_with_nuls.
#include "data/text/json_line.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"

struct line {
    const char *text;
    size_t n;
    const char *field, *path;
    uint64_t number;
};

#define PLACE(line) (line)->path, (unsigned long long)(line)->number

static enum status parse(const struct line *line, const char *text, cJSON **root) {
    const char *end = text;
    *root = cJSON_ParseWithLengthOpts(text, line->n, &end, false);
    if (!*root || !text_is_blank(end, (size_t)(text + line->n - end))) {
        cJSON_Delete(*root);
        *root = NULL;
        if (text_is_blank(line->text, line->n))
            return FAIL(STATUS_INVALID, "%s:%llu: the line is empty, expected a JSON object", PLACE(line));
        // `end` points into `text`, which may be a copy of the line; the message needs the position in the
        // line.
        return json_syntax_error(line->text, line->n, line->text + (end - text), line->path, line->number);
    }
    if (cJSON_IsObject(*root))
        return STATUS_OK;
    const bool is_list = cJSON_IsArray(*root);
    cJSON_Delete(*root);
    *root = NULL;
    return FAIL(STATUS_INVALID, "%s:%llu: expected a JSON object, as in {\"%s\": \"...\"}%s", PLACE(line),
                line->field, is_list ? "; convert a JSON list: jq -c '.[]' FILE.json > FILE.jsonl" : "");
}

static const cJSON *last_member(const cJSON *object, const char *name) {
    const cJSON *item, *found = NULL;
    cJSON_ArrayForEach(item, object) if (strcmp(item->string, name) == 0) found = item;
    return found;
}

static enum status no_text(const struct line *line, const cJSON *root, const cJSON *found) {
    struct text names = {0};
    const cJSON *item;
    int n = 0;
    if (found)
        return FAIL(STATUS_INVALID, "%s:%llu: \"%s\" is %s; correct or remove the line", PLACE(line),
                    line->field, cJSON_IsNull(found) ? "null, expected a string" : "not a string");
    cJSON_ArrayForEach(item, root) if (n++ < 8)
        text_add(&names, "%s\"%.40s\"", n > 1 ? ", " : "", item->string);
    const enum status status = FAIL(STATUS_INVALID,
                                    "%s:%llu: the object has no member \"%s\" (its members: %s%s); name the "
                                    "member that holds the text with --field",
                                    PLACE(line), line->field, n ? names.data : "none", n > 8 ? ", ..." : "");
    text_free(&names);
    return status;
}

static enum status read_member(const struct line *line, const char *text, struct text *out) {
    cJSON *root;
    TRY(parse(line, text, &root));
    const cJSON *found = last_member(root, line->field);
    const char *value = cJSON_GetStringValue(found);
    enum status status = value ? STATUS_OK : no_text(line, root, found);
    out->length = 0;
    if (status == STATUS_OK)
        text_add_bytes(out, value, strlen(value));
    cJSON_Delete(root);
    return status;
}

// ---- lines with \u0000

#define NUL_ESCAPE "\\u0000"

// Returns a copy of the line in which each \u0000 is replaced by \u000<digit>.
static char *replace_nuls(const struct line *line, char digit) {
    char *copy = copy_bytes(line->text, line->n);
    for (char *at = copy, *end = copy + line->n; at + 6 <= end; at += *at == '\\' ? 2 : 1)
        if (memcmp(at, NUL_ESCAPE, 6) == 0)
            at[5] = digit;
    return copy;
}

// Reads the text of a line that contains \u0000. Parses the line twice, each time with another character in
// place of \u0000. Where the two results differ, the text has a zero byte.
static enum status read_with_nuls(const struct line *line, struct text *out) {
    char *one = replace_nuls(line, '1'), *two = replace_nuls(line, '2');
    struct text other = {0};
    enum status status = read_member(line, one, out);
    if (status == STATUS_OK)
        status = read_member(line, two, &other);
    for (size_t i = 0; status == STATUS_OK && i < out->length; i++)
        if (out->data[i] != other.data[i])
            out->data[i] = '\0';
    text_free(&other);
    free(one);
    free(two);
    return status;
}

enum status json_line_read(const char *line, size_t n, const char *field, const char *path, uint64_t number,
                           struct text *out) {
    const struct line of = {line, n, field, path, number};
    const size_t valid = utf8_valid_bytes(line, n);
    if (valid < n)
        return FAIL(STATUS_INVALID,
                    "%s:%llu:%zu: byte 0x%02x is not UTF-8, which JSON must be; correct or "
                    "remove the line",
                    path, (unsigned long long)number, valid + 1, (unsigned char)line[valid]);
    if (memmem(line, n, NUL_ESCAPE, 6))
        return read_with_nuls(&of, out);
    return read_member(&of, line, out);
}
