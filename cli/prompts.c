#include "cli/prompts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

static enum status reserve(struct prompts *prompts, int64_t n) {
    prompts->prompts = calloc((size_t)n, sizeof *prompts->prompts);
    if (!prompts->prompts)
        return FAIL(STATUS_FAILED, "out of memory for %lld prompts", (long long)n);
    return STATUS_OK;
}

enum status prompts_set_one(struct prompts *prompts, const char *prompt) {
    *prompts = (struct prompts){0};
    TRY(reserve(prompts, 1));
    prompts->prompts[prompts->n++] = (struct prompt){prompt, strlen(prompt)};
    return STATUS_OK;
}

// Replaces the prompts, which are whole lines, by their objects' "prompt".
static enum status parse_objects(struct prompts *prompts, const char *path) {
    prompts->strings = calloc((size_t)prompts->n, sizeof *prompts->strings);
    if (!prompts->strings)
        return FAIL(STATUS_FAILED, "out of memory for %lld prompts", (long long)prompts->n);
    for (int64_t i = 0; i < prompts->n; i++) {
        struct prompt *prompt = &prompts->prompts[i];
        char source[512];
        const char *string;
        cJSON *object = NULL;
        snprintf(source, sizeof source, "%s, line %lld", path, (long long)i + 1);
        TRY(json_parse(prompt->bytes, prompt->n_bytes, source, &object));
        enum status status = STATUS_OK;
        if (!cJSON_IsObject(object))
            status = FAIL(STATUS_INVALID, "%s is not a JSON object; expected {\"prompt\": \"...\"}", source);
        if (status == STATUS_OK)
            status = json_get_string(object, "prompt", source, &string);
        if (status == STATUS_OK && !(prompts->strings[i] = strdup(string)))
            status = FAIL(STATUS_FAILED, "out of memory for the prompts of %s", path);
        cJSON_Delete(object);
        TRY(status);
        *prompt = (struct prompt){prompts->strings[i], strlen(prompts->strings[i])};
    }
    return STATUS_OK;
}

enum status prompts_read(struct prompts *prompts, const char *path) {
    size_t bytes = 0, length = strlen(path);
    int64_t n = 0;
    *prompts = (struct prompts){0};
    TRY(file_read_stream(strcmp(path, "-") == 0 ? "/dev/stdin" : path, SIZE_MAX / 2, &prompts->file, &bytes));
    for (size_t i = 0; i < bytes; i++)
        n += prompts->file[i] == '\n' || i + 1 == bytes;
    if (n == 0)
        return FAIL(STATUS_INVALID, "%s contains no prompt, expected one per line", path);
    TRY(reserve(prompts, n));
    for (const char *line = prompts->file; prompts->n < n;) {
        const char *end = memchr(line, '\n', (size_t)(prompts->file + bytes - line));
        size_t line_bytes = end ? (size_t)(end - line) : (size_t)(prompts->file + bytes - line);
        prompts->prompts[prompts->n++] = (struct prompt){line, line_bytes};
        line += line_bytes + 1;
    }
    bool jsonl = length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
    return jsonl ? parse_objects(prompts, path) : STATUS_OK;
}

void prompts_free(struct prompts *prompts) {
    for (int64_t i = 0; prompts->strings && i < prompts->n; i++)
        free(prompts->strings[i]);
    free(prompts->strings);
    free(prompts->prompts);
    free(prompts->file);
    *prompts = (struct prompts){0};
}
