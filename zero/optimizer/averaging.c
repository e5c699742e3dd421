// See zero/optimizer/averaging.h. With fp32, the latest weights are kept in the memory of the gradients
// while other weights are shown. That memory has the same size, the next step overwrites it, and the
// padding of both is zero.
#include "zero/optimizer/averaging.h"

#include "kernels/update.h"
#include "zero/offload/offload.h"

static struct optimizer_state states_at(const struct model_states *state, const struct placement_span *placed,
                                        size_t offset) {
    return model_states_optimizer_at(state, placed, offset);
}

static size_t elements_of(const struct placement_span *placed) {
    return placed->span.end - placed->span.begin;
}

enum status average_update(const struct model_states *state, struct stream *stream,
                           const struct update_plan *plan, const struct update_result *result, float weight) {
    const struct placement *placement = &state->placement;
    if (!placement->has_average || (!plan && weight == 0))
        return STATUS_OK;
    for (int i = 0; i < placement->n_spans; i++) {
        const struct placement_span *placed = &placement->spans[i];
        struct stream host = {.device = state->stage.host}, *on = placed->on_host ? &host : stream;
        if (placed->is_frozen)
            continue;
        float *average = placement_array_at(placement, placed, STATE_AVERAGE, 0);
        TRY(on->device->ops->lerp(on, &(struct lerp_args){.out = average,
                                                          .x = average,
                                                          .y = states_at(state, placed, 0).master,
                                                          .n = elements_of(placed),
                                                          .weight = weight,
                                                          .plan = plan,
                                                          .result = result,
                                                          .type = DTYPE_F32,
                                                          .out_type = DTYPE_F32}));
    }
    return STATUS_OK;
}

// ---- showing the average or the latest weights

// Returns the arguments of the lerp that computes the weights to show, for elements [offset, offset + n) of
// a span. With schedule-free AdamW, tensors without z are never updated, so their weights stay.
static struct lerp_args shown(const struct model_states *state, const struct placement_span *placed,
                              size_t offset, size_t n, bool average) {
    const struct config *config = state->stage.config;
    const double beta = optimizer_averages(config) ? config->optimizer.betas.value[0] : 0;
    const struct optimizer_state at = states_at(state, placed, offset);
    struct lerp_args args = {.x = at.master,
                             .y = at.master,
                             .n = n,
                             .weight = 1,
                             .type = DTYPE_F32,
                             .out_type = state->stage.type};
    if (average && state->placement.has_average) {
        args.x = args.y = placement_array_at(&state->placement, placed, STATE_AVERAGE, offset);
    } else if (average && beta > 0 && at.m) {
        args.y = at.m;
        args.weight = schedule_free_weight(beta);
    }
    return args;
}

// With fp32: returns where a span's latest weights are kept, in the memory of the gradients.
static float *kept_at(const struct model_states *state, const struct placement_span *placed, size_t offset) {
    return model_states_gradients_at(state, placed) + offset;
}

// For fp32, where the master weights are the parameters. With `average`: copies the master weights to the
// memory of the gradients, and overwrites them with the weights to evaluate. Without: copies them back.
static enum status show_in_place(const struct model_states *state, struct stream *on,
                                 const struct placement_span *placed, size_t offset, size_t n, bool average) {
    struct lerp_args args = shown(state, placed, offset, n, average);
    float *master = states_at(state, placed, offset).master, *kept = kept_at(state, placed, offset);
    if (!average)
        return on->device->copy(on, master, kept, n * sizeof *master);
    TRY(on->device->copy(on, kept, master, n * sizeof *master));
    args.out = master;
    return on->device->ops->lerp(on, &args);
}

static enum status show_on_device(const struct model_states *state, struct stream *stream,
                                  const struct placement_span *placed, bool average) {
    struct lerp_args args = shown(state, placed, 0, elements_of(placed), average);
    if (state->stage.type == DTYPE_F32)
        return show_in_place(state, stream, placed, 0, args.n, average);
    args.out = model_states_params_at(state, placed, 0);
    return stream->device->ops->lerp(stream, &args);
}

// Copies the parameters to the device as an update does, through the upload buffers of zero/offload.
static enum status show_on_host(struct model_states *state, const struct placement_span *placed,
                                bool average) {
    struct stream host = {.device = state->stage.host};
    for (size_t at = 0, n; at < elements_of(placed); at += n) {
        n = elements_of(placed) - at < OFFLOAD_CHUNK ? elements_of(placed) - at : OFFLOAD_CHUNK;
        struct lerp_args args = shown(state, placed, at, n, average);
        TRY(offload_params_buffer(&state->offload, placed, at, &args.out));
        TRY(args.out ? host.device->ops->lerp(&host, &args)
                     : show_in_place(state, &host, placed, at, n, average));
        TRY(offload_params_send(&state->offload, placed, at, n, model_states_params_at(state, placed, at)));
    }
    return STATUS_OK;
}

enum status average_show(struct model_states *state, struct stream *stream, bool average) {
    const struct placement *placement = &state->placement;
    if (state->shows_average == average)
        return STATUS_OK;
    if (state->stage.options.offload_optimizer) // earlier copies may still read the host's memory
        TRY(offload_params_wait(&state->offload, stream));
    TRY(state->stage.device->synchronize(stream));
    for (int i = 0; i < placement->n_spans; i++) {
        const struct placement_span *placed = &placement->spans[i];
        if (!placed->is_frozen)
            TRY(placed->on_host ? show_on_host(state, placed, average)
                                : show_on_device(state, stream, placed, average));
    }
    if (state->stage.options.offload_optimizer)
        TRY(offload_params_wait(&state->offload, stream));
    TRY(state->stage.device->synchronize(stream));
    state->shows_average = average;
    return parameters_gather_updated(&state->parameters, stream);
}
