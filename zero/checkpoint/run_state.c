// See zero/checkpoint/run_state.h. The manifest's checksum already covers this JSON; its values are checked
// against bounds anyway.
#include "zero/checkpoint/run_state.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"

// ---- the tables

enum field_type {
    INTEGER, // int64_t
    COUNT,   // uint32_t
    NUMBER,  // double
    DIGEST,  // uint64_t, as 16 hexadecimal digits
    STRING,  // char *
    NAME,    // char [bytes]
    OBJECT,
    LIST // a list of objects; the int or uint32_t at `n` has its length
};

#define WHOLE   0x1p53 // the largest integer that a JSON number holds exactly
#define STEP    (-2.0) // as a bound: the checkpoint's step
#define NEXT    (-3.0) // as a bound: the step after the checkpoint's step
#define SIBLING (-4.0) // as a bound: the integer at `n` of the same record, read before this field

struct table;
struct field {
    const char *key; // of the JSON member; for an element of a JSON array, used only in messages
    enum field_type type;
    size_t at;          // offset of the member in the record
    double least, most; // bounds of the value or, for a list, of its length
    // Offset of another member of the record. For a list: its length. For an object: an int that is 1 if
    // the object exists (n 0: there is no such int). For a number: the integer to which a bound SIBLING
    // refers.
    size_t n;
    const struct table *of; // describes the object, or each element of the list
    bool is_inline;         // the list is an array in the record, with room for `most`; else on the heap
    bool may_lack;          // the JSON may omit the member; printing omits it if it is empty
    size_t bytes;           // size of a NAME's array
};

// Describes a record: a struct whose members are saved.
struct table {
    const struct field *fields;
    int n_fields;
    size_t bytes;
    bool is_array; // its JSON is [a, b], without keys
    bool ascends;  // in a list, the first field of each element must be above that of the element before
    // Checks the record as a whole, once its fields are read. May be NULL.
    enum status (*check)(const void *record, const char *source);
};

#define AT(record, member)      offsetof(struct record, member)
#define BOUNDS(lowest, highest) .least = lowest, .most = highest
#define TEXT(record, member, name, kind)                                                                     \
    { .key = name, .type = kind, .at = AT(record, member) }
#define FIELD(record, member, name, kind, ...)                                                               \
    { .key = name, .type = kind, .at = AT(record, member), __VA_ARGS__ }
#define TABLE(record, list)                                                                                  \
    .fields = list, .n_fields = sizeof list / sizeof *list, .bytes = sizeof(struct record)

static const struct field loss_scale_fields[] = {
    FIELD(loss_scale, scale, "scale", NUMBER, BOUNDS(DBL_TRUE_MIN, DBL_MAX)),
    FIELD(loss_scale, hysteresis_left, "hysteresis_left", INTEGER, BOUNDS(1, WHOLE)),
    FIELD(loss_scale, last_overflow, "last_overflow", INTEGER, BOUNDS(-1, STEP)),
    FIELD(loss_scale, skipped, "skipped", INTEGER, BOUNDS(0, STEP)),
    FIELD(loss_scale, consecutive, "consecutive", INTEGER, BOUNDS(0, SIBLING), .n = AT(loss_scale, skipped))};
static const struct table loss_scale_table = {TABLE(loss_scale, loss_scale_fields)};

#define MOST_SHARDS 0x1p31
static const struct field entry_fields[] = {
    FIELD(identity_entry, name, "name", NAME, .bytes = IDENTITY_NAME_BYTES),
    FIELD(identity_entry, tokens, "tokens", INTEGER, BOUNDS(0, WHOLE)),
    TEXT(identity_entry, checksum, "xxh3", DIGEST)};
static const struct table entry_table = {TABLE(identity_entry, entry_fields)};
static const struct field source_fields[] = {
    FIELD(identity_source, n_shards, "shards", COUNT, BOUNDS(0, MOST_SHARDS - 1)),
    FIELD(identity_source, share, "share", NUMBER, BOUNDS(0, 1))};
