// Plans where each model state is stored, and forwards the model's hooks. What is communicated, and when, is
// in zero/stages/parameters.c and zero/stages/gradients.c.
#include "zero/stages/model_states.h"

#include <stdlib.h>
#include <string.h>

#include "base/processors.h"
#include "kernels/moments.h"
#include "kernels/ops.h"

// ---- hooks

// Every event of a pass is compared with its trace.
static enum status follow(struct model_states *state, bool acquires, int unit, enum gpt_pass pass,
                          int *event) {
    TRY(trace_follow(&state->cursor, &(struct trace_event){acquires, unit, pass, 0}));
    *event = state->cursor.next - 1;
    return STATUS_OK;
}

static enum status begin(void *context, enum trace_kind kind) {
    struct model_states *state = context;
    parameters_begin(&state->parameters, kind);
    return trace_begin(&state->cursor, &state->traces[kind]);
}

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    struct model_states *state = context;
    int event;
    *view = (struct unit_view){0};
    comm_progress(state->comm);
    TRY(follow(state, true, unit, pass, &event));
    if (pass != GPT_BACKWARD_GRADS)
        TRY(parameters_acquire(&state->parameters, stream, event, unit, &view->params));
    return pass != GPT_FORWARD ? gradients_acquire(&state->gradients, stream, unit, view) : STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    struct model_states *state = context;
    int event;
    TRY(follow(state, false, unit, pass, &event));
    return parameters_release(&state->parameters, stream, event);
}

static enum status ready(void *context, struct stream *stream, int unit) {
    struct model_states *state = context;
    return gradients_ready(&state->gradients, stream, unit);
}

// ---- planning and binding

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

// In stage 0 every rank updates every element.
static enum status plan_placement(struct model_states *state, const struct config *config,
                                  struct region_table *table) {
    const struct params *params = state->params;
    if (state->options.stage > 0)
        return placement_init(&state->placement, config, &state->options, params, &state->groups,
                              state->owned.spans, state->owned.n, state->type, state->device, table);
    struct stage_span *units = calloc((size_t)params->n_units, sizeof *units);
    if (!units)
        return FAIL(STATUS_FAILED, "out of memory for a list of %d units", params->n_units);
    for (int unit = 0; unit < params->n_units; unit++)
        units[unit] = (struct stage_span){
            .unit = unit, .end = params->units[unit].elements, .model_offset = params->units[unit].offset};
    enum status status = placement_init(&state->placement, config, &state->options, params, &state->groups,
                                        units, params->n_units, state->type, state->device, table);
    free(units);
    return status;
}

// Of one token: the order is that of any length.
static enum status record_traces(struct model_states *state, const struct config *config) {
    for (int kind = 0; kind < N_TRACES; kind++) {
        const bool generates = kind == TRACE_PROMPT || kind == TRACE_DECODING;
        TRY(generates ? generator_trace(state->params, (enum trace_kind)kind, &state->traces[kind])
                      : gpt_trace(state->params, stage_recompute(config), 1, (enum trace_kind)kind,
                                  &state->traces[kind]));
    }
    return STATUS_OK;
}

static enum status add_chunk_regions(struct model_states *state, struct region_table *table) {
    enum dtype moments = state->placement.moment_type;
    TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK, &state->values_region,
                   "checkpoint chunk"));
    if (moments != DTYPE_F32)
        TRY(region_add(table, REGION_DATA, REGION_HOST, moments, CHECKPOINT_CHUNK, &state->codes_region,
                       "checkpoint chunk of moments"));
    if (moments == DTYPE_I8)
        TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK / MOMENT_BLOCK,
                       &state->scales_region, "checkpoint chunk of scales"));
    return STATUS_OK;
}

