// JSON. Numbers of 64 bits that may exceed 2^53 are strings of hexadecimal digits.
#include "cli/tokenize/state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"

#define FILE_NAME     "tokenize" FILE_UNFINISHED
#define STATE_VERSION 2
#define LARGEST       (INT64_C(1) << 53)

static char *state_path(const char *folder) {
    return file_path("%s/" FILE_NAME, folder);
}

enum status state_remove(const char *folder) {
    char *path = state_path(folder);
    enum status status = path ? STATUS_OK : STATUS_FAILED;
    if (path && unlink(path) != 0 && errno != ENOENT)
        status = FAIL(STATUS_FAILED, "cannot remove %s: %s", path, strerror(errno));
    free(path);
    return status;
}

enum status state_refuse(const char *folder) {
    char *path = state_path(folder);
    enum status status = path ? STATUS_OK : STATUS_FAILED;
    if (path && file_exists(path))
        status =
            FAIL(STATUS_INVALID,
                 "%s holds an unfinished run of tokenize; repeat its command to finish it, or begin again "
                 "with --restart",
                 folder);
    free(path);
    return status;
}

// ---- settings: what must be the same when a run goes on

enum { N_SETTINGS = 6, SETTING_BYTES = 256 };
static const char *const setting_names[N_SETTINGS] = {"--tokenizer", "--split",        "--end-of-text",
                                                      "--field",     "--shard-tokens", "--dtype"};

static void describe_settings(const struct state *state, char settings[N_SETTINGS][SETTING_BYTES]) {
    const struct tokenize_options *options = state->options;
    char number[32], tokenizer[TOKENIZER_DESCRIPTION_BYTES];
    snprintf(settings[0], SETTING_BYTES, "%s", tokenizer_identity_describe(state->tokenizer, tokenizer));
    snprintf(settings[1], SETTING_BYTES, "%s", text_double(number, options->held_out));
    snprintf(settings[2], SETTING_BYTES, "%s", options->end_of_text ? "given" : "not given");
    snprintf(settings[3], SETTING_BYTES, "%s", options->field ? options->field : "not given");
    snprintf(settings[4], SETTING_BYTES, "%" PRId64, options->shard_tokens);
    snprintf(settings[5], SETTING_BYTES, "%s", options->dtype ? options->dtype : "not given");
}

static enum status differs(const struct state *state, const char *what, const char *was, const char *is) {
    return FAIL(STATUS_INVALID,
                "%s holds an unfinished run of tokenize, but %s was %s and is now %s; repeat its command to "
                "finish it, or begin again with --restart",
                state->options->out, what, was, is);
}

// ---- saving

static void add_hex(struct text *json, const char *key, uint64_t value) {
    text_add(json, "\"%s\": \"%016" PRIx64 "\"", key, value);
}

static void add_split(struct text *json, const struct split_writer *split) {
    text_add(json, ",\n\"%s\": {\"tokens\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"documents\": %" PRIu64 "}",
             split->name, split->n_tokens, split->n_bytes, split->n_documents);
}

static void add_sources(struct text *json, const struct state *state) {
    text_add(json, ",\n\"sources\": [");
    for (int i = 0; i < state->sources->n; i++) {
        const struct text_source *source = &state->sources->list[i];
        const struct source_counts *counts = &state->counts[i];
        text_add(json, "%s\n{\"path\": ", i ? "," : "");
        json_add_string(json, source->path);
        text_add(json,
                 ", \"file_bytes\": %" PRIu64 ", \"documents\": %" PRIu64 ", \"text_bytes\": %" PRIu64
                 ", \"tokens\": %" PRIu64 ", \"done\": %d, \"bytes\": %" PRIu64 ", ",
                 source->bytes, counts->documents, counts->text_bytes, counts->tokens, counts->done,
                 counts->bytes);
        add_hex(json, "modified", (uint64_t)source->modified_ns);
        text_add(json, ", ");
        add_hex(json, "checksum", counts->checksum);
        text_add(json, "}");
    }
    text_add(json, "]");
}

