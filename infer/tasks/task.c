// A task's file is read whole and parsed line by line. Of its items, only the tokens and labels are kept.
// For each kind of task, one function reads an item. The keys of items are those of the published data
// sets.
#include "infer/tasks/task.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"
#include "infer/tasks/words.h"

#define LARGEST_FILE ((size_t)1 << 30) // bytes

// ---- the names of tasks

static const char *const kind_names[] = {
    [TASK_HELLASWAG] = "hellaswag", [TASK_LAMBADA] = "lambada", [TASK_MULTIPLE_CHOICE] = "multiple_choice"};

const char *task_kind_name(enum task_kind kind) {
    return kind_names[kind];
}

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

// Returns the name of a task. It is printed to terminals and in JSON, so control characters become question
// marks; if the name is not UTF-8, so do all bytes that are not ASCII.
static char *name_of(enum task_kind kind, const char *path) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');
    char *name = kind == TASK_MULTIPLE_CHOICE
                     ? file_path("%.*s", dot > base ? (int)(dot - base) : INT_MAX, base)
                     : copy_string(task_kind_name(kind));
    const size_t n = strlen(name);
    const bool is_utf8 = utf8_valid_bytes(name, n) == n;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f || (!is_utf8 && (unsigned char)name[i] > 0x7f))
            name[i] = '?';
    return name;
}

// ---- the text of an item

void task_text_free(struct task_text *item) {
    text_free(&item->context);
    for (int i = 0; i < item->n_choices; i++)
        text_free(&item->choices[i]);
}

// Returns the first of the keys (a list that ends with NULL) that the object has; NULL: it has none.
static const char *key_of(const cJSON *object, const char *const *keys) {
    for (; *keys; keys++)
        if (cJSON_GetObjectItemCaseSensitive(object, *keys))
            return *keys;
    return NULL;
}

static enum status read_choices(struct task_text *item, const cJSON *object, const char *key, bool clean,
                                const char *source) {
    const cJSON *array, *choice;
    TRY(json_get_array(object, key, source, &array));
    const int n = cJSON_GetArraySize(array);
    if (n < 2 || n > TASK_MOST_CHOICES)
        return FAIL(STATUS_INVALID, "%s: \"%s\" has %d choices, expected from 2 to %d", source, key, n,
                    TASK_MOST_CHOICES);
    cJSON_ArrayForEach(choice, array) {
        if (!cJSON_IsString(choice))
            return FAIL(STATUS_INVALID, "%s: choice %d of \"%s\" is not a string", source, item->n_choices,
                        key);
        struct text *text = &item->choices[item->n_choices++];
        if (clean)
            words_add_hellaswag(text, choice->valuestring);
        else
            text_add(text, "%s", choice->valuestring);
    }
    return STATUS_OK;
}

// ---- the label of an item

// Returns the index that a word such as "2" or "C" stands for; -1 if it is neither a number nor a letter.
static int index_of_word(const char *word) {
    char *end;
    if (word[0] >= 'A' && word[0] <= 'Z' && word[1] == 0)
        return word[0] - 'A';
    if (word[0] < '0' || word[0] > '9' || strlen(word) > 6)
        return -1;
    const long index = strtol(word, &end, 10);
    return *end ? -1 : (int)index;
}

// Sets item->label from a string: the index of a choice from 0, its letter from A, or its own text.
static enum status read_label_word(struct task_text *item, const char *key, const char *word,
                                   const char *source) {
    const int index = index_of_word(word);
    int written = -1;
    for (int i = 0; i < item->n_choices && written < 0; i++)
        if (strcmp(item->choices[i].data ? item->choices[i].data : "", word) == 0)
            written = i;
    if (index >= 0 && written >= 0 && index != written)
        return FAIL(STATUS_INVALID,
                    "%s: \"%s\" is \"%s\", which is the text of choice %d, but also the index of choice %d; "
                    "give the index from 0 as a number",
                    source, key, word, written, index);
    item->label = index >= 0 ? index : written;
    if (item->label >= 0 && item->label < item->n_choices)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: \"%s\" is \"%.40s\", expected the index of one of the %d choices, from 0%s", source, key,
                word, item->n_choices,
                word[0] ? "" : " (published test splits have none; use the validation split)");
}

