// The table of options, generated from schema.def, and access to an option's value.
#include "options/option.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

// The words of each set of choices, and config_SET_name().
#define CHOICES(set)         static const char *const set##_words[] = {
#define WORD(constant, word) [constant] = word,
#define END_CHOICES(set)                                                                                     \
    }                                                                                                        \
    ;                                                                                                        \
    _Static_assert(sizeof(enum config_##set) == sizeof(int), "a CHOICE is stored as an int");
#include "options/schema.def"

#define END_CHOICES(set)                                                                                     \
    const char *config_##set##_name(enum config_##set choice) {                                              \
        return set##_words[choice];                                                                          \
    }
#include "options/schema.def"

#define ROW(kind, section, name, low, high, shown, choices, n_choices, chosen, resume, help)                 \
    {#section,                                                                                               \
     #name,                                                                                                  \
     #section "." #name,                                                                                     \
     kind,                                                                                                   \
     offsetof(struct config, section.name),                                                                  \
     low,                                                                                                    \
     high,                                                                                                   \
     shown,                                                                                                  \
     choices,                                                                                                \
     n_choices,                                                                                              \
     chosen,                                                                                                 \
     resume,                                                                                                 \
     help},
const struct option options[] = {
#define BOOL(section, name, initial, resume, help)                                                           \
    ROW(OPTION_BOOL, section, name, 0, 0, #initial, NULL, 0, 0, resume, help)
#define INTEGER(section, name, initial, low, high, resume, help)                                             \
    ROW(OPTION_INTEGER, section, name, low, high, #initial, NULL, 0, 0, resume, help)
#define AUTO_INTEGER(section, name, initial, low, high, resume, help)                                        \
    ROW(OPTION_AUTO_INTEGER, section, name, low, high, #initial, NULL, 0, 0, resume, help)
#define NUMBER(section, name, initial, low, high, resume, help)                                              \
    ROW(OPTION_NUMBER, section, name, low, high, #initial, NULL, 0, 0, resume, help)
#define PAIR(section, name, first, second, low, high, resume, help)                                          \
    ROW(OPTION_PAIR, section, name, low, high, "[" #first ", " #second "]", NULL, 0, 0, resume, help)
#define INTEGERS(section, name, low, high, resume, help)                                                     \
    ROW(OPTION_INTEGERS, section, name, low, high, "[]", NULL, 0, 0, resume, help)
#define CHOICE(section, name, set, initial, resume, help)                                                    \
    ROW(OPTION_CHOICE, section, name, 0, 0, NULL, set##_words, sizeof set##_words / sizeof *set##_words,     \
        initial, resume, help)
#define STRING(section, name, initial, resume, help)                                                         \
    ROW(OPTION_STRING, section, name, 0, 0, #initial, NULL, 0, 0, resume, help)
#define PATHS(section, name, resume, help)                                                                   \
    ROW(OPTION_PATHS, section, name, 0, 0, "[]", NULL, 0, 0, resume, help)
#define SOURCES(section, name, resume, help)                                                                 \
    ROW(OPTION_SOURCES, section, name, 0, 0, "[]", NULL, 0, 0, resume, help)
#define SCHEDULE(section, name, low, high, resume, help)                                                     \
    ROW(OPTION_SCHEDULE, section, name, low, high, "[]", NULL, 0, 0, resume, help)
#define GROUPS(section, name, resume, help)                                                                  \
    ROW(OPTION_GROUPS, section, name, 0, 0, "[]", NULL, 0, 0, resume, help)
#include "options/schema.def"
};
const int n_options = sizeof options / sizeof *options;
_Static_assert(sizeof options / sizeof *options <= MAX_OPTIONS, "raise MAX_OPTIONS");

// Name and help of each section. The first row is "top". Subsections follow their section.
static const char *const all_sections[][2] = {
#define SECTION(name, help)             {#name, help},
#define SUBSECTION(section, name, help) {#section "." #name, help},
#include "options/schema.def"
};

int section_count(void) {
    return sizeof all_sections / sizeof *all_sections;
}

const char *section_name(int i) {
    return all_sections[i][0];
}

const char *section_own_name(int i) {
    const char *dot = strrchr(all_sections[i][0], '.');
    return dot ? dot + 1 : all_sections[i][0];
}

const char *section_help(int i) {
    return all_sections[i][1];
}

bool section_is_top(const char *name) {
    return strcmp(name, "top") == 0;
}

bool section_exists(const char *name, size_t length) {
    for (int i = 0; i < section_count(); i++)
        if (strlen(section_name(i)) == length && memcmp(section_name(i), name, length) == 0)
            return !section_is_top(section_name(i));
    return false;
}

const char *option_full_name(const struct option *option) {
    return section_is_top(option->section) ? option->name : option->qualified;
}

const struct option *option_find(const char *full_name) {
    for (int i = 0; i < n_options; i++)
        if (strcmp(option_full_name(&options[i]), full_name) == 0)
            return &options[i];
    return NULL;
}

const struct option *option_first_of(const char *section) {
    const struct option *option = options;
    while (strcmp(option->section, section) != 0)
        option++;
    return option;
}

void *option_value(const struct option *option, const struct config *config) {
    return (char *)(uintptr_t)config + option->offset;
}

bool option_given(const char *full_name, const struct config *config) {
    const struct option *option = option_find(full_name);
    assert(option);
    return config->given[option - options];
}

bool option_is_default(const struct option *option, const struct config *config) {
    const void *slot = option_value(option, config);
    if (option->type == OPTION_CHOICE)
        return option_word(option, config) == option->choices[option->chosen];
    if (option->type == OPTION_INTEGER)
        return (double)*(const int64_t *)slot == strtod(option->initial, NULL);
    if (option->type == OPTION_NUMBER)
        return *(const double *)slot == strtod(option->initial, NULL);
    assert(option->type == OPTION_PAIR); // "[0, 10]"
    char *comma;
    const double first = strtod(option->initial + 1, &comma), second = strtod(comma + 1, NULL);
    return ((const struct config_pair *)slot)->value[0] == first &&
           ((const struct config_pair *)slot)->value[1] == second;
}

const char *option_number(char *buffer, double value) {
    if (value != floor(value) || fabs(value) > 0x1p53)
        return text_double(buffer, value);
    snprintf(buffer, 32, "%.0f", value);
    return buffer;
}

const char *option_word(const struct option *option, const struct config *config) {
    int choice;
    memcpy(&choice, option_value(option, config), sizeof choice);
    return option->choices[choice];
}

void option_choose(const struct option *option, struct config *config, int i) {
    memcpy(option_value(option, config), &i, sizeof i);
}

const char *option_what_is(const cJSON *value, char *buffer, size_t size) {
    if (cJSON_IsString(value))
        snprintf(buffer, size, "the string \"%.60s\"", value->valuestring);
    else if (cJSON_IsNumber(value)) {
        char number[32];
        snprintf(buffer, size, "the number %s", option_number(number, value->valuedouble));
    } else
        snprintf(buffer, size, "%s",
                 cJSON_IsBool(value)    ? (cJSON_IsTrue(value) ? "true" : "false")
                 : cJSON_IsNull(value)  ? "null"
                 : cJSON_IsArray(value) ? "a list"
                                        : "an object");
    return buffer;
}

void config_sources_free(struct config_sources *sources) {
    for (int i = 0; i < sources->n; i++)
        file_list_free(&sources->list[i].files);
    free(sources->list);
    *sources = (struct config_sources){0};
}

// ---- printing

static void print_list(const struct file_list *list, struct text *out) {
    text_add(out, "[");
    for (int i = 0; i < list->n_paths; i++) {
        text_add(out, i ? ", " : "");
        json_add_string(out, list->paths[i]);
    }
    text_add(out, "]");
}

static void print_source(const struct config_source *source, struct text *out) {
    char number[32];
    text_add(out, "{\"path\": ");
    if (source->files.n_paths == 1)
        json_add_string(out, source->files.paths[0]);
    else
        print_list(&source->files, out);
    if (source->weight > 0)
        text_add(out, ", \"weight\": %s", text_double(number, source->weight));
    text_add(out, "}");
}

static void print_sources(const struct config_sources *sources, struct text *out) {
    if (sources->n <= 1) { // whose weight has no effect
        print_list(&(struct file_list){sources->n ? sources->list[0].files.paths : NULL,
                                       sources->n ? sources->list[0].files.n_paths : 0},
                   out);
        return;
    }
    text_add(out, "[");
    for (int i = 0; i < sources->n; i++) {
        text_add(out, i ? ", " : "");
        print_source(&sources->list[i], out);
    }
    text_add(out, "]");
}

static void print_schedule(const struct config_stages *schedule, struct text *out) {
    text_add(out, "[");
    for (int i = 0; i < schedule->n; i++)
        text_add(out, "%s[%lld, %lld]", i ? ", " : "", (long long)schedule->stages[i].step,
                 (long long)schedule->stages[i].value);
    text_add(out, "]");
}

static void print_group(const struct config_group *group, struct text *out) {
    char number[32];
    text_add(out, "{\"match\": %s", group->n_patterns > 1 ? "[" : "");
    for (int i = 0; i < group->n_patterns; i++) {
        text_add(out, "%s", i ? ", " : "");
        json_add_string(out, group->patterns[i]);
    }
    text_add(out, "%s", group->n_patterns > 1 ? "]" : "");
    if (group->has_lr)
        text_add(out, ", \"lr\": %s", text_double(number, group->lr));
    if (group->has_weight_decay)
        text_add(out, ", \"weight_decay\": %s", text_double(number, group->weight_decay));
    if (group->by_adamw)
        text_add(out, ", \"type\": \"adamw\"");
    if (group->is_frozen)
        text_add(out, ", \"freeze\": true");
    text_add(out, "}");
}

static void print_groups(const struct config_groups *groups, struct text *out) {
    text_add(out, "[");
    for (int i = 0; i < groups->n; i++) {
        text_add(out, i ? ", " : "");
        print_group(&groups->list[i], out);
    }
    text_add(out, "]");
}

void option_print(const struct option *option, const struct config *config, struct text *out) {
    const void *slot = option_value(option, config);
    char number[2][32];
    switch (option->type) {
    case OPTION_BOOL:
        text_add(out, *(const bool *)slot ? "true" : "false");
        break;
    case OPTION_AUTO_INTEGER:
        if (*(const int64_t *)slot == CONFIG_AUTO) {
            text_add(out, "\"auto\"");
            break;
        }
        // fall through
    case OPTION_INTEGER:
        text_add(out, "%lld", (long long)*(const int64_t *)slot);
        break;
    case OPTION_NUMBER:
        text_add(out, "%s", text_double(number[0], *(const double *)slot));
        break;
    case OPTION_PAIR: {
        const double *value = ((const struct config_pair *)slot)->value;
        text_add(out, "[%s, %s]", text_double(number[0], value[0]), text_double(number[1], value[1]));
        break;
    }
    case OPTION_INTEGERS: {
        const struct config_integers *list = slot;
        text_add(out, "[");
        for (int i = 0; i < list->n; i++)
            text_add(out, "%s%lld", i ? ", " : "", (long long)list->values[i]);
        text_add(out, "]");
        break;
    }
    case OPTION_CHOICE:
        json_add_string(out, option_word(option, config));
        break;
    case OPTION_STRING:
        json_add_string(out, *(char *const *)slot);
        break;
    case OPTION_PATHS:
        print_list(slot, out);
        break;
    case OPTION_SOURCES:
        print_sources(slot, out);
        break;
    case OPTION_SCHEDULE:
        print_schedule(slot, out);
        break;
    case OPTION_GROUPS:
        print_groups(slot, out);
        break;
    }
}
