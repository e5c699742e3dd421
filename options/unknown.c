// What is said about a name that is no option or section of ours: the section where it is one, what another
// trainer's option of this name is here, or the nearest name.
#include "options/unknown.h"

#include <stdio.h>
#include <string.h>

#include "options/foreign.h"
#include "options/option.h"

// Keys of ours that mean something else in another trainer, by the last component of the option.
static const struct {
    const char *option, *meant; // what to ask instead of "did you mean OPTION"
} namesakes[] = {
    {"train.eval_steps", "train.eval_every, the steps between evaluations (Hugging Face's eval_steps), or "
                         "train.eval_steps, the length of an evaluation in batches"},
    {"model.init_from",
     "model.init_from, the path of weights? For nanoGPT's init_from=scratch, leave it out; "
     "for resume too (a run goes on by itself: checkpoint.resume)"},
    {"train.gradient_accumulation_steps",
     "train.gradient_accumulation_steps, the micro-batches of each rank (nanoGPT counts those of all ranks)"},
};

// Whether the value switches a feature off: false, "False" (Python's), or {"enabled": false}.
static bool is_off(const cJSON *value) {
    const char *word = cJSON_GetStringValue(value);
    return cJSON_IsFalse(value) || (word && strcmp(word, "False") == 0) ||
           cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(value, "enabled"));
}

// Fails with what is known about another trainer's name.
static enum status foreign_name(const char *source, const char *what, const char *name, const cJSON *value,
                                const struct foreign *row) {
    struct text advice = {0};
    foreign_add_programs(row, &advice);
    text_add(&advice, "; ");
    foreign_add_advice(row, is_off(value), &advice);
    enum status status = text_status(&advice);
    if (status == STATUS_OK)
        status = FAIL(STATUS_INVALID, "%s: unknown %s %s, a name of %s", source, what, name, advice.data);
    text_free(&advice);
    return status;
}

// Fails for a key that several sections have.
static enum status in_several(const char *source, const char *full_name, const char *key, int n_owners) {
    struct text list = {0};
    int n = 0;
    for (int i = 0; i < n_options; i++)
        if (strcmp(options[i].name, key) == 0)
            text_add(&list, "%s%s",
                     n++ == 0        ? ""
                     : n == n_owners ? " or "
                                     : ", ",
                     option_full_name(&options[i]));
    enum status status = text_status(&list);
    if (status == STATUS_OK)
        status =
            FAIL(STATUS_INVALID, "%s: unknown option %s; did you mean %s?", source, full_name, list.data);
    text_free(&list);
    return status;
}

// Fails for an option's key in the wrong section.
static enum status misplaced(const char *source, const char *full_name, const struct option *option) {
    int n_owners = 0;
    for (int i = 0; i < n_options; i++)
        n_owners += strcmp(options[i].name, option->name) == 0;
    if (n_owners > 1 && !section_is_top(option->section))
        return in_several(source, full_name, option->name, n_owners);
    const char *own = option_full_name(option);
    for (size_t i = 0; i < sizeof namesakes / sizeof *namesakes; i++)
        if (strcmp(namesakes[i].option, own) == 0)
            return FAIL(STATUS_INVALID, "%s: unknown option %s; did you mean %s%s", source, full_name,
                        namesakes[i].meant, strchr(namesakes[i].meant, '?') ? "" : "?");
    const bool is_top = section_is_top(option->section);
    return FAIL(STATUS_INVALID, "%s: unknown option %s: %s is %s%s; did you mean %s?", source, full_name,
                option->name, is_top ? "outside all sections" : "in the section ",
                is_top ? "" : option->section, own);
}

// Fails for a section that has a value. fp16=true: other trainers have a switch of that name.
static enum status section_as_option(const char *source, const char *name, const cJSON *value) {
    char enabled[160];
    snprintf(enabled, sizeof enabled, "%s.enabled", name);
    const struct foreign *row = value && cJSON_IsBool(value) ? foreign_find_deepspeed(enabled) : NULL;
    if (row)
        return foreign_name(source, "option", name, value, row);
    return FAIL(STATUS_INVALID, "%s: %s is a section, expected one of its options, as %s", source, name,
                option_full_name(option_first_of(name)));
}

// Fails for a name that goes on behind an option's: "optimizer.groups.lr", "optimizer.groups[0].lr".
static enum status inside_option(const char *source, const char *full_name, const struct option *option) {
    const char *own = option_full_name(option);
    if (option->type != OPTION_GROUPS)
        return FAIL(STATUS_INVALID, "%s: unknown option %s: %s is an option, and has none inside", source,
                    full_name, own);
    return FAIL(
        STATUS_INVALID,
        "%s: unknown option %s: %s is a list of groups; set it whole, as %s='[{\"match\": \"*.bias\", "
        "\"lr\": 1e-4}]'",
        source, full_name, own, own);
}

static const struct option *option_around(const char *full_name) {
    for (int i = 0; i < n_options; i++) {
        const char *own = option_full_name(&options[i]);
        const size_t length = strlen(own);
        if (strncmp(full_name, own, length) == 0 && (full_name[length] == '.' || full_name[length] == '['))
            return &options[i];
    }
    return NULL;
}

static bool is_in(const struct option *option, const char *section, size_t length) {
    return strlen(option->section) == length && memcmp(option->section, section, length) == 0;
}

// Whether the name begins or ends with the words of the key: rope_type has "type", start_ratio "start".
static bool has_words(const char *name, const char *key) {
    const size_t n = strlen(name), length = strlen(key);
    return length > 0 && n > length &&
           ((memcmp(name, key, length) == 0 && name[length] == '_') ||
            (strcmp(name + n - length, key) == 0 && name[n - length - 1] == '_'));
}