static const struct table source_table = {TABLE(identity_source, source_fields)};
static const struct field identity_fields[] = {
    FIELD(identity, n_shards, "shards", INTEGER, BOUNDS(0, MOST_SHARDS)),
    FIELD(identity, n_tokens, "tokens", INTEGER, BOUNDS(0, WHOLE)),
    TEXT(identity, digest, "xxh3", DIGEST),
    FIELD(identity, shards_per_entry, "shards_per_entry", COUNT, BOUNDS(1, MOST_SHARDS)),
    FIELD(identity, entries, "entries", LIST, BOUNDS(0, IDENTITY_MAX_ENTRIES), .n = AT(identity, n_entries),
          .of = &entry_table),
    FIELD(identity, sources, "sources", LIST, BOUNDS(0, IDENTITY_MAX_SOURCES), .n = AT(identity, n_sources),
          .of = &source_table, .is_inline = true, .may_lack = true)};
static enum status check_identity(const void *record, const char *source);
static const struct table identity_table = {TABLE(identity, identity_fields), .check = check_identity};
static const struct field task_fields[] = {
    FIELD(data_task, name, "name", NAME, .bytes = DATA_TASK_NAME_BYTES),
    FIELD(data_task, items, "items", INTEGER, BOUNDS(1, WHOLE)), TEXT(data_task, checksum, "xxh3", DIGEST)};
static const struct table task_table = {TABLE(data_task, task_fields)};
static const struct field order_fields[] = {
    FIELD(data_order, step, "step", INTEGER, BOUNDS(0, STEP)),
    FIELD(data_order, n_shards, "shards", INTEGER, BOUNDS(0, MOST_SHARDS)),
    FIELD(data_order, n_tokens, "tokens", INTEGER, BOUNDS(0, WHOLE)),
    TEXT(data_order, digest, "xxh3", DIGEST)};
static const struct table order_table = {TABLE(data_order, order_fields), .ascends = true};
static const struct field data_fields[] = {
    FIELD(data_record, train, "train", OBJECT, .of = &identity_table),
    FIELD(data_record, val, "val", OBJECT, .of = &identity_table, .may_lack = true),
    FIELD(data_record, tasks, "tasks", LIST, BOUNDS(0, WHOLE), .n = AT(data_record, n_tasks),
          .of = &task_table, .may_lack = true),
    FIELD(data_record, orders, "orders", LIST, BOUNDS(1, WHOLE), .n = AT(data_record, n_orders),
          .of = &order_table)};
static const struct table data_table = {TABLE(data_record, data_fields)};
static const struct field change_fields[] = {
    FIELD(run_change, step, "step", INTEGER, BOUNDS(0, STEP)), TEXT(run_change, option, "option", STRING),
    TEXT(run_change, was, "was", STRING), TEXT(run_change, is, "is", STRING)};
static const struct table change_table = {TABLE(run_change, change_fields)};
static const struct field best_fields[] = {
    FIELD(run_best, step, "step", INTEGER, BOUNDS(0, STEP)),
    FIELD(run_best, sequences, "val_sequences", INTEGER, BOUNDS(1, WHOLE)),
    FIELD(run_best, loss, "val_loss", NUMBER, BOUNDS(0, DBL_MAX))};
static const struct table best_table = {TABLE(run_best, best_fields)};
static const struct field pacing_fields[] = {
    FIELD(pacing_record, max_minutes, "max_minutes", NUMBER, BOUNDS(DBL_TRUE_MIN, 1e9)),
    FIELD(pacing_record, spent_s, "spent_s", NUMBER, BOUNDS(0, DBL_MAX)),
    FIELD(pacing_record, decision.step, "step", INTEGER, BOUNDS(0, STEP)),
    FIELD(pacing_record, decision.total, "total", INTEGER, BOUNDS(SIBLING, WHOLE),
          .n = AT(pacing_record, decision.step)),
    FIELD(pacing_record, decision.position, "position", NUMBER, BOUNDS(0, 1)),
    FIELD(pacing_record, decision.spent_s, "decided_s", NUMBER, BOUNDS(0, DBL_MAX))};
