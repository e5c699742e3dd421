// The tensors of a family (family.h) in their units, and their initial values. Within a unit, tensors are in
// order of use.
#include "model/params.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "model/family.h"

// ---- the table

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

static int64_t size_of(const struct gpt_config *config, enum tensor_size size) {
    switch (size) {
    case SIZE_NONE:
    case SIZE_SCALAR:
        return 1;
    case SIZE_EMBEDDING:
        return config->n_embd;
    case SIZE_VOCABULARY:
        return config->vocab_size;
    case SIZE_POSITIONS:
        return config->n_positions;
    case SIZE_HEADS:
        return (int64_t)config->n_head * config->head_dim;
    case SIZE_HEAD:
        return config->head_dim;
    case SIZE_QKV:
        return gpt_qkv_width(config);
    case SIZE_INTERMEDIATE:
        return config->intermediate_size;
    case SIZE_GATE_UP:
        return 2 * (int64_t)config->intermediate_size;
    case SIZE_KEYS:
        return (int64_t)config->n_kv_head * config->head_dim;
    }
    return 0;
}

static double std_of(const struct gpt_config *config, const struct tensor_layout *layout) {
    switch (layout->std) {
    case STD_GPT2:
        return 0.02 / (layout->residual ? sqrt(2.0 * config->n_layer) : 1.0);
    case STD_FAN_IN:
        return 0.5 / sqrt((double)size_of(config, layout->columns));
    case STD_UNIT: // as an lm_head too it would begin with logits of about sqrt(n_embd)
        return layout->tensor == PARAM_WTE && !config->untied ? 0.02 : 1;
    }
    return 0;
}

static void add_part(struct param *param, const char *name, int64_t first_row, int64_t n_rows) {
    struct param_part *part = &param->parts[param->n_parts++];
    snprintf(part->name, sizeof part->name, "%s", name);
    part->first_row = first_row;
    part->n_rows = n_rows;
}

// Names the rows of a fused tensor.
static void add_parts(struct param *param, const struct gpt_config *config, enum tensor_size rows) {
    if (rows == SIZE_QKV) {
        const int64_t queries = size_of(config, SIZE_HEADS);
        const int64_t keys = size_of(config, SIZE_KEYS);
        add_part(param, "q_proj", 0, queries);
        add_part(param, "k_proj", queries, keys);
        add_part(param, "v_proj", queries + keys, keys);
    } else if (rows == SIZE_GATE_UP) {
        add_part(param, "gate_proj", 0, config->intermediate_size);
        add_part(param, "up_proj", config->intermediate_size, config->intermediate_size);
    }
}

static void add_layout(struct params *params, const struct unit_layout *unit, int block) {
    const struct gpt_config *config = &params->config;
    begin_unit(params);
    signed char *index = params->units[params->n_units - 1].index;
    memset(index, -1, N_BLOCK_PARAMS);
    for (int i = 0, n = 0; i < unit->n; i++) {
        const struct tensor_layout *layout = &unit->tensors[i];
        if (layout->is_present && !layout->is_present(config, block))
            continue;
        struct param *param = &params->params[params->n_params];
        // The names hold at most one %d.
        snprintf(param->name, sizeof param->name, layout->name, block);
        param->init = config->zero_init && layout->may_begin_at_zero ? INIT_ZEROS : layout->init;
        param->std = std_of(config, layout);
        param->hf_transposed = layout->hf_transposed;
        param->hf_parts = layout->hf_parts;
        param->is_matrix =
            unit == &family_of(config)->block && layout->columns != SIZE_NONE && !layout->is_table;
        index[layout->tensor] = (signed char)n++;
        add_param(params, layout->columns == SIZE_NONE ? 1 : 2, size_of(config, layout->rows),
                  size_of(config, layout->columns));
        add_parts(param, config, layout->rows);
    }
}

enum status params_init(struct params *params, const struct gpt_config *config) {
    *params = (struct params){.config = *config};
    gpt_config_resolve(&params->config);
    TRY(gpt_config_check(&params->config));
    const struct family *family = family_of(config);
    size_t n_units = (size_t)config->n_layer + 2;
    size_t n_params = (size_t)family->embedding.n + (size_t)config->n_layer * (size_t)family->block.n +
                      (size_t)family->final.n;
    params->units = allocate(n_units, sizeof *params->units);
    params->params = allocate(n_params, sizeof *params->params);
    add_layout(params, &family->embedding, 0);
    for (int block = 0; block < config->n_layer; block++)
        add_layout(params, &family->block, block);
    add_layout(params, &family->final, 0);
    return STATUS_OK;
}

