// GPT-2's tensors in their units, and their initial values. Within a unit, tensors are in order of use.
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "model/param_overlap.h"

#define INIT_STD      0.02
#define LARGEST_MODEL 0x1p50 // weights, approximately

struct layout {
    const char *name; // with %d for the block's number
    int n_dims;
    int rows, columns; // in multiples of n_embd
    enum param_init init;
    bool residual; // a projection into the residual stream
    bool hf_transposed;
    bool is_qkv;
};

static const struct layout block_layout[N_BLOCK_PARAMS] = {
    [PARAM_LN1_WEIGHT] = {"h.%d.ln_1.weight", 1, 1, 1, INIT_ONES, false, false, false},
    [PARAM_LN1_BIAS] = {"h.%d.ln_1.bias", 1, 1, 1, INIT_ZEROS, false, false, false},
    [PARAM_QKV_WEIGHT] = {"h.%d.attn.c_attn.weight", 2, 3, 1, INIT_NORMAL, false, true, true},
    [PARAM_QKV_BIAS] = {"h.%d.attn.c_attn.bias", 1, 3, 1, INIT_ZEROS, false, false, true},
    [PARAM_ATTN_PROJ_WEIGHT] = {"h.%d.attn.c_proj.weight", 2, 1, 1, INIT_NORMAL, true, true, false},
    [PARAM_ATTN_PROJ_BIAS] = {"h.%d.attn.c_proj.bias", 1, 1, 1, INIT_ZEROS, false, false, false},
    [PARAM_LN2_WEIGHT] = {"h.%d.ln_2.weight", 1, 1, 1, INIT_ONES, false, false, false},
    [PARAM_LN2_BIAS] = {"h.%d.ln_2.bias", 1, 1, 1, INIT_ZEROS, false, false, false},
    [PARAM_FC_WEIGHT] = {"h.%d.mlp.c_fc.weight", 2, 4, 1, INIT_NORMAL, false, true, false},
    [PARAM_FC_BIAS] = {"h.%d.mlp.c_fc.bias", 1, 4, 1, INIT_ZEROS, false, false, false},
    [PARAM_FC_PROJ_WEIGHT] = {"h.%d.mlp.c_proj.weight", 2, 1, 4, INIT_NORMAL, true, true, false},
    [PARAM_FC_PROJ_BIAS] = {"h.%d.mlp.c_proj.bias", 1, 1, 1, INIT_ZEROS, false, false, false},
};

static const struct layout final_layout[N_FINAL_PARAMS] = {
    [PARAM_LNF_WEIGHT] = {"ln_f.weight", 1, 1, 1, INIT_ONES, false, false, false},
    [PARAM_LNF_BIAS] = {"ln_f.bias", 1, 1, 1, INIT_ZEROS, false, false, false},
};

static void begin_unit(struct params *params) {
    params->units[params->n_units++] =
        (struct param_unit){.first_param = params->n_params, .offset = params->n_elements};
}

// Appends a tensor to the newest unit. Its name and initialization are already in its row.
static void add_param(struct params *params, int n_dims, int64_t rows, int64_t columns) {
    struct param_unit *unit = &params->units[params->n_units - 1];
    struct param *param = &params->params[params->n_params++];
    param->n_dims = n_dims;
    param->shape[0] = rows;
    param->shape[1] = n_dims == 2 ? columns : 1;
    param->elements = (size_t)param->shape[0] * (size_t)param->shape[1];
    param->unit = params->n_units - 1;
    param->offset = unit->elements;
    param->decay = n_dims >= 2;
    size_t padded = (param->elements + PARAM_ALIGNMENT - 1) / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
    unit->n_params++;
    unit->elements += padded;
    params->n_elements += padded;
    params->n_weights += param->elements;
}

// The rows of queries, keys and values in a block's fused projection.
static void name_qkv_parts(struct param *param) {
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    param->n_parts = 3;
    for (int i = 0; i < 3; i++) {
        struct param_part *part = &param->parts[i];
        snprintf(part->name, sizeof part->name, "%s", names[i]);
        part->n_rows = param->shape[0] / 3;
        part->first_row = i * part->n_rows;
    }
}

static void add_layout(struct params *params, const struct layout *layouts, int n, int block) {
    int64_t C = params->config.n_embd;
    begin_unit(params);
    for (int i = 0; i < n; i++) {
        const struct layout *layout = &layouts[i];
        struct param *param = &params->params[params->n_params];
        // The names hold at most one %d.
        snprintf(param->name, sizeof param->name, layout->name, block);
        param->init = layout->init;
        param->std = INIT_STD / (layout->residual ? sqrt(2.0 * params->config.n_layer) : 1.0);
        param->hf_transposed = layout->hf_transposed;
        add_param(params, layout->n_dims, layout->rows * C, layout->columns * C);
        if (layout->is_qkv)
            name_qkv_parts(param);
    }
}

static void add_embedding(struct params *params, const char *name, int64_t rows) {
    struct param *param = &params->params[params->n_params];
    snprintf(param->name, sizeof param->name, "%s", name);
    param->init = INIT_NORMAL;
    param->std = INIT_STD;
    add_param(params, 2, rows, params->config.n_embd);
}

