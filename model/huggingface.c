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

#define LARGEST_CONFIG   ((size_t)1 << 20) // bytes; a larger file is not a config.json
#define PROBLEMS_LISTED  5
#define EPSILON_RELATIVE 1e-6 // 1e-5 is not exact in any binary type

// ---- config.json

// A key that changes what the model computes. Only one value is supported; absent or null means that value.
static enum status check_flag(const cJSON *object, const char *key, bool expected, const char *source) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item) || (expected ? cJSON_IsTrue(item) : cJSON_IsFalse(item)))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: \"%s\" must be %s; other models are not supported", source, key,
                expected ? "true" : "false");
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
    double epsilon = (double)GPT_LAYERNORM_EPSILON;
    if (cJSON_GetObjectItemCaseSensitive(object, "layer_norm_epsilon"))
        TRY(json_get_number(object, "layer_norm_epsilon", source, &epsilon));
    if (!(fabs(epsilon / (double)GPT_LAYERNORM_EPSILON - 1) < EPSILON_RELATIVE))
        return FAIL(STATUS_INVALID, "%s: \"layer_norm_epsilon\" is %g, expected %g", source, epsilon,
                    (double)GPT_LAYERNORM_EPSILON);
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

// ---- model.safetensors

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

// lm_head may be saved next to the embedding that it is tied to. Then the two must be equal.
static void check_head(const struct huggingface_weights *weights, const struct safetensor *head,
                       struct problems *problems) {
    int index = weights->tensor_of_param[params_find(weights->params, "wte.weight")];
    const struct safetensor *embedding = index < 0 ? NULL : &weights->file.tensors[index];
    if (embedding && (strcmp(embedding->dtype, head->dtype) != 0 || embedding->bytes != head->bytes ||
                      memcmp(embedding->data, head->data, head->bytes) != 0))
        PROBLEM(problems, "\"%s\" differs from \"%s\": untied embeddings are not supported", head->name,
                embedding->name);
}

static void match_tensors(struct huggingface_weights *weights, struct problems *problems) {
    const struct params *params = weights->params;
    const struct safetensor *head = NULL;
    for (int i = 0; i < weights->file.n_tensors; i++) {
        const struct safetensor *tensor = &weights->file.tensors[i];
        int index = params_find(params, tensor->name);
        if (index >= 0 && weights->tensor_of_param[index] >= 0) {
            PROBLEM(problems, "\"%s\" is given twice, with and without \"transformer.\"",
                    params->params[index].name);
        } else if (index >= 0) {
            weights->tensor_of_param[index] = i;
            check_tensor(tensor, &params->params[index], problems);
        } else if (strcmp(tensor->name, "lm_head.weight") == 0) {
            head = tensor;
        } else if (!is_mask(tensor->name)) {
            PROBLEM(problems, "\"%s\" is not a tensor of a GPT-2 with %d layers", tensor->name,
                    params->config.n_layer);
        }
    }
    for (int i = 0; i < params->n_params; i++)
        if (weights->tensor_of_param[i] < 0)
            PROBLEM(problems, "\"%s\" is missing", params->params[i].name);
    if (head)
        check_head(weights, head, problems);
}

static enum status check_tensors(struct huggingface_weights *weights) {
    struct problems problems = {0};
    match_tensors(weights, &problems);
    enum status status = text_status(&problems.text);
    if (status == STATUS_OK && problems.n > PROBLEMS_LISTED)
        status = FAIL(STATUS_INVALID, "%s: %s; and %d more", weights->file.path, problems.text.data,
                      problems.n - PROBLEMS_LISTED);
    else if (status == STATUS_OK && problems.n > 0)
        status = FAIL(STATUS_INVALID, "%s: %s", weights->file.path, problems.text.data);
    text_free(&problems.text);
    return status;
}

enum status huggingface_open(struct huggingface_weights *weights, const char *folder,
                             const struct params *params) {
    *weights = (struct huggingface_weights){.params = params};
    char *path = file_path("%s/model.safetensors", folder);
    if (!path)
        return STATUS_FAILED;
    enum status status = safetensors_open(&weights->file, path);
    free(path);
    if (status != STATUS_OK)
        return status;
    weights->tensor_of_param = malloc((size_t)params->n_params * sizeof *weights->tensor_of_param);
    if (!weights->tensor_of_param) {
        status = FAIL(STATUS_FAILED, "out of memory opening the weights in %s", folder);
    } else {
        for (int i = 0; i < params->n_params; i++)
            weights->tensor_of_param[i] = -1;
        status = check_tensors(weights);
    }
    if (status != STATUS_OK)
        huggingface_close(weights);
    return status;
}

void huggingface_close(struct huggingface_weights *weights) {
    free(weights->tensor_of_param);
    safetensors_close(&weights->file);
    *weights = (struct huggingface_weights){0};
}

// The index, in the file's tensor, of element i of the parameter.
static size_t source_index(const struct param *param, size_t i) {
    if (!param->hf_transposed)
        return i;
    size_t rows = (size_t)param->shape[0], columns = (size_t)param->shape[1];
    return i % columns * rows + i / columns;
}

struct reading {
    const struct param *param;
    const struct safetensor *tensor;
    size_t begin, end; // elements of the unit
    float *out;        // (end - begin)
};

static void read_part(const void *context, int part, int n_parts) {
    const struct reading *reading = context;
    size_t n = reading->end - reading->begin, first = reading->begin - reading->param->offset;
    struct parallel_span span = parallel_span_of(n, 16, part, n_parts);
    for (size_t i = span.begin; i < span.end; i++)
        reading->out[i] = safetensor_value(reading->tensor, source_index(reading->param, first + i));
}

void huggingface_span(const struct huggingface_weights *weights, int unit, size_t begin, size_t end,
                      float *out) {
    memset(out, 0, (end - begin) * sizeof *out);
    for (struct param_overlap it = {0}; params_next_overlap(weights->params, unit, begin, end, &it);) {
        const struct param *param = &weights->params->params[it.param];
        const struct safetensor *tensor = &weights->file.tensors[weights->tensor_of_param[it.param]];
        parallel_run(parallel_threads(), read_part,
                     &(struct reading){param, tensor, it.begin, it.end, out + (it.begin - begin)});
    }
}
