// Files are read whole, one line at a time is parsed, and only tokens are kept.
#include "infer/tasks/task.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/file_kind.h"
#include "base/text.h"
#include "base/utf8.h"
#include "infer/tasks/words.h"

#define LARGEST_FILE ((size_t)1 << 30)

// ---- names

enum status task_parse(const char *option, const char *text, enum task_kind *kind, const char **path) {
    const char *equals = strchr(text, '=');
    const size_t length = equals ? (size_t)(equals - text) : 0;
    for (int k = 0; k < N_TASK_KINDS; k++) {
        const char *name = task_kind_name((enum task_kind)k);
        if (equals && equals[1] && strlen(name) == length && strncmp(text, name, length) == 0) {
            *kind = (enum task_kind)k;
            *path = equals + 1;
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_INVALID, "%s is \"%s\", expected hellaswag=FILE, lambada=FILE or multiple_choice=FILE",
                option, text);
}

// Names go into JSON and onto terminals: bytes that are no text become question marks.
static char *name_of(enum task_kind kind, const char *path) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');
    char *name = kind == TASK_MULTIPLE_CHOICE
                     ? file_path("%.*s", dot > base ? (int)(dot - base) : INT_MAX, base)
                     : file_path("%s", task_kind_name(kind));
    const size_t n = name ? strlen(name) : 0;
    const bool is_utf8 = utf8_valid_bytes(name ? name : "", n) == n;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f || (!is_utf8 && (unsigned char)name[i] > 0x7f))
            name[i] = '?';
    return name;
}

// ---- reading

struct reader {
    struct task *task;
    const struct task_options *options;
    struct text whole; // of one request
    struct token_list ids;
    int most_requests, most_items; // that there is room for
    const char *source;            // file and line
};

// The array with room for one element more than n, or NULL.
static void *grow(void *elements, int *capacity, int n, size_t size) {
    if (n < *capacity)
        return elements;
    *capacity = *capacity < INT_MAX / 2 ? 2 * *capacity + 64 : INT_MAX;
    return n < *capacity ? realloc(elements, (size_t)*capacity * size) : NULL;
}

static enum status add(struct reader *reader, const struct task_request *request) {
    struct task *task = reader->task;
    void *grown = grow(task->requests, &reader->most_requests, task->n_requests, sizeof *request);
    if (!grown)
        return FAIL(STATUS_FAILED, "out of memory for %d requests of %s", task->n_requests, task->path);
    task->requests = grown;
    task->requests[task->n_requests++] = *request;
    return STATUS_OK;
}

static enum status check_vocabulary(const struct reader *reader, const struct token_list *ids) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->ids[i] >= reader->options->vocab_size)
            return FAIL(STATUS_INVALID, "%s: token %d is outside the model's vocabulary of %d",
                        reader->source, ids->ids[i], reader->options->vocab_size);
    return STATUS_OK;
}

// Adds the request whose tokens are in reader->ids, the first n_context of them the context's.
//   length   of the choice, for acc_norm
static enum status add_request(struct reader *reader, size_t n_context, double length) {
    struct task *task = reader->task;
    const struct token_list *ids = &reader->ids;
    const size_t most = (size_t)reader->options->seq_len + 1, n_scored = ids->n - n_context;
    TRY(check_vocabulary(reader, ids));
    if (n_scored < 1 || n_scored >= most)
        return FAIL(STATUS_INVALID,
                    "%s: a choice has %zu tokens, expected from 1 to %zu, as the model is given sequences of "
                    "%zu; leave the item out",
                    reader->source, n_scored, most - 1, most - 1);
    const size_t dropped = ids->n > most ? ids->n - most : 0;
    TRY(add(reader, &(struct task_request){.first = task->tokens.n,
                                           .n = (int)(ids->n - dropped),
                                           .n_scored = (int)n_scored,
                                           .length = length}));
    for (size_t i = dropped; i < ids->n; i++)
        token_list_add(&task->tokens, ids->ids[i]);
    return STATUS_OK;
}

static enum status begin_item(struct reader *reader, int n_choices, int label) {
    struct task *task = reader->task;
    void *grown = grow(task->items, &reader->most_items, task->n_items, sizeof *task->items);
    if (!grown)
        return FAIL(STATUS_FAILED, "out of memory for %d items of %s", task->n_items, task->path);
    task->items = grown;
    task->items[task->n_items++] =
        (struct task_item){.first = task->n_requests, .n = n_choices, .label = label};
    return STATUS_OK;
}

