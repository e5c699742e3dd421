// Manifests in and out. What is read may be torn, altered or made up: its own checksum comes first, then
// every member is held against its bounds and against the table of parameters that the model's sizes give.
// Relies on cJSON.
#include "zero/manifest.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/json.h"

#define MAX_WHOLE (INT64_C(1) << 53) // what a JSON number holds exactly
#define MAX_WORLD 65536

// ---- out

static const char seal_format[] = "  \"manifest_xxh3\": \"%016" PRIx64 "\"\n}\n";
#define SEAL_LENGTH 40

void manifest_seal(struct text *text) {
    text_add(text, seal_format, (uint64_t)XXH3_64bits(text->data, text->length));
}

static void add_string_member(struct text *out, const char *key, const char *value) {
    text_add(out, "  \"%s\": ", key);
    if (value)
        json_add_string(out, value);
    else
        text_add(out, "null");
    text_add(out, ",\n");
}

// Absent where losses are not scaled.
static void print_loss_scale(const struct loss_scale *loss_scale, struct text *out) {
    char scale[32];
    if (loss_scale->scale > 0)
        text_add(out,
                 "  \"loss_scale\": {\"scale\": %s, \"hysteresis_left\": %" PRId64
                 ", \"last_overflow\": %" PRId64 ", \"skipped\": %" PRId64 "},\n",
                 text_double(scale, loss_scale->scale), loss_scale->hysteresis_left,
                 loss_scale->last_overflow, loss_scale->skipped);
}

static void print_tensors(const struct params *params, struct text *out) {
    text_add(out, "  \"tensors\": [");
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        text_add(out, "%s\n    {\"name\": \"%s\", \"shape\": [%" PRId64, i ? "," : "", param->name,
                 param->shape[0]);
        if (param->n_dims == 2)
            text_add(out, ", %" PRId64, param->shape[1]);
        text_add(out, "], \"unit\": %d, \"offset\": %zu}", param->unit, param->offset);
    }
    text_add(out, "\n  ],\n");
}

enum status manifest_print(const struct checkpoint_contents *contents, const char *version,
                           const char *tokenizer, const struct checkpoint_file *files, int n_files,
                           const struct checkpoint_span *spans, int n_spans, struct text *out) {
    const struct params *params = contents->params;
    const struct gpt_config *model = &params->config;
    text_add(out, "{\n");
    add_string_member(out, "format", MANIFEST_FORMAT);
    text_add(out, "  \"format_version\": %d,\n", MANIFEST_FORMAT_VERSION);
    add_string_member(out, "version", version);
    text_add(out, "  \"step\": %" PRId64 ",\n  \"tokens\": %" PRId64 ",\n", contents->step, contents->tokens);
    text_add(out,
             "  \"model\": {\"n_layer\": %d, \"n_head\": %d, \"n_embd\": %d, \"vocab_size\": %d, "
             "\"n_positions\": %d, \"n_weights\": %zu},\n",
             model->n_layer, model->n_head, model->n_embd, model->vocab_size, model->n_positions,
             params->n_weights);
    add_string_member(out, "compute", dtype_name(contents->compute));
    add_string_member(out, "optimizer", contents->config->optimizer.type);
    text_add(out, "  \"state\": [");
    for (int kind = 0; kind < contents->n_kinds; kind++)
        text_add(out, "%s\"%s\"", kind ? ", " : "", checkpoint_kind_name((enum checkpoint_kind)kind));
    if (contents->has_factors)
        text_add(out, ", \"%s\"", checkpoint_kind_name(CHECKPOINT_FACTORS));
    text_add(out, "],\n  \"world\": %d,\n", contents->partition->world);
    add_string_member(out, "partition", partition_name(contents->partition->kind));
    print_loss_scale(&contents->loss_scale, out);
    add_string_member(out, "tokenizer", tokenizer);
    print_tensors(params, out);
    text_add(out, "  \"spans\": [");
    for (int i = 0; i < n_spans; i++)
        text_add(out,
                 "%s\n    {\"unit\": %d, \"kind\": \"%s\", \"begin\": %zu, \"end\": %zu, \"file\": %d, "
                 "\"offset\": %" PRIu64 "}",
                 i ? "," : "", spans[i].unit, checkpoint_kind_name(spans[i].kind), spans[i].begin,
                 spans[i].end, spans[i].file, spans[i].offset);
    text_add(out, "\n  ],\n  \"files\": [");
    for (int i = 0; i < n_files; i++)
        text_add(out, "%s\n    {\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"xxh3\": \"%016" PRIx64 "\"}",
                 i ? "," : "", files[i].name, files[i].bytes, files[i].checksum);
    text_add(out, "\n  ],\n  \"config\": ");
    config_print(contents->config, out);
    while (!out->failed && out->length > 0 && isspace((unsigned char)out->data[out->length - 1]))
        out->length--;
    text_add(out, ",\n");
    TRY(text_status(out));
    manifest_seal(out);
    return text_status(out);
}

