// Hugging Face stores GPT-2's linear weights as (in, out) (Conv1D); the parameter table has (out, in). All
// tensors are checked against the table before any value is read.
#include "model/huggingface.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/parallel.h"
#include "base/text.h"
#include "model/param_overlap.h"

#define LARGEST_CONFIG    ((size_t)1 << 20) // bytes; a larger file is not a config.json
#define PROBLEMS_LISTED   5
#define COMPARED_BYTES    ((size_t)1 << 16)
#define LAYERNORM_EPSILON 1e-5 // of GPT-2
#define EPSILON_RELATIVE  1e-6 // 1e-5 is not exact in any binary type

// ---- config.json

// A key that changes what the model computes. Only one value is supported; absent or null means that value.
static enum status check_flag(const cJSON *object, const char *key, bool expected, const char *source) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item) || (expected ? cJSON_IsTrue(item) : cJSON_IsFalse(item)))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: \"%s\" must be %s; %s", source, key, expected ? "true" : "false",
                strcmp(key, "tie_word_embeddings") == 0
                    ? "here the lm_head always shares the embedding's weights, so a model with an lm_head of "
                      "its own cannot be read"
                    : "other variants of GPT-2 cannot be read");
}

static enum status check_architecture(const cJSON *object, const char *source) {
    const char *model_type, *activation = "gelu_new";
    TRY(json_get_string(object, "model_type", source, &model_type));
    if (strcmp(model_type, "gpt2") != 0)
        return FAIL(STATUS_INVALID, "%s: \"model_type\" is \"%s\", expected \"gpt2\"", source, model_type);
    if (cJSON_GetObjectItemCaseSensitive(object, "activation_function"))
        TRY(json_get_string(object, "activation_function", source, &activation));
    if (strcmp(activation, "gelu_new") != 0)
        return FAIL(STATUS_INVALID, "%s: \"activation_function\" is \"%s\", expected \"gelu_new\"", source,
                    activation);
    double epsilon = LAYERNORM_EPSILON;
    if (cJSON_GetObjectItemCaseSensitive(object, "layer_norm_epsilon"))
        TRY(json_get_number(object, "layer_norm_epsilon", source, &epsilon));
    if (!(fabs(epsilon / LAYERNORM_EPSILON - 1) < EPSILON_RELATIVE))
        return FAIL(STATUS_INVALID, "%s: \"layer_norm_epsilon\" is %g, expected %g", source, epsilon,
                    LAYERNORM_EPSILON);
    TRY(check_flag(object, "tie_word_embeddings", true, source));
    TRY(check_flag(object, "scale_attn_weights", true, source));
    TRY(check_flag(object, "scale_attn_by_inverse_layer_idx", false, source));
    return check_flag(object, "add_cross_attention", false, source);
}

static enum status get_size(const cJSON *object, const char *key, const char *source, int *out) {
    int64_t value = 0;
    TRY(json_get_integer(object, key, 1, INT_MAX, source, &value));
    *out = (int)value;
    return STATUS_OK;
}

static enum status read_config(const cJSON *object, const char *source, struct gpt_config *config) {
    if (!cJSON_IsObject(object))
        return FAIL(STATUS_INVALID, "%s: expected an object", source);
    TRY(check_architecture(object, source));
    TRY(get_size(object, "n_layer", source, &config->n_layer));
    TRY(get_size(object, "n_head", source, &config->n_head));
    TRY(get_size(object, "n_embd", source, &config->n_embd));
    TRY(get_size(object, "vocab_size", source, &config->vocab_size));
    TRY(get_size(object, "n_positions", source, &config->n_positions));
    if (config->n_embd % config->n_head != 0)
        return FAIL(STATUS_INVALID, "%s: \"n_embd\" %d is not a multiple of \"n_head\" %d", source,
                    config->n_embd, config->n_head);
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(object, "n_inner");
    if (inner && !cJSON_IsNull(inner) &&
        !(cJSON_IsNumber(inner) && inner->valuedouble == 4.0 * config->n_embd))
        return FAIL(STATUS_INVALID, "%s: \"n_inner\" must be absent, null or 4 x n_embd = %lld", source,
                    4 * (long long)config->n_embd);
    return STATUS_OK;
}

