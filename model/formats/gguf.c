// The tensors of a GGUF file: their names, and their values in the order of the parameter table.
// gguf_config.c reads the keys.
#include "model/formats/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "model/param_values.h"
#include "model/params.h"

#define BLOCK_BYTES (sizeof(uint16_t) + VALUE_BLOCK) // a Q8_0 block: an fp16 scale and VALUE_BLOCK int8

// ---- names of tensors in GGUF files

// Returns the kind of tensor (enum *_param) in row `index` of the table.
static int tensor_of(const struct params *params, int index) {
    const struct param_unit *unit = &params->units[params->params[index].unit];
    int tensor = 0;
    while (unit->index[tensor] != index - unit->first_param)
        tensor++;
    return tensor;
}

static const char *part_name(const char *part) {
    static const char *const names[][2] = {{"q_proj", "attn_q"},
                                           {"k_proj", "attn_k"},
                                           {"v_proj", "attn_v"},
                                           {"gate_proj", "ffn_gate"},
                                           {"up_proj", "ffn_up"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(part, names[i][0]) == 0)
            return names[i][1];
    return part;
}

void gguf_tensor_name(const struct params *params, int index, int part, char *name, size_t size) {
    static const char *const in_block[N_BLOCK_PARAMS] = {[PARAM_LN1_WEIGHT] = "attn_norm.weight",
                                                         [PARAM_LN1_BIAS] = "attn_norm.bias",
                                                         [PARAM_QKV_WEIGHT] = "attn_qkv.weight",
                                                         [PARAM_QKV_BIAS] = "attn_qkv.bias",
                                                         [PARAM_ATTN_PROJ_WEIGHT] = "attn_output.weight",
                                                         [PARAM_ATTN_PROJ_BIAS] = "attn_output.bias",
                                                         [PARAM_LN2_WEIGHT] = "ffn_norm.weight",
                                                         [PARAM_LN2_BIAS] = "ffn_norm.bias",
                                                         [PARAM_FC_WEIGHT] = "ffn_up.weight",
                                                         [PARAM_FC_BIAS] = "ffn_up.bias",
                                                         [PARAM_FC_PROJ_WEIGHT] = "ffn_down.weight",
                                                         [PARAM_FC_PROJ_BIAS] = "ffn_down.bias",
                                                         [PARAM_Q_NORM] = "attn_q_norm.weight",
                                                         [PARAM_K_NORM] = "attn_k_norm.weight"};
    static const char *const embedding[N_EMBEDDING_PARAMS] = {
        [PARAM_WTE] = "token_embd.weight", [PARAM_WPE] = "position_embd.weight"};
    static const char *const final[N_FINAL_PARAMS] = {[PARAM_LNF_WEIGHT] = "output_norm.weight",
                                                      [PARAM_LNF_BIAS] = "output_norm.bias",
                                                      [PARAM_LM_HEAD] = "output.weight"};
    const struct param *param = &params->params[index];
    const int tensor = tensor_of(params, index);
    if (param->unit == 0)
        snprintf(name, size, "%s", embedding[tensor]);
    else if (param->unit > params->config.n_layer)
        snprintf(name, size, "%s", final[tensor]);
    else if (part >= 0)
        snprintf(name, size, "blk.%d.%s.%s", param->unit - 1, part_name(param->parts[part].name),
                 param->n_dims > 1 ? "weight" : "bias");
    else
        snprintf(name, size, "blk.%d.%s", param->unit - 1, in_block[tensor]);
}

int gguf_reordered_heads(const struct params *params, int index, int part) {
    const struct gpt_config *config = &params->config;
    if (part < 0 || part > 1 || tensor_of(params, index) != PARAM_QKV_WEIGHT ||
        strcmp(gguf_architecture(config), "llama") != 0)
        return 0;
    return part == 0 ? config->n_head : config->n_kv_head;
}

// ---- matching a file's tensors to the parameter table

static int n_parts(const struct param *param) {
    return param->hf_parts ? param->n_parts : 1;
}

static const struct gguf_tensor **slot_of(const struct gguf_weights *weights, int index, int part) {
    return &weights->tensors[index * PARAM_PARTS_MOST + part];
}

static enum status check_type(const struct gguf_weights *weights, const struct gguf_tensor *tensor) {
    char type[16];
    if (tensor->type == GGUF_F32 || tensor->type == GGUF_F16 || tensor->type == GGUF_BF16 ||
        tensor->type == GGUF_Q8_0)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: tensor \"%s\" is %s, expected F32, F16, BF16 or Q8_0; download a file with these types, or "
        "convert this one: llama-quantize --allow-requantize %s NEW.gguf f16",
        weights->file.path, tensor->name, gguf_type_name(tensor->type, type), weights->file.path);
}

#define SHAPE_BYTES 48

