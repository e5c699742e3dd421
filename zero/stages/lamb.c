// Two passes over the spans: norms and steps. Each issues the device's spans first, then the host works on
// its own.
#include "zero/stages/lamb.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "model/param_overlap.h"

enum { OF_WEIGHTS, OF_DIRECTION, N_LAMB_NORMS, SUMS_PER_LAYER = N_LAMB_NORMS * EXACT_SQUARES_SUMS };

// ---- layers

static int layers_of(const struct param *param) {
    return param->n_parts > 0 ? param->n_parts : 1;
}

// Elements [*begin, *end) of a tensor.
static void layer_span(const struct param *param, int layer, size_t *begin, size_t *end) {
    const size_t columns = param->n_dims > 1 ? (size_t)param->shape[1] : 1;
    *begin = 0;
    *end = param->elements;
    if (param->n_parts == 0)
        return;
    *begin = (size_t)param->parts[layer].first_row * columns;
    *end = *begin + (size_t)param->parts[layer].n_rows * columns;
}

static bool is_lambs(const struct lamb *lamb, int param) {
    return optimizer_group_of(&lamb->state->groups, param)->traits.method == METHOD_LAYERWISE;
}

static void list_layers(struct lamb *lamb) {
    const struct params *params = lamb->state->params;
    for (int i = 0; i < params->n_params; i++) {
        const bool adapts =
            is_lambs(lamb, i) && optimizer_group_of(&lamb->state->groups, i)->weight_decay > 0;
        lamb->first_layer[i] = adapts ? lamb->n_layers : -1;
        lamb->n_layers += adapts ? layers_of(&params->params[i]) : 0;
    }
}

static size_t n_sums(const struct lamb *lamb) {
    return (size_t)lamb->n_layers * SUMS_PER_LAYER;
}

static bool has_device_sums(const struct lamb *lamb) {
    return lamb->state->device->place != REGION_HOST;
}

enum status lamb_init(struct lamb *lamb, const struct config *config, struct model_states *state,
                      struct region_table *table) {
    *lamb = (struct lamb){.config = config, .state = state};
    lamb->is_used = optimizer_groups_use(&state->groups, METHOD_LAYERWISE);
    if (!lamb->is_used)
        return STATUS_OK;
    lamb->first_layer = calloc((size_t)state->params->n_params, sizeof *lamb->first_layer);
    if (!lamb->first_layer)
        return FAIL(STATUS_FAILED, "out of memory for the layers of %d tensors", state->params->n_params);
    list_layers(lamb);
    if (lamb->n_layers == 0)
        return STATUS_OK;
    if (has_device_sums(lamb))
        TRY(region_add(table, REGION_DATA, state->device->place, DTYPE_F64, n_sums(lamb),
                       &lamb->regions[state->device->place], "LAMB: norms"));
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_F64, n_sums(lamb), &lamb->regions[REGION_HOST],
                      "LAMB: norms");
}

void lamb_bind(struct lamb *lamb, const struct region_table *table, const struct step_memory *memory) {
    lamb->plan = &memory->plan;
    lamb->result = &memory->result;
    if (lamb->n_layers == 0)
        return;
    lamb->of_host = region_data(table, lamb->regions[REGION_HOST]);
    lamb->of_device = region_data(table, lamb->regions[lamb->state->device->place]);
}

void lamb_free(struct lamb *lamb) {
    free(lamb->first_layer);
    *lamb = (struct lamb){0};
}

// ---- passes over this rank's spans

// What a placement span holds of one layer.
struct layer_slice {
    const struct placement_span *placed;
    int param, layer; // layer: of the tensor
    size_t offset, n; // offset: in the placement span
};

struct lamb_pass {
    struct lamb *lamb;
    const struct update_plan *plan; // on the host
    enum status (*visit)(const struct lamb_pass *pass, struct stream *stream,
                         const struct layer_slice *slice);
};