void params_free(struct params *params) {
    free(params->units);
    free(params->params);
    *params = (struct params){0};
}

int params_find(const struct params *params, const char *name) {
    static const char *const prefixes[] = {"transformer.", "model."};
    for (int i = 0; i < 2; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            name += strlen(prefixes[i]);
            break;
        }
    for (int i = 0; i < params->n_params; i++)
        if (strcmp(params->params[i].name, name) == 0)
            return i;
    return -1;
}

void params_part_name(const struct param *param, int part, char *out, size_t size) {
    const char *suffix = strrchr(param->name, '.'), *layer = suffix;
    while (layer > param->name && layer[-1] != '.')
        layer--;
    snprintf(out, size, "%.*s%s%s", (int)(layer - param->name), param->name, param->parts[part].name, suffix);
}

const struct param *params_tensor(const struct params *params, int unit, int tensor) {
    const struct param_unit *u = &params->units[unit];
    return u->index[tensor] < 0 ? NULL : &params->params[u->first_param + u->index[tensor]];
}

const struct param *params_lm_head(const struct params *params) {
    const struct param *own = params_tensor(params, params->n_units - 1, PARAM_LM_HEAD);
    return own ? own : params_tensor(params, 0, PARAM_WTE);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

int params_lm_head_columns(const struct params *params, enum region_place place) {
    const int multiple = 128, V = params->config.vocab_size, padding = (multiple - V % multiple) % multiple;
    return place == REGION_DEVICE && padding <= V / 16 && padding <= INT_MAX - V ? V + padding : V;
}

size_t params_accessed(const struct params *params, int index, enum region_place place) {
    const struct param *param = &params->params[index];
    if (param != params_lm_head(params))
        return param->elements;
    return (size_t)params_lm_head_columns(params, place) * (size_t)param->shape[1];
}

size_t params_unit_memory(const struct params *params, int unit, enum region_place place) {
    const struct param *head = params_lm_head(params);
    const size_t elements = params->units[unit].elements;
    return head->unit != unit
               ? elements
               : larger(elements,
                        head->offset + params_accessed(params, (int)(head - params->params), place));
}

size_t params_memory(const struct params *params, enum region_place place) {
    const struct param *head = params_lm_head(params);
    return larger(params->n_elements, params->units[head->unit].offset + head->offset +
                                          params_accessed(params, (int)(head - params->params), place));
}

size_t params_unit_grad_memory(const struct params *params, int unit, enum region_place place) {
    return params->config.untied ? params_unit_memory(params, unit, place) : params->units[unit].elements;
}

size_t params_grad_memory(const struct params *params, enum region_place place) {
    return params->config.untied ? params_memory(params, place) : params->n_elements;
}

bool params_same_layout(const struct params *params, int unit, int other) {
    const struct param_unit *u = &params->units[unit], *v = &params->units[other];
    bool same = u->n_params == v->n_params;
    for (int i = 0; same && i < u->n_params; i++) {
        const struct param *x = &params->params[u->first_param + i], *y = &params->params[v->first_param + i];
        same = x->offset == y->offset && x->elements == y->elements;
    }
    return same;
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

// Tensors of a unit are sorted by offset, so the first one behind the span ends the walk.

bool params_next_overlap(const struct params *params, int unit, size_t begin, size_t end,
                         struct param_overlap *overlap) {
    const struct param_unit *u = &params->units[unit];
    // An overlap that was found is not empty: its end is above 0.
    int i = overlap->end > 0 ? overlap->param + 1 : u->first_param;
    for (; i < u->first_param + u->n_params && params->params[i].offset < end; i++) {
        const struct param *param = &params->params[i];
        size_t param_end = param->offset + param->elements;
        *overlap = (struct param_overlap){.param = i,
                                          .begin = param->offset > begin ? param->offset : begin,
                                          .end = param_end < end ? param_end : end};
        if (overlap->begin < overlap->end)
            return true;
    }
    return false;
}