// Writes the shape of a tensor with one or two dimensions to `out`, (SHAPE_BYTES), and returns `out`.
static const char *shape_text(char *out, int n_dims, int64_t rows, int64_t columns) {
    if (n_dims > 1)
        snprintf(out, SHAPE_BYTES, "(%lld, %lld)", (long long)rows, (long long)columns);
    else
        snprintf(out, SHAPE_BYTES, "(%lld)", (long long)rows);
    return out;
}

static enum status bind(struct gguf_weights *weights, int index, int part) {
    const struct params *params = weights->params;
    const struct param *param = &params->params[index];
    char name[64], is[SHAPE_BYTES], expected[SHAPE_BYTES];
    gguf_tensor_name(params, index, param->hf_parts ? part : -1, name, sizeof name);
    const struct gguf_tensor *tensor = gguf_find_tensor(&weights->file, name);
    const int64_t rows = param->hf_parts ? param->parts[part].n_rows : param->shape[0];
    if (!tensor)
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\" is missing", weights->file.path, name);
    TRY(check_type(weights, tensor));
    if (tensor->n_dims != param->n_dims || tensor->shape[0] != rows ||
        (param->n_dims > 1 && tensor->shape[1] != param->shape[1]))
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\" has %d dimensions, %s, expected %s",
                    weights->file.path, name, tensor->n_dims,
                    shape_text(is, tensor->n_dims, tensor->shape[0], tensor->shape[1]),
                    shape_text(expected, param->n_dims, rows, param->shape[1]));
    if (tensor->bytes == 0)
        return FAIL(STATUS_INVALID, "%s: the rows of tensor \"%s\" are not whole Q8_0 blocks of %d values",
                    weights->file.path, name, VALUE_BLOCK);
    *slot_of(weights, index, part) = tensor;
    return STATUS_OK;
}

static bool is_bound(const struct gguf_weights *weights, const struct gguf_tensor *tensor) {
    for (int i = 0; i < weights->params->n_params * PARAM_PARTS_MOST; i++)
        if (weights->tensors[i] == tensor)
            return true;
    return false;
}

static enum status read_tensor(const struct gguf_weights *weights, const struct gguf_tensor *tensor,
                               size_t first, size_t n, float *out);

// Checks lm_head's matrix in a GPT-2 file that stores it (`head`). GPT-2's lm_head is tied here, so the
// matrix must equal the token embedding.
static enum status check_head(const struct gguf_weights *weights, const struct gguf_tensor *head) {
    enum { CHUNK = 1 << 14 };
    const struct gguf_tensor *embedding = *slot_of(weights, PARAM_WTE, 0);
    bool same = head->elements == embedding->elements && head->bytes > 0;
    float *values = allocate(2 * CHUNK, sizeof *values);
    enum status status = check_type(weights, head);
    for (size_t first = 0, n; first < head->elements && status == STATUS_OK && same; first += n) {
        n = head->elements - first < CHUNK ? (size_t)head->elements - first : CHUNK;
        status = read_tensor(weights, head, first, n, values);
        if (status == STATUS_OK)
            status = read_tensor(weights, embedding, first, n, values + CHUNK);
        same = status == STATUS_OK && memcmp(values, values + CHUNK, n * sizeof *values) == 0;
    }
    free(values);
    if (status != STATUS_OK || same)
        return status;
    return FAIL(STATUS_INVALID,
                "%s: \"output.weight\" differs from \"token_embd.weight\", but this program reads only "
                "GPT-2 models whose lm_head shares the embedding's weights",
                weights->file.path);
}

static enum status check_others(const struct gguf_weights *weights) {
    for (int i = 0; i < weights->file.n_tensors; i++) {
        const struct gguf_tensor *tensor = &weights->file.tensors[i];
        if (is_bound(weights, tensor) || strcmp(tensor->name, GGUF_ROPE_FACTORS) == 0)
            continue;
        if (weights->params->config.family == FAMILY_GPT2 && strcmp(tensor->name, "output.weight") == 0) {
            TRY(check_head(weights, tensor));
            continue;
        }
        return FAIL(STATUS_INVALID,
                    "%s: tensor \"%s\" does not belong to a model of architecture %s with %d blocks",
                    weights->file.path, tensor->name, gguf_architecture(&weights->params->config),
                    weights->params->config.n_layer);
    }
    return STATUS_OK;
}

static enum status bind_all(struct gguf_weights *weights) {
    const struct params *params = weights->params;
    weights->tensors = allocate((size_t)params->n_params * PARAM_PARTS_MOST, sizeof *weights->tensors);
    for (int i = 0; i < params->n_params; i++)
        for (int part = 0; part < n_parts(&params->params[i]); part++)
            TRY(bind(weights, i, part));
    return check_others(weights);
}

enum status gguf_weights_open(struct gguf_weights *weights, const char *path, const struct params *params) {
    *weights = (struct gguf_weights){.params = params};
    enum status status = gguf_open(&weights->file, path);
    if (status == STATUS_OK)
        status = bind_all(weights);
    if (status != STATUS_OK)
        gguf_weights_close(weights);
    return status;
}

