// One function per kind of item. Keys have the names of the published data sets.
#include "infer/tasks/item.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "infer/tasks/words.h"

static const char *const kind_names[] = {
    [TASK_HELLASWAG] = "hellaswag", [TASK_LAMBADA] = "lambada", [TASK_MULTIPLE_CHOICE] = "multiple_choice"};

const char *task_kind_name(enum task_kind kind) {
    return kind_names[kind];
}

void task_text_free(struct task_text *item) {
    text_free(&item->context);
    for (int i = 0; i < item->n_choices; i++)
        text_free(&item->choices[i]);
    item->n_choices = 0;
}

// The first of the keys that the object has, or NULL.
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
        *text = (struct text){0};
        if (clean)
            words_add_hellaswag(text, choice->valuestring);
        else
            text_add(text, "%s", choice->valuestring);
    }
    return STATUS_OK;
}

// ---- labels

// "2" or "C" as an index; -1: neither.
static int index_of_word(const char *word) {
    char *end;
    if (word[0] >= 'A' && word[0] <= 'Z' && word[1] == 0)
        return word[0] - 'A';
    if (word[0] < '0' || word[0] > '9' || strlen(word) > 6)
        return -1;
    const long index = strtol(word, &end, 10);
    return *end ? -1 : (int)index;
}

// The choice that a string names: by its index from 0, by a letter, or as it is written.
static enum status read_label_word(struct task_text *item, const char *key, const char *word,
                                   const char *source) {
    const int index = index_of_word(word);
    int written = -1;
    for (int i = 0; i < item->n_choices && written < 0; i++)
        if (strcmp(item->choices[i].data ? item->choices[i].data : "", word) == 0)
            written = i;
    if (index >= 0 && written >= 0 && index != written)
        return FAIL(STATUS_INVALID,
                    "%s: \"%s\" is \"%s\", which is choice %d as it is written, and would be choice %d as an "
                    "index; give the index from 0 as a number",
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

// ---- kinds

// As lm-evaluation-harness builds it: "activity_label: ctx_a ctx_b", with ctx_b capitalized.
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
        status = text_status(&query);
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
    item->choices[0] = (struct text){0};
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
    item->context = (struct text){0};
    item->n_choices = item->label = 0;
    if (utf8_valid_bytes(line, length) != length)
        return FAIL(STATUS_INVALID, "%s is not UTF-8 (byte %zu of the line)", source,
                    utf8_valid_bytes(line, length) + 1);
    TRY(json_parse(line, length, source, &object));
    enum status status =
        cJSON_IsObject(object)
            ? readers[kind](item, object, source)
            : FAIL(STATUS_INVALID, "%s is not an object; expected one JSON object per line", source);
    cJSON_Delete(object);
    if (status == STATUS_OK)
        status = text_status(&item->context);
    for (int i = 0; i < item->n_choices && status == STATUS_OK; i++)
        status = text_status(&item->choices[i]);
    return status;
}