// ---- in

static enum status check_seal(const char *json, size_t length, const char *source) {
    char expected[64];
    if (length < SEAL_LENGTH)
        return FAIL(STATUS_INVALID, "%s: %zu bytes are too few for a checkpoint's manifest; it is torn",
                    source, length);
    size_t sealed = length - SEAL_LENGTH;
    snprintf(expected, sizeof expected, seal_format, (uint64_t)XXH3_64bits(json, sealed));
    if (strlen(expected) != SEAL_LENGTH || memcmp(json + sealed, expected, SEAL_LENGTH) != 0)
        return FAIL(STATUS_INVALID,
                    "%s: does not end with its own checksum: it was torn or altered since it was written",
                    source);
    return STATUS_OK;
}

static enum status copy_string(const cJSON *object, const char *key, const char *source, char **out) {
    const char *value;
    TRY(json_get_string(object, key, source, &value));
    *out = strdup(value);
    return *out ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory while reading %s", source);
}

static enum status get_size(const cJSON *object, const char *key, int64_t maximum, const char *source,
                            size_t *out) {
    int64_t value;
    TRY(json_get_integer(object, key, 0, maximum, source, &value));
    *out = (size_t)value;
    return STATUS_OK;
}

static enum status get_int(const cJSON *object, const char *key, int64_t minimum, int64_t maximum,
                           const char *source, int *out) {
    int64_t value;
    TRY(json_get_integer(object, key, minimum, maximum, source, &value));
    *out = (int)value;
    return STATUS_OK;
}

static enum status parse_model(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *object;
    struct gpt_config model;
    TRY(json_get_object(root, "model", source, &object));
    TRY(get_int(object, "n_layer", 1, 1024, source, &model.n_layer));
    TRY(get_int(object, "n_head", 1, 1024, source, &model.n_head));
    TRY(get_int(object, "n_embd", 1, 65536, source, &model.n_embd));
    TRY(get_int(object, "vocab_size", 1, 65536, source, &model.vocab_size));
    TRY(get_int(object, "n_positions", 1, 1048576, source, &model.n_positions));
    return params_init(&checkpoint->params, &model);
}

static enum status parse_head(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const char *text;
    int64_t version, world;
    TRY(json_get_string(root, "format", source, &text));
    if (strcmp(text, MANIFEST_FORMAT) != 0)
        return FAIL(STATUS_INVALID, "%s: format is \"%.40s\", expected \"%s\"", source, text,
                    MANIFEST_FORMAT);
    TRY(json_get_integer(root, "format_version", 0, MAX_WHOLE, source, &version));
    if (version != MANIFEST_FORMAT_VERSION)
        return FAIL(STATUS_UNSUPPORTED, "%s: format_version is %" PRId64 ", this program reads %d", source,
                    version, MANIFEST_FORMAT_VERSION);
    TRY(copy_string(root, "version", source, &checkpoint->version));
    TRY(copy_string(root, "optimizer", source, &checkpoint->optimizer));
    TRY(json_get_integer(root, "step", 0, MAX_WHOLE, source, &checkpoint->step));
    TRY(json_get_integer(root, "tokens", 0, MAX_WHOLE, source, &checkpoint->tokens));
    TRY(json_get_integer(root, "world", 1, MAX_WORLD, source, &world));
    checkpoint->world = (int)world;
    TRY(json_get_string(root, "partition", source, &text));
    TRY(partition_find(text, &checkpoint->partition));
    TRY(json_get_string(root, "compute", source, &text));
    if (!dtype_from_name(text, &checkpoint->compute))
        return FAIL(STATUS_INVALID, "%s: compute is \"%.40s\", expected fp32, bf16 or fp16", source, text);
    return STATUS_OK;
}

