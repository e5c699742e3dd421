// See zero/checkpoint/data_record.h. The JSON was sealed with the manifest; its bounds are checked all the
// same.
#include "zero/checkpoint/data_record.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define MAX_WHOLE  (INT64_C(1) << 53)
#define MAX_SHARDS (INT64_C(1) << 31)

void data_record_free(struct data_record *record) {
    identity_free(&record->train);
    identity_free(&record->val);
    free(record->tasks);
    free(record->orders);
    *record = (struct data_record){0};
}

static enum status add_order(struct data_record *record, const struct data_order *order) {
    struct data_order *grown =
        realloc(record->orders, ((size_t)record->n_orders + 1) * sizeof *record->orders);
    if (!grown)
        return FAIL(STATUS_FAILED, "out of memory for the data record");
    record->orders = grown;
    record->orders[record->n_orders++] = *order;
    return STATUS_OK;
}

enum status data_record_begin_order(struct data_record *record, int64_t step, const struct identity *train) {
    struct identity copy;
    identity_copy(&copy, train);
    identity_free(&record->train);
    record->train = copy;
    if (record->n_orders > 0 && record->orders[record->n_orders - 1].step == step)
        record->n_orders--;
    return add_order(record, &(struct data_order){step, train->n_shards, train->n_tokens, train->digest});
}

// ---- printing

static void print_identity(const struct identity *identity, struct text *out) {
    text_add(out,
             "{\"shards\": %" PRIu64 ", \"tokens\": %" PRIu64 ", \"xxh3\": \"%016" PRIx64
             "\", \"shards_per_entry\": %" PRIu32 ", \"entries\": [",
             identity->n_shards, identity->n_tokens, identity->digest, identity->shards_per_entry);
    for (uint32_t i = 0; i < identity->n_entries; i++) {
        const struct identity_entry *entry = &identity->entries[i];
        text_add(out, "%s\n      {\"name\": ", i ? "," : "");
        json_add_string(out, entry->name);
        text_add(out, ", \"tokens\": %" PRIu64 ", \"xxh3\": \"%016" PRIx64 "\"}", entry->tokens,
                 entry->checksum);
    }
    text_add(out, "]");
    for (uint32_t i = 0; i < identity->n_sources; i++) {
        char share[32];
        text_add(out, "%s\n      {\"shards\": %" PRIu32 ", \"share\": %s}%s", i ? "," : ", \"sources\": [",
                 identity->sources[i].n_shards, text_double(share, identity->sources[i].share),
                 i + 1 < identity->n_sources ? "" : "]");
    }
    text_add(out, "}");
}

static void print_tasks(const struct data_record *record, struct text *out) {
    text_add(out, ",\n    \"tasks\": [");
    for (int i = 0; i < record->n_tasks; i++) {
        const struct data_task *task = &record->tasks[i];
        text_add(out, "%s\n      {\"name\": ", i ? "," : "");
        json_add_string(out, task->name);
        text_add(out, ", \"items\": %" PRId64 ", \"xxh3\": \"%016" PRIx64 "\"}", task->items, task->checksum);
    }
    text_add(out, "]");
}

void data_record_print(const struct data_record *record, struct text *out) {
    if (!record || record->n_orders == 0)
        return;
    text_add(out, "  \"data\": {\n    \"train\": ");
    print_identity(&record->train, out);
    if (record->val.n_shards > 0) {
        text_add(out, ",\n    \"val\": ");
        print_identity(&record->val, out);
    }
    if (record->n_tasks > 0)
        print_tasks(record, out);
    text_add(out, ",\n    \"orders\": [");
    for (int i = 0; i < record->n_orders; i++) {
        const struct data_order *order = &record->orders[i];
        text_add(out,
                 "%s\n      {\"step\": %" PRId64 ", \"shards\": %" PRIu64 ", \"tokens\": %" PRIu64
                 ", \"xxh3\": \"%016" PRIx64 "\"}",
                 i ? "," : "", order->step, order->n_shards, order->n_tokens, order->digest);
    }
    text_add(out, "]\n  },\n");
}

// ---- in

static enum status get_count(const cJSON *object, const char *key, int64_t maximum, const char *source,
                             uint64_t *out) {
    int64_t value;
    TRY(json_get_integer(object, key, 0, maximum, source, &value));
    *out = (uint64_t)value;
    return STATUS_OK;
}

static enum status get_digest(const cJSON *object, const char *source, uint64_t *out) {
    const char *hex;
    TRY(json_get_string(object, "xxh3", source, &hex));
    if (strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16)
        return FAIL(STATUS_INVALID, "%s: xxh3 \"%.40s\" of data is not 16 hexadecimal digits", source, hex);
    *out = strtoull(hex, NULL, 16);
    return STATUS_OK;
}

static enum status parse_entry(struct identity_entry *entry, const cJSON *item, const char *source) {
    const char *name;
    TRY(json_get_string(item, "name", source, &name));
    TRY(get_count(item, "tokens", MAX_WHOLE, source, &entry->tokens));
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return get_digest(item, source, &entry->checksum);
}

