// Plans where each model state is stored, and forwards the model's hooks. What is communicated, and when, is
// in zero/stages/parameters.c and zero/stages/gradients.c.
#include "zero/stages/model_states.h"

#include "kernels/moments.h"

// ---- hooks

static enum status begin(void *context, enum trace_kind kind) {
    struct model_states *state = context;
    parameters_begin(&state->parameters, kind);
    return trace_begin(&state->cursor, &state->stage.traces[kind]);
}

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    struct model_states *state = context;
    *view = (struct unit_view){0};
    comm_progress(state->stage.comm);
    TRY(trace_follow(&state->cursor, &(struct trace_event){true, unit, pass, 0}));
    if (pass != GPT_BACKWARD_GRADS)
        TRY(parameters_acquire(&state->parameters, stream, state->cursor.next - 1, unit, &view->params));
    return pass != GPT_FORWARD ? gradients_acquire(&state->gradients, stream, unit, view) : STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    struct model_states *state = context;
    TRY(trace_follow(&state->cursor, &(struct trace_event){false, unit, pass, 0}));
    return parameters_release(&state->parameters, stream, state->cursor.next - 1);
}

static enum status ready(void *context, struct stream *stream, int unit) {
    struct model_states *state = context;
    return gradients_ready(&state->gradients, stream, unit);
}

// ---- planning and binding

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

enum status model_states_init(struct model_states *state, const struct stage *given,
                              struct region_table *table) {
    *state = (struct model_states){.stage = *given,
                                   .hooks = {.context = state,
                                             .begin = begin,
                                             .params_acquire = acquire,
                                             .params_release = release,
                                             .grads_ready = ready}};
    const struct stage *stage = &state->stage;
    TRY(stage_init(&state->stage));
    TRY(placement_init(&state->placement, stage, table));
    TRY(offload_init(&state->offload, stage, &state->placement, &state->norm, table));
    TRY(parameters_init(&state->parameters, stage, &state->offload, table));
    TRY(gradients_init(&state->gradients, stage, &state->offload, table));
    TRY(norm_init(&state->norm, stage, table));
    return add_chunk_regions(state, table);
}

enum status model_states_bind(struct model_states *state, const struct region_table *table, struct comm *comm,
                              struct device *host) {
    state->stage.comm = comm;
    state->stage.host = host;
    placement_bind(&state->placement, table);
    norm_bind(&state->norm, table);
    TRY(parameters_bind(&state->parameters, table));
    gradients_bind(&state->gradients, table);
    TRY(offload_bind(&state->offload, table, gradients_source(&state->gradients)));
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
    stage_free(&state->stage);
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
    if (!placed->on_host && state->stage.type == DTYPE_F32)
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
    return offload_uses_staging(&state->offload) ? state->offload.source.data + placed->at
                                                 : gradients_at(&state->gradients, &placed->span);
}

void *model_states_params_at(const struct model_states *state, const struct placement_span *placed,
                             size_t offset) {
    if (state->stage.options.offload_param)
        return NULL;
    return (char *)parameters_at(&state->parameters, &placed->span) + offset * dtype_size(state->stage.type);
}
