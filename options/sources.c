// Reads options of type PATHS and SOURCES from JSON: files as paths, or as a mixture of sources.
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "options/option.h"

// Bounds of a weight: their sums stay finite, and their quotients above 0.
#define SMALLEST_WEIGHT 1e-30
#define LARGEST_WEIGHT  1e30

#define PLACE_BYTES (PATH_MAX + 160)
#define EXAMPLE     "as {\"path\": \"a/*.bin\", \"weight\": 0.7}"

struct reading {
    const struct option *option;
    const char *source;
    int index; // of the element; -1: the value itself
};

// "c.json:3: data.train[1].weight"
static const char *place_of(const struct reading *reading, const char *key, char *buffer, size_t size) {
    char element[32] = "";
    if (reading->index >= 0)
        snprintf(element, sizeof element, "[%d]", reading->index);
    snprintf(buffer, size, "%s: %s%s%s", reading->source, option_full_name(reading->option), element, key);
    return buffer;
}

static enum status wrong(const struct reading *reading, const char *key, const cJSON *value,
                         const char *expected) {
    char place[PLACE_BYTES], found[96];
    return FAIL(STATUS_INVALID, "%s is %s, expected %s", place_of(reading, key, place, sizeof place),
                option_what_is(value, found, sizeof found), expected);
}

static enum status out_of_memory(void) {
    return FAIL(STATUS_FAILED, "out of memory reading the configuration");
}

// Room for one more element: a list of n is doubled when n is a power of two. NULL when out of memory.
static void *with_room(void *list, int n, size_t element_bytes) {
    if (n > 0 && (n & (n - 1)) != 0)
        return list;
    return realloc(list, (n > 0 ? 2 * (size_t)n : 1) * element_bytes);
}

// ---- paths

static enum status add_path(struct file_list *list, const char *path) {
    char **grown = with_room(list->paths, list->n_paths, sizeof *grown);
    if (!grown)
        return out_of_memory();
    list->paths = grown;
    list->paths[list->n_paths] = strdup(path);
    return list->paths[list->n_paths++] ? STATUS_OK : out_of_memory();
}

// A path, or a list of paths; "" names nothing.
static enum status read_paths(const struct reading *reading, const char *key, const cJSON *value,
                              struct file_list *out) {
    const cJSON *item;
    if (cJSON_IsString(value))
        return value->valuestring[0] ? add_path(out, value->valuestring) : STATUS_OK;
    if (!cJSON_IsArray(value))
        return wrong(reading, key, value, "a path, or a list of paths");
    cJSON_ArrayForEach(item, value) {
        if (!cJSON_IsString(item))
            return wrong(reading, key, item, "a path, or a list of paths");
        if (item->valuestring[0])
            TRY(add_path(out, item->valuestring));
    }
    return STATUS_OK;
}

enum status option_read_paths(const struct option *option, const char *source, const cJSON *value,
                              struct file_list *slot) {
    struct file_list list = {0};
    enum status status = read_paths(&(struct reading){option, source, -1}, "", value, &list);
    struct file_list *replaced = status == STATUS_OK ? slot : &list;
    file_list_free(replaced);
    if (status == STATUS_OK)
        *slot = list;
    return status;
}

// ---- sources

// NULL when out of memory.
static struct config_source *add_source(struct config_sources *sources) {
    struct config_source *grown = with_room(sources->list, sources->n, sizeof *grown);
    if (!grown)
        return NULL;
    sources->list = grown;
    grown[sources->n] = (struct config_source){0};
    return &grown[sources->n++];
}

static enum status read_weight(const struct reading *reading, const cJSON *value, double *out) {
    char place[PLACE_BYTES], number[32];
    if (!cJSON_IsNumber(value))
        return wrong(reading, ".weight", value, "a number above 0");
    *out = value->valuedouble;
    if (*out >= SMALLEST_WEIGHT && *out <= LARGEST_WEIGHT)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s is %s, expected a number above 0, from %g to %g%s",
                place_of(reading, ".weight", place, sizeof place),
                isfinite(*out) ? option_number(number, *out) : "too large", SMALLEST_WEIGHT, LARGEST_WEIGHT,
                *out == 0 ? "; to leave the source out, remove it" : "");
}

static enum status read_object(const struct reading *reading, const cJSON *object,
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
                        place_of(reading, "", place, sizeof place), item->string,
                        nearest ? ", did you mean " : "", nearest ? nearest : "");
        }
    }
    if (out->files.n_paths == 0)
        return FAIL(STATUS_INVALID, "%s names no shards, expected a \"path\", " EXAMPLE,
                    place_of(reading, "", place, sizeof place));
    return STATUS_OK;
}

static enum status read_element(const struct reading *reading, const cJSON *item,
                                struct config_sources *out) {
    char place[PLACE_BYTES];
    if (cJSON_IsString(item) && !item->valuestring[0])
        return FAIL(STATUS_INVALID, "%s names no shards, expected a path, or a source, " EXAMPLE,
                    place_of(reading, "", place, sizeof place));
    if (!cJSON_IsString(item) && !cJSON_IsObject(item))
        return wrong(reading, "", item, "a path, or a source, " EXAMPLE);
    struct config_source *source = add_source(out);
    if (!source)
        return out_of_memory();
    return cJSON_IsString(item) ? add_path(&source->files, item->valuestring)
                                : read_object(reading, item, source);
}

// Weights are given in all sources or in none: what a source without one would get is anyone's guess.
static enum status check_weights(struct reading *reading, const struct config_sources *sources) {
    int with = -1, without = -1;
    char place[PLACE_BYTES];
    for (int i = sources->n - 1; i >= 0; i--)
        *(sources->list[i].weight > 0 ? &with : &without) = i;
    if (with < 0 || without < 0)
        return STATUS_OK;
    reading->index = without;
    return FAIL(STATUS_INVALID, "%s (%.80s) has no weight, but [%d] has; give each source a weight, or none",
                place_of(reading, "", place, sizeof place), sources->list[without].files.paths[0], with);
}

// A list with objects: each element is a source.
static enum status read_mixture(struct reading *reading, const cJSON *value, struct config_sources *out) {
    const cJSON *item;
    char place[PLACE_BYTES];
    if (cJSON_GetArraySize(value) > CONFIG_MAX_SOURCES)
        return FAIL(STATUS_INVALID, "%s has %d sources, at most %d are supported",
                    place_of(reading, "", place, sizeof place), cJSON_GetArraySize(value),
                    CONFIG_MAX_SOURCES);
    cJSON_ArrayForEach(item, value) {
        reading->index++;
        TRY(read_element(reading, item, out));
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
    struct config_source *only = add_source(out);
    if (!only)
        return out_of_memory();
    TRY(cJSON_IsObject(value) ? read_object(reading, value, only)
                              : read_paths(reading, "", value, &only->files));
    if (only->files.n_paths == 0)
        out->n = 0;
    return STATUS_OK;
}

enum status option_read_sources(const struct option *option, const char *source, const cJSON *value,
                                struct config_sources *slot) {
    struct config_sources sources = {0};
    struct reading reading = {option, source, -1};
    enum status status = read_sources(&reading, value, &sources);
    struct config_sources *replaced = status == STATUS_OK ? slot : &sources;
    config_sources_free(replaced);
    if (status == STATUS_OK)
        *slot = sources;
    return status;
}