// The only option of the section whose name has the key's words; NULL when there is none, or several.
static const struct option *option_with_words(const char *key, const char *section, size_t section_length) {
    const struct option *found = NULL;
    for (int i = 0; i < n_options; i++)
        if (is_in(&options[i], section, section_length) && has_words(options[i].name, key)) {
            if (found)
                return NULL;
            found = &options[i];
        }
    return found;
}

// The option that the key names with its section: ema_decay is train.ema.decay.
static const struct option *option_joined(const char *key) {
    for (int s = 0; s < section_count(); s++) {
        const char *own = section_own_name(s), *section = section_name(s);
        const size_t length = strlen(own);
        if (strncmp(key, own, length) != 0 || key[length] != '_')
            continue;
        for (int i = 0; i < n_options; i++)
            if (strcmp(options[i].section, section) == 0 && strcmp(options[i].name, key + length + 1) == 0)
                return &options[i];
    }
    return NULL;
}

// The option of a section (NULL: of all sections) whose name is closest to `key`; NULL when none is close.
static const struct option *nearest_option(const char *key, const char *section, size_t section_length) {
    const char *names[MAX_OPTIONS] = {0};
    const struct option *owners[MAX_OPTIONS];
    int n = 0;
    for (int i = 0; i < n_options; i++)
        if (!section || is_in(&options[i], section, section_length)) {
            owners[n] = &options[i];
            names[n++] = options[i].name;
        }
    const char *nearest = text_nearest(key, names, n);
    for (int i = 0; i < n; i++)
        if (names[i] == nearest)
            return owners[i];
    return NULL;
}

static const char *nearest_section(const char *name) {
    const char *names[MAX_OPTIONS];
    int n = 0;
    for (int i = 0; i < section_count(); i++) {
        if (!section_is_top(section_name(i)))
            names[n++] = section_name(i);
        if (strcmp(section_own_name(i), name) == 0) // the right name in the wrong section
            return section_name(i);
    }
    return text_nearest(name, names, n);
}

// Fails for an option that is gone.
static enum status gone_name(const char *source, const struct gone *row, const cJSON *value) {
    char *text = value && !cJSON_IsString(value) ? cJSON_PrintUnformatted(value) : NULL;
    const char *shown = text ? text : cJSON_GetStringValue(value);
    enum status status = FAIL(STATUS_INVALID, "%s: %s%s%.60s is not there any more; %s", source, row->name,
                              shown ? "=" : "", shown ? shown : "", row->instead);
    cJSON_free(text);
    return status;
}

enum status unknown_option(const char *source, const char *full_name, const cJSON *value) {
    const struct gone *gone = gone_option(full_name);
    if (gone)
        return gone_name(source, gone, value);
    const char *dot = strrchr(full_name, '.'), *key = dot ? dot + 1 : full_name;
    if (section_exists(full_name, strlen(full_name)))
        return section_as_option(source, full_name, value);
    const struct option *around = option_around(full_name);
    if (around)
        return inside_option(source, full_name, around);
    // Prefer options of the same section.
    const size_t section_length = dot ? (size_t)(dot - full_name) : 0;
    const struct option *nearest = dot ? option_with_words(key, full_name, section_length) : NULL;
    const struct foreign *row = dot && !nearest ? foreign_find_whole(full_name) : NULL;
    for (int i = 0; i < n_options && !nearest && !row; i++)
        if (strcmp(options[i].name, key) == 0)
            return misplaced(source, full_name, &options[i]);
    if (!nearest && !row)
        row = foreign_find(full_name);
    if (row)
        return foreign_name(source, "option", full_name, value, row);
    if (!nearest && dot)
        nearest = nearest_option(key, full_name, section_length);
    if (!nearest)
        nearest = option_joined(key);
    if (!nearest)
        nearest = nearest_option(key, NULL, 0);
    if (nearest)
        return FAIL(STATUS_INVALID, "%s: unknown option %s; did you mean %s?", source, full_name,
                    option_full_name(nearest));
    return FAIL(STATUS_INVALID, "%s: unknown option %s; ./train options lists them all", source, full_name);
}

const char *unknown_word(const struct option *option, const char *word) {
    static const char *const theirs[][2] = {{"wsd", "warmup-stable-decay"},
                                            {"trapezoidal", "warmup-stable-decay"}};
    for (int i = 0; i < option->n_choices; i++) { // cosine_with_min_lr, adamw_torch
        const char *ours = option->choices[i];
        const size_t length = strlen(ours);
        if (strncmp(word, ours, length) == 0 && word[length] == '_')
            return ours;
        for (size_t k = 0; k < sizeof theirs / sizeof *theirs; k++)
            if (strcmp(word, theirs[k][0]) == 0 && strcmp(ours, theirs[k][1]) == 0)
                return ours;
    }
    return text_nearest(word, option->choices, option->n_choices);
}

enum status unknown_section(const char *source, const char *name, const cJSON *value) {
    const struct foreign *row = foreign_find(name);
    if (row)
        return foreign_name(source, "section", name, value, row);
    const char *nearest = nearest_section(name);
    if (nearest)
        return FAIL(STATUS_INVALID, "%s: unknown section %s; did you mean %s?", source, name, nearest);
    struct text list = {0};
    for (int i = 0; i < section_count(); i++)
        if (!section_is_top(section_name(i)))
            text_add(&list, "%s%s", list.length ? ", " : "", section_name(i));
    enum status status = text_status(&list);
    if (status == STATUS_OK)
        status = FAIL(STATUS_INVALID, "%s: unknown section %s, expected one of %s", source, name, list.data);
    text_free(&list);
    return status;
}
