// Hugging Face stores GPT-2's linear weights as (in, out) (Conv1D); the parameter table has (out, in). All
// tensors are checked against the table before any value is read.
#include "model/formats/huggingface.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/text.h"
#include "model/params.h"

#define PROBLEMS_LISTED 5
#define COMPARED_BYTES  ((size_t)1 << 16)

// ---- matching the files' tensors to the parameter table

// The problems found with a file's tensors: the text of the first few, and the count of all.
struct problems {
    struct text text;
    int n;
};

static bool is_gpt2(const struct params *params) {
    return params->config.family == FAMILY_GPT2;
}

static const char *separator(struct problems *problems) {
    return problems->n == 0 ? "" : "; ";
}

// Adds a problem. The arguments are evaluated only if the problem is listed.
#define PROBLEM(problems, format, ...)                                                                       \
    do {                                                                                                     \
        if ((problems)->n < PROBLEMS_LISTED)                                                                 \
            text_add(&(problems)->text, "%s" format, separator(problems), __VA_ARGS__);                      \
        (problems)->n++;                                                                                     \
    } while (0)

// Formats a shape as "3 x 4".
static const char *shape_text(char *buffer, size_t size, const int64_t *shape, int n_dims) {
    size_t used = 0;
    snprintf(buffer, size, "no dimensions");
    for (int i = 0; i < n_dims && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%lld", i ? " x " : "", (long long)shape[i]);
    return buffer;
}

// True for tensors that older versions of transformers saved although they are constant: causal masks
// (h.N.attn.bias and h.N.attn.masked_bias) and RoPE's frequencies (rotary_emb.inv_freq).
static bool is_constant(const char *name) {
    return text_ends_with(name, ".attn.bias") || text_ends_with(name, ".attn.masked_bias") ||
           text_ends_with(name, ".rotary_emb.inv_freq");
}

// Returns the slot (index in tensor_of_param) of a parameter, or of one of its parts (struct param_part).
//   part  index of the part; 0 if the files store the parameter as one tensor
static int slot_of(const struct params *params, const struct param *param, int part) {
    return (int)(param - params->params) * PARAM_PARTS_MOST + part;
}

static int n_parts(const struct param *param) {
    return param->hf_parts ? param->n_parts : 1;
}

static void slot_name(const struct param *param, int part, char *name, size_t size) {
    if (param->hf_parts)
        params_part_name(param, part, name, size);
    else
        snprintf(name, size, "%s", param->name);
}

// Returns the slot of the tensor with this name in the files; -1: none.
static int find_slot(const struct params *params, const char *name) {
    static const char *const prefixes[] = {"transformer.", "model."};
    for (int i = 0; i < 2; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            name += strlen(prefixes[i]);
            break;
        }
    for (int i = 0; i < params->n_params; i++)
        for (int part = 0; part < n_parts(&params->params[i]); part++) {
            char known[sizeof params->params[i].name];
            slot_name(&params->params[i], part, known, sizeof known);
            if (strcmp(known, name) == 0)
                return slot_of(params, &params->params[i], part);
        }
    return -1;
}

static void check_tensor(const struct safetensor *tensor, const struct param *param, int part,
                         struct problems *problems) {
    if (!text_has_word("F32 F16 BF16 F64", tensor->dtype, strlen(tensor->dtype)))
        PROBLEM(problems, "\"%s\" is %s, expected F32, F16, BF16 or F64", tensor->name, tensor->dtype);
    int64_t expected[2] = {param->hf_parts ? param->parts[part].n_rows : param->shape[0], param->shape[1]};
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

// Compares the type, size and bytes of two tensors.
static enum status compare_tensors(const struct huggingface_weights *weights, struct huggingface_tensor a,
                                   struct huggingface_tensor b, bool *same) {
    const struct safetensor *x = tensor_at(weights, a), *y = tensor_at(weights, b);
    *same = strcmp(x->dtype, y->dtype) == 0 && x->bytes == y->bytes;
    if (!*same)
        return STATUS_OK;
    const size_t chunk = COMPARED_BYTES / x->element_bytes;
    uint8_t *buffer = allocate(2 * COMPARED_BYTES, 1);
    enum status status = STATUS_OK;
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

// If lm_head is tied but the files store its matrix, checks that the matrix equals the embedding.
//   place  where lm_head.weight is if it has no slot (match_tensor); else file -1
static enum status check_head(const struct huggingface_weights *weights, struct huggingface_tensor place,
                              struct problems *problems) {
    const struct huggingface_tensor of_embedding =
        weights->tensor_of_param[slot_of(weights->params, params_lm_head(weights->params), 0)];
    const struct safetensor *embedding = tensor_at(weights, of_embedding), *head = tensor_at(weights, place);
    bool same = true;
    if (embedding && head)
        TRY(compare_tensors(weights, of_embedding, place, &same));
    if (!same)
        PROBLEM(
            problems,
            "\"%s\" differs from \"%s\": here the lm_head shares the embedding's weights, so a model with an "
            "untied lm_head cannot be read",
            head->name, embedding->name);
    return STATUS_OK;
}

// Finds the slot of a tensor of the files, and checks the tensor.
//   place  where the tensor is
//   head   [out] set to `place` if the tensor is lm_head.weight and has no slot, because lm_head is tied
static void match_tensor(struct huggingface_weights *weights, struct huggingface_tensor place,
                         struct huggingface_tensor *head, struct problems *problems) {
    const struct params *params = weights->params;
    const struct safetensor *tensor = tensor_at(weights, place);
    const int slot = find_slot(params, tensor->name);
    if (slot >= 0 && weights->tensor_of_param[slot].file >= 0) {
        char name[sizeof params->params->name];
        slot_name(&params->params[slot / PARAM_PARTS_MOST], slot % PARAM_PARTS_MOST, name, sizeof name);
        PROBLEM(problems, "\"%s\" is given twice: in two files, or with and without \"%s.\" in front", name,
                is_gpt2(params) ? "transformer" : "model");
    } else if (slot >= 0) {
        weights->tensor_of_param[slot] = place;
        check_tensor(tensor, &params->params[slot / PARAM_PARTS_MOST], slot % PARAM_PARTS_MOST, problems);
    } else if (strcmp(tensor->name, "lm_head.weight") == 0) {
        *head = place;
    } else if (!is_constant(tensor->name)) {
        PROBLEM(problems, "\"%s\" is not a tensor of a %s with %d layers", tensor->name,
                is_gpt2(params) ? "GPT-2" : "Llama", params->config.n_layer);
    }
}

static enum status match_tensors(struct huggingface_weights *weights, struct problems *problems) {
    const struct params *params = weights->params;
    struct huggingface_tensor head = {-1, 0};
    for (int file = 0; file < weights->n_files; file++)
        for (int i = 0; i < weights->files[file].n_tensors; i++)
            match_tensor(weights, (struct huggingface_tensor){file, i}, &head, problems);
    const struct param *embedding = params_lm_head(params);
    struct huggingface_tensor *place = &weights->tensor_of_param[slot_of(params, embedding, 0)];
    if (head.file >= 0 && place->file < 0) { // the files may have only one of two tied tensors
        *place = head;
        check_tensor(tensor_at(weights, head), embedding, 0, problems);
    }
    for (const struct param *param = params->params; param < params->params + params->n_params; param++)
        for (int part = 0; part < n_parts(param); part++) {
            char name[sizeof param->name];
            slot_name(param, part, name, sizeof name);
            if (weights->tensor_of_param[slot_of(params, param, part)].file < 0)
                PROBLEM(problems, "\"%s\" is missing", name);
        }
    return check_head(weights, head, problems);
}

// Returns the number of layers according to the tensors' names: the highest layer number in them plus 1.
static int count_layers(const struct huggingface_weights *weights) {
    int n = 0, layer;
    for (int file = 0; file < weights->n_files; file++)
        for (int i = 0; i < weights->files[file].n_tensors; i++) {
            const char *name = weights->files[file].tensors[i].name;
            const char *number = strstr(name, is_gpt2(weights->params) ? "h." : "layers.");
            if (number && sscanf(strchr(number, '.') + 1, "%5d.", &layer) == 1 && layer >= n)
                n = layer + 1;
        }
    return n;
}

// Returns dimension `i` of an embedding (enum embedding_param) in the files; 0 if they have no such matrix.
static int64_t dimension(const struct huggingface_weights *weights, int embedding, int i) {
    const struct param *param = params_tensor(weights->params, 0, embedding);
    const struct safetensor *tensor =
        param ? tensor_at(weights, weights->tensor_of_param[slot_of(weights->params, param, 0)]) : NULL;
    return tensor && tensor->n_dims == 2 ? tensor->shape[i] : 0;
}

// Appends to `out` the sizes in which config.json and the tensors differ: "config.json says n_layer 3, the
// tensors have 2; ". Such a difference is the usual cause of a long list of problems.
static void add_sizes(const struct huggingface_weights *weights, struct text *out) {
    const struct gpt_config *config = &weights->params->config;
    const bool gpt2 = is_gpt2(weights->params);
    const struct {
        const char *name;
        int64_t said, found;
    } sizes[] = {{gpt2 ? "n_layer" : "num_hidden_layers", config->n_layer, count_layers(weights)},
                 {gpt2 ? "n_embd" : "hidden_size", config->n_embd, dimension(weights, PARAM_WTE, 1)},
                 {"vocab_size", config->vocab_size, dimension(weights, PARAM_WTE, 0)},
                 {"n_positions", config->n_positions, dimension(weights, PARAM_WPE, 0)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].found > 0 && sizes[i].found != sizes[i].said)
            text_add(out, "config.json says %s %lld, the tensors have %lld; ", sizes[i].name,
                     (long long)sizes[i].said, (long long)sizes[i].found);
}

// Fails if the path's name says that it is one file of several: model-00001-of-00007.safetensors.
static enum status refuse_part(const struct huggingface_weights *weights) {
    const char *of = strstr(weights->path, "-of-"), *slash = strrchr(weights->path, '/');
    int part, n;
    if (weights->n_files != 1 || !of || of < weights->path + 6 ||
        sscanf(of - 6, "-%5d-of-%5d.", &part, &n) != 2)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s is file %d of %d; give the folder that has all of them: %.*s",
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
    const enum status status = FAIL(STATUS_INVALID, "%s: %s", weights->path, message.data);
    text_free(&message);
    return status;
}

static enum status check_tensors(struct huggingface_weights *weights) {
    struct problems problems = {0};
    enum status status = match_tensors(weights, &problems);
    if (status == STATUS_OK && problems.n > 0)
        status = refuse_tensors(weights, &problems);
    text_free(&problems.text);
    return status;
}

// ---- opening the files

static enum status add_file(struct huggingface_weights *weights, const char *path) {
    weights->files = reallocate(weights->files, (size_t)weights->n_files + 1, sizeof *weights->files);
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

// Adds the files that the index names, from the index's folder. Which tensor is in which file is taken from
// the files themselves, not from the index.
static enum status add_indexed(struct huggingface_weights *weights, const cJSON *index) {
    const char *slash = strrchr(weights->path, '/');
    const int folder = slash ? (int)(slash - weights->path) + 1 : 0;
    const cJSON *map, *item;
    TRY(json_get_object(index, "weight_map", weights->path, &map));
    cJSON_ArrayForEach(item, map) {
        const char *name = cJSON_GetStringValue(item);
        if (!name || !text_ends_with(name, ".safetensors") || strchr(name, '/'))
            return FAIL(
                STATUS_INVALID,
                "%s: \"%.80s\" of \"weight_map\" does not name a .safetensors file of the same folder",
                weights->path, item->string);
        char *path = file_path("%.*s%s", folder, weights->path, name);
        const enum status status = is_open(weights, path) ? STATUS_OK : add_file(weights, path);
        free(path);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status open_files(struct huggingface_weights *weights) {
    if (!text_ends_with(weights->path, ".json"))
        return add_file(weights, weights->path);
    cJSON *index;
    TRY(json_read_file(weights->path, &index));
    enum status status = cJSON_IsObject(index)
                             ? add_indexed(weights, index)
                             : FAIL(STATUS_INVALID, "%s: expected an object", weights->path);
    cJSON_Delete(index);
    return status;
}

static char *find_path(const char *path) {
    if (text_ends_with(path, ".safetensors") || text_ends_with(path, ".json"))
        return copy_string(path);
    char *one = file_path("%s/model.safetensors", path),
         *index = file_path("%s/model.safetensors.index.json", path);
    const bool is_indexed = !file_exists(one) && file_exists(index);
    free(is_indexed ? one : index);
    return is_indexed ? index : one;
}

static enum status make_table(struct huggingface_weights *weights) {
    const int n = weights->params->n_params * PARAM_PARTS_MOST;
    weights->tensor_of_param = allocate((size_t)n, sizeof *weights->tensor_of_param);
    for (int i = 0; i < n; i++)
        weights->tensor_of_param[i] = (struct huggingface_tensor){-1, 0};
    return check_tensors(weights);
}

enum status huggingface_open(struct huggingface_weights *weights, const char *path,
                             const struct params *params) {
    *weights = (struct huggingface_weights){.params = params, .path = find_path(path)};
    enum status status = open_files(weights);
    if (status == STATUS_OK)
        status = make_table(weights);
    if (status != STATUS_OK)
        huggingface_close(weights);
    return status;
}

enum status huggingface_find_head(const char *path, struct gpt_config *config) {
    struct huggingface_weights weights = {.path = find_path(path)};
    struct huggingface_tensor head = {-1, 0}, embedding = {-1, 0};
    bool same = true;
    enum status status = open_files(&weights);
    for (int file = 0; file < weights.n_files && status == STATUS_OK; file++)
        for (int i = 0; i < weights.files[file].n_tensors; i++) {
            const char *name = weights.files[file].tensors[i].name;
            if (strcmp(name, "lm_head.weight") == 0)
                head = (struct huggingface_tensor){file, i};
            else if (text_ends_with(name, "embed_tokens.weight"))
                embedding = (struct huggingface_tensor){file, i};
        }
    if (status == STATUS_OK && head.file >= 0 && embedding.file >= 0)
        status = compare_tensors(&weights, head, embedding, &same);
    if (status == STATUS_OK && !same) {
        config->untied = true;
        log_warning_once(
            "%s: its lm_head.weight differs from the embedding, so the two are not tied, whatever "
            "\"tie_word_embeddings\" of config.json says",
            weights.path);
    }
    huggingface_close(&weights);
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

// ---- reading values

// Reads from the file a range that contains elements [first, first + n) of a parameter. If the file has the
// parameter transposed, the range is whole rows of the parameter: the same columns of each row of the
// file's tensor.
//   raw      [out] allocated: the elements in the file's type and order
//   stride   [out] if transposed: elements in `raw` from one row of the file's tensor to the next
//   skipped  [out] elements of the parameter in `raw` before `first`
static enum status read_raw(const struct safetensors *file, const struct safetensor *tensor,
                            const struct param *param, size_t first, size_t n, uint8_t **raw, size_t *stride,
                            size_t *skipped) {
    const size_t columns = param->hf_transposed ? (size_t)param->shape[1] : 1;
    const size_t rows = param->hf_transposed ? (size_t)param->shape[0] : param->elements;
    const size_t first_row = first / columns, n_rows = (first + n - 1) / columns - first_row + 1;
    *stride = n_rows;
    *skipped = first - first_row * columns;
    *raw = allocate(n_rows * columns, tensor->element_bytes);
    if (n_rows == rows)
        return safetensors_read(file, tensor, 0, rows * columns, *raw);
    for (size_t c = 0; c < columns; c++)
        TRY(safetensors_read(file, tensor, c * rows + first_row, n_rows,
                             *raw + c * n_rows * tensor->element_bytes));
    return STATUS_OK;
}

struct conversion {
    const struct safetensor *tensor;
    const uint8_t *raw; // raw, skipped and stride are as in read_raw
    size_t skipped, n;
    size_t columns; // of the parameter; 1 if it is not transposed
    size_t stride;
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

static enum status read_tensor(const struct huggingface_weights *weights, const struct param *param, int part,
                               size_t first, size_t n, float *out) {
    const struct huggingface_tensor place = weights->tensor_of_param[slot_of(weights->params, param, part)];
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

// Reads elements [first, first + n) of a parameter. If the files store the parameter's parts (struct
// param_part) as separate tensors, reads each element from its part's tensor.
static enum status read_elements(const struct huggingface_weights *weights, const struct param *param,
                                 size_t first, size_t n, float *out) {
    if (!param->hf_parts)
        return read_tensor(weights, param, 0, first, n, out);
    for (int part = 0; part < param->n_parts; part++) {
        const size_t begin = (size_t)(param->parts[part].first_row * param->shape[1]);
        const size_t end = begin + (size_t)(param->parts[part].n_rows * param->shape[1]);
        const size_t from = first > begin ? first : begin, to = first + n < end ? first + n : end;
        if (from < to)
            TRY(read_tensor(weights, param, part, from - begin, to - from, out + (from - first)));
    }
    return STATUS_OK;
}

enum status huggingface_span(const struct huggingface_weights *weights, int unit, size_t begin, size_t end,
                             float *out) {
    memset(out, 0, (end - begin) * sizeof *out);
    for (struct param_overlap it = {0}; params_next_overlap(weights->params, unit, begin, end, &it);)
        TRY(read_elements(weights, &weights->params->params[it.param],
                          it.begin - weights->params->params[it.param].offset, it.end - it.begin,
                          out + (it.begin - begin)));
    return STATUS_OK;
}
