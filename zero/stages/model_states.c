// Where each kind of state stands. What travels, and when, is zero/gradients and zero/parameters.
#include "zero/stages/model_states.h"

#include <stdlib.h>
#include <string.h>

#include "base/numa.h"
#include "kernels/moments.h"
#include "kernels/ops.h"

// ---- hooks

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct gpt_next next, struct unit_view *view) {
    struct model_states *state = context;
    *view = (struct unit_view){0};
    comm_progress(state->comm);
    if (pass != GPT_BACKWARD_GRADS)
        TRY(parameters_acquire(&state->parameters, stream, unit, next, &view->params));
    return pass != GPT_FORWARD ? gradients_acquire(&state->gradients, stream, unit, view) : STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    struct model_states *state = context;
    return pass == GPT_BACKWARD_GRADS ? STATUS_OK : parameters_release(&state->parameters, stream, unit);
}

static enum status ready(void *context, struct stream *stream, int unit) {
    struct model_states *state = context;
    return gradients_ready(&state->gradients, stream, unit);
}

static enum status acquire_group(void *context, struct stream *stream, int unit, enum block_group group,
                                 enum gpt_pass pass, struct gpt_next next, struct unit_view *view) {
    struct model_states *state = context;
    if (pass != GPT_BACKWARD_GRADS)
        TRY(parameters_acquire_group(&state->parameters, stream, unit, group, next, &view->params));
    return pass != GPT_FORWARD ? gradients_acquire_group(&state->gradients, stream, unit, group, view)
                               : STATUS_OK;
}

static enum status release_group(void *context, struct stream *stream, int unit, enum block_group group,
                                 enum gpt_pass pass) {
    struct model_states *state = context;
    if (pass != GPT_FORWARD)
        TRY(gradients_ready_group(&state->gradients, stream, unit, group));
    return pass != GPT_BACKWARD_GRADS ? parameters_release_group(&state->parameters, stream, unit, group)
                                      : STATUS_OK;
}

// ---- laying out

static enum status list_owned(struct model_states *state) {
    const struct params *params = state->params;
    const struct partition *partition = &state->partition;
    struct stage_spans *owned = &state->owned;
    owned->spans = calloc((size_t)partition->n_spans + 1, sizeof *owned->spans);
    owned->first = calloc((size_t)params->n_units + 1, sizeof *owned->first);
    if (!owned->spans || !owned->first)
        return FAIL(STATUS_FAILED, "out of memory for a list of %d spans", partition->n_spans);
    for (int unit = 0; unit < params->n_units; unit++) {
        for (int i = partition->first_span[unit]; i < partition->first_span[unit + 1]; i++) {
            const struct partition_span *span = &partition->spans[i];
            if (span->owner == state->rank)
                owned->spans[owned->n++] =
                    (struct stage_span){unit, span->begin, span->end,
                                        params->units[unit].offset + span->begin, span->shard_offset};
        }
        owned->first[unit + 1] = owned->n;
    }
    return STATUS_OK;
}

// In stage 0 the optimizer updates everything.
static enum status plan_placement(struct model_states *state, const struct config *config,
                                  struct region_table *table) {
    const struct params *params = state->params;
    if (state->options.stage > 0)
        return placement_init(&state->placement, config, &state->options, params, state->owned.spans,
                              state->owned.n, state->type, state->device, table);
    struct stage_span *units = calloc((size_t)params->n_units, sizeof *units);
    if (!units)
        return FAIL(STATUS_FAILED, "out of memory for a list of %d units", params->n_units);
    for (int unit = 0; unit < params->n_units; unit++)
        units[unit] = (struct stage_span){
            .unit = unit, .end = params->units[unit].elements, .model_offset = params->units[unit].offset};
    enum status status = placement_init(&state->placement, config, &state->options, params, units,
                                        params->n_units, state->type, state->device, table);
    free(units);
    return status;
}

static enum status add_bounces(struct model_states *state, struct region_table *table) {
    enum dtype moments = state->placement.moment_type;
    TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK, &state->bounce_region,
                   "bounce"));
    if (moments != DTYPE_F32)
        TRY(region_add(table, REGION_DATA, REGION_HOST, moments, CHECKPOINT_CHUNK, &state->narrow_region,
                       "bounce of moments"));
    if (moments == DTYPE_I8)
        TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK / MOMENT_BLOCK,
                       &state->scales_region, "bounce of scales"));
    return STATUS_OK;
}