static enum status read_label(struct task_text *item, const cJSON *object, const char *key,
                              const char *source) {
    const cJSON *label = cJSON_GetObjectItemCaseSensitive(object, key);
    int64_t index;
    if (!label)
        return FAIL(STATUS_INVALID,
                    "%s has no \"%s\" (published test splits have none; use the validation split)", source,
                    key);
    if (cJSON_IsString(label))
        return read_label_word(item, key, label->valuestring, source);
    TRY(json_get_integer(object, key, 0, item->n_choices - 1, source, &index));
    item->label = (int)index;
    return STATUS_OK;
}

// ---- reading an item of each kind

// Reads an item of HellaSwag. Its context is made as in lm-evaluation-harness: "activity_label: ctx_a ctx_b",
// with ctx_b capitalized; without ctx_a, "activity_label: ctx".
static enum status read_hellaswag(struct task_text *item, const cJSON *object, const char *source) {
    const char *activity, *a, *b;
    struct text query = {0};
    TRY(json_get_string(object, "activity_label", source, &activity));
    text_add(&query, "%s: ", activity);
    enum status status;
    if (cJSON_GetObjectItemCaseSensitive(object, "ctx_a")) {
        status = json_get_string(object, "ctx_a", source, &a);
        if (status == STATUS_OK)
            status = json_get_string(object, "ctx_b", source, &b);
        if (status == STATUS_OK) {
            text_add(&query, "%s ", a);
            words_add_capitalized(&query, b);
        }
    } else {
        status = json_get_string(object, "ctx", source, &a);
        if (status == STATUS_OK)
            text_add(&query, "%s", a);
    }
    if (status == STATUS_OK)
        words_add_hellaswag(&item->context, query.data);
    text_free(&query);
    TRY(status);
    TRY(read_choices(item, object, "endings", true, source));
    return read_label(item, object, "label", source);
}

static enum status read_lambada(struct task_text *item, const cJSON *object, const char *source) {
    const char *text;
    TRY(json_get_string(object, "text", source, &text));
    const char *blank = strrchr(text, ' '), *word = blank ? blank + 1 : text;
    if (!word[0])
        return FAIL(STATUS_INVALID, "%s: \"text\" %s, expected a last word", source,
                    blank ? "ends with a blank" : "is empty");
    text_add_bytes(&item->context, text, blank ? (size_t)(blank - text) : 0);
    item->n_choices = 1;
    text_add(&item->choices[0], "%s", word);
    return STATUS_OK;
}

static enum status read_multiple_choice(struct task_text *item, const cJSON *object, const char *source) {
    static const char *const contexts[] = {"context", "question", "query", "ctx", NULL},
                             *const choices[] = {"choices", "endings", "options", NULL},
                             *const labels[] = {"label", "answer", "gold", NULL};
    const char *context = key_of(object, contexts), *list = key_of(object, choices),
               *label = key_of(object, labels), *text;
    if (!context || !list || !label)
        return FAIL(STATUS_INVALID,
                    "%s has no %s; expected {\"context\": TEXT, \"choices\": [TEXT, ...], \"label\": INDEX}, "
                    "or \"question\", \"endings\", \"answer\"",
                    source,
                    !context ? "\"context\""
                    : !list  ? "\"choices\""
                             : "\"label\"");
    TRY(json_get_string(object, context, source, &text));
    text_add(&item->context, "%s", text);
    TRY(read_choices(item, object, list, false, source));
    return read_label(item, object, label, source);
}