// The sources of a mixture; absent without one.
static enum status parse_sources(struct identity *identity, const cJSON *object, const char *source) {
    const cJSON *array, *item;
    uint64_t n_shards = 0;
    if (!cJSON_GetObjectItemCaseSensitive(object, "sources"))
        return STATUS_OK;
    TRY(json_get_array(object, "sources", source, &array));
    if (cJSON_GetArraySize(array) > IDENTITY_MAX_SOURCES)
        return FAIL(STATUS_INVALID, "%s: data of %d sources, expected at most %d", source,
                    cJSON_GetArraySize(array), IDENTITY_MAX_SOURCES);
    cJSON_ArrayForEach(item, array) {
        uint64_t shards;
        struct identity_source *one = &identity->sources[identity->n_sources];
        TRY(get_count(item, "shards", MAX_SHARDS - 1, source, &shards));
        TRY(json_get_number(item, "share", source, &one->share));
        if (!(one->share >= 0 && one->share <= 1))
            return FAIL(STATUS_INVALID, "%s: the share %g of a source of data is not between 0 and 1", source,
                        one->share);
        one->n_shards = (uint32_t)shards;
        n_shards += shards;
        identity->n_sources++;
    }
    return n_shards == identity->n_shards
               ? STATUS_OK
               : FAIL(STATUS_INVALID,
                      "%s: sources of %" PRIu64 " shards do not describe data of %" PRIu64 " shards", source,
                      n_shards, identity->n_shards);
}

static enum status parse_identity(struct identity *identity, const cJSON *object, const char *source) {
    const cJSON *array, *item;
    uint64_t per_entry;
    TRY(get_count(object, "shards", MAX_SHARDS, source, &identity->n_shards));
    TRY(get_count(object, "tokens", MAX_WHOLE, source, &identity->n_tokens));
    TRY(get_digest(object, source, &identity->digest));
    TRY(get_count(object, "shards_per_entry", MAX_SHARDS, source, &per_entry));
    TRY(json_get_array(object, "entries", source, &array));
    uint64_t n = (uint64_t)cJSON_GetArraySize(array);
    if (per_entry < 1 || n > IDENTITY_MAX_ENTRIES || n != (identity->n_shards + per_entry - 1) / per_entry)
        return FAIL(STATUS_INVALID,
                    "%s: %" PRIu64 " entries of %" PRIu64 " shards each do not describe data of %" PRIu64
                    " shards",
                    source, n, per_entry, identity->n_shards);
    identity->shards_per_entry = (uint32_t)per_entry;
    identity->entries = calloc((size_t)n + 1, sizeof *identity->entries);
    if (!identity->entries)
        return FAIL(STATUS_FAILED, "out of memory while reading %s", source);
    cJSON_ArrayForEach(item, array) TRY(parse_entry(&identity->entries[identity->n_entries++], item, source));
    return parse_sources(identity, object, source);
}

static enum status parse_tasks(struct data_record *record, const cJSON *array, const char *source) {
    const cJSON *item;
    record->tasks = calloc((size_t)cJSON_GetArraySize(array) + 1, sizeof *record->tasks);
    if (!record->tasks)
        return FAIL(STATUS_FAILED, "out of memory while reading %s", source);
    cJSON_ArrayForEach(item, array) {
        struct data_task *task = &record->tasks[record->n_tasks++];
        const char *name;
        TRY(json_get_string(item, "name", source, &name));
        TRY(json_get_integer(item, "items", 1, MAX_WHOLE, source, &task->items));
        TRY(get_digest(item, source, &task->checksum));
        snprintf(task->name, sizeof task->name, "%s", name);
    }
    return STATUS_OK;
}

static enum status parse_order(struct data_order *order, const cJSON *item, int64_t lowest, int64_t step,
                               const char *source) {
    TRY(json_get_integer(item, "step", lowest, step, source, &order->step));
    TRY(get_count(item, "shards", MAX_SHARDS, source, &order->n_shards));
    TRY(get_count(item, "tokens", MAX_WHOLE, source, &order->n_tokens));
    return get_digest(item, source, &order->digest);
}

enum status data_record_parse(struct data_record *record, const cJSON *manifest, int64_t step,
                              const char *source) {
    const cJSON *data, *object, *array, *item;
    if (!cJSON_GetObjectItemCaseSensitive(manifest, "data"))
        return STATUS_OK;
    TRY(json_get_object(manifest, "data", source, &data));
    TRY(json_get_object(data, "train", source, &object));
    TRY(parse_identity(&record->train, object, source));
    if (cJSON_GetObjectItemCaseSensitive(data, "val")) {
        TRY(json_get_object(data, "val", source, &object));
        TRY(parse_identity(&record->val, object, source));
    }
    if (cJSON_GetObjectItemCaseSensitive(data, "tasks")) {
        TRY(json_get_array(data, "tasks", source, &array));
        TRY(parse_tasks(record, array, source));
    }
    TRY(json_get_array(data, "orders", source, &array));
    cJSON_ArrayForEach(item, array) {
        struct data_order order;
        int64_t lowest = record->n_orders > 0 ? record->orders[record->n_orders - 1].step + 1 : 0;
        TRY(parse_order(&order, item, lowest, step, source));
        TRY(add_order(record, &order));
    }
    if (record->n_orders == 0)
        return FAIL(STATUS_INVALID, "%s: orders of data is empty, expected one from step 0 on", source);
    return STATUS_OK;
}