static enum status visit_tensor(const struct lamb_pass *pass, struct stream *stream,
                                const struct placement_span *placed, const struct param_overlap *overlap) {
    const struct param *param = &pass->lamb->state->params->params[overlap->param];
    for (int layer = 0; layer < layers_of(param); layer++) {
        size_t begin, end;
        layer_span(param, layer, &begin, &end);
        begin += param->offset;
        end += param->offset;
        begin = begin > overlap->begin ? begin : overlap->begin;
        end = end < overlap->end ? end : overlap->end;
        if (begin >= end)
            continue;
        const struct layer_slice slice = {placed, overlap->param, layer, begin - placed->span.begin,
                                          end - begin};
        TRY(pass->visit(pass, stream, &slice));
    }
    return STATUS_OK;
}

static enum status visit_spans(const struct lamb_pass *pass, struct stream *stream, bool on_host) {
    const struct model_states *state = pass->lamb->state;
    for (int i = 0; i < state->placement.n_spans; i++) {
        const struct placement_span *placed = &state->placement.spans[i];
        if (placed->on_host != on_host || placed->is_frozen)
            continue;
        for (struct param_overlap it = {0}; params_next_overlap(state->params, placed->span.unit,
                                                                placed->span.begin, placed->span.end, &it);)
            if (is_lambs(pass->lamb, it.param))
                TRY(visit_tensor(pass, stream, placed, &it));
    }
    return STATUS_OK;
}

// ---- norms

static double *sums_at(double *sums, const struct lamb *lamb, const struct layer_slice *slice, int norm) {
    return sums + (lamb->first_layer[slice->param] + slice->layer) * SUMS_PER_LAYER +
           norm * EXACT_SQUARES_SUMS;
}

static float *master_at(const struct model_states *state, const struct layer_slice *slice) {
    return model_states_optimizer_at(state, slice->placed, slice->offset).master;
}

static enum status add_norms(const struct lamb_pass *pass, struct stream *stream,
                             const struct layer_slice *slice) {
    const struct lamb *lamb = pass->lamb;
    const struct model_states *state = lamb->state;
    const struct param *param = &state->params->params[slice->param];
    const float *const arrays[N_LAMB_NORMS] = {
        [OF_WEIGHTS] = master_at(state, slice),
        [OF_DIRECTION] = model_states_gradients_at(state, slice->placed) + slice->offset};
    size_t begin, end;
    if (lamb->first_layer[slice->param] < 0)
        return STATUS_OK;
    layer_span(param, slice->layer, &begin, &end);
    for (int norm = 0; norm < N_LAMB_NORMS; norm++) {
        const struct exact_squares_args args = {
            .sums = sums_at(slice->placed->on_host ? lamb->of_host : lamb->of_device, lamb, slice, norm),
            .x = arrays[norm],
            .n = slice->n,
            .elements = end - begin,
            .type = DTYPE_F32};
        TRY(stream->device->ops->exact_squares(stream, &args));
    }
    return STATUS_OK;
}

static bool needs_all_reduce(const struct lamb *lamb) {
    return lamb->state->options.stage > 0 && lamb->n_layers > 0;
}

// The device adds to its sums, which are copied to the host's; the host adds its own to these, then come the
// other ranks.
static enum status sum_up(struct lamb *lamb, struct stream *stream) {
    const struct lamb_pass pass = {.lamb = lamb, .visit = add_norms};
    const struct model_states *state = lamb->state;
    const struct device *device = state->device;
    struct stream host = {.device = state->host};
    // Zeroes doubles as twice as many floats.
    TRY(device->ops->fill(
        stream, &(struct fill_args){.out = lamb->of_device, .n = 2 * n_sums(lamb), .type = DTYPE_F32}));
    TRY(visit_spans(&pass, stream, false));
    if (lamb->of_device != lamb->of_host)
        TRY(device->copy(stream, lamb->of_host, lamb->of_device, n_sums(lamb) * sizeof *lamb->of_host));
    TRY(device->synchronize(stream));
    TRY(visit_spans(&pass, &host, true));
    return needs_all_reduce(lamb) ? comm_all_reduce(state->comm, lamb->of_host, n_sums(lamb)) : STATUS_OK;
}

