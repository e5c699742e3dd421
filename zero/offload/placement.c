// Parts are laid out in the order of units, so that a unit's elements stand together in each place.
#include "zero/offload/placement.h"

#include <stdlib.h>

#include "kernels/moments.h"

// ---- which part is whose

// The first element that the device keeps: the host takes the first `ratio` of a span.
static size_t host_end(const struct stage_span *span, const struct stage_options *options) {
    if (!options->offload_optimizer)
        return span->begin;
    double pieces = (double)((span->end - span->begin) / PARAM_ALIGNMENT);
    size_t end = span->begin + (size_t)(pieces * options->offload_ratio + 0.5) * PARAM_ALIGNMENT;
    return end < span->end ? end : span->end;
}

static void add_part(struct tiers *tiers, const struct stage_span *span, size_t begin, size_t end,
                     bool on_host) {
    struct tier *tier = on_host ? &tiers->host : &tiers->device;
    struct tier_part part = {.span = *span, .on_host = on_host, .at = tier->elements};
    if (begin == end)
        return;
    part.span.begin = begin;
    part.span.end = end;
    part.span.in_whole += begin - span->begin;
    part.span.in_shard += begin - span->begin;
    tier->elements += end - begin;
    tiers->parts[tiers->n_parts++] = part;
}

static enum status list_parts(struct tiers *tiers, const struct stage_options *options,
                              const struct params *params, const struct stage_span *spans, int n_spans) {
    tiers->parts = calloc(2 * (size_t)n_spans + 1, sizeof *tiers->parts);
    tiers->first_part = calloc((size_t)params->n_units + 1, sizeof *tiers->first_part);
    if (!tiers->parts || !tiers->first_part)
        return FAIL(STATUS_FAILED, "out of memory for a list of %d spans", n_spans);
    for (int unit = 0, i = 0; unit < params->n_units; unit++) {
        for (; i < n_spans && spans[i].unit == unit; i++) {
            size_t cut = host_end(&spans[i], options);
            add_part(tiers, &spans[i], spans[i].begin, cut, true);
            add_part(tiers, &spans[i], cut, spans[i].end, false);
        }
        tiers->first_part[unit + 1] = tiers->n_parts;
    }
    return STATUS_OK;
}

// ---- what is kept of it

static const struct {
    const char *name;
    enum region_kind kind;
} arrays[N_TIER_ARRAYS] = {
#define TIER_ROW(array, name, kind) {name, kind},
    TIER_ARRAYS(TIER_ROW)
#undef TIER_ROW
};

static enum dtype array_type(const struct tiers *tiers, enum tier_array array) {
    return array == TIER_PARAMS                 ? tiers->type
           : array == TIER_M || array == TIER_V ? tiers->moment_type
                                                : DTYPE_F32;
}

static size_t array_position(enum tier_array array, size_t element) {
    bool scales = array == TIER_M_SCALES || array == TIER_V_SCALES;
    return scales ? (element + MOMENT_BLOCK - 1) / MOMENT_BLOCK : element;
}

static bool keeps(const struct tiers *tiers, const struct stage_options *options, bool on_host, int copy,
                  enum tier_array array) {
    bool narrow = tiers->type != DTYPE_F32, scaled = tiers->moment_type == DTYPE_I8;
    if (copy > 0 && !(on_host && options->offload_speculative))
        return false;
    switch (array) {
    case TIER_MASTER:
        return narrow || on_host;
    case TIER_M:
    case TIER_M_SCALES:
        return tiers->n_kinds > 1 && (array == TIER_M || scaled);
    case TIER_V:
    case TIER_V_SCALES:
        return tiers->n_kinds > 2 && (array == TIER_V || scaled);
    default: // parameters of steps that may not count, or all that there are
        return on_host && narrow && (options->offload_param || (options->offload_speculative && copy == 0));
    }
}

static enum status add_tier(struct tiers *tiers, const struct stage_options *options, bool on_host,
                            enum region_place place, struct region_table *table) {
    struct tier *tier = on_host ? &tiers->host : &tiers->device;
    for (int copy = 0; copy < TIER_COPIES; copy++)
        for (int i = 0; i < N_TIER_ARRAYS; i++) {
            enum tier_array array = (enum tier_array)i;
            tier->regions[copy][i] = -1;
            if (tier->elements > 0 && keeps(tiers, options, on_host, copy, array))
                TRY(region_add(table, arrays[i].kind, place, array_type(tiers, array),
                               array_position(array, tier->elements), &tier->regions[copy][i], "%s%s%s",
                               arrays[i].name, on_host ? " on the host" : "", copy ? ", other copy" : ""));
        }
    return STATUS_OK;
}