enum status huggingface_read_config(const char *folder, struct gpt_config *config) {
    char *path = file_path("%s/config.json", folder), *text = NULL;
    if (!path)
        return STATUS_FAILED;
    *config = (struct gpt_config){0};
    size_t length = 0;
    cJSON *object = NULL;
    enum status status = file_read(path, LARGEST_CONFIG, &text, &length);
    if (status == STATUS_OK)
        status = json_parse(text, length, path, &object);
    if (status == STATUS_OK)
        status = read_config(object, path, config);
    cJSON_Delete(object);
    free(text);
    free(path);
    return status;
}

// ---- the tensors

// The problems found with a file's tensors: the text of the first few, and the count of all.
struct problems {
    struct text text;
    int n;
};

static const char *separator(struct problems *problems) {
    return problems->n == 0 ? "" : "; ";
}

// Adds a problem. The arguments are evaluated only if it is listed.
#define PROBLEM(problems, format, ...)                                                                       \
    do {                                                                                                     \
        if ((problems)->n < PROBLEMS_LISTED)                                                                 \
            text_add(&(problems)->text, "%s" format, separator(problems), __VA_ARGS__);                      \
        (problems)->n++;                                                                                     \
    } while (0)

// "3 x 4"
static const char *shape_text(char *buffer, size_t size, const int64_t *shape, int n_dims) {
    size_t used = 0;
    snprintf(buffer, size, "no dimensions");
    for (int i = 0; i < n_dims && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%lld", i ? " x " : "", (long long)shape[i]);
    return buffer;
}

static bool ends_with(const char *string, const char *end) {
    size_t length = strlen(string), end_length = strlen(end);
    return length >= end_length && strcmp(string + length - end_length, end) == 0;
}

// h.N.attn.bias and h.N.attn.masked_bias: causal masks that older versions saved.
static bool is_mask(const char *name) {
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
}

static void check_tensor(const struct safetensor *tensor, const struct param *param,
                         struct problems *problems) {
    if (strcmp(tensor->dtype, "F32") != 0 && strcmp(tensor->dtype, "F16") != 0 &&
        strcmp(tensor->dtype, "BF16") != 0)
        PROBLEM(problems, "\"%s\" is %s, expected F32, F16 or BF16", tensor->name, tensor->dtype);
    int64_t expected[2] = {param->shape[0], param->shape[1]};
    if (param->hf_transposed) {
        expected[0] = param->shape[1];
        expected[1] = param->shape[0];
    }
    if (tensor->n_dims == param->n_dims &&
        memcmp(tensor->shape, expected, (size_t)param->n_dims * sizeof *expected) == 0)
        return;
    char found[192], wanted[64];
    PROBLEM(problems, "\"%s\" is %s, expected %s", tensor->name,
            shape_text(found, sizeof found, tensor->shape, tensor->n_dims),
            shape_text(wanted, sizeof wanted, expected, param->n_dims));
}

static const struct safetensor *tensor_at(const struct huggingface_weights *weights,
                                          struct huggingface_tensor place) {
    return place.file < 0 ? NULL : &weights->files[place.file].tensors[place.tensor];
}

// Whether two tensors of one type and size have the same bytes.
static enum status compare_data(const struct huggingface_weights *weights, struct huggingface_tensor a,
                                struct huggingface_tensor b, bool *same) {
    const struct safetensor *x = tensor_at(weights, a), *y = tensor_at(weights, b);
    const size_t chunk = COMPARED_BYTES / x->element_bytes;
    uint8_t *buffer = malloc(2 * COMPARED_BYTES);
    enum status status = buffer ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory opening %s", weights->path);
    *same = true;
    for (size_t i = 0, n; i < x->elements && *same && status == STATUS_OK; i += n) {
        n = x->elements - i < chunk ? x->elements - i : chunk;
        status = safetensors_read(&weights->files[a.file], x, i, n, buffer);
        if (status == STATUS_OK)
            status = safetensors_read(&weights->files[b.file], y, i, n, buffer + COMPARED_BYTES);
        *same = status == STATUS_OK && memcmp(buffer, buffer + COMPARED_BYTES, n * x->element_bytes) == 0;
    }
    free(buffer);
    return status;
}

// lm_head may be saved next to the embedding that it is tied to. Then the two must be equal.
static enum status check_head(const struct huggingface_weights *weights, struct huggingface_tensor place,
                              struct problems *problems) {
    const struct huggingface_tensor of_embedding =
        weights->tensor_of_param[params_find(weights->params, "wte.weight")];
    const struct safetensor *embedding = tensor_at(weights, of_embedding), *head = tensor_at(weights, place);
    bool same = true;
    if (embedding && head) {
        same = strcmp(embedding->dtype, head->dtype) == 0 && embedding->bytes == head->bytes;
        if (same)
            TRY(compare_data(weights, of_embedding, place, &same));
    }
    if (!same)
        PROBLEM(problems,
                "\"%s\" differs from \"%s\": here the lm_head always shares the embedding's weights, so a "
                "model with an untied lm_head cannot be read",
                head->name, embedding->name);
    return STATUS_OK;
}

// head   [out] where lm_head.weight is, if it is given
static void match_tensor(struct huggingface_weights *weights, struct huggingface_tensor place,
                         struct huggingface_tensor *head, struct problems *problems) {
    const struct params *params = weights->params;
    const struct safetensor *tensor = tensor_at(weights, place);
    int index = params_find(params, tensor->name);
    if (index >= 0 && weights->tensor_of_param[index].file >= 0) {
        PROBLEM(problems, "\"%s\" is given twice, with and without \"transformer.\" or in two files",
                params->params[index].name);
    } else if (index >= 0) {
        weights->tensor_of_param[index] = place;
        check_tensor(tensor, &params->params[index], problems);
    } else if (strcmp(tensor->name, "lm_head.weight") == 0) {
        *head = place;
    } else if (!is_mask(tensor->name)) {
        PROBLEM(problems, "\"%s\" is not a tensor of a GPT-2 with %d layers", tensor->name,
                params->config.n_layer);
    }
}

static enum status match_tensors(struct huggingface_weights *weights, struct problems *problems) {
    const struct params *params = weights->params;
    struct huggingface_tensor head = {-1, 0};
    for (int file = 0; file < weights->n_files; file++)
        for (int i = 0; i < weights->files[file].n_tensors; i++)
            match_tensor(weights, (struct huggingface_tensor){file, i}, &head, problems);
    for (int i = 0; i < params->n_params; i++)
        if (weights->tensor_of_param[i].file < 0)
            PROBLEM(problems, "\"%s\" is missing", params->params[i].name);
    return check_head(weights, head, problems);
}

// The layers that tensors are named of.
static int count_layers(const struct huggingface_weights *weights) {
    int n = 0, layer;
    for (int file = 0; file < weights->n_files; file++)
        for (int i = 0; i < weights->files[file].n_tensors; i++) {
            const char *name = weights->files[file].tensors[i].name;
            name += strncmp(name, "transformer.", 12) == 0 ? 12 : 0;
            if (sscanf(name, "h.%5d.", &layer) == 1 && layer >= n)
                n = layer + 1;
        }
    return n;
}

// Dimension `i` of a matrix; 0 where it is not there.
static int64_t dimension(const struct huggingface_weights *weights, const char *name, int i) {
    const struct safetensor *tensor =
        tensor_at(weights, weights->tensor_of_param[params_find(weights->params, name)]);
    return tensor && tensor->n_dims == 2 ? tensor->shape[i] : 0;
}

// Appends the sizes in which config.json and the tensors differ, the cause of most lists of problems:
// "config.json says n_layer 3, the tensors have 2; ".
static void add_sizes(const struct huggingface_weights *weights, struct text *out) {
    const struct gpt_config *config = &weights->params->config;
    const struct {
        const char *name;
        int64_t said, found;
    } sizes[] = {{"n_layer", config->n_layer, count_layers(weights)},
                 {"n_embd", config->n_embd, dimension(weights, "wte.weight", 1)},
                 {"vocab_size", config->vocab_size, dimension(weights, "wte.weight", 0)},
                 {"n_positions", config->n_positions, dimension(weights, "wpe.weight", 0)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].found > 0 && sizes[i].found != sizes[i].said)
            text_add(out, "config.json says %s %lld, the tensors have %lld; ", sizes[i].name,
                     (long long)sizes[i].said, (long long)sizes[i].found);
}

// Fails for one file of several, by its name: model-00001-of-00007.safetensors.
static enum status refuse_part(const struct huggingface_weights *weights) {
    const char *of = strstr(weights->path, "-of-"), *slash = strrchr(weights->path, '/');
    int part, n;
    if (weights->n_files != 1 || !of || of < weights->path + 6 ||
        sscanf(of - 6, "-%5d-of-%5d.", &part, &n) != 2)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s is file %d of %d of a set; give the folder of all of them, %.*s",
                weights->path, part, n, slash ? (int)(slash - weights->path) + 1 : 1,
                slash ? weights->path : ".");
}