enum status model_states_init(struct model_states *state, const struct params *params,
                              const struct config *config, enum dtype type, int rank, int world,
                              const struct partition *partition, struct device *device,
                              struct region_table *table) {
    *state =
        (struct model_states){.params = params, .device = device, .type = type, .rank = rank, .world = world};
    state->hooks = (struct unit_hooks){.context = state,
                                       .params_acquire = acquire,
                                       .params_release = release,
                                       .grads_ready = ready,
                                       .group_acquire = acquire_group,
                                       .group_release = release_group};
    stage_options_read(config, device->place, &state->options);
    state->partition_is_borrowed = partition != NULL;
    if (partition)
        state->partition = *partition;
    else
        TRY(partition_init(&state->partition, params, state->options.partition, world));
    TRY(list_owned(state));
    size_t shard = state->partition.rank_elements[rank];
    TRY(plan_placement(state, config, table));
    TRY(offload_init(&state->offload, params, &state->options, &state->owned, &state->placement, type, device,
                     table));
    TRY(parameters_init(&state->parameters, params, &state->options, &state->partition, &state->owned, shard,
                        type, &state->offload, device, table));
    TRY(gradients_init(&state->gradients, params, &state->options, &state->partition, &state->owned, shard,
                       &state->offload, device, table));
    TRY(norm_init(&state->norm, state->owned.spans, state->owned.n, device, table));
    TRY(second_moments_init(&state->second_moments, config, params, device, table));
    return add_bounces(state, table);
}

enum status model_states_bind(struct model_states *state, const struct region_table *table, struct comm *comm,
                              struct device *host) {
    state->comm = comm;
    state->host = host;
    placement_bind(&state->placement, table);
    norm_bind(&state->norm, table);
    second_moments_bind(&state->second_moments, table);
    TRY(parameters_bind(&state->parameters, table, comm));
    if (state->options.offload_param)
        parameters_set_shard(&state->parameters, placement_host_params(&state->placement));
    TRY(gradients_bind(&state->gradients, table, comm));
    TRY(offload_bind(&state->offload, table, comm, &state->norm, gradients_source(&state->gradients),
                     state->gradients.shard));
    state->bounce = region_data(table, state->bounce_region);
    if (state->placement.moment_type != DTYPE_F32)
        state->narrow = region_data(table, state->narrow_region);
    if (state->placement.moment_type == DTYPE_I8)
        state->scales = region_data(table, state->scales_region);
    return STATUS_OK;
}

void model_states_free(struct model_states *state) {
    parameters_free(&state->parameters);
    gradients_free(&state->gradients);
    offload_free(&state->offload);
    norm_free(&state->norm);
    second_moments_free(&state->second_moments);
    placement_free(&state->placement);
    if (!state->partition_is_borrowed)
        partition_free(&state->partition);
    free(state->owned.spans);
    free(state->owned.first);
    *state = (struct model_states){0};
}

// ---- where state stands

// On the device the master weights are the parameters themselves where the compute type is fp32.
static float *master_at(const struct model_states *state, const struct placement_span *placed, size_t offset,
                        int copy) {
    if (!placed->on_host && state->type == DTYPE_F32)
        return (float *)parameters_at(&state->parameters, &placed->span) + offset;
    return placement_array_at(&state->placement, placed, STATE_MASTER, offset, copy);
}

struct optimizer_state model_states_optimizer_at(const struct model_states *state,
                                                 const struct placement_span *placed, size_t offset,
                                                 int copy) {
    const struct placement *placement = &state->placement;
    return (struct optimizer_state){
        .master = master_at(state, placed, offset, copy),
        .m = placement_array_at(placement, placed, STATE_M, offset, copy),
        .v = placement_array_at(placement, placed, STATE_V, offset, copy),
        .m_scales = placement_array_at(placement, placed, STATE_M_SCALES, offset, copy),
        .v_scales = placement_array_at(placement, placed, STATE_V_SCALES, offset, copy)};
}

const float *model_states_gradients_at(const struct model_states *state,
                                       const struct placement_span *placed) {
    if (placed->on_host)
        return offload_gradients_at(&state->offload, placed);
    return offload_uses_staging(&state->offload) ? state->gradients.shard + placed->at
                                                 : gradients_at(&state->gradients, &placed->span);
}