// AdamW and Adam keep two moments; Lion one; SGD one, and none without momentum. Adafactor's factors are no
// element's (zero/partition/second_moments.h).
static int count_kinds(const struct config *config) {
    switch (config->optimizer.type) {
    case CONFIG_OPTIMIZER_SGD:
        return config->optimizer.momentum > 0 ? 2 : 1;
    case CONFIG_OPTIMIZER_ADAFACTOR:
        return 1;
    case CONFIG_OPTIMIZER_LION:
        return 2;
    case CONFIG_OPTIMIZER_ADAMW:
    case CONFIG_OPTIMIZER_ADAM:
        break;
    }
    return 3;
}

enum status tiers_init(struct tiers *tiers, const struct config *config, const struct stage_options *options,
                       const struct params *params, const struct stage_span *spans, int n_spans,
                       enum dtype type, struct device *device, struct region_table *table) {
    static const enum dtype moment_types[] = {[CONFIG_STATE_DTYPE_FP32] = DTYPE_F32,
                                              [CONFIG_STATE_DTYPE_BF16] = DTYPE_BF16,
                                              [CONFIG_STATE_DTYPE_INT8] = DTYPE_I8};
    *tiers = (struct tiers){.type = type,
                            .moment_type = moment_types[config->optimizer.state_dtype],
                            .n_kinds = count_kinds(config),
                            .undoes = options->offload_speculative};
    TRY(list_parts(tiers, options, params, spans, n_spans));
    TRY(add_tier(tiers, options, false, device->place, table));
    return add_tier(tiers, options, true, REGION_HOST, table);
}

static void bind_tier(struct tier *tier, const struct region_table *table) {
    for (int copy = 0; copy < TIER_COPIES; copy++)
        for (int i = 0; i < N_TIER_ARRAYS; i++)
            tier->arrays[copy][i] =
                tier->regions[copy][i] < 0 ? NULL : region_data(table, tier->regions[copy][i]);
}

void tiers_bind(struct tiers *tiers, const struct region_table *table) {
    bind_tier(&tiers->device, table);
    bind_tier(&tiers->host, table);
}

void tiers_free(struct tiers *tiers) {
    free(tiers->parts);
    free(tiers->first_part);
    *tiers = (struct tiers){0};
}

struct tier_stretch tiers_next_stretch(const struct params *params, const struct tier_part *part,
                                       const struct tier_stretch *last) {
    const struct stage_span *span = &part->span;
    const struct param_unit *unit = &params->units[span->unit];
    size_t from = span->begin + last->offset + last->n;
    struct tier_stretch stretch = {0};
    for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
        const struct param *param = &params->params[i];
        size_t begin = param->offset > from ? param->offset : from;
        size_t end =
            param->offset + param->elements < span->end ? param->offset + param->elements : span->end;
        if (begin >= end)
            continue;
        if (stretch.n > 0 && param->decay != stretch.decay)
            break;
        if (stretch.n == 0)
            stretch = (struct tier_stretch){.offset = begin - span->begin, .decay = param->decay};
        stretch.n = end - span->begin - stretch.offset;
    }
    return stretch;
}

void *tiers_at(const struct tiers *tiers, const struct tier_part *part, enum tier_array array, size_t offset,
               int copy) {
    const struct tier *tier = part->on_host ? &tiers->host : &tiers->device;
    char *base = tier->arrays[part->on_host ? copy : 0][array];
    return base ? base + array_position(array, part->at + offset) * dtype_size(array_type(tiers, array))
                : NULL;
}

void *tiers_params_at(const struct tiers *tiers, const struct tier_part *part, size_t offset, int copy) {
    bool one = tiers->host.regions[1][TIER_PARAMS] < 0;
    return tiers_at(tiers, part, TIER_PARAMS, offset, one ? 0 : copy);
}

void *tiers_shard(const struct tiers *tiers) {
    return tiers->host.arrays[tiers->current][tiers->type == DTYPE_F32 ? TIER_MASTER : TIER_PARAMS];
}
