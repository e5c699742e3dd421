// Spans are stored in unit order, so that a unit's elements are contiguous in the arrays of each side.
#include "zero/offload/placement.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/moments.h"
#include "model/params.h"

// ---- splitting spans

// Divides elements [begin, end) between host and device, and returns the first element of the device. The
// host gets the elements before that one: the fraction offload_ratio of all, in multiples of PARAM_ALIGNMENT.
static size_t host_end(size_t begin, size_t end, const struct stage_options *options) {
    if (!options->offload_optimizer)
        return begin;
    double blocks = (double)((end - begin) / PARAM_ALIGNMENT);
    size_t middle = begin + (size_t)(blocks * options->offload_ratio + 0.5) * PARAM_ALIGNMENT;
    return middle < end ? middle : end;
}

static void add_span(struct placement *placement, const struct stage_span *span, size_t begin, size_t end,
                     bool on_host, const struct placement_span *like) {
    const struct params *params = placement->stage->params;
    struct placement_side *side = on_host ? &placement->host : &placement->device;
    struct placement_span placed = {.on_host = on_host,
                                    .is_frozen = like->is_frozen,
                                    .n_moments = like->n_moments,
                                    .at = side->elements,
                                    .moment_at = {side->with_moment[0], side->with_moment[1]}};
    if (begin == end)
        return;
    placed.span = (struct stage_span){span->unit, begin, end, span->model_offset + (begin - span->begin),
                                      span->shard_offset + (begin - span->begin)};
    placed.grads = (struct stage_span){span->unit, begin, end,
                                       params->units[span->unit].trained_offset +
                                           params_grad_position(params, span->unit, begin),
                                       placement->host.elements + placement->device.elements};
    side->elements += like->is_frozen ? 0 : end - begin;
    for (int moment = 0; moment < like->n_moments; moment++)
        side->with_moment[moment] += end - begin;
    placement->spans[placement->n_spans++] = placed;
}

// Returns the end of the elements of `span`, from `begin` on, with the same n_moments and is_frozen.
//   like   [out] n_moments and is_frozen of these elements
static size_t alike_end(const struct placement *placement, const struct stage_span *span, size_t begin,
                        struct placement_span *like) {
    const struct optimizer_groups *groups = placement->groups;
    *like = (struct placement_span){.n_moments = -1};
    for (struct param_overlap it = {0};
         params_next_overlap(placement->stage->params, span->unit, begin, span->end, &it);) {
        const struct optimizer_group *group = optimizer_group_of(groups, it.param);
        if (like->n_moments >= 0 &&
            (group->n_moments != like->n_moments || group->is_frozen != like->is_frozen))
            return it.begin;
        like->n_moments = group->n_moments;
        like->is_frozen = group->is_frozen;
    }
    if (like->n_moments < 0) // the elements are only padding
        like->n_moments = groups->n_moments;
    return span->end;
}

static void add_stage_span(struct placement *placement, const struct stage_span *span) {
    for (size_t begin = span->begin, end; begin < span->end; begin = end) {
        struct placement_span like;
        end = alike_end(placement, span, begin, &like);
        const struct stage_options *options = &placement->stage->options;
        size_t middle = !like.is_frozen          ? host_end(begin, end, options)
                        : options->offload_param ? end
                                                 : begin;
        add_span(placement, span, begin, middle, true, &like);
        add_span(placement, span, middle, end, false, &like);
    }
}

static void list_spans(struct placement *placement) {
    const struct stage *stage = placement->stage;
    const struct params *params = stage->params;
    const size_t n_spans = (size_t)(stage_shards_optimizer(stage->config) ? stage->owned.n : params->n_units);
    // Upper bound: each span is cut where a tensor begins, and each section is split for host and device.
    placement->spans = allocate(2 * (n_spans + (size_t)params->n_params), sizeof *placement->spans);
    placement->first_span = allocate((size_t)params->n_units + 1, sizeof *placement->first_span);
    for (int unit = 0; unit < params->n_units; unit++) {
        const struct param_unit *u = &params->units[unit];
        if (!stage_shards_optimizer(stage->config))
            add_stage_span(placement,
                           &(struct stage_span){.unit = unit, .end = u->elements, .model_offset = u->offset});
        else
            for (int i = stage->owned.first[unit]; i < stage->owned.first[unit + 1]; i++)
                add_stage_span(placement, &stage->owned.spans[i]);
        placement->first_span[unit + 1] = placement->n_spans;
    }
}

// ---- arrays

static const struct {
    const char *name;
    enum region_kind kind;
} arrays[N_STATE_ARRAYS] = {
#define STATE_ROW(array, name, kind) {name, kind},
    STATE_ARRAYS(STATE_ROW)
#undef STATE_ROW
};

static enum dtype array_type(const struct placement *placement, enum state_array array) {
    return array == STATE_PARAMS                  ? placement->stage->type
           : array == STATE_M || array == STATE_V ? placement->moment_type
                                                  : DTYPE_F32;
}

// Returns the moment of which an array stores values or scales: 0 for m, 1 for v; -1 for other arrays.
static int moment_of(enum state_array array) {
    return array == STATE_M || array == STATE_M_SCALES   ? 0
           : array == STATE_V || array == STATE_V_SCALES ? 1
                                                         : -1;
}

