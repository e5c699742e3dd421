// Reads a configuration from JSON and overrides, using the table of options generated from schema.def.
#include "options/config.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/log.h"
#include "options/foreign.h"
#include "options/option.h"
#include "options/rules.h"
#include "options/unused.h"

#define LARGEST_CONFIG ((size_t)16 << 20)

// ---- keys to options

enum status config_set(struct config *config, const char *source, const char *full_name, const cJSON *value) {
    const struct option *option = option_find(full_name);
    const struct gone *gone = option ? NULL : gone_option(full_name);
    if (gone && gone_is_default(gone, value)) {
        text_add(&config->dropped, "%s%s", config->dropped.length ? ", " : "", full_name);
        return STATUS_OK;
    }
    if (!option)
        return unknown_option(source, full_name, value);
    TRY(option_read(option, source, value, config));
    config->given[option - options] = true;
    return STATUS_OK;
}

// ---- reading; it continues after a fault, so that all faults are reported

struct reader {
    struct config *config;
    const char *source; // path of the file, for messages
    const char *text;   // content of the file
    size_t length;      // bytes of `text`
    const cJSON *root;
    struct faults faults;
    bool faulty[MAX_OPTIONS]; // options whose value was refused
};

static enum status set_option(struct reader *reader, const char *source, const char *full_name,
                              const cJSON *value) {
    const struct option *option = option_find(full_name);
    enum status status = config_set(reader->config, source, full_name, value);
    if (option)
        reader->faulty[option - options] = status != STATUS_OK; // only the last value is used
    return status;
}

// The place of an item: "c.json:3", or "c.json" if the file is one line.
static const char *place_of(const struct reader *reader, const cJSON *item, char *buffer, size_t size) {
    if (memchr(reader->text, '\n', reader->length))
        snprintf(buffer, size, "%s:%zu", reader->source,
                 json_line(reader->text, reader->length, reader->root, item));
    else
        snprintf(buffer, size, "%s", reader->source);
    return buffer;
}

static bool is_section(const char *name) {
    return section_exists(name, strlen(name)) || gone_is_section(name);
}