enum status task_text_read(struct task_text *item, enum task_kind kind, const char *line, size_t length,
                           const char *source) {
    static enum status (*const readers[])(struct task_text *, const cJSON *,
                                          const char *) = {[TASK_HELLASWAG] = read_hellaswag,
                                                           [TASK_LAMBADA] = read_lambada,
                                                           [TASK_MULTIPLE_CHOICE] = read_multiple_choice};
    cJSON *object;
    *item = (struct task_text){0};
    if (utf8_valid_bytes(line, length) != length)
        return FAIL(STATUS_INVALID, "%s is not UTF-8 (byte %zu of the line)", source,
                    utf8_valid_bytes(line, length) + 1);
    TRY(json_parse(line, length, source, &object));
    enum status status =
        cJSON_IsObject(object)
            ? readers[kind](item, object, source)
            : FAIL(STATUS_INVALID, "%s is not an object; expected one JSON object per line", source);
    cJSON_Delete(object);
    return status;
}

// ---- making requests of items

struct reader {
    struct task *task;
    const struct task_options *options;
    struct text whole; // context and continuation of one request
    struct token_list ids;
    int most_requests, most_items; // capacities of task->requests and task->items
    const char *source;            // file and line, for messages
};

static enum status check_vocabulary(const struct reader *reader, const struct token_list *ids) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->ids[i] >= reader->options->vocab_size)
            return FAIL(STATUS_INVALID, "%s: token id %d is outside the model's vocabulary of %d",
                        reader->source, ids->ids[i], reader->options->vocab_size);
    return STATUS_OK;
}

// Adds the request whose tokens are in reader->ids. Its first n_context tokens are the context.
//   length   characters of the choice (task_request.length)
static enum status add_request(struct reader *reader, size_t n_context, double length) {
    struct task *task = reader->task;
    const struct token_list *ids = &reader->ids;
    const size_t most = (size_t)reader->options->seq_len + 1, n_scored = ids->n - n_context;
    TRY(check_vocabulary(reader, ids));
    if (n_scored < 1 || n_scored >= most)
        return FAIL(STATUS_INVALID,
                    "%s: a choice has %zu tokens, expected from 1 to %zu, because a sequence has %zu; leave "
                    "the item out",
                    reader->source, n_scored, most - 1, most - 1);
    const size_t dropped = ids->n > most ? ids->n - most : 0;
    RESERVE(task->requests, task->n_requests + 1, reader->most_requests);
    task->requests[task->n_requests++] = (struct task_request){
        .first = task->tokens.n, .n = (int)(ids->n - dropped), .n_scored = (int)n_scored, .length = length};
    for (size_t i = dropped; i < ids->n; i++)
        token_list_add(&task->tokens, ids->ids[i]);
    return STATUS_OK;
}

// Adds an item and one request per choice. The context is tokenized without its trailing white space, which
// becomes the start of the continuation.
static enum status add_item(struct reader *reader, const struct task_text *item) {
    const struct tokenizer *tokenizer = reader->options->tokenizer;
    const char *context = item->context.data ? item->context.data : "";
    const size_t n = words_without_space_at_end(context, item->context.length);
    struct task *task = reader->task;
    struct token_list *ids = &reader->ids;
    RESERVE(task->items, task->n_items + 1, reader->most_items);
    task->items[task->n_items++] =
        (struct task_item){.first = task->n_requests, .n = item->n_choices, .label = item->label};
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
    struct task_text item;
    char *source = file_path("%s, line %zu", reader->task->path, number);
    reader->source = source;
    enum status status = task_text_read(&item, reader->task->kind, line, length, source);
    if (status == STATUS_OK)
        status = add_item(reader, &item);
    task_text_free(&item);
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
    task->path = copy_string(path);
    return read_file(task, options);
}

void task_free(struct task *task) {
    free(task->name);
    free(task->path);
    token_list_free(&task->tokens);
    free(task->requests);
    free(task->items);
    *task = (struct task){0};
}

// ---- lists of tasks

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
    *list = (struct task_list){.tasks = allocate((size_t)n, sizeof *list->tasks)};
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
