// Where each kind of state stands. What travels, and when, is zero/gradients and zero/parameters.
#include "zero/state.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

enum status stage_options_read(const struct config *config, struct stage_options *out) {
    *out = (struct stage_options){
        .stage = (int)config->zero_optimization.stage,
        .reduce_bucket = (size_t)config->zero_optimization.reduce_bucket_size,
        .allgather_bucket = (size_t)config->zero_optimization.allgather_bucket_size,
        .prefetch_bucket = (size_t)config->zero_optimization.stage3_prefetch_bucket_size,
        .persistence_threshold = (size_t)config->zero_optimization.stage3_param_persistence_threshold,
        .overlap = config->zero_optimization.overlap_comm,
        .reduce_every_micro_batch = config->zero_optimization.reduce_every_micro_batch};
    const char *travel_as = config->top.communication_data_type;
    if (!dtype_from_name(travel_as, &out->gradients_travel_as))
        return FAIL(STATUS_INVALID, "%s: communication_data_type is \"%s\", expected fp32, bf16 or fp16",
                    config->source, travel_as);
    return partition_find(config->zero_optimization.partition, &out->partition);
}

// ---- hooks

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass, int next,
                           struct unit_view *view) {
    struct state *state = context;
    *view = (struct unit_view){0};
    if (pass != GPT_BACKWARD_GRADS)
        TRY(parameters_acquire(&state->parameters, stream, unit, next, &view->params));
    float *grads = NULL;
    if (pass != GPT_FORWARD)
        TRY(gradients_acquire(&state->gradients, stream, unit, &grads));
    view->grads = grads;
    return STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    struct state *state = context;
    return pass == GPT_BACKWARD_GRADS ? STATUS_OK : parameters_release(&state->parameters, stream, unit);
}

static enum status ready(void *context, struct stream *stream, int unit) {
    struct state *state = context;
    return gradients_ready(&state->gradients, stream, unit);
}

// ---- laying out

// AdamW keeps two moments, SGD one, and none without momentum.
static int count_kinds(const struct config *config) {
    if (strcmp(config->optimizer.type, "adamw") == 0)
        return 3;
    return config->optimizer.momentum > 0 ? 2 : 1;
}

static enum status list_spans(struct state *state) {
    const struct params *params = state->params;
    const struct partition *partition = &state->partition;
    state->owned = calloc((size_t)partition->n_spans + 1, sizeof *state->owned);
    state->updated = calloc((size_t)partition->n_spans + (size_t)params->n_units, sizeof *state->updated);
    if (!state->owned || !state->updated)
        return FAIL(STATUS_FAILED, "out of memory for a list of %d spans", partition->n_spans);
    for (int i = 0; i < partition->n_spans; i++) {
        const struct partition_span *span = &partition->spans[i];
        if (span->owner == state->rank)
            state->owned[state->n_owned++] =
                (struct stage_span){span->unit, span->begin, span->end,
                                    params->units[span->unit].offset + span->begin, span->shard_offset};
    }
    for (int unit = 0; unit < params->n_units && state->options.stage == 0; unit++)
        state->updated[state->n_updated++] = (struct stage_span){
            .unit = unit, .end = params->units[unit].elements, .in_whole = params->units[unit].offset};
    for (int i = 0; i < state->n_owned && state->options.stage > 0; i++)
        state->updated[state->n_updated++] = state->owned[i];
    return STATUS_OK;
}

static bool kinds_whole(const struct state *state) {
    return state->options.stage == 0;
}

enum status state_init(struct state *state, const struct params *params, const struct config *config,
                       enum dtype type, int rank, int world, struct device *device,
                       struct region_table *table) {
    *state = (struct state){.params = params,
                            .device = device,
                            .type = type,
                            .rank = rank,
                            .world = world,
                            .n_kinds = count_kinds(config)};
    state->hooks = (struct unit_hooks){state, acquire, release, ready};
    TRY(stage_options_read(config, &state->options));
    TRY(partition_init(&state->partition, params, state->options.partition, world));
    TRY(list_spans(state));
    size_t shard = state->partition.rank_elements[rank], n = kinds_whole(state) ? params->n_elements : shard;
    TRY(parameters_init(&state->parameters, params, &state->options, &state->partition, shard, type, device,
                        table));
    TRY(gradients_init(&state->gradients, params, &state->options, &state->partition, shard, device, table));
    if (type != DTYPE_F32)
        TRY(region_add(table, REGION_MASTER, device->place, DTYPE_F32, n,
                       &state->kind_regions[CHECKPOINT_MASTER], "master"));
    for (int kind = CHECKPOINT_M; kind < state->n_kinds; kind++)
        TRY(region_add(table, REGION_MOMENTS, device->place, DTYPE_F32, n, &state->kind_regions[kind], "%s",
                       checkpoint_kind_name((enum checkpoint_kind)kind)));
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK, &state->bounce_region,
                      "bounce");
}

