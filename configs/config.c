// Reads a configuration from JSON and overrides, by the table of options that is generated from schema.def.
#include "configs/config.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "configs/deepspeed.h"
#include "configs/option.h"

#define LARGEST_CONFIG ((size_t)16 << 20)

// ---- values from JSON

static const char *what_is(const cJSON *value, char *buffer, size_t size) {
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

static enum status wrong_type(const struct option *option, const char *source, const cJSON *value,
                              const char *expected) {
    char found[96];
    return FAIL(STATUS_INVALID, "%s: %s is %s, expected %s", source, option_full_name(option),
                what_is(value, found, sizeof found), expected);
}

static enum status read_number(const struct option *option, const char *source, const cJSON *value,
                               double *out) {
    bool whole = option->type == OPTION_INTEGER;
    if (!cJSON_IsNumber(value))
        return wrong_type(option, source, value, whole ? "an integer" : "a number");
    double number = value->valuedouble;
    char shown[32], low[32], high[32];
    if (!isfinite(number))
        return FAIL(STATUS_INVALID, "%s: %s is too large for a number, expected at most %s", source,
                    option_full_name(option), option_number(high, option->maximum));
    if (whole && number != floor(number))
        return FAIL(STATUS_INVALID, "%s: %s is %s, expected an integer", source, option_full_name(option),
                    option_number(shown, number));
    if (number < option->minimum || number > option->maximum)
        return FAIL(STATUS_INVALID, "%s: %s is %s, expected from %s to %s", source, option_full_name(option),
                    option_number(shown, number), option_number(low, option->minimum),
                    option_number(high, option->maximum));
    *out = number;
    return STATUS_OK;
}

static enum status replace_string(char **slot, const char *value) {
    char *copy = strdup(value);
    if (!copy)
        return FAIL(STATUS_FAILED, "out of memory reading the configuration");
    free(*slot);
    *slot = copy;
    return STATUS_OK;
}

static enum status read_choice(struct config *config, const struct option *option, const char *source,
                               const cJSON *value) {
    char list[256] = "", found[96];
    const char *word =
        cJSON_IsBool(value) ? (cJSON_IsTrue(value) ? "on" : "off") : cJSON_GetStringValue(value);
    for (int i = 0; i < option->n_choices; i++) {
        if (word && strcmp(word, option->choices[i]) == 0) {
            option_choose(option, config, i);
            return STATUS_OK;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", option->choices[i]);
    }
    what_is(value, found, sizeof found);
    const char *nearest =
        cJSON_IsString(value) ? text_nearest(value->valuestring, option->choices, option->n_choices) : NULL;
    if (nearest)
        return FAIL(STATUS_INVALID, "%s: %s is %s, expected one of %s; did you mean %s?", source,
                    option_full_name(option), found, list, nearest);
    return FAIL(STATUS_INVALID, "%s: %s is %s, expected one of %s", source, option_full_name(option), found,
                list);
}

static enum status read_paths(const struct option *option, const char *source, const cJSON *value,
                              struct file_list *slot) {
    struct file_list list = {0};
    int n = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    enum status status = STATUS_OK;
    list.paths = calloc((size_t)n + 1, sizeof *list.paths);
    if (!list.paths)
        return FAIL(STATUS_FAILED, "out of memory reading the configuration");
    // Follows the links, because cJSON_GetArrayItem walks from the start each time.
    for (const cJSON *item = cJSON_IsArray(value) ? value->child : value; n-- > 0 && status == STATUS_OK;
         item = item->next) {
        if (!cJSON_IsString(item))
            status = wrong_type(option, source, item, "a path, or a list of paths");
        else if (item->valuestring[0]) // "" names nothing
            status = replace_string(&list.paths[list.n_paths++], item->valuestring);
    }
    if (status != STATUS_OK) {
        file_list_free(&list);
        return status;
    }
    file_list_free(slot);
    *slot = list;
    return STATUS_OK;
}

static enum status read_value(struct config *config, const struct option *option, const char *source,
                              const cJSON *value) {
    void *slot = option_value(option, config);
    double number;
    switch (option->type) {
    case OPTION_BOOL:
        if (!cJSON_IsBool(value))
            return wrong_type(option, source, value, "true or false");
        *(bool *)slot = cJSON_IsTrue(value);
        return STATUS_OK;
    case OPTION_INTEGER:
        TRY(read_number(option, source, value, &number));
        *(int64_t *)slot = (int64_t)number;
        return STATUS_OK;
    case OPTION_NUMBER:
        return read_number(option, source, value, slot);
    case OPTION_PAIR:
        if (!cJSON_IsArray(value) || cJSON_GetArraySize(value) != 2)
            return wrong_type(option, source, value, "a list of two numbers, as [0.9, 0.95]");
        for (int i = 0; i < 2; i++)
            TRY(read_number(option, source, cJSON_GetArrayItem(value, i),
                            &((struct config_pair *)slot)->value[i]));
        return STATUS_OK;
    case OPTION_CHOICE:
        return read_choice(config, option, source, value);
    case OPTION_STRING:
        if (!cJSON_IsString(value))
            return wrong_type(option, source, value, "a string");
        return replace_string(slot, value->valuestring);
    case OPTION_PATHS:
        return read_paths(option, source, value, slot);
    }
    return STATUS_OK;
}

// ---- keys to options

static bool is_section(const char *name, size_t length) {
    for (int i = 0; i < section_count(); i++)
        if (strlen(section_name(i)) == length && memcmp(section_name(i), name, length) == 0)
            return !section_is_top(section_name(i));
    return false;
}

static const struct option *first_option(const char *section) {
    const struct option *option = options;
    while (strcmp(option->section, section) != 0)
        option++;
    return option;
}

// The option of a section (NULL: of all sections) whose name is closest to `key`; NULL when none is close.
static const struct option *nearest_option(const char *key, const char *section, size_t section_length) {
    const char *names[MAX_OPTIONS] = {0};
    const struct option *owners[MAX_OPTIONS];
    int n = 0;
    for (int i = 0; i < n_options; i++)
        if (!section || (strlen(options[i].section) == section_length &&
                         memcmp(options[i].section, section, section_length) == 0)) {
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

// Fails for a key that is no option, with the best hint: the key's section, DeepSpeed's equivalent, or the
// nearest name.
static enum status unknown_key(const char *source, const char *full_name) {
    const char *dot = strrchr(full_name, '.'), *key = dot ? dot + 1 : full_name;
    if (is_section(full_name, strlen(full_name)))
        return FAIL(STATUS_INVALID, "%s: %s is a section, expected one of its options, as %s", source,
                    full_name, option_full_name(first_option(full_name)));
    for (int i = 0; i < n_options; i++)
        if (strcmp(options[i].name, key) == 0)
            return FAIL(
                STATUS_INVALID, "%s: unknown option %s: %s is %s%s; did you mean %s?", source, full_name, key,
                section_is_top(options[i].section) ? "outside all sections" : "in the section ",
                section_is_top(options[i].section) ? "" : options[i].section, option_full_name(&options[i]));
    const char *advice = deepspeed_advice(key);
    if (advice)
        return FAIL(STATUS_INVALID, "%s: unknown option %s; %s", source, full_name, advice);
    // Prefer options of the same section.
    const struct option *nearest = dot ? nearest_option(key, full_name, (size_t)(dot - full_name)) : NULL;
    if (!nearest)
        nearest = nearest_option(key, NULL, 0);
    if (nearest)
        return FAIL(STATUS_INVALID, "%s: unknown option %s; did you mean %s?", source, full_name,
                    option_full_name(nearest));
    return FAIL(STATUS_INVALID, "%s: unknown option %s; ./train options lists them all", source, full_name);
}

static enum status set_option(struct config *config, const char *source, const char *full_name,
                              const cJSON *value) {
    const struct option *option = option_find(full_name);
    if (!option)
        return unknown_key(source, full_name);
    config->given[option - options] = true;
    return read_value(config, option, source, value);
}

static enum status unknown_section(const char *source, const char *name) {
    const char *dot = strrchr(name, '.'), *advice = deepspeed_advice(dot ? dot + 1 : name);
    if (advice)
        return FAIL(STATUS_INVALID, "%s: unknown section %s; %s", source, name, advice);
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

// name: the section's full name, such as "zero_optimization.offload_param".
static enum status read_section(struct config *config, const char *source, const char *name,
                                const cJSON *section) {
    const cJSON *item;
    if (!cJSON_IsObject(section)) {
        char found[96];
        return FAIL(STATUS_INVALID, "%s: the section %s is %s, expected an object", source, name,
                    what_is(section, found, sizeof found));
    }
    cJSON_ArrayForEach(item, section) {
        char full_name[160];
        snprintf(full_name, sizeof full_name, "%s.%s", name, item->string);
        if (is_section(full_name, strlen(full_name)))
            TRY(read_section(config, source, full_name, item));
        else if (cJSON_IsObject(item) && !option_find(full_name))
            return unknown_section(source, full_name);
        else
            TRY(set_option(config, source, full_name, item));
    }
    return STATUS_OK;
}

// Fails for a file whose key is a dotted name, such as "model.n_layer".
static enum status name_for_command_line(const char *source, const char *name) {
    struct text nested = {0};
    int depth = 1;
    for (const char *part = name; *part; depth++) {
        size_t length = strcspn(part, ".");
        text_add(&nested, "{\"%.*s\": ", (int)length, part);
        part += length + (part[length] == '.');
    }
    text_add(&nested, "...");
    while (--depth > 0)
        text_add(&nested, "}");
    enum status status = text_status(&nested);
    if (status == STATUS_OK)
        status = FAIL(STATUS_INVALID, "%s: \"%s\" is the form for the command line; in a file write %s",
                      source, name, nested.data);
    text_free(&nested);
    return status;
}

static enum status read_tree(struct config *config, const char *source, const cJSON *tree) {
    if (!cJSON_IsObject(tree)) {
        char found[96];
        return FAIL(STATUS_INVALID, "%s holds %s, expected an object, such as {\"model\": {\"n_layer\": 12}}",
                    source, what_is(tree, found, sizeof found));
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, tree) {
        const char *name = item->string, *dot = strchr(name, '.');
        if (!dot && is_section(name, strlen(name)))
            TRY(read_section(config, source, name, item));
        else if (dot && option_find(name))
            return name_for_command_line(source, name);
        else if (cJSON_IsObject(item) && !option_find(name))
            return unknown_section(source, name);
        else
            TRY(set_option(config, source, name, item));
    }
    return STATUS_OK;
}

// Applies "section.key=value". The value is JSON if it parses as JSON, else a bare word.
static enum status read_override(struct config *config, const char *override) {
    const char *equals = strchr(override, '=');
    char full_name[128];
    if (!equals || equals == override || (size_t)(equals - override) >= sizeof full_name)
        return FAIL(STATUS_INVALID,
                    "\"%s\" is not an override, expected section.key=value, as optimizer.lr=1e-3", override);
    snprintf(full_name, sizeof full_name, "%.*s", (int)(equals - override), override);
    const struct option *option = option_find(full_name);
    if (!option)
        return unknown_key("override", full_name);
    cJSON *value = cJSON_ParseWithOpts(equals + 1, NULL, true);
    // Text that happens to be JSON (a run named 12) is still text for an option that takes text.
    bool wants_text = option->type == OPTION_STRING ||
                      (option->type == OPTION_CHOICE && !cJSON_IsBool(value)) ||
                      (option->type == OPTION_PATHS && !cJSON_IsArray(value));
    if (!value || (wants_text && !cJSON_IsString(value))) {
        cJSON_Delete(value);
        value = cJSON_CreateString(equals + 1);
    }
    if (!value)
        return FAIL(STATUS_FAILED, "out of memory reading the override %s", override);
    enum status status = set_option(config, "override", full_name, value);
    cJSON_Delete(value);
    return status;
}

// ---- the whole config

static enum status set_defaults(struct config *config, const char *source) {
    *config =
        (struct config){.source = strdup(source), .given = calloc((size_t)n_options, sizeof *config->given)};
    if (!config->source || !config->given)
        return FAIL(STATUS_FAILED, "out of memory reading the configuration");
#define BOOL(section, name, initial, resume, help)               config->section.name = initial;
#define INTEGER(section, name, initial, low, high, resume, help) config->section.name = initial;
#define NUMBER(section, name, initial, low, high, resume, help)  config->section.name = initial;
#define PAIR(section, name, first, second, low, high, resume, help)                                          \
    config->section.name = (struct config_pair){{first, second}};
#define CHOICE(section, name, set, initial, resume, help) config->section.name = initial;
#define STRING(section, name, initial, resume, help)      TRY(replace_string(&config->section.name, initial));
#include "configs/schema.def"
    return STATUS_OK;
}

enum status config_parse(struct config *config, const char *json, size_t length, const char *source) {
    cJSON *tree = NULL;
    TRY(set_defaults(config, source));
    TRY(json_parse(json, length, source, &tree));
    enum status status = read_tree(config, source, tree);
    cJSON_Delete(tree);
    return status;
}

enum status config_read(struct config *config, const char *path, int n_overrides, char **overrides) {
    char *json = NULL;
    size_t length;
    *config = (struct config){0};
    TRY(file_read_stream(path, LARGEST_CONFIG, &json, &length));
    enum status status = config_parse(config, json, length, path);
    free(json);
    TRY(status);
    for (int i = 0; i < n_overrides; i++)
        TRY(read_override(config, overrides[i]));
    return STATUS_OK;
}

void config_free(struct config *config) {
    for (int i = 0; i < n_options; i++) {
        void *slot = option_value(&options[i], config);
        if (options[i].type == OPTION_STRING)
            free(*(char **)slot);
        else if (options[i].type == OPTION_PATHS)
            file_list_free(slot);
    }
    free(config->given);
    free(config->source);
    *config = (struct config){0};
}

bool config_given(const struct config *config, const char *name) {
    const struct option *option = option_find(name);
    assert(option);
    return config->given[option - options];
}
