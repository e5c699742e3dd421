// Reads and checks manifests: zero/checkpoint/manifest.h. The text may be truncated, altered or forged. Its
// own checksum is checked first. Then every member is checked against its bounds and against the parameter
// table that the model's sizes give. Uses cJSON.
#include "zero/checkpoint/config_model.h"
#include "zero/checkpoint/manifest.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/json.h"

#define MAX_WHOLE (INT64_C(1) << 53) // the largest integer that a JSON number holds exactly
#define MAX_WORLD 65536

static enum status check_seal(const char *json, size_t length, const char *source) {
    if (length < MANIFEST_SEAL_BYTES)
        return FAIL(STATUS_INVALID, "%s: %zu bytes are too few for a checkpoint's manifest; it is truncated",
                    source, length);
    size_t sealed = length - MANIFEST_SEAL_BYTES;
    char expected[MANIFEST_SEAL_BYTES + 1];
    manifest_print_seal(json, sealed, expected);
    if (memcmp(json + sealed, expected, MANIFEST_SEAL_BYTES) != 0)
        return FAIL(
            STATUS_INVALID,
            "%s: does not end with its own checksum: it was truncated or altered since it was written",
            source);
    return STATUS_OK;
}

static enum status get_string(const cJSON *object, const char *key, const char *source, char **out) {
    const char *value;
    TRY(json_get_string(object, key, source, &value));
    *out = copy_string(value);
    return STATUS_OK;
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

static enum status parse_header(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const char *text;
    int64_t format, world;
    TRY(json_get_string(root, "format", source, &text));
    if (strcmp(text, MANIFEST_FORMAT) != 0)
        return FAIL(STATUS_INVALID, "%s: format is \"%.40s\", expected \"%s\"", source, text,
                    MANIFEST_FORMAT);
    TRY(json_get_integer(root, "format_version", 0, MAX_WHOLE, source, &format));
    TRY(get_string(root, "version", source, &checkpoint->version));
    if (format != MANIFEST_FORMAT_VERSION)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: has format version %" PRId64
                    ", written by version %.80s of the program, but this version reads only format version "
                    "%d; export the weights with that version: ./train export RUN --to hf DIR",
                    source, format, checkpoint->version, MANIFEST_FORMAT_VERSION);
    TRY(get_string(root, "optimizer", source, &checkpoint->optimizer));
    TRY(get_string(root, "device", source, &checkpoint->device));
    if (cJSON_HasObjectItem(root, "fingerprint"))
        TRY(get_string(root, "fingerprint", source, &checkpoint->fingerprint));
    TRY(json_get_integer(root, "step", 0, MAX_WHOLE, source, &checkpoint->step));
    TRY(json_get_integer(root, "tokens", 0, MAX_WHOLE, source, &checkpoint->tokens));
    TRY(json_get_integer(root, "world", 1, MAX_WORLD, source, &world));
    checkpoint->world = (int)world;
    checkpoint->logical_ranks = world; // a checkpoint of a version without logical ranks
    if (cJSON_HasObjectItem(root, "logical_ranks"))
        TRY(json_get_integer(root, "logical_ranks", 1, MAX_WORLD, source, &checkpoint->logical_ranks));
    TRY(json_get_string(root, "partition", source, &text));
    TRY(partition_find(text, &checkpoint->partition));
    TRY(json_get_string(root, "compute", source, &text));
    if (!dtype_from_name(text, &checkpoint->compute))
        return FAIL(STATUS_INVALID, "%s: compute is \"%.40s\", expected fp32, bf16 or fp16", source, text);
    return STATUS_OK;
}

static enum status parse_attention(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    struct checkpoint_attention *attention = &checkpoint->attention;
    const enum config_attention kernels[] = {CONFIG_ATTENTION_AUTO, CONFIG_ATTENTION_FLASH,
                                             CONFIG_ATTENTION_CUDNN};
    const char *text;
    TRY(json_get_string(root, "attention", source, &text));
    size_t i = 0;
    while (i < sizeof kernels / sizeof *kernels && strcmp(text, config_attention_name(kernels[i])) != 0)
        i++;
    if (i == sizeof kernels / sizeof *kernels)
        return FAIL(STATUS_INVALID, "%s: attention is \"%.40s\", expected auto, flash or cudnn", source,
                    text);
    attention->kernel = kernels[i];
    if (attention->kernel != CONFIG_ATTENTION_CUDNN)
        return STATUS_OK;
    TRY(json_get_string(root, "cudnn", source, &text));
    snprintf(attention->cudnn, sizeof attention->cudnn, "%s", text);
    return STATUS_OK;
}

static bool is_kind(const cJSON *item, enum checkpoint_kind kind) {
    return cJSON_IsString(item) && strcmp(item->valuestring, checkpoint_kind_name(kind)) == 0;
}