static const struct table pacing_table = {TABLE(pacing_record, pacing_fields)};
static const struct field figures_fields[] = {
    FIELD(spike_figures, loss, "a loss of spikes", NUMBER, BOUNDS(-DBL_MAX, DBL_MAX)),
    FIELD(spike_figures, norm, "a norm of spikes", NUMBER, BOUNDS(-DBL_MAX, DBL_MAX))};
static const struct table figures_table = {TABLE(spike_figures, figures_fields), .is_array = true};
static const struct field spike_fields[] = {
    FIELD(spike_record, seen, "seen", INTEGER, BOUNDS(0, WHOLE)),
    FIELD(spike_record, skipped, "skipped", INTEGER, BOUNDS(0, STEP)),
    FIELD(spike_record, consecutive, "consecutive", INTEGER, BOUNDS(0, SIBLING),
          .n = AT(spike_record, skipped)),
    FIELD(spike_record, newest, "newest", OBJECT, .n = AT(spike_record, has_newest), .of = &figures_table,
          .may_lack = true),
    FIELD(spike_record, window, "window", LIST, BOUNDS(0, SPIKE_WINDOW_MOST), .n = AT(spike_record, n),
          .of = &figures_table, .is_inline = true)};
static const struct table spike_table = {TABLE(spike_record, spike_fields)};
static const struct field stage_fields[] = {
    FIELD(config_stage, step, "a step of batch_sizes", INTEGER, BOUNDS(0, NEXT)),
    FIELD(config_stage, value, "a size of batch_sizes", INTEGER, BOUNDS(1, 1e9))};
static const struct table stage_table = {TABLE(config_stage, stage_fields), .is_array = true,
                                         .ascends = true};
static const struct field noise_fields[] = {
    FIELD(noise_record, variance, "variance", NUMBER, BOUNDS(-DBL_MAX, DBL_MAX)),
    FIELD(noise_record, square, "square", NUMBER, BOUNDS(-DBL_MAX, DBL_MAX)),
    FIELD(noise_record, n, "n", INTEGER, BOUNDS(1, WHOLE)),
    FIELD(noise_record, n_since, "n_since", INTEGER, BOUNDS(0, SIBLING), .n = AT(noise_record, n)),
    FIELD(noise_record, grown.stages, "batch_sizes", LIST, BOUNDS(0, CONFIG_SCHEDULE_MOST),
          .n = AT(noise_record, grown.n), .of = &stage_table, .is_inline = true)};
static const struct table noise_table = {TABLE(noise_record, noise_fields)};
static const struct field average_fields[] = {
    FIELD(average_record, n, "updates", INTEGER, BOUNDS(1, STEP)),
    FIELD(average_record, weight_sum, "weight_sum", NUMBER, BOUNDS(0, DBL_MAX)),
    FIELD(average_record, lr_max, "lr_max", NUMBER, BOUNDS(0, DBL_MAX))};
static const struct table average_table = {TABLE(average_record, average_fields)};
static const struct field state_fields[] = {
    FIELD(run_state, loss_scale, "loss_scale", OBJECT, .of = &loss_scale_table, .may_lack = true),
    FIELD(run_state, data, "data", OBJECT, .of = &data_table, .may_lack = true),
    FIELD(run_state, changes, "history", LIST, BOUNDS(0, WHOLE), .n = AT(run_state, n_changes),
          .of = &change_table, .may_lack = true),
    FIELD(run_state, best, "best", OBJECT, .of = &best_table, .may_lack = true),
    FIELD(run_state, warmup_steps, "warmup_steps", INTEGER, BOUNDS(0, WHOLE), .may_lack = true),
    FIELD(run_state, pacing, "pacing", OBJECT, .of = &pacing_table, .may_lack = true),
    FIELD(run_state, spikes, "spikes", OBJECT, .of = &spike_table, .may_lack = true),
    FIELD(run_state, noise, "noise_scale", OBJECT, .of = &noise_table, .may_lack = true),
    FIELD(run_state, average, "average", OBJECT, .of = &average_table, .may_lack = true)};
