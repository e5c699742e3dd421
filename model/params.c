// Queries of the parameter table, and the tensors' initial values. params_init, which fills the table,
// is in family.c.
#include "model/params.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "base/rng.h"

size_t params_padded_end(const struct params *params, int i) {
    const struct param_unit *unit = &params->units[params->params[i].unit];
    return i + 1 < unit->first_param + unit->n_params ? params->params[i + 1].offset : unit->elements;
}

void params_lay_out_gradients(struct params *params) {
    params->n_trained = 0;
    for (int unit = 0; unit < params->n_units; unit++) {
        struct param_unit *u = &params->units[unit];
        u->trained = 0;
        for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
            struct param *param = &params->params[i];
            param->grad_offset = u->trained;
            u->trained += param->is_frozen ? 0 : params_padded_end(params, i) - param->offset;
        }
        u->trained_offset = params->n_trained;
        params->n_trained += u->trained;
    }
}

size_t params_grad_position(const struct params *params, int unit, size_t element) {
    int i = params->units[unit].first_param;
    while (params_padded_end(params, i) <= element)
        i++;
    return params->params[i].grad_offset + (element - params->params[i].offset);
}

int params_lowest_trained(const struct params *params) {
    int unit = 0;
    while (unit + 1 < params->n_units && params->units[unit].trained == 0)
        unit++;
    return unit;
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
    const struct param *head = params_lm_head(params);
    const size_t trained = params->units[unit].trained;
    return !params->config.untied || head->is_frozen || head->unit != unit
               ? trained
               : larger(trained,
                        head->grad_offset + params_accessed(params, (int)(head - params->params), place));
}

size_t params_grad_memory(const struct params *params, enum region_place place) {
    const int last = params->n_units - 1;
    return params->units[last].trained_offset + params_unit_grad_memory(params, last, place);
}

bool params_same_layout(const struct params *params, int unit, int other) {
    const struct param_unit *u = &params->units[unit], *v = &params->units[other];
    bool same = u->n_params == v->n_params;
    for (int i = 0; same && i < u->n_params; i++) {
        const struct param *x = &params->params[u->first_param + i], *y = &params->params[v->first_param + i];
        same = x->offset == y->offset && x->elements == y->elements && x->is_frozen == y->is_frozen;
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
    float *out; // values of the overlap's elements
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

// Tensors of a unit are sorted by offset, so the first tensor after the span ends the iteration.
bool params_next_overlap(const struct params *params, int unit, size_t begin, size_t end,
                         struct param_overlap *overlap) {
    const struct param_unit *u = &params->units[unit];
    // overlap->end is 0 only on the first call: a found overlap is not empty.
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
