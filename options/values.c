// An option's value: read from JSON, with checks, and printed as JSON.
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "options/foreign.h"
#include "options/option.h"

#define PLACE_BYTES (PATH_MAX + 160)

// The place that is being read: an option, or an element of one.
struct reading {
    const struct option *option;
    const char *source; // "c.json:3", "override"
    int index;          // index of the element; -1: the value itself
};

const char *option_number(char *buffer, double value) {
    if (value != floor(value) || fabs(value) > 0x1p53)
        return text_double(buffer, value);
    snprintf(buffer, 32, "%.0f", value);
    return buffer;
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

// Formats the place for messages: "c.json:3: data.train[1].weight".
//   key   the member of the element or value, such as ".weight"; "": all of it
static const char *place_of(const struct reading *reading, const char *key, char buffer[PLACE_BYTES]) {
    char element[32] = "";
    if (reading->index >= 0)
        snprintf(element, sizeof element, "[%d]", reading->index);
    snprintf(buffer, PLACE_BYTES, "%s: %s%s%s", reading->source, option_full_name(reading->option), element,
             key);
    return buffer;
}

static enum status wrong(const struct reading *reading, const char *key, const cJSON *value,
                         const char *expected) {
    char place[PLACE_BYTES], found[96];
    return FAIL(STATUS_INVALID, "%s is %s, expected %s", place_of(reading, key, place),
                option_what_is(value, found, sizeof found), expected);
}

// ---- numbers and words

// Reads a number within the bounds of `option`. That is the option that is read or, for a member of a group,
// the option that the member replaces.
static enum status read_number(const struct reading *reading, const char *key, const struct option *option,
                               const cJSON *value, double *out) {
    const bool whole = option->type == OPTION_INTEGER || option->type == OPTION_AUTO_INTEGER ||
                       option->type == OPTION_SCHEDULE || option->type == OPTION_INTEGERS;
    char place[PLACE_BYTES], shown[32], low[32], high[32];
    if (!cJSON_IsNumber(value))
        return wrong(reading, key, value,
                     !whole                                ? "a number"
                     : option->type == OPTION_AUTO_INTEGER ? "an integer or \"auto\""
                                                           : "an integer");
    const double number = value->valuedouble;
    place_of(reading, key, place);
    if (!isfinite(number))
        return FAIL(STATUS_INVALID, "%s is out of range, expected from %s to %s", place,
                    option_number(low, option->minimum), option_number(high, option->maximum));
    if (whole && number != floor(number))
        return FAIL(STATUS_INVALID, "%s is %s, expected an integer", place, option_number(shown, number));
    if (number < option->minimum || number > option->maximum)
        return FAIL(STATUS_INVALID, "%s is %s, expected from %s to %s", place, option_number(shown, number),
                    option_number(low, option->minimum), option_number(high, option->maximum));
    *out = number;
    return STATUS_OK;
}

static enum status read_choice(const struct reading *reading, const cJSON *value, struct config *config) {
    const struct option *option = reading->option;
    char list[256], found[96], place[PLACE_BYTES];
    const char *word =
        cJSON_IsBool(value) ? (cJSON_IsTrue(value) ? "on" : "off") : cJSON_GetStringValue(value);
    for (int i = 0; i < option->n_choices; i++)
        if (word && strcmp(word, option->choices[i]) == 0) {
            option_choose(option, config, i);
            return STATUS_OK;
        }
    const char *instead = word ? gone_word(option_full_name(option), word) : NULL;
    place_of(reading, "", place);
    if (instead)
        return FAIL(STATUS_INVALID, "%s=%s: this value was removed; %s", place, word, instead);
    const char *nearest = cJSON_IsString(value) ? unknown_word(option, value->valuestring) : NULL;
    return FAIL(STATUS_INVALID, "%s is %s, expected one of %s%s%s%s", place,
                option_what_is(value, found, sizeof found), option_choices(option, list, sizeof list),
                nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

// Reads [[step, value], ...].
static enum status read_schedule(const struct reading *reading, const cJSON *value,
                                 struct config_stages *slot) {
    const char *expected = "a list of [step, value] with ascending steps, such as [[0, 64], [1000, 128]]";
    char place[PLACE_BYTES];
    const cJSON *item;
    if (!cJSON_IsArray(value))
        return wrong(reading, "", value, expected);
    if (cJSON_GetArraySize(value) > CONFIG_SCHEDULE_MOST)
        return FAIL(STATUS_INVALID, "%s has %d entries, expected at most %d", place_of(reading, "", place),
                    cJSON_GetArraySize(value), CONFIG_SCHEDULE_MOST);
    slot->n = 0;
    cJSON_ArrayForEach(item, value) {
        const cJSON *step = cJSON_GetArrayItem(item, 0), *of_step = cJSON_GetArrayItem(item, 1);
        const int64_t lowest = slot->n > 0 ? slot->stages[slot->n - 1].step + 1 : 0;
        double number = 0;
        if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !cJSON_IsNumber(step))
            return wrong(reading, "", item, expected);
        if (!(step->valuedouble >= (double)lowest && step->valuedouble <= 1e9) ||
            step->valuedouble != floor(step->valuedouble))
            return FAIL(STATUS_INVALID, "%s has the step %g, expected an integer from %lld to 1000000000",
                        place_of(reading, "", place), step->valuedouble, (long long)lowest);
        TRY(read_number(reading, "", reading->option, of_step, &number));
        slot->stages[slot->n++] = (struct config_stage){(int64_t)step->valuedouble, (int64_t)number};
    }
    return STATUS_OK;
}

// Reads one integer, or a list of them.
static enum status read_integers(const struct reading *reading, const cJSON *value,
                                 struct config_integers *list) {
    const int n = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    char place[PLACE_BYTES];
    if (n > CONFIG_MAX_INTEGERS)
        return FAIL(STATUS_INVALID, "%s has %d numbers, at most %d are allowed", place_of(reading, "", place),
                    n, CONFIG_MAX_INTEGERS);
    list->n = 0;
    for (int i = 0; i < n; i++) {
        double number = 0;
        TRY(read_number(reading, "", reading->option,
                        cJSON_IsArray(value) ? cJSON_GetArrayItem(value, i) : value, &number));
        list->values[list->n++] = (int64_t)number;
    }
    return STATUS_OK;
}

// ---- files, as paths or as a mixture of sources

// Bounds of a weight, so that sums of weights stay finite, and quotients of weights above 0.
#define SMALLEST_WEIGHT 1e-30
#define LARGEST_WEIGHT  1e30
#define SOURCE_EXAMPLE  "such as {\"path\": \"a/*.bin\", \"weight\": 0.7}"

// Reads a path, or a list of paths. Empty paths are skipped.
static enum status read_paths(const struct reading *reading, const char *key, const cJSON *value,
                              struct file_list *out) {
    const cJSON *item;
    if (cJSON_IsArray(value)) {
        cJSON_ArrayForEach(item, value)
            TRY(cJSON_IsArray(item) ? wrong(reading, key, item, "a path, or a list of paths")
                                    : read_paths(reading, key, item, out));
        return STATUS_OK;
    }
    if (!cJSON_IsString(value))
        return wrong(reading, key, value, "a path, or a list of paths");
    if (value->valuestring[0])
        file_list_add(out, value->valuestring);
    return STATUS_OK;
}

static enum status read_weight(const struct reading *reading, const cJSON *value, double *out) {
    char place[PLACE_BYTES], number[32];
    if (!cJSON_IsNumber(value))
        return wrong(reading, ".weight", value, "a number above 0");
    *out = value->valuedouble;
    if (*out >= SMALLEST_WEIGHT && *out <= LARGEST_WEIGHT)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s is %s, expected a number above 0, from %g to %g%s",
                place_of(reading, ".weight", place),
                isfinite(*out) ? option_number(number, *out) : "too large", SMALLEST_WEIGHT, LARGEST_WEIGHT,
                *out == 0 ? "; to leave the source out, remove it" : "");
}

static enum status read_source(const struct reading *reading, const cJSON *object,
                               struct config_source *out) {
    static const char *const keys[] = {"path", "weight"};
    const cJSON *item;
    char place[PLACE_BYTES];
    cJSON_ArrayForEach(item, object) {
        if (strcmp(item->string, "path") == 0) {
            TRY(read_paths(reading, ".path", item, &out->files));
        } else if (strcmp(item->string, "weight") == 0) {
            TRY(read_weight(reading, item, &out->weight));
        } else {
            const char *nearest = text_nearest(item->string, keys, sizeof keys / sizeof *keys);
            return FAIL(STATUS_INVALID,
                        "%s has an unknown key \"%.60s\"%s%s; a source has \"path\" and \"weight\"",
                        place_of(reading, "", place), item->string, nearest ? ", did you mean " : "",
                        nearest ? nearest : "");
        }
    }
    if (out->files.n_paths == 0)
        return FAIL(STATUS_INVALID, "%s names no shards, expected a \"path\", " SOURCE_EXAMPLE,
                    place_of(reading, "", place));
    return STATUS_OK;
}

// Checks that all sources have weights or none, because a missing weight among others would be ambiguous.
static enum status check_weights(struct reading *reading, const struct config_sources *sources) {
    int with = -1, without = -1;
    char place[PLACE_BYTES];
    for (int i = sources->n - 1; i >= 0; i--)
        *(sources->list[i].weight > 0 ? &with : &without) = i;
    if (with < 0 || without < 0)
        return STATUS_OK;
    reading->index = without;
    return FAIL(STATUS_INVALID, "%s (%.80s) has no weight, but [%d] has; give each source a weight, or none",
                place_of(reading, "", place), sources->list[without].files.paths[0], with);
}

// Reads a list that has objects: each element is a source.
static enum status read_mixture(struct reading *reading, const cJSON *value, struct config_sources *out) {
    const int n = cJSON_GetArraySize(value);
    const cJSON *item;
    char place[PLACE_BYTES];
    if (n > CONFIG_MAX_SOURCES)
        return FAIL(STATUS_INVALID, "%s has %d sources, at most %d are supported",
                    place_of(reading, "", place), n, CONFIG_MAX_SOURCES);
    out->list = allocate((size_t)n, sizeof *out->list);
    cJSON_ArrayForEach(item, value) {
        struct config_source *source = &out->list[out->n++];
        reading->index++;
        if (cJSON_IsString(item) && !item->valuestring[0])
            return FAIL(STATUS_INVALID, "%s names no shards, expected a path, or a source, " SOURCE_EXAMPLE,
                        place_of(reading, "", place));
        if (cJSON_IsString(item))
            file_list_add(&source->files, item->valuestring);
        else if (cJSON_IsObject(item))
            TRY(read_source(reading, item, source));
        else
            return wrong(reading, "", item, "a path, or a source, " SOURCE_EXAMPLE);
    }
    return check_weights(reading, out);
}

static bool has_objects(const cJSON *value) {
    const cJSON *item;
    if (cJSON_IsArray(value))
        cJSON_ArrayForEach(item, value) if (cJSON_IsObject(item)) return true;
    return false;
}

static enum status read_sources(struct reading *reading, const cJSON *value, struct config_sources *out) {
    if (has_objects(value))
        return read_mixture(reading, value, out);
    out->list = allocate(1, sizeof *out->list);
    out->n = 1;
    TRY(cJSON_IsObject(value) ? read_source(reading, value, out->list)
                              : read_paths(reading, "", value, &out->list->files));
    out->n = out->list->files.n_paths > 0;
    return STATUS_OK;
}

void config_sources_free(struct config_sources *sources) {
    for (int i = 0; i < sources->n; i++)
        file_list_free(&sources->list[i].files);
    free(sources->list);
    *sources = (struct config_sources){0};
}

// ---- groups of tensors

#define GROUP_EXAMPLE "such as {\"match\": \"*.bias\", \"lr\": 1e-4}"

void config_groups_free(struct config_groups *groups) {
    for (int i = 0; i < groups->n; i++) {
        for (int k = 0; k < groups->list[i].n_patterns; k++)
            free(groups->list[i].patterns[k]);
        free(groups->list[i].patterns);
    }
    free(groups->list);
    *groups = (struct config_groups){0};
}

static enum status read_match(const struct reading *reading, const cJSON *value, struct config_group *out) {
    const int n = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    out->patterns = allocate((size_t)n, sizeof *out->patterns);
    for (int i = 0; i < n; i++) {
        const cJSON *item = cJSON_IsArray(value) ? cJSON_GetArrayItem(value, i) : value;
        if (!cJSON_IsString(item) || !item->valuestring[0])
            return wrong(reading, ".match", item,
                         "a pattern of tensor names, such as \"*.bias\", or a list of them");
        out->patterns[out->n_patterns++] = copy_string(item->valuestring);
    }
    return STATUS_OK;
}

static enum status read_key(const struct reading *reading, const cJSON *item, struct config_group *out) {
    static const char *const keys[] = {"match", "lr", "weight_decay", "type", "freeze"};
    char place[PLACE_BYTES];
    if (strcmp(item->string, "match") == 0)
        return read_match(reading, item, out);
    if (strcmp(item->string, "lr") == 0) {
        out->has_lr = true;
        return read_number(reading, ".lr", option_find("optimizer.lr"), item, &out->lr);
    }
    if (strcmp(item->string, "weight_decay") == 0) {
        out->has_weight_decay = true;
        return read_number(reading, ".weight_decay", option_find("optimizer.weight_decay"), item,
                           &out->weight_decay);
    }
    if (strcmp(item->string, "type") == 0) {
        out->by_adamw = cJSON_IsString(item) && strcmp(item->valuestring, "adamw") == 0;
        return out->by_adamw ? STATUS_OK : wrong(reading, ".type", item, "\"adamw\"");
    }
    if (strcmp(item->string, "freeze") == 0) {
        out->is_frozen = cJSON_IsTrue(item);
        return cJSON_IsBool(item) ? STATUS_OK : wrong(reading, ".freeze", item, "true or false");
    }
    static const char *const theirs[][2] = {{"params", "match"},  {"pattern", "match"},
                                            {"name", "match"},    {"requires_grad", "freeze"},
                                            {"frozen", "freeze"}, {"learning_rate", "lr"}};
    const char *nearest = text_nearest(item->string, keys, sizeof keys / sizeof *keys);
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) // PyTorch's and others' names for our keys
        if (strcmp(item->string, theirs[i][0]) == 0)
            nearest = theirs[i][1];
    return FAIL(STATUS_INVALID,
                "%s has an unknown key \"%.60s\"%s%s; a group has \"match\", \"lr\", \"weight_decay\", "
                "\"type\" and \"freeze\"",
                place_of(reading, "", place), item->string, nearest ? ", did you mean " : "",
                nearest ? nearest : "");
}