void *model_states_params_at(const struct model_states *state, const struct placement_span *placed,
                             size_t offset) {
    if (state->options.offload_param)
        return NULL;
    return (char *)parameters_at(&state->parameters, &placed->span) + offset * dtype_size(state->type);
}

// ---- loading and saving

// n elements of one array of a placed, from or to the host.
static enum status copy_array(const struct model_states *state, struct stream *stream,
                              const struct placement_span *placed, void *to, const void *from, size_t bytes) {
    if (placed->on_host) {
        memcpy(to, from, bytes);
        return STATUS_OK;
    }
    TRY(state->device->copy(stream, to, from, bytes));
    return state->device->synchronize(stream);
}

static void moments_of_kind(const struct optimizer_state *at, int kind, enum moment *moment, void **codes,
                            float **scales) {
    bool first = kind == CHECKPOINT_M;
    *moment = first ? FIRST_MOMENT : SECOND_MOMENT;
    *codes = first ? at->m : at->v;
    *scales = first ? at->m_scales : at->v_scales;
}

static size_t blocks_of(size_t n) {
    return (n + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
}

// Keeps the bounce's n values as elements [offset, offset + n) of a placed.
static enum status keep_chunk(struct model_states *state, struct stream *stream,
                              const struct placement_span *placed, int kind, size_t offset, size_t n) {
    const struct optimizer_state at =
        model_states_optimizer_at(state, placed, offset, state->placement.current);
    enum dtype type = state->placement.moment_type;
    enum moment moment;
    void *codes;
    float *scales;
    if (kind == CHECKPOINT_MASTER)
        return copy_array(state, stream, placed, at.master, state->bounce, n * sizeof(float));
    moments_of_kind(&at, kind, &moment, &codes, &scales);
    if (type == DTYPE_F32)
        return copy_array(state, stream, placed, codes, state->bounce, n * sizeof(float));
    moments_store(type, moment, state->bounce, n, state->narrow, state->scales);
    TRY(copy_array(state, stream, placed, codes, state->narrow, n * dtype_size(type)));
    return scales ? copy_array(state, stream, placed, scales, state->scales, blocks_of(n) * sizeof(float))
                  : STATUS_OK;
}

// The other way, to `out`.
static enum status give_chunk(struct model_states *state, struct stream *stream,
                              const struct placement_span *placed, int kind, size_t offset, size_t n,
                              float *out) {
    const struct optimizer_state at =
        model_states_optimizer_at(state, placed, offset, state->placement.current);
    enum dtype type = state->placement.moment_type;
    enum moment moment;
    void *codes;
    float *scales;
    if (kind == CHECKPOINT_MASTER)
        return copy_array(state, stream, placed, out, at.master, n * sizeof(float));
    moments_of_kind(&at, kind, &moment, &codes, &scales);
    if (type == DTYPE_F32)
        return copy_array(state, stream, placed, out, codes, n * sizeof(float));
    TRY(copy_array(state, stream, placed, state->narrow, codes, n * dtype_size(type)));
    if (scales)
        TRY(copy_array(state, stream, placed, state->scales, scales, blocks_of(n) * sizeof(float)));
    moments_load(type, moment, state->narrow, state->scales, n, out);
    return STATUS_OK;
}

// Rounds n loaded master weights of a part to the compute type.
static enum status round_chunk(struct model_states *state, struct stream *stream,
                               const struct placement_span *placed, size_t offset, size_t n) {
    int copy = state->placement.current;
    void *param = model_states_params_at(state, placed, offset);
    struct stream host = {.device = state->host};
    struct cast_args cast = {.out = param,
                             .x = master_at(state, placed, offset, copy),
                             .n = n,
                             .type = DTYPE_F32,
                             .out_type = state->type};
    if (!placed->on_host)
        return state->type == DTYPE_F32 ? STATUS_OK : state->device->ops->cast(stream, &cast);
    TRY(offload_params_buffer(&state->offload, placed, offset, copy, &cast.out));
    if (cast.out)
        TRY(state->host->ops->cast(&host, &cast));
    return offload_params_send(&state->offload, placed, offset, n, copy, param);
}

// Memory stands where it is first touched: on machines with several nodes each thread first touches what it
// will update. New memory is zero anyway.
static enum status touch(struct model_states *state, struct stream *stream,
                         const struct placement_span *placed) {
    struct device *device = placed->on_host ? state->host : state->device;
    struct stream host = {.device = state->host};
    struct decay_span stretch = {0};
    if (device->place != REGION_HOST || !numa_has_nodes())
        return STATUS_OK;
    while ((stretch = placement_next_decay_span(state->params, placed, &stretch)).n > 0) {
        const struct optimizer_state at =
            model_states_optimizer_at(state, placed, stretch.offset, state->placement.current);
        const size_t size = dtype_size(state->placement.moment_type);
        const struct fill_args fills[] = {
            {.out = at.master, .n = stretch.n, .type = DTYPE_F32},
            {.out = at.m, .n = stretch.n * size / sizeof(float), .type = DTYPE_F32},
            {.out = at.v, .n = stretch.n * size / sizeof(float), .type = DTYPE_F32},
        };
        for (size_t i = 0; i < sizeof fills / sizeof *fills; i++)
            if (fills[i].out)
                TRY(device->ops->fill(placed->on_host ? &host : stream, &fills[i]));
    }
    return STATUS_OK;
}

// Without moments to load they begin as the zeros that their memory comes with.
static enum status load_span(struct model_states *state, struct stream *stream,
                             const struct checkpoint_source *source, bool all_kinds,
                             const struct placement_span *placed) {
    const struct stage_span *span = &placed->span;
    TRY(touch(state, stream, placed));
    for (size_t begin = span->begin; begin < span->end; begin += CHECKPOINT_CHUNK) {
        size_t end = span->end - begin < CHECKPOINT_CHUNK ? span->end : begin + CHECKPOINT_CHUNK;
        size_t offset = begin - span->begin, n = end - begin;
        comm_progress(state->comm);
        for (int kind = 0; kind < (all_kinds ? state->placement.n_kinds : CHECKPOINT_MASTER + 1); kind++) {
            TRY(source->read(source->context, (enum checkpoint_kind)kind, span->unit, begin, end,
                             state->bounce));
            TRY(keep_chunk(state, stream, placed, kind, offset, n));
        }
        TRY(round_chunk(state, stream, placed, offset, n));
    }
    return STATUS_OK;
}

enum status model_states_load(struct model_states *state, struct stream *stream,
                              const struct checkpoint_source *source, bool all_kinds) {
    for (int i = 0; i < state->placement.n_spans; i++)
        TRY(load_span(state, stream, source, all_kinds, &state->placement.spans[i]));
    for (int unit = 0; unit < state->params->n_units && all_kinds && state->second_moments.n > 0; unit++)
        TRY(source->read(source->context, CHECKPOINT_SECOND_MOMENTS, unit, 0,
                         second_moments_of_unit(state->params, unit),
                         second_moments_at(&state->second_moments, unit)));
    if (state->options.offload_optimizer)
        TRY(offload_params_wait(&state->offload, stream));
    TRY(state->device->synchronize(stream));
    return parameters_gather_updated(&state->parameters, stream);
}

// The part that holds the element.
static const struct placement_span *find_span(const struct model_states *state, int unit, size_t element) {
    const struct placement *placement = &state->placement;
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++)
        if (placement->spans[i].span.begin <= element && element < placement->spans[i].span.end)
            return &placement->spans[i];
    return NULL;
}

// What is asked for may begin in the host's part of a span and end in the device's.
static enum status read_state(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                              float *out) {
    struct state_reader *reader = context;
    struct model_states *state = reader->state;
    comm_progress(state->comm);
    if (kind == CHECKPOINT_SECOND_MOMENTS) {
        memcpy(out, second_moments_at(&state->second_moments, unit) + begin, (end - begin) * sizeof *out);
        return STATUS_OK;
    }
    for (size_t at = begin; at < end;) {
        const struct placement_span *placed = find_span(state, unit, at);
        if (!placed)
            return FAIL(STATUS_FAILED, "elements %zu to %zu of unit %d are not this rank's to save", begin,
                        end, unit);
        size_t stop = placed->span.end < end ? placed->span.end : end;
        TRY(give_chunk(state, reader->stream, placed, (int)kind, at - placed->span.begin, stop - at,
                       out + (at - begin)));
        at = stop;
    }
    return STATUS_OK;
}

struct checkpoint_source model_states_source(struct state_reader *reader) {
    return (struct checkpoint_source){reader, read_state};
}