enum status state_save(const struct state *state, const struct output *output) {
    const struct text_position *position = &state->position;
    char settings[N_SETTINGS][SETTING_BYTES], *path = state_path(state->options->out);
    struct text json = {0};
    describe_settings(state, settings);
    text_add(&json, "{\"version\": %d, \"complete\": %d,\n\"settings\": {", STATE_VERSION,
             state->is_complete);
    for (int i = 0; i < N_SETTINGS; i++) {
        text_add(&json, "%s\"%s\": ", i ? ", " : "", setting_names[i]);
        json_add_string(&json, settings[i]);
    }
    text_add(&json, "},\n\"position\": {\"source\": %d, \"offset\": %" PRIu64 ", \"lines\": %" PRIu64 ", ",
             position->source, position->offset, position->lines);
    add_hex(&json, "checksum", position->checksum);
    text_add(&json,
             ", \"starts_document\": %d},\n\"split\": {\"source\": %d, \"offset\": %" PRIu64
             "},\n\"markers\": %" PRIu64,
             position->starts_document, state->split.source, state->split.offset, state->n_markers);
    add_split(&json, &output->train);
    add_split(&json, &output->val);
    add_sources(&json, state);
    text_add(&json, "}\n");
    enum status status = path ? text_status(&json) : STATUS_FAILED;
    if (status == STATUS_OK)
        status = file_write_all(path, json.data, json.length);
    text_free(&json);
    free(path);
    return status;
}

// ---- loading

struct reading {
    struct state *state;
    const char *path;
};

static enum status get_count(const struct reading *reading, const cJSON *object, const char *key,
                             uint64_t *value) {
    int64_t whole = 0;
    TRY(json_get_integer(object, key, 0, LARGEST, reading->path, &whole));
    *value = (uint64_t)whole;
    return STATUS_OK;
}

static enum status get_flag(const struct reading *reading, const cJSON *object, const char *key,
                            bool *value) {
    int64_t whole = 0;
    TRY(json_get_integer(object, key, 0, 1, reading->path, &whole));
    *value = whole == 1;
    return STATUS_OK;
}

static enum status get_hex(const struct reading *reading, const cJSON *object, const char *key,
                           uint64_t *value) {
    const char *digits = NULL;
    int end = 0;
    TRY(json_get_string(object, key, reading->path, &digits));
    if (strlen(digits) == 16 && sscanf(digits, "%16" SCNx64 "%n", value, &end) == 1 && end == 16)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: \"%s\" is \"%.40s\", expected 16 hexadecimal digits", reading->path, key,
                digits);
}

static enum status check_settings(const struct reading *reading, const cJSON *root) {
    char settings[N_SETTINGS][SETTING_BYTES];
    const cJSON *object = NULL;
    describe_settings(reading->state, settings);
    TRY(json_get_object(root, "settings", reading->path, &object));
    for (int i = 0; i < N_SETTINGS; i++) {
        const char *was = NULL;
        TRY(json_get_string(object, setting_names[i], reading->path, &was));
        if (strcmp(was, settings[i]) != 0)
            return differs(reading->state, setting_names[i], was, settings[i]);
    }
    return STATUS_OK;
}

static enum status read_position(const struct reading *reading, const cJSON *root) {
    struct text_position *position = &reading->state->position;
    const cJSON *object = NULL;
    int64_t source = 0;
    TRY(json_get_object(root, "position", reading->path, &object));
    TRY(json_get_integer(object, "source", 0, INT32_MAX, reading->path, &source));
    TRY(get_count(reading, object, "offset", &position->offset));
    TRY(get_count(reading, object, "lines", &position->lines));
    TRY(get_hex(reading, object, "checksum", &position->checksum));
    TRY(get_flag(reading, object, "starts_document", &position->starts_document));
    position->source = (int)source;
    return STATUS_OK;
}

static enum status check_split(const struct reading *reading, const cJSON *root) {
    const struct text_split *split = &reading->state->split;
    const cJSON *object = NULL;
    int64_t source = 0;
    uint64_t offset = 0;
    char was[64], is[64];
    TRY(json_get_object(root, "split", reading->path, &object));
    TRY(json_get_integer(object, "source", -1, INT32_MAX, reading->path, &source));
    TRY(get_count(reading, object, "offset", &offset));
    if (source == split->source && offset == split->offset)
        return STATUS_OK;
    snprintf(was, sizeof was, "byte %" PRIu64 " of input %d", offset, (int)source + 1);
    snprintf(is, sizeof is, "byte %" PRIu64 " of input %d", split->offset, split->source + 1);
    return differs(reading->state, "the place that --split gives, by the sizes of the inputs,", was, is);
}