void gguf_weights_close(struct gguf_weights *weights) {
    free(weights->tensors);
    if (weights->params)
        gguf_close(&weights->file);
    *weights = (struct gguf_weights){0};
}

// ---- reading values

struct conversion {
    uint32_t type;
    const uint8_t *raw;
    size_t skipped; // elements in `raw` before the wanted ones
    size_t n;       // wanted elements
    float *out;
};

static float value_of(uint32_t type, const uint8_t *raw, size_t i) {
    uint16_t half;
    float value;
    switch (type) {
    case GGUF_F32:
        memcpy(&value, raw + i * sizeof value, sizeof value);
        return value;
    case GGUF_Q8_0:
        memcpy(&half, raw + i / VALUE_BLOCK * BLOCK_BYTES, sizeof half);
        return f16_to_float(half) *
               (float)(int8_t)raw[i / VALUE_BLOCK * BLOCK_BYTES + sizeof half + i % VALUE_BLOCK];
    default:
        memcpy(&half, raw + i * sizeof half, sizeof half);
        return type == GGUF_F16 ? f16_to_float(half) : bf16_to_float(half);
    }
}

static void convert_part(const void *context, int part, int n_of_parts) {
    const struct conversion *c = context;
    const struct parallel_span span = parallel_span_of(c->n, 16, part, n_of_parts);
    for (size_t i = span.begin; i < span.end; i++)
        c->out[i] = value_of(c->type, c->raw, c->skipped + i);
}

// Reads elements [first, first + n) of a tensor, in the file's order.
static enum status read_tensor(const struct gguf_weights *weights, const struct gguf_tensor *tensor,
                               size_t first, size_t n, float *out) {
    const size_t block = tensor->type == GGUF_Q8_0 ? VALUE_BLOCK : 1;
    const size_t from = first / block * block, to = (first + n + block - 1) / block * block;
    const uint64_t before = gguf_type_bytes(tensor->type, from);
    const size_t bytes = (size_t)(gguf_type_bytes(tensor->type, to) - before);
    uint8_t *raw = allocate(bytes, 1);
    const enum status status = gguf_read(&weights->file, tensor, before, bytes, raw);
    if (status == STATUS_OK)
        parallel_run(parallel_threads(), convert_part,
                     &(struct conversion){tensor->type, raw, first - from, n, out});
    free(raw);
    return status;
}

// Returns the row in the file of a row of the parameter table. The file interleaves the two halves of each
// head's rows.
static size_t file_row(size_t row, size_t head_dim) {
    const size_t within = row % head_dim, half = head_dim / 2;
    return row - within + 2 * (within % half) + within / half;
}

// Reads elements [first, first + n) of a part (struct param_part), row by row, because the file has the
// part's rows in llama.cpp's order.
static enum status read_reordered(const struct gguf_weights *weights, const struct gguf_tensor *tensor,
                                  size_t first, size_t n, float *out) {
    const size_t columns = (size_t)tensor->shape[1], D = (size_t)weights->params->config.head_dim;
    for (size_t now; n > 0; first += now, n -= now, out += now) {
        const size_t row = first / columns, column = first % columns;
        now = columns - column < n ? columns - column : n;
        TRY(read_tensor(weights, tensor, file_row(row, D) * columns + column, now, out));
    }
    return STATUS_OK;
}

// Reads elements [first, first + n) of a parameter. If the file stores the parameter's parts (struct
// param_part) as separate tensors, reads each element from its part's tensor.
static enum status read_elements(const struct gguf_weights *weights, int index, size_t first, size_t n,
                                 float *out) {
    const struct param *param = &weights->params->params[index];
    const size_t columns = param->n_dims > 1 ? (size_t)param->shape[1] : 1;
    for (int part = 0; part < n_parts(param); part++) {
        const size_t begin = param->hf_parts ? (size_t)param->parts[part].first_row * columns : 0;
        const size_t end =
            param->hf_parts ? begin + (size_t)param->parts[part].n_rows * columns : param->elements;
        const size_t from = first > begin ? first : begin, to = first + n < end ? first + n : end;
        const struct gguf_tensor *tensor = *slot_of(weights, index, part);
        if (from >= to)
            continue;
        if (param->hf_parts && gguf_reordered_heads(weights->params, index, part) > 0)
            TRY(read_reordered(weights, tensor, from - begin, to - from, out + (from - first)));
        else
            TRY(read_tensor(weights, tensor, from - begin, to - from, out + (from - first)));
    }
    return STATUS_OK;
}

enum status gguf_span(const struct gguf_weights *weights, int unit, size_t begin, size_t end, float *out) {
    const struct params *params = weights->params;
    memset(out, 0, (end - begin) * sizeof *out);
    for (struct param_overlap it = {0}; params_next_overlap(params, unit, begin, end, &it);)
        TRY(read_elements(weights, it.param, it.begin - params->params[it.param].offset, it.end - it.begin,
                          out + (it.begin - begin)));
    return STATUS_OK;
}