static const struct table state_table = {TABLE(run_state, state_fields)};

static enum status check_identity(const void *record, const char *source) {
    const struct identity *identity = record;
    const uint64_t per_entry = identity->shards_per_entry, shards = identity->n_shards;
    uint64_t n = 0;
    if (identity->n_entries != (shards + per_entry - 1) / per_entry)
        return FAIL(STATUS_INVALID,
                    "%s: %" PRIu32 " entries of %" PRIu64 " shards each do not describe data of %" PRIu64
                    " shards",
                    source, identity->n_entries, per_entry, shards);
    for (uint32_t i = 0; i < identity->n_sources; i++)
        n += identity->sources[i].n_shards;
    if (identity->n_sources > 0 && n != shards)
        return FAIL(STATUS_INVALID,
                    "%s: sources of %" PRIu64 " shards do not describe data of %" PRIu64 " shards", source, n,
                    shards);
    return STATUS_OK;
}

// ---- fields of a record

static const void *value_of(const void *record, const struct field *field) {
    return (const char *)record + field->at;
}

// Returns the length of a list, or 1 if an object exists and 0 if not. The member that is read may be an int,
// because it is never negative.
static uint32_t length_of(const void *record, const struct field *field) {
    uint32_t n;
    memcpy(&n, (const char *)record + field->n, sizeof n);
    return n;
}

static char *elements_of(const void *record, const struct field *field) {
    char *heap;
    if (field->is_inline)
        return (char *)record + field->at;
    memcpy(&heap, value_of(record, field), sizeof heap);
    return heap;
}

static bool is_empty(const void *record, const struct table *table);

static bool lacks(const void *record, const struct field *field) {
    static const uint64_t zero;
    if (field->type == LIST || (field->type == OBJECT && field->n > 0))
        return length_of(record, field) == 0;
    if (field->type == OBJECT)
        return is_empty(value_of(record, field), field->of);
    return memcmp(value_of(record, field), &zero,
                  field->type == COUNT  ? 4
                  : field->type == NAME ? 1
                                        : 8) == 0;
}

static bool is_empty(const void *record, const struct table *table) {
    for (int i = 0; i < table->n_fields; i++)
        if (!lacks(record, &table->fields[i]))
            return false;
    return true;
}

static void free_record(void *record, const struct table *table) {
    for (int i = 0; i < table->n_fields; i++) {
        const struct field *field = &table->fields[i];
        char *of = field->type == OBJECT                          ? (char *)record + field->at
                   : field->type == LIST || field->type == STRING ? elements_of(record, field)
                                                                  : NULL;
        for (uint32_t k = 0; field->of && k < (field->type == LIST ? length_of(record, field) : 1); k++)
            free_record(of + k * field->of->bytes, field->of);
        if ((field->type == LIST && !field->is_inline) || field->type == STRING)
            free(of);
    }
}

void run_state_free(struct run_state *state) {
    free_record(state, &state_table);
    *state = (struct run_state){0};
}

void run_state_move(struct run_state *to, struct run_state *from) {
    *to = *from;
    from->data = (struct data_record){0};
    from->changes = NULL;
    from->n_changes = 0;
}

void run_state_add_change(struct run_state *state, int64_t step, const char *option, const char *was,
                          const char *is) {
    state->changes = reallocate(state->changes, (size_t)state->n_changes + 1, sizeof *state->changes);
    state->changes[state->n_changes++] =
        (struct run_change){step, copy_string(option), copy_string(was), copy_string(is)};
}

void data_record_begin_order(struct data_record *record, int64_t step, const struct identity *train) {
    struct identity copy;
    identity_copy(&copy, train);
    identity_free(&record->train);
    record->train = copy;
    if (record->n_orders > 0 && record->orders[record->n_orders - 1].step == step)
        record->n_orders--;
    record->orders = reallocate(record->orders, (size_t)record->n_orders + 1, sizeof *record->orders);
    record->orders[record->n_orders++] =
        (struct data_order){step, train->n_shards, train->n_tokens, train->digest};
}

