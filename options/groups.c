// Reads options of type GROUPS from JSON: lists of tensors, by patterns, with settings of their own.
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "options/option.h"

#define PLACE_BYTES (PATH_MAX + 160)
#define EXAMPLE     "as {\"match\": \"*.bias\", \"lr\": 1e-4}"

struct reading {
    const struct option *option;
    const char *source;
    int index; // of the group; -1: the value itself
};

// "c.json:3: optimizer.groups[1].lr"
static const char *place_of(const struct reading *reading, const char *key, char *buffer) {
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

static enum status out_of_memory(void) {
    return FAIL(STATUS_FAILED, "out of memory reading the configuration");
}

static void free_group(struct config_group *group) {
    for (int i = 0; i < group->n_patterns; i++)
        free(group->patterns[i]);
    free(group->patterns);
}

void config_groups_free(struct config_groups *groups) {
    for (int i = 0; i < groups->n; i++)
        free_group(&groups->list[i]);
    free(groups->list);
    *groups = (struct config_groups){0};
}

// ---- keys of a group

static enum status add_pattern(const struct reading *reading, const cJSON *value, struct config_group *out) {
    if (!cJSON_IsString(value) || !value->valuestring[0])
        return wrong(reading, ".match", value,
                     "a pattern of tensors' names, as \"*.bias\", or a list of them");
    out->patterns[out->n_patterns] = strdup(value->valuestring);
    return out->patterns[out->n_patterns++] ? STATUS_OK : out_of_memory();
}

static enum status read_match(const struct reading *reading, const cJSON *value, struct config_group *out) {
    const int n = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    const cJSON *item;
    out->patterns = calloc((size_t)n + 1, sizeof *out->patterns);
    if (!out->patterns)
        return out_of_memory();
    if (!cJSON_IsArray(value))
        return add_pattern(reading, value, out);
    cJSON_ArrayForEach(item, value) TRY(add_pattern(reading, item, out));
    return STATUS_OK;
}

// Within the bounds of the option that the group's number takes the place of.
static enum status read_number(const struct reading *reading, const char *key, const cJSON *value,
                               const char *bounds, double *out) {
    const struct option *option = option_find(bounds);
    char place[PLACE_BYTES], shown[32], high[32];
    if (!cJSON_IsNumber(value))
        return wrong(reading, key, value, "a number");
    *out = value->valuedouble;
    if (*out >= option->minimum && *out <= option->maximum)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s is %s, expected from %g to %s", place_of(reading, key, place),
                isfinite(*out) ? option_number(shown, *out) : "too large", option->minimum,
                option_number(high, option->maximum));
}

static enum status read_key(const struct reading *reading, const cJSON *item, struct config_group *out) {
    static const char *const keys[] = {"match", "lr", "weight_decay", "type", "freeze"};
    char place[PLACE_BYTES];
    if (strcmp(item->string, "match") == 0)
        return read_match(reading, item, out);
    if (strcmp(item->string, "lr") == 0) {
        out->has_lr = true;
        return read_number(reading, ".lr", item, "optimizer.lr", &out->lr);
    }
    if (strcmp(item->string, "weight_decay") == 0) {
        out->has_weight_decay = true;
        return read_number(reading, ".weight_decay", item, "optimizer.weight_decay", &out->weight_decay);
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
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) // PyTorch's, and near ones
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
        return wrong(reading, "", object, "an object, " EXAMPLE);
    cJSON_ArrayForEach(item, object) {
        if (cJSON_GetObjectItemCaseSensitive(object, item->string) != item)
            return FAIL(STATUS_INVALID, "%s has the key \"%.60s\" twice", place_of(reading, "", place),
                        item->string);
        TRY(read_key(reading, item, out));
    }
    if (out->n_patterns == 0)
        return FAIL(STATUS_INVALID, "%s names no tensors, expected a \"match\", " EXAMPLE,
                    place_of(reading, "", place));
    if (out->is_frozen && (out->has_lr || out->has_weight_decay || out->by_adamw))
        return FAIL(STATUS_INVALID,
                    "%s has freeze and %s, but a frozen tensor is not updated; remove one of them",
                    place_of(reading, "", place),
                    out->has_lr             ? "lr"
                    : out->has_weight_decay ? "weight_decay"
                                            : "type");
    return STATUS_OK;
}

// ---- the list

static enum status read_groups(struct reading *reading, const cJSON *value, struct config_groups *out) {
    const cJSON *item;
    char place[PLACE_BYTES];
    if (!cJSON_IsArray(value))
        return wrong(reading, "", value, "a list of groups, " EXAMPLE);
    if (cJSON_GetArraySize(value) > CONFIG_MAX_GROUPS)
        return FAIL(STATUS_INVALID, "%s has %d groups, at most %d are supported",
                    place_of(reading, "", place), cJSON_GetArraySize(value), CONFIG_MAX_GROUPS);
    out->list = calloc((size_t)cJSON_GetArraySize(value) + 1, sizeof *out->list);
    if (!out->list)
        return out_of_memory();
    cJSON_ArrayForEach(item, value) {
        reading->index++;
        TRY(read_group(reading, item, &out->list[out->n++]));
    }
    return STATUS_OK;
}

enum status option_read_groups(const struct option *option, const char *source, const cJSON *value,
                               struct config_groups *slot) {
    struct config_groups groups = {0};
    struct reading reading = {option, source, -1};
    enum status status = read_groups(&reading, value, &groups);
    struct config_groups *replaced = status == STATUS_OK ? slot : &groups;
    config_groups_free(replaced);
    if (status == STATUS_OK)
        *slot = groups;
    return status;
}