// Parses the kinds, which must be in the order of their enum: the first n, and optionally the average.
static enum status parse_state(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *array;
    TRY(json_get_array(root, "state", source, &array));
    int n = cJSON_GetArraySize(array);
    if (n < 1 || n > N_CHECKPOINT_KINDS)
        return FAIL(STATUS_INVALID, "%s: state has %d entries, expected 1 to %d", source, n,
                    N_CHECKPOINT_KINDS);
    struct checkpoint_kinds *kinds = &checkpoint->kinds;
    kinds->has_average = n > 1 && is_kind(cJSON_GetArrayItem(array, n - 1), CHECKPOINT_AVERAGE);
    n -= kinds->has_average;
    for (int kind = 0; kind < n; kind++)
        if (!is_kind(cJSON_GetArrayItem(array, kind), (enum checkpoint_kind)kind))
            return FAIL(STATUS_INVALID, "%s: entry %d of state is not \"%s\"", source, kind,
                        checkpoint_kind_name((enum checkpoint_kind)kind));
    kinds->n = n;
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
                    "%s: tensor \"%.60s\" differs in name, shape, unit or offset from what the model's sizes "
                    "give: %s, unit %d, offset %zu",
                    source, name, param->name, param->unit, param->offset);
    return STATUS_OK;
}

// Parses the number of moments of each tensor.
static enum status parse_moments(struct checkpoint *checkpoint, const cJSON *tensors, const char *source) {
    const cJSON *item;
    int i = 0;
    checkpoint->n_moments = allocate((size_t)checkpoint->params.n_params, sizeof *checkpoint->n_moments);
    cJSON_ArrayForEach(item, tensors) {
        int n;
        TRY(get_int(item, "moments", 0, checkpoint->kinds.n - 1, source, &n));
        checkpoint->n_moments[i++] = (unsigned char)n;
    }
    checkpoint->kinds.n_moments = checkpoint->n_moments;
    return STATUS_OK;
}

static enum status parse_tensors(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *array, *item;
    TRY(json_get_array(root, "tensors", source, &array));
    int n = cJSON_GetArraySize(array), i = 0;
    if (n != checkpoint->params.n_params)
        return FAIL(STATUS_INVALID, "%s: lists %d tensors, the model's sizes give %d", source, n,
                    checkpoint->params.n_params);
    cJSON_ArrayForEach(item, array) TRY(check_tensor(&checkpoint->params.params[i++], item, source));
    return parse_moments(checkpoint, array, source);
}

static enum status parse_hex(const char *hex, const char *key, const char *source, uint64_t *out) {
    if (strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16)
        return FAIL(STATUS_INVALID, "%s: %s \"%.40s\" is not 16 hexadecimal digits", source, key, hex);
    *out = strtoull(hex, NULL, 16);
    return STATUS_OK;
}

static enum status parse_digest(const cJSON *item, const char *key, const char *source, uint64_t *out) {
    const char *hex;
    TRY(json_get_string(item, key, source, &hex));
    return parse_hex(hex, key, source, out);
}

static enum status parse_named_file(struct checkpoint_file *file, const cJSON *item, const char *source) {
    size_t bytes;
    TRY(get_string(item, "name", source, &file->name));
    if (file->name[0] == '\0' || file->name[0] == '.' || strchr(file->name, '/') || strlen(file->name) > 200)
        return FAIL(STATUS_INVALID, "%s: \"%.60s\" is not the name of a file in the checkpoint's own folder",
                    source, file->name);
    TRY(get_size(item, "bytes", MAX_WHOLE, source, &bytes));
    file->bytes = bytes;
    return parse_digest(item, "xxh3", source, &file->checksum);
}

// Parses [bytes, "xxh3"].
static enum status parse_rank_file(struct checkpoint_file *file, int rank, const cJSON *item,
                                   const char *source) {
    const cJSON *bytes = cJSON_GetArrayItem(item, 0), *hex = cJSON_GetArrayItem(item, 1);
    if (cJSON_GetArraySize(item) != 2 || !cJSON_IsNumber(bytes) || !cJSON_IsString(hex) ||
        !(bytes->valuedouble >= 0 && bytes->valuedouble <= (double)MAX_WHOLE))
        return FAIL(STATUS_INVALID, "%s: entry %d of ranks is not [bytes, \"xxh3\"]", source, rank);
    file->name = file_path(MANIFEST_RANK_FILE, rank);
    file->bytes = (uint64_t)bytes->valuedouble;
    return parse_hex(hex->valuestring, "xxh3", source, &file->checksum);
}

static enum status parse_files(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *ranks, *files, *item;
    TRY(json_get_array(root, "ranks", source, &ranks));
    TRY(json_get_array(root, "files", source, &files));
    int n_ranks = cJSON_GetArraySize(ranks), n_files = cJSON_GetArraySize(files);
    if (n_ranks != checkpoint->world)
        return FAIL(STATUS_INVALID, "%s: lists the files of %d ranks, expected %d", source, n_ranks,
                    checkpoint->world);
    if (n_files > MAX_WORLD)
        return FAIL(STATUS_INVALID, "%s: lists %d files, which is more than a checkpoint can have", source,
                    n_files);
    checkpoint->files = allocate((size_t)(n_ranks + n_files), sizeof *checkpoint->files);
    cJSON_ArrayForEach(item, ranks) {
        int rank = checkpoint->n_files++;
        TRY(parse_rank_file(&checkpoint->files[rank], rank, item, source));
    }
    cJSON_ArrayForEach(item, files)
        TRY(parse_named_file(&checkpoint->files[checkpoint->n_files++], item, source));
    return STATUS_OK;
}

