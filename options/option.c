// The table of options, generated from schema.def, and access to an option's value.
#include "options/option.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

const char *option_word(const struct option *option, const struct config *config) {
    int choice;
    memcpy(&choice, option_value(option, config), sizeof choice);
    return option->choices[choice];
}

const char *option_choices(const struct option *option, char *buffer, size_t size) {
    buffer[0] = '\0';
    for (int i = 0; i < option->n_choices; i++)
        snprintf(buffer + strlen(buffer), size - strlen(buffer), "%s%s", i ? ", " : "", option->choices[i]);
    return buffer;
}

void option_choose(const struct option *option, struct config *config, int i) {
    memcpy(option_value(option, config), &i, sizeof i);
}

// The Makefile generates options/presets.inc, with one row per file of configs/.
const struct preset presets[] = {
#include "options/presets.inc"
};
const int n_presets = sizeof presets / sizeof *presets;