// Reads a section and its subsections.
//   name   the section's full name, such as "zero_optimization.offload_param"
static enum status read_section(struct reader *reader, const char *name, const cJSON *section) {
    const cJSON *item;
    char place[PATH_MAX + 32], found[96];
    if (cJSON_IsBool(section)) // such as {"fp16": true}, which other trainers accept
        return faults_take(&reader->faults,
                           unknown_option(place_of(reader, section, place, sizeof place), name, section));
    if (!cJSON_IsObject(section))
        return faults_take(&reader->faults,
                           FAIL(STATUS_INVALID, "%s: the section %s is %s, expected an object",
                                place_of(reader, section, place, sizeof place), name,
                                option_what_is(section, found, sizeof found)));
    cJSON_ArrayForEach(item, section) {
        char full_name[160];
        snprintf(full_name, sizeof full_name, "%s.%s", name, item->string);
        place_of(reader, item, place, sizeof place);
        if (is_section(full_name))
            TRY(read_section(reader, full_name, item));
        else if (cJSON_IsObject(item) && !option_find(full_name))
            TRY(faults_take(&reader->faults, unknown_section(place, full_name, item)));
        else
            TRY(faults_take(&reader->faults, set_option(reader, place, full_name, item)));
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
    enum status status = FAIL(STATUS_INVALID, "%s: \"%s\" is the command-line form; in a file write %s",
                              source, name, nested.data);
    text_free(&nested);
    return status;
}

static enum status read_tree(struct reader *reader) {
    if (!cJSON_IsObject(reader->root)) {
        char found[96];
        return FAIL(STATUS_INVALID, "%s holds %s, expected an object, such as {\"model\": {\"n_layer\": 12}}",
                    reader->source, option_what_is(reader->root, found, sizeof found));
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, reader->root) {
        const char *name = item->string, *dot = strchr(name, '.');
        char place[PATH_MAX + 32];
        place_of(reader, item, place, sizeof place);
        if (!dot && is_section(name))
            TRY(read_section(reader, name, item));
        else if (dot && option_find(name))
            TRY(faults_take(&reader->faults, name_for_command_line(place, name)));
        else if (cJSON_IsObject(item) && !option_find(name))
            TRY(faults_take(&reader->faults, unknown_section(place, name, item)));
        else
            TRY(faults_take(&reader->faults, set_option(reader, place, name, item)));
    }
    return STATUS_OK;
}

// ---- overrides

// Fails for an argument that is not an override: a flag of another program, such as -b or --max-iters=5, or
// anything else.
static enum status no_override(const char *argument) {
    const char *flag = argument + strspn(argument, "-"), *value = strchr(argument, '=');
    char name[128];
    snprintf(name, sizeof name, "%s%.*s", flag == argument + 1 ? "-" : "", (int)strcspn(flag, "="), flag);
    for (char *p = name + 1; name[0] && *p; p++)
        *p = *p == '-' ? '_' : *p;
    if (flag > argument + 1 && option_find(name))
        return FAIL(STATUS_INVALID, "\"%s\" is not an override; write it without dashes: %s%s", argument,
                    name, value ? value : "=VALUE");
    if (flag > argument + 1 || (flag > argument && foreign_find(name)))
        return unknown_option("command line", name, NULL);
    return FAIL(STATUS_INVALID,
                "\"%s\" is not an override, expected section.key=value, such as optimizer.lr=1e-3", argument);
}

// Applies "section.key=value". The value is JSON if it parses as JSON, else a bare word.
static enum status read_override(struct reader *reader, const char *override) {
    const char *equals = strchr(override, '=');
    char full_name[128];
    if (!equals || equals == override || override[0] == '-' ||
        (size_t)(equals - override) >= sizeof full_name)
        return no_override(override);
    snprintf(full_name, sizeof full_name, "%.*s", (int)(equals - override), override);
    const struct option *option = option_find(full_name);
    cJSON *value = cJSON_ParseWithOpts(equals + 1, NULL, true);
    // Text that happens to be JSON (a run named 12) is still text for an option that takes text.
    bool wants_text =
        option && (option->type == OPTION_STRING || (option->type == OPTION_CHOICE && !cJSON_IsBool(value)) ||
                   (option->type == OPTION_PATHS && !cJSON_IsArray(value)) ||
                   (option->type == OPTION_SOURCES && !cJSON_IsArray(value) && !cJSON_IsObject(value)));
    if (!value || (wants_text && !cJSON_IsString(value))) {
        cJSON_Delete(value);
        value = cJSON_CreateString(equals + 1);
    }
    enum status status = set_option(reader, "override", full_name, value);
    if (option && status == STATUS_OK)
        reader->config->overridden[option - options] = true;
    cJSON_Delete(value);
    return status;
}

static enum status read_overrides(struct reader *reader, int n_overrides, char **overrides) {
    for (int i = 0; i < n_overrides; i++) {
        TRY(faults_take(&reader->faults, read_override(reader, overrides[i])));
        // Do not report the value that follows a flag as another fault.
        if (overrides[i][0] == '-' && !strchr(overrides[i], '=') && i + 1 < n_overrides &&
            overrides[i + 1][0] != '-' && !strchr(overrides[i + 1], '='))
            i++;
    }
    return STATUS_OK;
}

// ---- the whole config

static void set_defaults(struct config *config, const char *source) {
    *config = (struct config){.source = copy_string(source),
                              .given = allocate((size_t)n_options, sizeof *config->given),
                              .overridden = allocate((size_t)n_options, sizeof *config->overridden)};
#define BOOL(section, name, initial, resume, help)                    config->section.name = initial;
#define INTEGER(section, name, initial, low, high, resume, help)      config->section.name = initial;
#define AUTO_INTEGER(section, name, initial, low, high, resume, help) config->section.name = initial;
#define NUMBER(section, name, initial, low, high, resume, help)       config->section.name = initial;
#define PAIR(section, name, first, second, low, high, resume, help)                                          \
    config->section.name = (struct config_pair){{first, second}};
#define CHOICE(section, name, set, initial, resume, help) config->section.name = initial;
#define STRING(section, name, initial, resume, help)      config->section.name = copy_string(initial);
#include "options/schema.def"
}

// Whether at least two top-level names are DeepSpeed's.
static bool looks_like_deepspeed(const cJSON *root) {
    int n = 0;
    const cJSON *item;
    if (!cJSON_IsObject(root)) // a list's elements have no names
        return false;
    cJSON_ArrayForEach(item, root) n += foreign_find_deepspeed(item->string) != NULL;
    return n >= 2;
}

// Whether the program printed the file, such as a run's config.json. A printed file has all options, except a
// few that are newer than the file.
static bool is_printed(const struct config *config) {
    int n = 0;
    for (int i = 0; i < n_options; i++)
        n += config->given[i];
    return n > n_options / 2;
}

static enum status read_all(struct config *config, const char *json, size_t length, const char *source,
                            int n_overrides, char **overrides) {
    cJSON *tree = NULL;
    set_defaults(config, source);
    TRY(json_parse(json, length, source, &tree));
    struct reader reader = {config, source, json, length, tree, faults_begin(), {false}};
    enum status status = read_tree(&reader);
    const bool printed = is_printed(config);
    if (status == STATUS_OK)
        status = read_overrides(&reader, n_overrides, overrides);
    unused_drop(config, reader.faulty, printed);
    rules_take_defaults(config);
    if (status == STATUS_OK && reader.faults.n > 0)
        status = rules_check_rest(config, reader.faulty, &reader.faults);
    char advice[PATH_MAX + 128];
    snprintf(advice, sizeof advice,
             "%.*s looks like a DeepSpeed file: ./train from-deepspeed %.*s translates it", PATH_MAX / 2,
             source, PATH_MAX / 2, source);
    status = faults_end(&reader.faults, status, looks_like_deepspeed(tree) ? advice : NULL);
    cJSON_Delete(tree);
    return status;
}

enum status config_parse(struct config *config, const char *json, size_t length, const char *source) {
    return read_all(config, json, length, source, 0, NULL);
}

enum status config_read(struct config *config, const char *path, int n_overrides, char **overrides) {
    char *json = NULL;
    size_t length;
    *config = (struct config){0};
    TRY(file_read_stream(path, LARGEST_CONFIG, &json, &length));
    enum status status = read_all(config, json, length, path, n_overrides, overrides);
    free(json);
    return status;
}

void config_free(struct config *config) {
    for (int i = 0; i < n_options; i++) {
        void *slot = option_value(&options[i], config);
        if (options[i].type == OPTION_STRING)
            free(*(char **)slot);
        else if (options[i].type == OPTION_PATHS)
            file_list_free(slot);
        else if (options[i].type == OPTION_SOURCES)
            config_sources_free(slot);
        else if (options[i].type == OPTION_GROUPS)
            config_groups_free(slot);
    }
    free(config->given);
    free(config->overridden);
    free(config->source);
    text_free(&config->dropped);
    text_free(&config->replaced);
    *config = (struct config){0};
}

void config_log_dropped(const struct config *config) {
    if (config->dropped.length)
        log_info("%s: dropped options that no longer exist: %s", config->source, config->dropped.data);
    if (config->replaced.length)
        log_info("%s: dropped options that have no effect in this run: %s", config->source,
                 config->replaced.data);
}

bool config_given(const struct config *config, const char *name) {
    return option_given(name, config);
}