static double norm_of(const double *sums) {
    const double squares = sums[0] + (sums[1] + sums[2]);
    return sqrt(squares > EXACT_SQUARES_BOUND ? EXACT_SQUARES_BOUND : squares); // NaN stays NaN
}

static double ratio_of(const struct lamb *lamb, const struct layer_slice *slice) {
    const double *limits = lamb->config->optimizer.trust_ratio.value;
    if (lamb->first_layer[slice->param] < 0)
        return 1;
    const double weights = norm_of(sums_at(lamb->of_host, lamb, slice, OF_WEIGHTS)),
                 direction = norm_of(sums_at(lamb->of_host, lamb, slice, OF_DIRECTION)),
                 ratio = weights / direction;
    if (weights == 0 || direction == 0)
        return 1;
    return ratio < limits[0] ? limits[0] : ratio > limits[1] ? limits[1] : ratio; // NaN stays NaN
}

// ---- steps

static struct muon_step_args step_args(const struct lamb_pass *pass, const struct layer_slice *slice) {
    const struct lamb *lamb = pass->lamb;
    const struct model_states *state = lamb->state;
    return (struct muon_step_args){.master = master_at(state, slice),
                                   .update = model_states_gradients_at(state, slice->placed) + slice->offset,
                                   .n = slice->n,
                                   .group = state->groups.of_param[slice->param],
                                   .scale = (float)ratio_of(lamb, slice),
                                   .type = state->type,
                                   .update_type = DTYPE_F32};
}

// Each chunk is copied to the device while the next is updated.
static enum status step_on_host(const struct lamb_pass *pass, struct stream *stream,
                                const struct layer_slice *slice) {
    static const struct update_result done_by_host;
    struct model_states *state = pass->lamb->state;
    for (size_t done = 0; done < slice->n; done += OFFLOAD_CHUNK) {
        struct layer_slice now = *slice;
        now.offset += done;
        now.n = slice->n - done < OFFLOAD_CHUNK ? slice->n - done : OFFLOAD_CHUNK;
        struct muon_step_args args = step_args(pass, &now);
        args.plan = pass->plan;
        args.result = &done_by_host;
        TRY(offload_params_buffer(&state->offload, now.placed, now.offset, &args.param));
        TRY(stream->device->ops->muon_step(stream, &args));
        TRY(offload_params_send(&state->offload, now.placed, now.offset, now.n,
                                model_states_params_at(state, now.placed, now.offset)));
    }
    return STATUS_OK;
}

static enum status step_slice(const struct lamb_pass *pass, struct stream *stream,
                              const struct layer_slice *slice) {
    const struct model_states *state = pass->lamb->state;
    if (slice->placed->on_host)
        return step_on_host(pass, stream, slice);
    struct muon_step_args args = step_args(pass, slice);
    args.plan = pass->lamb->plan;
    args.result = pass->lamb->result;
    args.param =
        state->type == DTYPE_F32 ? NULL : model_states_params_at(state, slice->placed, slice->offset);
    return stream->device->ops->muon_step(stream, &args);
}

enum status lamb_update(struct lamb *lamb, struct stream *stream, const struct update_plan *plan) {
    const struct lamb_pass steps = {lamb, plan, step_slice};
    struct stream host = {.device = lamb->state->host};
    if (!lamb->is_used)
        return STATUS_OK;
    if (lamb->n_layers > 0)
        TRY(sum_up(lamb, stream));
    TRY(visit_spans(&steps, stream, false));
    return visit_spans(&steps, &host, true);
}

enum status lamb_skip(const struct lamb *lamb) {
    // The values may not be finite. They are not read.
    return needs_all_reduce(lamb) ? comm_all_reduce(lamb->state->comm, lamb->of_host, n_sums(lamb))
                                  : STATUS_OK;
}

void lamb_traffic(const struct lamb *lamb, uint64_t *bytes, uint64_t *calls) {
    const struct model_states *state = lamb->state;
    if (state->world == 1 || !needs_all_reduce(lamb))
        return;
    *bytes += comm_all_reduce_bytes(state->rank, state->world, n_sums(lamb));
    ++*calls;
}