static enum status parse_loss_scale(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    struct loss_scale *loss_scale = &checkpoint->loss_scale;
    const cJSON *object;
    if (!cJSON_GetObjectItemCaseSensitive(root, "loss_scale"))
        return STATUS_OK;
    TRY(json_get_object(root, "loss_scale", source, &object));
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(object, "scale");
    if (!cJSON_IsNumber(scale) || !(scale->valuedouble > 0 && isfinite(scale->valuedouble)))
        return FAIL(STATUS_INVALID, "%s: the scale of loss_scale is not a number above 0", source);
    loss_scale->scale = scale->valuedouble;
    TRY(json_get_integer(object, "hysteresis_left", 1, MAX_WHOLE, source, &loss_scale->hysteresis_left));
    TRY(json_get_integer(object, "last_overflow", -1, checkpoint->step, source, &loss_scale->last_overflow));
    return json_get_integer(object, "skipped", 0, checkpoint->step, source, &loss_scale->skipped);
}

// The kinds come in the order of their enum, none left out but, before the factors, the moments.
static enum status parse_state(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *array;
    TRY(json_get_array(root, "state", source, &array));
    int n = cJSON_GetArraySize(array);
    if (n < 1 || n > N_CHECKPOINT_KINDS)
        return FAIL(STATUS_INVALID, "%s: state has %d entries, expected 1 to %d", source, n,
                    N_CHECKPOINT_KINDS);
    const cJSON *last = cJSON_GetArrayItem(array, n - 1);
    checkpoint->has_factors = n > 1 && cJSON_IsString(last) &&
                              strcmp(last->valuestring, checkpoint_kind_name(CHECKPOINT_FACTORS)) == 0;
    n -= checkpoint->has_factors;
    for (int kind = 0; kind < n; kind++) {
        const cJSON *item = cJSON_GetArrayItem(array, kind);
        if (!cJSON_IsString(item) ||
            strcmp(item->valuestring, checkpoint_kind_name((enum checkpoint_kind)kind)) != 0)
            return FAIL(STATUS_INVALID, "%s: entry %d of state is not \"%s\"", source, kind,
                        checkpoint_kind_name((enum checkpoint_kind)kind));
    }
    checkpoint->n_kinds = n;
    return STATUS_OK;
}

static enum status check_tensor(const struct param *param, const cJSON *item, const char *source) {
    const char *name;
    const cJSON *shape;
    int unit;
    size_t offset;
    TRY(json_get_string(item, "name", source, &name));
    TRY(json_get_array(item, "shape", source, &shape));
    TRY(get_int(item, "unit", 0, INT32_MAX, source, &unit));
    TRY(get_size(item, "offset", MAX_WHOLE, source, &offset));
    bool same = strcmp(name, param->name) == 0 && unit == param->unit && offset == param->offset &&
                cJSON_GetArraySize(shape) == param->n_dims;
    for (int d = 0; same && d < param->n_dims; d++) {
        const cJSON *size = cJSON_GetArrayItem(shape, d);
        same = cJSON_IsNumber(size) && size->valuedouble == (double)param->shape[d];
    }
    if (!same)
        return FAIL(STATUS_INVALID,
                    "%s: tensor \"%.60s\" is not where the model's sizes put %s (unit %d, offset %zu)",
                    source, name, param->name, param->unit, param->offset);
    return STATUS_OK;
}

static enum status check_tensors(const struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *array, *item;
    TRY(json_get_array(root, "tensors", source, &array));
    int n = cJSON_GetArraySize(array), i = 0;
    if (n != checkpoint->params.n_params)
        return FAIL(STATUS_INVALID, "%s: lists %d tensors, the model's sizes give %d", source, n,
                    checkpoint->params.n_params);
    cJSON_ArrayForEach(item, array) TRY(check_tensor(&checkpoint->params.params[i++], item, source));
    return STATUS_OK;
}