static enum status refuse_tensors(const struct huggingface_weights *weights,
                                  const struct problems *problems) {
    struct text message = {0};
    TRY(refuse_part(weights));
    add_sizes(weights, &message);
    text_add(&message, "%s", problems->text.data);
    if (problems->n > PROBLEMS_LISTED)
        text_add(&message, "; and %d more", problems->n - PROBLEMS_LISTED);
    enum status status = text_status(&message);
    if (status == STATUS_OK)
        status = FAIL(STATUS_INVALID, "%s: %s", weights->path, message.data);
    text_free(&message);
    return status;
}

static enum status check_tensors(struct huggingface_weights *weights) {
    struct problems problems = {0};
    enum status status = match_tensors(weights, &problems);
    if (status == STATUS_OK)
        status = text_status(&problems.text);
    if (status == STATUS_OK && problems.n > 0)
        status = refuse_tensors(weights, &problems);
    text_free(&problems.text);
    return status;
}

// ---- the files

static enum status add_file(struct huggingface_weights *weights, const char *path) {
    struct safetensors *grown =
        realloc(weights->files, ((size_t)weights->n_files + 1) * sizeof *weights->files);
    if (!grown)
        return FAIL(STATUS_FAILED, "out of memory opening %s", path);
    weights->files = grown;
    TRY(safetensors_open(&weights->files[weights->n_files], path));
    weights->n_files++;
    return STATUS_OK;
}