static size_t array_position(enum state_array array, size_t element) {
    bool scales = array == STATE_M_SCALES || array == STATE_V_SCALES;
    return scales ? (element + MOMENT_BLOCK - 1) / MOMENT_BLOCK : element;
}

static bool stores(const struct placement *placement, bool on_host, enum state_array array) {
    bool mixed = placement->stage->type != DTYPE_F32, scaled = placement->moment_type == DTYPE_I8;
    switch (array) {
    case STATE_MASTER:
        return mixed || on_host;
    case STATE_M:
    case STATE_M_SCALES:
        return placement->n_kinds > 1 && (array == STATE_M || scaled);
    case STATE_V:
    case STATE_V_SCALES:
        return placement->n_kinds > 2 && (array == STATE_V || scaled);
    case STATE_AVERAGE:
        return placement->has_average;
    default: // STATE_PARAMS: all of this rank's parameters
        return on_host && mixed && placement->stage->options.offload_param;
    }
}

// True for the array that holds all of this rank's parameters on the host, including frozen ones. There is
// one only with offload_param.
static bool has_params(const struct placement *placement, bool on_host, enum state_array array) {
    return on_host && placement->stage->options.offload_param &&
           array == (placement->stage->type == DTYPE_F32 ? STATE_MASTER : STATE_PARAMS);
}

static enum status add_side(struct placement *placement, bool on_host, struct region_table *table) {
    const enum region_place place = on_host ? REGION_HOST : placement->stage->device->place;
    struct placement_side *side = on_host ? &placement->host : &placement->device;
    for (int i = 0; i < N_STATE_ARRAYS; i++) {
        enum state_array array = (enum state_array)i;
        const int moment = moment_of(array);
        const size_t elements = has_params(placement, on_host, array) ? stage_shard_elements(placement->stage)
                                : moment < 0                          ? side->elements
                                                                      : side->with_moment[moment];
        side->regions[i] = -1;
        if (elements > 0 && stores(placement, on_host, array))
            TRY(region_add(table, arrays[i].kind, place, array_type(placement, array),
                           array_position(array, elements), &side->regions[i], "%s%s", arrays[i].name,
                           on_host ? " on the host" : ""));
    }
    return STATUS_OK;
}

enum status placement_init(struct placement *placement, const struct stage *stage,
                           const struct optimizer_groups *groups, struct region_table *table) {
    static const enum dtype moment_types[] = {[CONFIG_STATE_DTYPE_FP32] = DTYPE_F32,
                                              [CONFIG_STATE_DTYPE_BF16] = DTYPE_BF16,
                                              [CONFIG_STATE_DTYPE_INT8] = DTYPE_I8};
    *placement = (struct placement){.stage = stage,
                                    .groups = groups,
                                    .moment_type = moment_types[stage->config->optimizer.state_dtype],
                                    .n_kinds = 1 + groups->n_moments,
                                    .has_average = stage->config->train.ema.type != CONFIG_EMA_NONE};
    list_spans(placement);
    TRY(add_side(placement, false, table));
    return add_side(placement, true, table);
}

static void bind_side(struct placement_side *side, const struct region_table *table) {
    for (int i = 0; i < N_STATE_ARRAYS; i++)
        side->arrays[i] = side->regions[i] < 0 ? NULL : region_data(table, side->regions[i]);
}

void placement_bind(struct placement *placement, const struct region_table *table) {
    bind_side(&placement->device, table);
    bind_side(&placement->host, table);
}

void placement_free(struct placement *placement) {
    free(placement->spans);
    free(placement->first_span);
    *placement = (struct placement){0};
}

struct group_span placement_next_group_span(const struct placement *placement,
                                            const struct placement_span *placed,
                                            const struct group_span *last) {
    const struct stage *stage = placement->stage;
    const struct stage_span *span = &placed->span;
    size_t from = span->begin + last->offset + last->n;
    struct group_span found = {0};
    for (struct param_overlap it = {0};
         params_next_overlap(stage->params, span->unit, from, span->end, &it);) {
        int group = placement->groups->of_param[it.param];
        if (found.n > 0 && group != found.group)
            break;
        if (found.n == 0)
            found = (struct group_span){.offset = it.begin - span->begin, .group = group};
        found.n = it.end - span->begin - found.offset;
    }
    return found;
}

void *placement_array_at(const struct placement *placement, const struct placement_span *placed,
                         enum state_array array, size_t offset) {
    const struct placement_side *side = placed->on_host ? &placement->host : &placement->device;
    const int moment = moment_of(array);
    const bool of_params = has_params(placement, placed->on_host, array);
    const size_t at = of_params    ? placed->span.shard_offset
                      : moment < 0 ? placed->at
                                   : placed->moment_at[moment];
    char *base = side->arrays[array];
    return base && moment < placed->n_moments && (of_params || !placed->is_frozen)
               ? base + array_position(array, at + offset) * dtype_size(array_type(placement, array))
               : NULL;
}

void *placement_host_params(const struct placement *placement) {
    return placement->host.arrays[placement->stage->type == DTYPE_F32 ? STATE_MASTER : STATE_PARAMS];
}