static enum status read_group(const struct reading *reading, const cJSON *object, struct config_group *out) {
    const cJSON *item;
    char place[PLACE_BYTES];
    if (!cJSON_IsObject(object))
        return wrong(reading, "", object, "an object, " GROUP_EXAMPLE);
    cJSON_ArrayForEach(item, object) {
        if (cJSON_GetObjectItemCaseSensitive(object, item->string) != item)
            return FAIL(STATUS_INVALID, "%s has the key \"%.60s\" twice; remove one",
                        place_of(reading, "", place), item->string);
        TRY(read_key(reading, item, out));
    }
    place_of(reading, "", place);
    if (out->n_patterns == 0)
        return FAIL(STATUS_INVALID, "%s names no tensors, expected a \"match\", " GROUP_EXAMPLE, place);
    if (out->is_frozen && (out->has_lr || out->has_weight_decay || out->by_adamw))
        return FAIL(STATUS_INVALID,
                    "%s has freeze and %s, but a frozen tensor is not updated; remove one of them", place,
                    out->has_lr             ? "lr"
                    : out->has_weight_decay ? "weight_decay"
                                            : "type");
    return STATUS_OK;
}

static enum status read_groups(struct reading *reading, const cJSON *value, struct config_groups *out) {
    const int n = cJSON_GetArraySize(value);
    const cJSON *item;
    char place[PLACE_BYTES];
    if (!cJSON_IsArray(value))
        return wrong(reading, "", value, "a list of groups, " GROUP_EXAMPLE);
    if (n > CONFIG_MAX_GROUPS)
        return FAIL(STATUS_INVALID, "%s has %d groups, at most %d are supported",
                    place_of(reading, "", place), n, CONFIG_MAX_GROUPS);
    out->list = allocate((size_t)n, sizeof *out->list);
    cJSON_ArrayForEach(item, value) {
        reading->index++;
        TRY(read_group(reading, item, &out->list[out->n++]));
    }
    return STATUS_OK;
}