void state_bind(struct state *state, const struct region_table *table, struct comm *comm) {
    state->comm = comm;
    parameters_bind(&state->parameters, table, comm);
    gradients_bind(&state->gradients, table, comm);
    for (int kind = 0; kind < state->n_kinds; kind++)
        state->kinds[kind] = kind == CHECKPOINT_MASTER && state->type == DTYPE_F32
                                 ? state->parameters.kept
                                 : region_data(table, state->kind_regions[kind]);
    state->bounce = region_data(table, state->bounce_region);
}

void state_free(struct state *state) {
    parameters_free(&state->parameters);
    gradients_free(&state->gradients);
    partition_free(&state->partition);
    free(state->owned);
    free(state->updated);
    *state = (struct state){0};
}

float *state_at(const struct state *state, int kind, const struct stage_span *span) {
    if (kind == CHECKPOINT_MASTER && state->type == DTYPE_F32)
        return parameters_at(&state->parameters, span);
    return state->kinds[kind] + stage_span_at(span, kinds_whole(state));
}

// ---- loading and saving

static enum status load_span(struct state *state, struct stream *stream,
                             const struct checkpoint_source *source, int kind,
                             const struct stage_span *span) {
    float *to = state_at(state, kind, span);
    for (size_t begin = span->begin; begin < span->end; begin += CHECKPOINT_CHUNK) {
        size_t end = span->end - begin < CHECKPOINT_CHUNK ? span->end : begin + CHECKPOINT_CHUNK;
        TRY(source->read(source->context, (enum checkpoint_kind)kind, span->unit, begin, end, state->bounce));
        TRY(state->device->copy(stream, to + (begin - span->begin), state->bounce,
                                (end - begin) * sizeof(float)));
        TRY(state->device->synchronize(stream));
    }
    return STATUS_OK;
}

enum status state_load(struct state *state, struct stream *stream, const struct checkpoint_source *source,
                       bool all_kinds) {
    const struct ops *ops = state->device->ops;
    for (int i = 0; i < state->n_updated; i++) {
        const struct stage_span *span = &state->updated[i];
        size_t n = span->end - span->begin;
        for (int kind = 0; kind < state->n_kinds; kind++) {
            if (kind == CHECKPOINT_MASTER || all_kinds)
                TRY(load_span(state, stream, source, kind, span));
            else
                TRY(ops->fill(stream, &(struct fill_args){
                                          .out = state_at(state, kind, span), .n = n, .type = DTYPE_F32}));
        }
        if (state->type != DTYPE_F32)
            TRY(ops->cast(stream, &(struct cast_args){.out = parameters_at(&state->parameters, span),
                                                      .x = state_at(state, CHECKPOINT_MASTER, span),
                                                      .n = n,
                                                      .type = DTYPE_F32,
                                                      .out_type = state->type}));
    }
    TRY(state->device->synchronize(stream));
    return parameters_updated(&state->parameters, stream);
}

// The owned span that holds the element.
static const struct stage_span *find_owned(const struct state *state, int unit, size_t element) {
    for (int i = 0; i < state->n_owned; i++) {
        const struct stage_span *span = &state->owned[i];
        if (span->unit == unit && span->begin <= element && element < span->end)
            return span;
    }
    return NULL;
}

static enum status read_state(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                              float *out) {
    struct state_reader *reader = context;
    struct state *state = reader->state;
    const struct stage_span *span = find_owned(state, unit, begin);
    if (!span || end > span->end)
        return FAIL(STATUS_FAILED, "elements %zu to %zu of unit %d are not this rank's to save", begin, end,
                    unit);
    TRY(state->device->copy(reader->stream, out, state_at(state, (int)kind, span) + (begin - span->begin),
                            (end - begin) * sizeof(float)));
    return state->device->synchronize(reader->stream);
}

struct checkpoint_source state_source(struct state_reader *reader) {
    return (struct checkpoint_source){reader, read_state};
}
