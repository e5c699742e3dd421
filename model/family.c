// The list of families, and params_init, which fills the parameter table from a family's tensors. Within a
// unit, tensors are in order of use.
#include "model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

const struct family *family_of(const struct gpt_config *config) {
    static const struct family *const families[N_FAMILIES] = {
        [FAMILY_GPT2] = &gpt2_family, [FAMILY_LLAMA] = &llama_family, [FAMILY_MODERN] = &modern_family};
    return families[config->family];
}

// ---- filling the parameter table

static void begin_unit(struct params *params) {
    params->units[params->n_units++] =
        (struct param_unit){.first_param = params->n_params, .offset = params->n_elements};
}

// Appends a tensor to the newest unit, as the next row of the table. Sets the row's shape, unit, offset and
// weight decay; the caller sets its other members.
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
    case STD_UNIT: // with a std of 1, the initial logits of a tied lm_head would be about sqrt(n_embd)
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

// Sets the names and rows of a fused tensor's parts. No-op for other tensors.
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
        // Each name has at most one %d; names without it ignore `block`.
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
    params_lay_out_gradients(params);
    return STATUS_OK;
}