enum status model_states_init(struct model_states *state, const struct params *params,
                              const struct config *config, enum dtype type, int rank, int world,
                              const struct partition *partition, struct device *device,
                              struct region_table *table) {
    *state =
        (struct model_states){.params = params, .device = device, .type = type, .rank = rank, .world = world};
    state->hooks = (struct unit_hooks){.context = state,
                                       .begin = begin,
                                       .params_acquire = acquire,
                                       .params_release = release,
                                       .grads_ready = ready};
    if (optimizer_traits_of_run(config).averages)
        state->schedule_free_beta = config->optimizer.betas.value[0];
    stage_options_read(config, device->place, &state->options);
    state->partition_is_borrowed = partition != NULL;
    if (partition)
        state->partition = *partition;
    else
        TRY(partition_init(&state->partition, params, state->options.partition, world));
    TRY(optimizer_groups_init(&state->groups, config, params));
    TRY(list_owned(state));
    TRY(record_traces(state, config));
    size_t shard = state->partition.rank_elements[rank];
    TRY(plan_placement(state, config, table));
    TRY(offload_init(&state->offload, params, &state->options, &state->owned, &state->placement, type, device,
                     table));
    TRY(parameters_init(&state->parameters, params, &state->options, state->traces, &state->partition,
                        &state->owned, shard, type, &state->offload, device, table));
    TRY(gradients_init(&state->gradients, params, &state->options, &state->traces[TRACE_TRAINING],
                       &state->partition, &state->owned, shard, &state->offload, device, table));
    TRY(norm_init(&state->norm, state->owned.spans, state->owned.n, &state->groups, params, device, table));
    return add_chunk_regions(state, table);
}

enum status model_states_bind(struct model_states *state, const struct region_table *table, struct comm *comm,
                              struct device *host) {
    state->comm = comm;
    state->host = host;
    placement_bind(&state->placement, table);
    norm_bind(&state->norm, table);
    TRY(parameters_bind(&state->parameters, table, comm));
    TRY(gradients_bind(&state->gradients, table, comm));
    TRY(offload_bind(&state->offload, table, comm, &state->norm, gradients_source(&state->gradients),
                     state->gradients.shard));
    state->values = region_data(table, state->values_region);
    if (state->placement.moment_type != DTYPE_F32)
        state->codes = region_data(table, state->codes_region);
    if (state->placement.moment_type == DTYPE_I8)
        state->scales = region_data(table, state->scales_region);
    return STATUS_OK;
}

void model_states_free(struct model_states *state) {
    parameters_free(&state->parameters);
    gradients_free(&state->gradients);
    offload_free(&state->offload);
    norm_free(&state->norm);
    placement_free(&state->placement);
    optimizer_groups_free(&state->groups);
    for (int kind = 0; kind < N_TRACES; kind++)
        trace_free(&state->traces[kind]);
    if (!state->partition_is_borrowed)
        partition_free(&state->partition);
    free(state->owned.spans);
    free(state->owned.first);
    *state = (struct model_states){0};
}

// ---- addresses

const struct placement_span *model_states_span_at(const struct model_states *state, int unit,
                                                  size_t element) {
    const struct placement *placement = &state->placement;
    for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++)
        if (placement->spans[i].span.begin <= element && element < placement->spans[i].span.end)
            return &placement->spans[i];
    return NULL;
}

// With fp32 the device's master weights are the parameters themselves.
static float *master_at(const struct model_states *state, const struct placement_span *placed,
                        size_t offset) {
    if (!placed->on_host && state->type == DTYPE_F32)
        return (float *)parameters_at(&state->parameters, &placed->span) + offset;
    return placement_array_at(&state->placement, placed, STATE_MASTER, offset);
}

struct optimizer_state model_states_optimizer_at(const struct model_states *state,
                                                 const struct placement_span *placed, size_t offset) {
    const struct placement *placement = &state->placement;
    return (struct optimizer_state){.master = master_at(state, placed, offset),
                                    .m = placement_array_at(placement, placed, STATE_M, offset),
                                    .v = placement_array_at(placement, placed, STATE_V, offset),
                                    .m_scales = placement_array_at(placement, placed, STATE_M_SCALES, offset),
                                    .v_scales =
                                        placement_array_at(placement, placed, STATE_V_SCALES, offset)};
}

float *model_states_gradients_at(const struct model_states *state, const struct placement_span *placed) {
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