static bool is_open(const struct huggingface_weights *weights, const char *path) {
    for (int i = 0; i < weights->n_files; i++)
        if (strcmp(weights->files[i].path, path) == 0)
            return true;
    return false;
}

// The files that the index names, in its folder. Which tensor is where is found in the files themselves.
static enum status add_indexed(struct huggingface_weights *weights, const cJSON *index) {
    const char *slash = strrchr(weights->path, '/');
    const int folder = slash ? (int)(slash - weights->path) + 1 : 0;
    const cJSON *map, *item;
    TRY(json_get_object(index, "weight_map", weights->path, &map));
    cJSON_ArrayForEach(item, map) {
        const char *name = cJSON_GetStringValue(item);
        if (!name || !ends_with(name, ".safetensors") || strchr(name, '/'))
            return FAIL(
                STATUS_INVALID,
                "%s: \"%.80s\" of \"weight_map\" does not name a .safetensors file of the same folder",
                weights->path, item->string);
        char *path = file_path("%.*s%s", folder, weights->path, name);
        enum status status = path ? STATUS_OK : STATUS_FAILED;
        if (path && !is_open(weights, path))
            status = add_file(weights, path);
        free(path);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status open_files(struct huggingface_weights *weights) {
    if (!ends_with(weights->path, ".json"))
        return add_file(weights, weights->path);
    cJSON *index;
    TRY(json_read_file(weights->path, &index));
    enum status status = cJSON_IsObject(index)
                             ? add_indexed(weights, index)
                             : FAIL(STATUS_INVALID, "%s: expected an object", weights->path);
    cJSON_Delete(index);
    return status;
}

static enum status find_path(struct huggingface_weights *weights, const char *path) {
    if (ends_with(path, ".safetensors") || ends_with(path, ".json")) {
        weights->path = file_path("%s", path);
        return weights->path ? STATUS_OK : STATUS_FAILED;
    }
    char *one = file_path("%s/model.safetensors", path),
         *index = file_path("%s/model.safetensors.index.json", path);
    const bool is_indexed = one && index && !file_exists(one) && file_exists(index);
    weights->path = is_indexed ? index : one;
    free(is_indexed ? one : index);
    return weights->path ? STATUS_OK : STATUS_FAILED;
}

static enum status make_table(struct huggingface_weights *weights) {
    const int n = weights->params->n_params;
    weights->tensor_of_param = malloc((size_t)n * sizeof *weights->tensor_of_param);
    if (!weights->tensor_of_param)
        return FAIL(STATUS_FAILED, "out of memory opening %s", weights->path);
    for (int i = 0; i < n; i++)
        weights->tensor_of_param[i] = (struct huggingface_tensor){-1, 0};
    return check_tensors(weights);
}

enum status huggingface_open(struct huggingface_weights *weights, const char *path,
                             const struct params *params) {
    *weights = (struct huggingface_weights){.params = params};
    enum status status = find_path(weights, path);
    if (status == STATUS_OK)
        status = open_files(weights);
    if (status == STATUS_OK)
        status = make_table(weights);
    if (status != STATUS_OK)
        huggingface_close(weights);
    return status;
}

void huggingface_close(struct huggingface_weights *weights) {
    free(weights->tensor_of_param);
    for (int i = 0; i < weights->n_files; i++)
        safetensors_close(&weights->files[i]);
    free(weights->files);
    free(weights->path);
    *weights = (struct huggingface_weights){0};
}

// ---- values

// Reads what the elements [first, first + n) of a parameter need: of a transposed one, of each row of the
// file's tensor the columns that become whole rows of the parameter.
//   stride   [out] elements in `raw` from one row of the file to the next; 1 where nothing is transposed
//   skipped  [out] elements of the parameter in `raw` before `first`
static enum status read_raw(const struct safetensors *file, const struct safetensor *tensor,
                            const struct param *param, size_t first, size_t n, uint8_t **raw, size_t *stride,
                            size_t *skipped) {
    const size_t columns = param->hf_transposed ? (size_t)param->shape[1] : 1;
    const size_t rows = param->hf_transposed ? (size_t)param->shape[0] : param->elements;
    const size_t first_row = first / columns, n_rows = (first + n - 1) / columns - first_row + 1;
    *stride = n_rows;
    *skipped = first - first_row * columns;
    *raw = malloc(n_rows * columns * tensor->element_bytes);
    if (!*raw)
        return FAIL(STATUS_FAILED, "out of memory reading %s", file->path);
    if (n_rows == rows)
        return safetensors_read(file, tensor, 0, rows * columns, *raw);
    for (size_t c = 0; c < columns; c++)
        TRY(safetensors_read(file, tensor, c * rows + first_row, n_rows,
                             *raw + c * n_rows * tensor->element_bytes));
    return STATUS_OK;
}

struct conversion {
    const struct safetensor *tensor;
    const uint8_t *raw; // and its layout, as read_raw gives it
    size_t skipped, n, columns, stride;
    float *out; // (n)
};

static void convert_part(const void *context, int part, int n_parts) {
    const struct conversion *c = context;
    struct parallel_span span = parallel_span_of(c->n, 16, part, n_parts);
    for (size_t k = span.begin; k < span.end; k++) {
        size_t i = c->skipped + k;
        c->out[k] = safetensor_value(c->tensor, c->raw, i % c->columns * c->stride + i / c->columns);
    }
}

static enum status read_elements(const struct huggingface_weights *weights, int index, size_t first, size_t n,
                                 float *out) {
    const struct param *param = &weights->params->params[index];
    const struct huggingface_tensor place = weights->tensor_of_param[index];
    const struct safetensor *tensor = tensor_at(weights, place);
    const size_t columns = param->hf_transposed ? (size_t)param->shape[1] : 1;
    size_t stride, skipped;
    uint8_t *raw = NULL;
    enum status status =
        read_raw(&weights->files[place.file], tensor, param, first, n, &raw, &stride, &skipped);
    if (status == STATUS_OK)
        parallel_run(parallel_threads(), convert_part,
                     &(struct conversion){tensor, raw, skipped, n, columns, stride, out});
    free(raw);
    return status;
}

enum status huggingface_span(const struct huggingface_weights *weights, int unit, size_t begin, size_t end,
                             float *out) {
    memset(out, 0, (end - begin) * sizeof *out);
    for (struct param_overlap it = {0}; params_next_overlap(weights->params, unit, begin, end, &it);)
        TRY(read_elements(weights, it.param, it.begin - weights->params->params[it.param].offset,
                          it.end - it.begin, out + (it.begin - begin)));
    return STATUS_OK;
}