// Tokenizes the context without the white space at its end, which begins the continuation.
static enum status add_item(struct reader *reader, const struct task_text *item) {
    const struct tokenizer *tokenizer = reader->options->tokenizer;
    const char *context = item->context.data ? item->context.data : "";
    const size_t n = words_without_space_at_end(context, item->context.length);
    TRY(begin_item(reader, item->n_choices, item->label));
    struct token_list *ids = &reader->ids;
    const bool begins = n == 0 || tokenizer_has_bos(tokenizer);
    ids->n = 0;
    if (begins)
        token_list_add(ids, tokenizer_document_start(tokenizer));
    TRY(tokenizer_encode(tokenizer, context, n, ids));
    const size_t n_context = ids->n;
    for (int i = 0; i < item->n_choices; i++) {
        reader->whole.length = 0;
        text_add_bytes(&reader->whole, context, item->context.length);
        text_add(&reader->whole, " %s", item->choices[i].data ? item->choices[i].data : "");
        TRY(text_status(&reader->whole));
        ids->n = 0;
        if (begins)
            token_list_add(ids, tokenizer_document_start(tokenizer));
        TRY(tokenizer_encode(tokenizer, reader->whole.data, reader->whole.length, ids));
        TRY(add_request(reader, n_context < ids->n ? n_context : ids->n,
                        (double)words_characters(item->choices[i].data, item->choices[i].length)));
    }
    return STATUS_OK;
}

static enum status read_line(struct reader *reader, const char *line, size_t length, size_t number) {
    struct task_text *item = malloc(sizeof *item);
    char *source = file_path("%s, line %zu", reader->task->path, number);
    enum status status = STATUS_FAILED;
    if (!item)
        status = FAIL(STATUS_FAILED, "out of memory for an item of %s", reader->task->path);
    else if (source) {
        reader->source = source;
        status = task_text_read(item, reader->task->kind, line, length, source);
        if (status == STATUS_OK)
            status = add_item(reader, item);
        task_text_free(item);
    }
    free(item);
    free(source);
    return status;
}

static enum status read_lines(struct reader *reader, const char *text, size_t bytes) {
    const int64_t limit = reader->options->limit;
    size_t number = 0;
    for (const char *line = text, *end = text + bytes;
         line < end && (limit == 0 || reader->task->n_items < limit);) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line));
        const size_t length = (size_t)((line_end ? line_end : end) - line);
        number++;
        if (!text_is_blank(line, length))
            TRY(read_line(reader, line, length, number));
        line += length + 1;
    }
    if (reader->task->n_items == 0)
        return FAIL(STATUS_INVALID, "%s has no items; expected one JSON object per line", reader->task->path);
    return STATUS_OK;
}

static enum status read_file(struct task *task, const struct task_options *options) {
    char *text;
    size_t bytes;
    const enum file_kind kind = file_kind_of_path(task->path);
    if (kind != FILE_KIND_TEXT && kind != FILE_KIND_UNKNOWN)
        return file_kind_refuse(kind, task->path, "", "JSON Lines: one item per line");
    TRY(file_read(task->path, LARGEST_FILE, &text, &bytes));
    struct reader reader = {.task = task, .options = options};
    task->checksum = XXH3_64bits(text, bytes);
    enum status status = read_lines(&reader, text, bytes);
    token_list_free(&reader.ids);
    text_free(&reader.whole);
    free(text);
    return status;
}

enum status task_load(struct task *task, const char *option, const char *text,
                      const struct task_options *options) {
    const char *path;
    *task = (struct task){0};
    TRY(task_parse(option, text, &task->kind, &path));
    task->name = name_of(task->kind, path);
    task->path = file_path("%s", path);
    return task->name && task->path ? read_file(task, options) : STATUS_FAILED;
}

void task_free(struct task *task) {
    free(task->name);
    free(task->path);
    token_list_free(&task->tokens);
    free(task->requests);
    free(task->items);
    *task = (struct task){0};
}

// ---- lists

static enum status check_name(const struct task_list *list, const char *option) {
    const struct task *last = &list->tasks[list->n - 1];
    for (int i = 0; i < list->n - 1; i++)
        if (strcmp(list->tasks[i].name, last->name) == 0)
            return FAIL(STATUS_INVALID, "%s: %s and %s are both named \"%s\"; leave one out or rename it",
                        option, list->tasks[i].path, last->path, last->name);
    return STATUS_OK;
}

enum status task_list_load(struct task_list *list, const char *option, const char *const *texts, int n,
                           const struct task_options *options) {
    *list = (struct task_list){.tasks = calloc((size_t)n + 1, sizeof *list->tasks)};
    if (!list->tasks)
        return FAIL(STATUS_FAILED, "out of memory for %d tasks", n);
    for (int i = 0; i < n; i++) {
        list->n = i + 1;
        TRY(task_load(&list->tasks[i], option, texts[i], options));
        TRY(check_name(list, option));
    }
    return STATUS_OK;
}

void task_list_free(struct task_list *list) {
    for (int i = 0; i < list->n; i++)
        task_free(&list->tasks[i]);
    free(list->tasks);
    *list = (struct task_list){0};
}