// ---- printing

static void print_record(const void *record, const struct table *table, struct text *out);

static void print_list(const void *record, const struct field *field, struct text *out) {
    const uint32_t n = length_of(record, field);
    const char *elements = elements_of(record, field);
    text_add(out, "[");
    for (uint32_t i = 0; i < n; i++) {
        text_add(out, "%s%s", i ? "," : "",
                 !field->of->is_array || (i && i % 4 == 0) ? "\n    "
                 : i                                       ? " "
                                                           : "");
        print_record(elements + i * field->of->bytes, field->of, out);
    }
    text_add(out, "]");
}

static void print_value(const void *record, const struct field *field, struct text *out) {
    const void *value = value_of(record, field);
    char number[32];
    switch (field->type) {
    case INTEGER:
        text_add(out, "%" PRId64, *(const int64_t *)value);
        break;
    case COUNT:
        text_add(out, "%" PRIu32, *(const uint32_t *)value);
        break;
    case NUMBER:
        text_add(out, "%s", text_double(number, *(const double *)value));
        break;
    case DIGEST:
        text_add(out, "\"%016" PRIx64 "\"", *(const uint64_t *)value);
        break;
    case STRING:
        json_add_string(out, *(char *const *)value);
        break;
    case NAME:
        json_add_string(out, value);
        break;
    case OBJECT:
        print_record(value, field->of, out);
        break;
    case LIST:
        print_list(record, field, out);
        break;
    }
}

static void print_record(const void *record, const struct table *table, struct text *out) {
    const char *comma = "";
    text_add(out, table->is_array ? "[" : "{");
    for (int i = 0; i < table->n_fields; i++) {
        const struct field *field = &table->fields[i];
        if (field->may_lack && lacks(record, field))
            continue;
        text_add(out, "%s", comma);
        if (!table->is_array)
            text_add(out, "\"%s\": ", field->key);
        print_value(record, field, out);
        comma = ", ";
    }
    text_add(out, table->is_array ? "]" : "}");
}

void run_state_print(const struct run_state *state, struct text *out) {
    for (int i = 0; i < state_table.n_fields; i++)
        if (!lacks(state, &state_fields[i])) {
            text_add(out, "  \"%s\": ", state_fields[i].key);
            print_value(state, &state_fields[i], out);
            text_add(out, ",\n");
        }
}

// ---- reading

// The arguments of run_state_parse that all functions below need.
struct reading {
    int64_t step;       // the checkpoint's step
    const char *source; // names the manifest in messages
};

static double bound(const struct reading *reading, const void *record, const struct field *field,
                    double value) {
    int64_t sibling;
    memcpy(&sibling, (const char *)record + field->n, sizeof sibling);
    return value == SIBLING ? (double)sibling
           : value == STEP  ? (double)reading->step
           : value == NEXT  ? (double)reading->step + 1
                            : value;
}

// Reads a number into a field of the record.
//   item     the JSON value; NULL: it is found in `object` by the field's key
//   lowest   a lower bound besides the field's own
static enum status read_number(const struct reading *reading, const cJSON *object, const cJSON *item,
                               void *record, const struct field *field, double lowest) {
    const bool whole = field->type != NUMBER;
    const double least = fmax(lowest, bound(reading, record, field, field->least)),
                 most = bound(reading, record, field, field->most);
    double value;
    if (item)
        value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    else
        TRY(json_get_number(object, field->key, reading->source, &value));
    if (!(value >= least && value <= most) || (whole && value != floor(value)))
        return FAIL(STATUS_INVALID, "%s: %s is %.17g, expected %s from %.17g to %.17g", reading->source,
                    field->key, value, whole ? "an integer" : "a number", least, most);
    void *to = (char *)record + field->at;
    if (field->type == NUMBER)
        *(double *)to = value;
    else if (field->type == INTEGER)
        *(int64_t *)to = (int64_t)value;
    else
        *(uint32_t *)to = (uint32_t)value;
    return STATUS_OK;
}