// ---- values of all types

enum status option_read(const struct option *option, const char *source, const cJSON *value,
                        struct config *config) {
    struct reading reading = {option, source, -1};
    void *slot = option_value(option, config);
    double number = 0;
    switch (option->type) {
    case OPTION_BOOL:
        if (!cJSON_IsBool(value))
            return wrong(&reading, "", value, "true or false");
        *(bool *)slot = cJSON_IsTrue(value);
        return STATUS_OK;
    case OPTION_AUTO_INTEGER:
        if (cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0) {
            *(int64_t *)slot = CONFIG_AUTO;
            return STATUS_OK;
        }
        // fall through
    case OPTION_INTEGER:
        TRY(read_number(&reading, "", option, value, &number));
        *(int64_t *)slot = (int64_t)number;
        return STATUS_OK;
    case OPTION_NUMBER:
        return read_number(&reading, "", option, value, slot);
    case OPTION_PAIR:
        if (!cJSON_IsArray(value) || cJSON_GetArraySize(value) != 2)
            return wrong(&reading, "", value, "a list of two numbers, such as [0.9, 0.95]");
        TRY(read_number(&reading, "", option, cJSON_GetArrayItem(value, 0), &number));
        TRY(read_number(&reading, "", option, cJSON_GetArrayItem(value, 1),
                        &((struct config_pair *)slot)->value[1]));
        ((struct config_pair *)slot)->value[0] = number;
        return STATUS_OK;
    case OPTION_INTEGERS:
        return read_integers(&reading, value, slot);
    case OPTION_CHOICE:
        return read_choice(&reading, value, config);
    case OPTION_STRING:
        if (!cJSON_IsString(value))
            return wrong(&reading, "", value, "a string");
        free(*(char **)slot);
        *(char **)slot = copy_string(value->valuestring);
        return STATUS_OK;
    case OPTION_PATHS:
        file_list_free(slot);
        return read_paths(&reading, "", value, slot);
    case OPTION_SOURCES:
        config_sources_free(slot);
        return read_sources(&reading, value, slot);
    case OPTION_SCHEDULE:
        return read_schedule(&reading, value, slot);
    case OPTION_GROUPS:
        config_groups_free(slot);
        return read_groups(&reading, value, slot);
    }
    return STATUS_OK;
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
    if (sources->n <= 1) { // the weight of a single source has no effect
        const struct file_list none = {0};
        print_list(sources->n ? &sources->list[0].files : &none, out);
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

// ---- defaults

void option_reset(const struct option *option, struct config *config) {
    cJSON *initial =
        option->initial ? cJSON_Parse(option->initial) : cJSON_CreateString(option->choices[option->chosen]);
    enum status status = option_read(option, "schema.def", initial, config);
    assert(status == STATUS_OK);
    (void)status;
    cJSON_Delete(initial);
}

bool option_is_default(const struct option *option, const struct config *config) {
    struct config initial = {0};
    struct text is = {0}, of_schema = {0};
    option_reset(option, &initial);
    option_print(option, config, &is);
    option_print(option, &initial, &of_schema);
    const bool same = strcmp(is.data, of_schema.data) == 0;
    text_free(&is);
    text_free(&of_schema);
    if (option->type == OPTION_STRING)
        free(*(char **)option_value(option, &initial));
    return same;
}