static enum status parse_checksum(const cJSON *item, const char *source, uint64_t *out) {
    const char *hex;
    TRY(json_get_string(item, "xxh3", source, &hex));
    if (strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16)
        return FAIL(STATUS_INVALID, "%s: xxh3 \"%.40s\" is not 16 hexadecimal digits", source, hex);
    *out = strtoull(hex, NULL, 16);
    return STATUS_OK;
}

static enum status parse_files(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *array, *item;
    TRY(json_get_array(root, "files", source, &array));
    int n = cJSON_GetArraySize(array);
    if (n < 1 || n > 2 * MAX_WORLD)
        return FAIL(STATUS_INVALID, "%s: lists %d files", source, n);
    checkpoint->files = calloc((size_t)n, sizeof *checkpoint->files);
    if (!checkpoint->files)
        return FAIL(STATUS_FAILED, "out of memory while reading %s", source);
    cJSON_ArrayForEach(item, array) {
        struct checkpoint_file *file = &checkpoint->files[checkpoint->n_files++];
        size_t bytes;
        file->descriptor = -1;
        TRY(copy_string(item, "name", source, &file->name));
        if (file->name[0] == '\0' || file->name[0] == '.' || strchr(file->name, '/') ||
            strlen(file->name) > 200)
            return FAIL(STATUS_INVALID, "%s: \"%.60s\" is no name of a file in the checkpoint's own folder",
                        source, file->name);
        TRY(get_size(item, "bytes", MAX_WHOLE, source, &bytes));
        file->bytes = bytes;
        TRY(parse_checksum(item, source, &file->checksum));
    }
    return STATUS_OK;
}

static bool holds_kind(const struct checkpoint *checkpoint, int kind) {
    return kind < checkpoint->n_kinds || (kind == CHECKPOINT_FACTORS && checkpoint->has_factors);
}

static enum status parse_span(struct checkpoint *checkpoint, const cJSON *item, const char *source,
                              struct checkpoint_span *span) {
    const char *kind;
    size_t offset;
    TRY(get_int(item, "unit", 0, checkpoint->params.n_units - 1, source, &span->unit));
    TRY(json_get_string(item, "kind", source, &kind));
    int k = 0;
    while (k < N_CHECKPOINT_KINDS && strcmp(kind, checkpoint_kind_name((enum checkpoint_kind)k)) != 0)
        k++;
    if (!holds_kind(checkpoint, k))
        return FAIL(STATUS_INVALID, "%s: a span's kind \"%.40s\" is not in state", source, kind);
    span->kind = (enum checkpoint_kind)k;
    int64_t elements = (int64_t)checkpoint_kind_elements(&checkpoint->params, span->kind, span->unit);
    TRY(get_size(item, "begin", elements, source, &span->begin));
    TRY(get_size(item, "end", elements, source, &span->end));
    TRY(get_int(item, "file", 0, checkpoint->n_files - 1, source, &span->file));
    TRY(get_size(item, "offset", MAX_WHOLE, source, &offset));
    span->offset = offset;
    uint64_t room = checkpoint->files[span->file].bytes;
    if (span->begin > span->end || offset > room || (span->end - span->begin) * sizeof(float) > room - offset)
        return FAIL(STATUS_INVALID,
                    "%s: span %zu-%zu of unit %d (%s) at byte %zu does not fit %s of %" PRIu64 " bytes",
                    source, span->begin, span->end, span->unit, kind, offset,
                    checkpoint->files[span->file].name, room);
    return STATUS_OK;
}

static int compare_spans(const void *a, const void *b) {
    const struct checkpoint_span *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin ? 1 : x->end < y->end ? -1 : x->end > y->end;
}