static enum status read_text(const struct reading *reading, const cJSON *object, void *record,
                             const struct field *field) {
    const char *text;
    void *to = (char *)record + field->at;
    TRY(json_get_string(object, field->key, reading->source, &text));
    if (field->type == STRING) {
        *(char **)to = copy_string(text);
    } else if (field->type == NAME) {
        snprintf(to, field->bytes, "%s", text);
    } else {
        if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
            return FAIL(STATUS_INVALID, "%s: %s \"%.40s\" of data is not 16 hexadecimal digits",
                        reading->source, field->key, text);
        *(uint64_t *)to = strtoull(text, NULL, 16);
    }
    return STATUS_OK;
}

static enum status read_record(const struct reading *reading, const cJSON *object, void *record,
                               const struct table *table, double lowest);

static enum status read_list(const struct reading *reading, const cJSON *object, void *record,
                             const struct field *field) {
    const struct table *table = field->of;
    const cJSON *array, *item;
    uint32_t n = 0;
    double lowest = -INFINITY;
    TRY(json_get_array(object, field->key, reading->source, &array));
    const int length = cJSON_GetArraySize(array);
    if (!(length >= field->least && length <= field->most))
        return FAIL(STATUS_INVALID, "%s: %s has %d elements, expected %g to %g", reading->source, field->key,
                    length, field->least, field->most);
    if (!field->is_inline) {
        char *heap = allocate((size_t)length, table->bytes);
        memcpy((char *)record + field->at, &heap, sizeof heap);
    }
    cJSON_ArrayForEach(item, array) {
        char *element = elements_of(record, field) + n * table->bytes;
        n++; // counted before it is read, so that it is freed if reading fails
        memcpy((char *)record + field->n, &n, sizeof n);
        if (table->is_array && (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != table->n_fields))
            return FAIL(STATUS_INVALID, "%s: an element of %s is not a list of %d numbers", reading->source,
                        field->key, table->n_fields);
        TRY(read_record(reading, item, element, table, lowest));
        if (table->ascends)
            lowest = (double)*(const int64_t *)value_of(element, &table->fields[0]) + 1;
    }
    return STATUS_OK;
}

static enum status read_object(const struct reading *reading, const cJSON *object, void *record,
                               const struct field *field) {
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, field->key);
    if (!field->of->is_array)
        TRY(json_get_object(object, field->key, reading->source, &member));
    else if (!cJSON_IsArray(member) || cJSON_GetArraySize(member) != field->of->n_fields)
        return FAIL(STATUS_INVALID, "%s: %s is not a list of %d numbers", reading->source, field->key,
                    field->of->n_fields);
    TRY(read_record(reading, member, (char *)record + field->at, field->of, -INFINITY));
    if (field->n > 0)
        *(int *)((char *)record + field->n) = 1;
    return STATUS_OK;
}

// Reads the members of `object` (a JSON array if table->is_array) into a record.
//   lowest   a lower bound of the first member besides that of its field
static enum status read_record(const struct reading *reading, const cJSON *object, void *record,
                               const struct table *table, double lowest) {
    for (int i = 0; i < table->n_fields; i++) {
        const struct field *field = &table->fields[i];
        if (field->may_lack && !cJSON_GetObjectItemCaseSensitive(object, field->key))
            continue;
        if (field->type == OBJECT)
            TRY(read_object(reading, object, record, field));
        else if (field->type == LIST)
            TRY(read_list(reading, object, record, field));
        else if (field->type == DIGEST || field->type == STRING || field->type == NAME)
            TRY(read_text(reading, object, record, field));
        else
            TRY(read_number(reading, object, table->is_array ? cJSON_GetArrayItem(object, i) : NULL, record,
                            field, i == 0 ? lowest : -INFINITY));
    }
    return table->check ? table->check(record, reading->source) : STATUS_OK;
}

enum status run_state_parse(struct run_state *state, const cJSON *manifest, int64_t step,
                            const char *source) {
    return read_record(&(struct reading){step, source}, manifest, state, &state_table, -INFINITY);
}