static enum status read_split(const struct reading *reading, const cJSON *root, struct split_writer *split) {
    const cJSON *object = NULL;
    TRY(json_get_object(root, split->name, reading->path, &object));
    TRY(get_count(reading, object, "tokens", &split->n_tokens));
    TRY(get_count(reading, object, "bytes", &split->n_bytes));
    return get_count(reading, object, "documents", &split->n_documents);
}

// Inputs that were read to their end must not have changed. What was read of the next one is compared by the
// reader, and the others may change.
static enum status read_source(const struct reading *reading, const cJSON *object, int i) {
    const struct text_source *source = &reading->state->sources->list[i];
    struct source_counts *counts = &reading->state->counts[i];
    const char *path = NULL;
    uint64_t bytes = 0, modified = 0;
    char what[48];
    snprintf(what, sizeof what, "input %d", i + 1);
    TRY(json_get_string(object, "path", reading->path, &path));
    TRY(get_count(reading, object, "file_bytes", &bytes));
    TRY(get_count(reading, object, "documents", &counts->documents));
    TRY(get_count(reading, object, "text_bytes", &counts->text_bytes));
    TRY(get_count(reading, object, "tokens", &counts->tokens));
    TRY(get_count(reading, object, "bytes", &counts->bytes));
    TRY(get_hex(reading, object, "modified", &modified));
    TRY(get_hex(reading, object, "checksum", &counts->checksum));
    TRY(get_flag(reading, object, "done", &counts->done));
    if (strcmp(path, source->path) != 0)
        return differs(reading->state, what, path, source->path);
    if (counts->done && (bytes != source->bytes || (int64_t)modified != source->modified_ns))
        return FAIL(STATUS_INVALID,
                    "%s has changed since the unfinished run in %s tokenized it; restore it, or begin again "
                    "with --restart",
                    source->path, reading->state->options->out);
    return STATUS_OK;
}

static enum status read_sources(const struct reading *reading, const cJSON *root) {
    const cJSON *list = NULL, *item;
    const int n = reading->state->sources->n;
    char was[32], is[32];
    int i = 0;
    TRY(json_get_array(root, "sources", reading->path, &list));
    snprintf(was, sizeof was, "%d", cJSON_GetArraySize(list));
    snprintf(is, sizeof is, "%d", n);
    if (cJSON_GetArraySize(list) != n)
        return differs(reading->state, "the number of inputs", was, is);
    cJSON_ArrayForEach(item, list) TRY(read_source(reading, item, i++));
    if (reading->state->position.source > n)
        return FAIL(STATUS_INVALID,
                    "%s is damaged: its position is after its inputs; begin again with --restart",
                    reading->path);
    return STATUS_OK;
}

static enum status read_state(const struct reading *reading, const cJSON *root, struct output *output) {
    int64_t version = 0;
    TRY(json_get_integer(root, "version", 0, INT32_MAX, reading->path, &version));
    if (version != STATE_VERSION)
        return FAIL(STATUS_INVALID, "%s is of version %d, expected %d; begin again with --restart",
                    reading->path, (int)version, STATE_VERSION);
    TRY(check_settings(reading, root));
    TRY(get_flag(reading, root, "complete", &reading->state->is_complete));
    TRY(read_position(reading, root));
    TRY(read_sources(reading, root));
    TRY(check_split(reading, root));
    TRY(get_count(reading, root, "markers", &reading->state->n_markers));
    TRY(read_split(reading, root, &output->train));
    return read_split(reading, root, &output->val);
}

enum status state_load(struct state *state, struct output *output, bool *found) {
    char *path = state_path(state->options->out);
    cJSON *root = NULL;
    *found = path && file_exists(path);
    enum status status = !path ? STATUS_FAILED : *found ? json_read_file(path, &root) : STATUS_OK;
    if (status == STATUS_OK && *found)
        status = read_state(&(struct reading){state, path}, root, output);
    cJSON_Delete(root);
    free(path);
    return status;
}