// Checks that the alignment and the unit sizes are this program's: the partition depends on them.
static enum status check_units(const struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *array, *item;
    size_t alignment;
    int unit = 0;
    TRY(get_size(root, "alignment", MAX_WHOLE, source, &alignment));
    TRY(json_get_array(root, "unit_elements", source, &array));
    bool same = alignment == PARAM_ALIGNMENT && cJSON_GetArraySize(array) == checkpoint->params.n_units;
    cJSON_ArrayForEach(item, array) {
        same = same && cJSON_IsNumber(item) &&
               item->valuedouble == (double)checkpoint->params.units[unit].elements;
        unit++;
    }
    return same
               ? STATUS_OK
               : FAIL(STATUS_INVALID,
                      "%s: alignment and unit_elements are not what the model's sizes give (alignment %d, %d "
                      "units)",
                      source, PARAM_ALIGNMENT, checkpoint->params.n_units);
}

static enum status make_layout(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    uint64_t digest = 0;
    struct checkpoint_layout *layout = &checkpoint->layout;
    TRY(check_units(checkpoint, root, source));
    TRY(parse_digest(root, "partition_xxh3", source, &digest));
    checkpoint_layout_make(layout, &checkpoint->params, checkpoint->partition, checkpoint->world,
                           &checkpoint->kinds);
    if (checkpoint_partition_digest(layout->partition) != digest)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: was written by another version of the program, which divides units among %d ranks "
                    "differently than this version does (partition %s); use that version",
                    source, checkpoint->world, partition_name(checkpoint->partition));
    for (int rank = 0; rank < checkpoint->world; rank++)
        if (checkpoint->files[rank].bytes != layout->file_bytes[rank])
            return FAIL(STATUS_INVALID,
                        "%s: the file of rank %d has %" PRIu64 " bytes, its spans need %" PRIu64, source,
                        rank, checkpoint->files[rank].bytes, layout->file_bytes[rank]);
    return STATUS_OK;
}

// A copy of the tokenizer is used only if the manifest lists it, with its checksum.
static enum status parse_tokenizer(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "tokenizer");
    if (cJSON_IsNull(item))
        return STATUS_OK;
    TRY(parse_digest(root, "tokenizer_xxh3", source, &checkpoint->tokenizer_checksum));
    const char *name;
    TRY(json_get_string(root, "tokenizer", source, &name));
    bool known = strcmp(name, "bytes") == 0;
    for (int i = 0; i < checkpoint->n_files && !known; i++)
        known = strcmp(name, checkpoint->files[i].name) == 0;
    if (!known)
        return FAIL(STATUS_INVALID,
                    "%s: tokenizer \"%.60s\" is neither \"bytes\" nor one of the listed files", source, name);
    checkpoint->tokenizer =
        strcmp(name, "bytes") == 0 ? copy_string(name) : file_path("%s/%s", checkpoint->path, name);
    return STATUS_OK;
}

static enum status parse_config(struct checkpoint *checkpoint, const cJSON *root, const char *source) {
    const cJSON *object;
    TRY(json_get_object(root, "config", source, &object));
    char *json = cJSON_PrintUnformatted(object);
    if (!json)
        return FAIL(STATUS_FAILED, "out of memory while reading %s", source);
    enum status status = config_parse(&checkpoint->config, json, strlen(json), source);
    cJSON_free(json);
    if (status == STATUS_OK) {
        const struct gpt_config model = config_model(&checkpoint->config);
        status = params_init(&checkpoint->params, &model);
    }
    // The seal is right, so nothing is damaged: another version of the program wrote options that this
    // version does not know.
    return status == STATUS_INVALID ? STATUS_UNSUPPORTED : status;
}

enum status manifest_parse(struct checkpoint *checkpoint, const char *json, size_t length,
                           const char *source) {
    TRY(check_seal(json, length, source));
    cJSON *root = NULL;
    TRY(json_parse(json, length, source, &root));
    enum status status = STATUS_OK;
    TRY_GOTO(parse_header(checkpoint, root, source), done);
    TRY_GOTO(parse_config(checkpoint, root, source), done);
    TRY_GOTO(parse_attention(checkpoint, root, source), done);
    TRY_GOTO(run_state_parse(&checkpoint->run, root, checkpoint->step, source), done);
    TRY_GOTO(parse_state(checkpoint, root, source), done);
    TRY_GOTO(parse_tensors(checkpoint, root, source), done);
    TRY_GOTO(parse_files(checkpoint, root, source), done);
    TRY_GOTO(make_layout(checkpoint, root, source), done);
    TRY_GOTO(parse_tokenizer(checkpoint, root, source), done);
done:
    cJSON_Delete(root);
    return status;
}