static enum status check_config(const struct gpt_config *config) {
    const struct {
        const char *name;
        int value;
    } sizes[] = {{"n_layer", config->n_layer},
                 {"n_head", config->n_head},
                 {"n_embd", config->n_embd},
                 {"vocab_size", config->vocab_size},
                 {"n_positions", config->n_positions}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1)
            return FAIL(STATUS_INVALID, "the model's %s is %d, expected at least 1", sizes[i].name,
                        sizes[i].value);
    if (config->n_embd % config->n_head != 0)
        return FAIL(STATUS_INVALID, "the model's n_embd %d is not a multiple of its n_head %d",
                    config->n_embd, config->n_head);
    // Rows of a wide linear and of the embeddings are ints; counts of elements must stay far from 2^63.
    double C = config->n_embd, rows = (double)config->vocab_size + config->n_positions;
    if (config->n_embd > (1 << 24) || config->n_layer > (1 << 16) ||
        12 * C * C * config->n_layer + rows * C > LARGEST_MODEL)
        return FAIL(STATUS_INVALID, "the model's n_embd %d or n_layer %d is too large", config->n_embd,
                    config->n_layer);
    return STATUS_OK;
}

enum status params_init(struct params *params, const struct gpt_config *config) {
    *params = (struct params){.config = *config};
    TRY(check_config(config));
    size_t n_units = (size_t)config->n_layer + 2;
    size_t n_params = N_EMBEDDING_PARAMS + (size_t)config->n_layer * N_BLOCK_PARAMS + N_FINAL_PARAMS;
    params->units = calloc(n_units, sizeof *params->units);
    params->params = calloc(n_params, sizeof *params->params);
    if (!params->units || !params->params) {
        params_free(params);
        return FAIL(STATUS_FAILED, "out of memory for the table of %zu parameter tensors", n_params);
    }
    begin_unit(params);
    add_embedding(params, "wte.weight", config->vocab_size);
    add_embedding(params, "wpe.weight", config->n_positions);
    for (int block = 0; block < config->n_layer; block++)
        add_layout(params, block_layout, N_BLOCK_PARAMS, block);
    add_layout(params, final_layout, N_FINAL_PARAMS, 0);
    return STATUS_OK;
}

void params_free(struct params *params) {
    free(params->units);
    free(params->params);
    *params = (struct params){0};
}

int params_find(const struct params *params, const char *name) {
    static const char prefix[] = "transformer.";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    for (int i = 0; i < params->n_params; i++)
        if (strcmp(params->params[i].name, name) == 0)
            return i;
    return -1;
}

struct param_span params_unit(const struct params *params, int unit) {
    const struct param_unit *u = &params->units[unit];
    return (struct param_span){u->first_param, u->n_params, 0, u->elements};
}

struct param_span params_group(const struct params *params, int unit, enum block_group group) {
    static const int first[N_BLOCK_GROUPS + 1] = {[GROUP_QKV] = PARAM_LN1_WEIGHT,
                                                  [GROUP_ATTN_PROJ] = PARAM_ATTN_PROJ_WEIGHT,
                                                  [GROUP_FC] = PARAM_LN2_WEIGHT,
                                                  [GROUP_FC_PROJ] = PARAM_FC_PROJ_WEIGHT,
                                                  [N_BLOCK_GROUPS] = N_BLOCK_PARAMS};
    const struct param_unit *u = &params->units[unit];
    const struct param *table = &params->params[u->first_param];
    return (struct param_span){.first_param = u->first_param + first[group],
                               .n_params = first[group + 1] - first[group],
                               .begin = table[first[group]].offset,
                               .end = first[group + 1] < N_BLOCK_PARAMS ? table[first[group + 1]].offset
                                                                        : u->elements};
}

static float initial_value(const struct param *param, uint64_t seed, int index, size_t element) {
    switch (param->init) {
    case INIT_NORMAL:
        return (float)(param->std * rng_normal(seed, RNG_STREAM_INIT + (uint32_t)index, element));
    case INIT_ZEROS:
        return 0.0f;
    case INIT_ONES:
        return 1.0f;
    }
    return 0.0f;
}

struct initialization {
    const struct params *params;
    uint64_t seed;
    struct param_overlap overlap;
    float *out; // of the overlap's first element
};

static void init_part(const void *context, int part, int n_parts) {
    const struct initialization *init = context;
    const struct param *param = &init->params->params[init->overlap.param];
    size_t n = init->overlap.end - init->overlap.begin, first = init->overlap.begin - param->offset;
    struct parallel_span span = parallel_span_of(n, 16, part, n_parts);
    for (size_t i = span.begin; i < span.end; i++)
        init->out[i] = initial_value(param, init->seed, init->overlap.param, first + i);
}

void params_init_span(const struct params *params, uint64_t seed, int unit, size_t begin, size_t end,
                      float *out) {
    memset(out, 0, (end - begin) * sizeof *out);
    for (struct param_overlap it = {0}; params_next_overlap(params, unit, begin, end, &it);) {
        parallel_run(parallel_threads(), init_part,
                     &(struct initialization){params, seed, it, out + (it.begin - begin)});
    }
}

double params_flops_per_token(const struct params *params, int T) {
    const struct gpt_config *config = &params->config;
    return 6.0 * (double)params->n_weights + 6.0 * config->n_layer * (double)config->n_embd * T;
}