// Sorted by kind, unit and place, the spans must cover every unit of every kind, once.
static enum status check_cover(struct checkpoint *checkpoint, const char *source) {
    qsort(checkpoint->spans, (size_t)checkpoint->n_spans, sizeof *checkpoint->spans, compare_spans);
    int i = 0;
    for (int kind = 0; kind < N_CHECKPOINT_KINDS; kind++) {
        for (int unit = 0; unit < checkpoint->params.n_units && holds_kind(checkpoint, kind); unit++) {
            size_t elements = checkpoint_kind_elements(&checkpoint->params, (enum checkpoint_kind)kind, unit);
            size_t covered = 0;
            for (; i < checkpoint->n_spans; i++) {
                const struct checkpoint_span *span = &checkpoint->spans[i];
                if ((int)span->kind != kind || span->unit != unit || span->begin != covered)
                    break;
                covered = span->end;
            }
            if (covered != elements)
                return FAIL(STATUS_INVALID,
                            "%s: the spans of unit %d (%s) leave a gap or overlap at element %zu of %zu",
                            source, unit, checkpoint_kind_name((enum checkpoint_kind)kind), covered,
                            elements);
        }
    }
    return i == checkpoint->n_spans
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "%s: a span is there twice: unit %d (%s)", source,
                      checkpoint->spans[i].unit, checkpoint_kind_name(checkpoint->spans[i].kind));
}

static enum status parse_spans(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *array, *item;
    TRY(json_get_array(root, "spans", source, &array));
    int n = cJSON_GetArraySize(array);
    if (n < 1)
        return FAIL(STATUS_INVALID, "%s: lists no spans", source);
    checkpoint->spans = calloc((size_t)n, sizeof *checkpoint->spans);
    if (!checkpoint->spans)
        return FAIL(STATUS_FAILED, "out of memory while reading %s", source);
    cJSON_ArrayForEach(item, array)
        TRY(parse_span(checkpoint, item, source, &checkpoint->spans[checkpoint->n_spans++]));
    return check_cover(checkpoint, source);
}

// A copy of the tokenizer counts only when the manifest vouches for its bytes.
static enum status parse_tokenizer(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "tokenizer");
    if (cJSON_IsNull(item))
        return STATUS_OK;
    const char *name;
    TRY(json_get_string(root, "tokenizer", source, &name));
    bool known = strcmp(name, "bytes") == 0;
    for (int i = 0; i < checkpoint->n_files && !known; i++)
        known = strcmp(name, checkpoint->files[i].name) == 0;
    if (!known)
        return FAIL(STATUS_INVALID, "%s: tokenizer \"%.60s\" is neither \"bytes\" nor one of its files",
                    source, name);
    checkpoint->tokenizer =
        strcmp(name, "bytes") == 0 ? strdup(name) : file_path("%s/%s", checkpoint->path, name);
    return checkpoint->tokenizer ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory while reading %s", source);
}

static enum status parse_config(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *object;
    TRY(json_get_object(root, "config", source, &object));
    char *json = cJSON_PrintUnformatted(object);
    if (!json)
        return FAIL(STATUS_FAILED, "out of memory while reading %s", source);
    enum status status = config_parse(&checkpoint->config, json, strlen(json), source);
    cJSON_free(json);
    // The seal holds, so nothing is damaged: another version of the program wrote options that this one does
    // not know.
    return status == STATUS_INVALID ? STATUS_UNSUPPORTED : status;
}

enum status manifest_parse(struct checkpoint *checkpoint, const char *json, size_t length,
                           const char *source) {
    TRY(check_seal(json, length, source));
    cJSON *root = NULL;
    TRY(json_parse(json, length, source, &root));
    enum status status = STATUS_OK;
    TRY_GOTO(parse_head(checkpoint, root, source), done);
    TRY_GOTO(parse_loss_scale(checkpoint, root, source), done);
    TRY_GOTO(parse_model(checkpoint, root, source), done);
    TRY_GOTO(parse_state(checkpoint, root, source), done);
    TRY_GOTO(check_tensors(checkpoint, root, source), done);
    TRY_GOTO(parse_files(checkpoint, root, source), done);
    TRY_GOTO(parse_spans(checkpoint, root, source), done);
    TRY_GOTO(parse_tokenizer(checkpoint, root, source), done);
    TRY_GOTO(parse_config(checkpoint, root, source), done);
done:
    cJSON_Delete(root);
    return status;
}
