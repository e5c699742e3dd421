// The table of options, made from schema.def, and what is printed from it.
#include "configs/option.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

// The words of each set, and the functions that give one.
#define CHOICES(set)         static const char *const set##_words[] = {
#define WORD(constant, word) [constant] = word,
#define END_CHOICES(set)                                                                                     \
    }                                                                                                        \
    ;                                                                                                        \
    _Static_assert(sizeof(enum config_##set) == sizeof(int), "a CHOICE is stored as an int");
#include "configs/schema.def"

#define END_CHOICES(set)                                                                                     \
    const char *config_##set##_name(enum config_##set choice) {                                              \
        return set##_words[choice];                                                                          \
    }
#include "configs/schema.def"

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
#define NUMBER(section, name, initial, low, high, resume, help)                                              \
    ROW(OPTION_NUMBER, section, name, low, high, #initial, NULL, 0, 0, resume, help)
#define PAIR(section, name, first, second, low, high, resume, help)                                          \
    ROW(OPTION_PAIR, section, name, low, high, "[" #first ", " #second "]", NULL, 0, 0, resume, help)
#define CHOICE(section, name, set, initial, resume, help)                                                    \
    ROW(OPTION_CHOICE, section, name, 0, 0, NULL, set##_words, sizeof set##_words / sizeof *set##_words,     \
        initial, resume, help)
#define STRING(section, name, initial, resume, help)                                                         \
    ROW(OPTION_STRING, section, name, 0, 0, #initial, NULL, 0, 0, resume, help)
#define PATHS(section, name, resume, help)                                                                   \
    ROW(OPTION_PATHS, section, name, 0, 0, "[]", NULL, 0, 0, resume, help)
#include "configs/schema.def"
};
const int n_options = sizeof options / sizeof *options;
_Static_assert(sizeof options / sizeof *options <= MAX_OPTIONS, "raise MAX_OPTIONS");

// The first row is the top, which is no section of the file. Subsections follow their section.
static const char *const all_sections[][2] = {
#define SECTION(name, help)             {#name, help},
#define SUBSECTION(section, name, help) {#section "." #name, help},
#include "configs/schema.def"
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

bool section_is_top(const char *name) {
    return strcmp(name, "top") == 0;
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

void *option_value(const struct option *option, const struct config *config) {
    return (char *)(uintptr_t)config + option->offset;
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

// ---- printing

void option_print(const struct option *option, const struct config *config, struct text *out) {
    const void *slot = option_value(option, config);
    char number[2][32];
    switch (option->type) {
    case OPTION_BOOL:
        text_add(out, *(const bool *)slot ? "true" : "false");
        break;
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
    case OPTION_CHOICE:
        json_add_string(out, option_word(option, config));
        break;
    case OPTION_STRING:
        json_add_string(out, *(char *const *)slot);
        break;
    case OPTION_PATHS: {
        const struct file_list *list = slot;
        text_add(out, "[");
        for (int i = 0; i < list->n_paths; i++) {
            text_add(out, i ? ", " : "");
            json_add_string(out, list->paths[i]);
        }
        text_add(out, "]");
        break;
    }
    }
}

// The options of a section, then its subsections.
static void print_section(const struct config *config, struct text *out, const char *name, int indent) {
    size_t length = strlen(name);
    const char *separator = "{";
    for (int i = 0; i < n_options; i++) {
        if (strcmp(options[i].section, name) != 0)
            continue;
        text_add(out, "%s\n%*s\"%s\": ", separator, indent, "", options[i].name);
        option_print(&options[i], config, out);
        separator = ",";
    }
    for (int s = 0; s < section_count(); s++) {
        const char *other = section_name(s), *own = section_own_name(s);
        bool inside = section_is_top(name) ? own == other && !section_is_top(other)
                                           : own == other + length + 1 && memcmp(other, name, length) == 0;
        if (!inside)
            continue;
        text_add(out, "%s\n%*s\"%s\": ", separator, indent, "", own);
        print_section(config, out, other, indent + 2);
        separator = ",";
    }
    text_add(out, "\n%*s}", indent - 2, "");
}

void config_print(const struct config *config, struct text *out) {
    print_section(config, out, "top", 2);
    text_add(out, "\n");
}

static const char *bounds_of(const struct option *option, char *buffer, size_t size) {
    char low[32], high[32];
    switch (option->type) {
    case OPTION_INTEGER:
    case OPTION_NUMBER:
    case OPTION_PAIR:
        snprintf(buffer, size, "%s to %s", option_number(low, option->minimum),
                 option_number(high, option->maximum));
        break;
    case OPTION_CHOICE:
        buffer[0] = '\0';
        for (int i = 0; i < option->n_choices; i++)
            snprintf(buffer + strlen(buffer), size - strlen(buffer), "%s%s", i ? ", " : "",
                     option->choices[i]);
        break;
    default:
        snprintf(buffer, size, " ");
    }
    return buffer;
}

// The default as the page shows it.
static const char *default_of(const struct option *option, char *buffer, size_t size) {
    if (option->type != OPTION_CHOICE)
        return option->initial;
    snprintf(buffer, size, "\"%s\"", option->choices[option->chosen]);
    return buffer;
}

void config_print_options(struct text *out) {
    static const char *const types[] = {"true or false", "integer", "number", "two numbers",
                                        "choice",        "text",    "paths"};
    static const char *const resumes[] = {"may change", "may only grow", "fixed"};
    text_add(
        out,
        "# Options\n\n"
        "Written by `./train options` from `configs/schema.def`. A configuration is one JSON object with an "
        "object per section; every option\nhas a default. `./train CONFIG.json section.key=value` overrides: "
        "the "
        "value is JSON, a bare word is a string.\nOn resume: what is fixed is part of what a run means, and "
        "a "
        "resumed run that changes it is refused.\n");
    for (int s = 0; s < section_count(); s++) {
        bool top = section_is_top(section_name(s));
        if (top)
            text_add(out, "\n## At the top of the file\n\n");
        else
            text_add(out, "\n## %s: %s\n\n", section_name(s), all_sections[s][1]);
        text_add(out,
                 "| option | type | default | values | on resume | meaning |\n|---|---|---|---|---|---|\n");
        for (int i = 0; i < n_options; i++) {
            char bounds[256], initial[64];
            if (strcmp(options[i].section, section_name(s)) == 0)
                text_add(out, "| `%s` | %s | `%s` | %s | %s | %s |\n", option_full_name(&options[i]),
                         types[options[i].type], default_of(&options[i], initial, sizeof initial),
                         bounds_of(&options[i], bounds, sizeof bounds), resumes[options[i].resume],
                         options[i].help);
        }
    }
}
