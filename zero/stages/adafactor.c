// Three passes over the gradients: row and column sums, update norms, the step. After each of the first two
// the ranks add up what they have, and the host computes moments and scales. Each pass issues the device's
// spans first, then the host works on its own.
#include "zero/stages/adafactor.h"

#include <stdatomic.h>
#include <string.h>

#include "base/parallel.h"
#include "kernels/adafactor.h"
#include "kernels/ops.h"
#include "model/param_overlap.h"

// ---- passes over this rank's spans

// What a placement span holds of one tensor.
struct tensor_slice {
    const struct placement_span *placed;
    int tensor;
    size_t offset;              // of its first element in the placement span
    struct adafactor_span span; // its elements in the tensor
};

struct adafactor_pass {
    struct model_states *state;
    const struct adafactor_call *call;
    enum status (*visit)(const struct adafactor_pass *pass, struct stream *stream,
                         const struct second_moments_place *place, const struct tensor_slice *slice);
};

static enum status visit_span(const struct adafactor_pass *pass, struct stream *stream,
                              const struct second_moments_place *place, const struct placement_span *placed) {
    const struct params *params = pass->state->params;
    for (struct param_overlap it = {0};
         !placed->is_frozen &&
         params_next_overlap(params, placed->span.unit, placed->span.begin, placed->span.end, &it);) {
        const struct param *param = &params->params[it.param];
        const struct tensor_slice slice = {.placed = placed,
                                           .tensor = it.param,
                                           .offset = it.begin - placed->span.begin,
                                           .span = {.begin = it.begin - param->offset,
                                                    .n = it.end - it.begin,
                                                    .columns = second_moments_columns(param)}};
        TRY(pass->visit(pass, stream, place, &slice));
    }
    return STATUS_OK;
}

static enum status visit_device(const struct adafactor_pass *pass, struct stream *stream) {
    const struct placement *placement = &pass->state->placement;
    for (int i = 0; i < placement->n_spans; i++)
        if (!placement->spans[i].on_host)
            TRY(visit_span(pass, stream, &pass->state->second_moments.device, &placement->spans[i]));
    return STATUS_OK;
}

// Units in the order in which their gradients arrive.
static enum status visit_host(const struct adafactor_pass *pass) {
    struct model_states *state = pass->state;
    const struct placement *placement = &state->placement;
    struct stream host = {.device = state->host};
    if (!state->options.offload_optimizer)
        return STATUS_OK;
    for (int unit = state->params->n_units - 1; unit >= 0; unit--) {
        TRY(offload_wait(&state->offload, unit));
        for (int i = placement->first_span[unit]; i < placement->first_span[unit + 1]; i++)
            if (placement->spans[i].on_host)
                TRY(visit_span(pass, &host, &state->second_moments.host, &placement->spans[i]));
    }
    return STATUS_OK;
}

// In stage 0 every rank sums whole tensors by itself.
static bool needs_all_reduce(const struct model_states *state) {
    return state->options.stage > 0;
}

// Makes a pass that adds to n sums, over all places and ranks. The device's operations add to of_device,
// which is then copied to of_host; the host adds its own to that, then come the other ranks.
static enum status sum_up(const struct adafactor_pass *pass, struct stream *stream, double *of_device,
                          double *of_host, size_t n) {
    struct model_states *state = pass->state;
    const struct device *device = state->device;
    // Zeroes doubles as twice as many floats.
    TRY(device->ops->fill(stream, &(struct fill_args){.out = of_device, .n = 2 * n, .type = DTYPE_F32}));
    TRY(visit_device(pass, stream));
    if (of_device != of_host)
        TRY(device->copy(stream, of_host, of_device, n * sizeof *of_host));
    TRY(device->synchronize(stream));
    TRY(visit_host(pass));
    return needs_all_reduce(state) ? comm_all_reduce(state->comm, of_host, n) : STATUS_OK;
}

// ---- row and column sums of squares

static double *row_sums_at(const struct second_moments *moments, const struct second_moments_place *place,
                           int tensor) {
    return second_moments_rows(&moments->params->params[tensor]) > 0
               ? place->sums + 2 * moments->first[tensor]
               : NULL;
}

static double *column_sums_at(const struct second_moments *moments, const struct second_moments_place *place,
                              int tensor) {
    size_t rows = (size_t)second_moments_rows(&moments->params->params[tensor]);
    return place->sums + 2 * (moments->first[tensor] + rows);
}

static int rows_or_one(const struct param *param) {
    return param->n_dims > 1 ? second_moments_rows(param) : 1;
}

static enum status sum_span(const struct adafactor_pass *pass, struct stream *stream,
                            const struct second_moments_place *place, const struct tensor_slice *slice) {
    const struct model_states *state = pass->state;
    const struct adafactor_sums_args args = {
        .row_sums = row_sums_at(&state->second_moments, place, slice->tensor),
        .column_sums = column_sums_at(&state->second_moments, place, slice->tensor),
        .grad = model_states_gradients_at(state, slice->placed) + slice->offset,
        .span = slice->span,
        .rows = rows_or_one(&state->params->params[slice->tensor]),
        // The sum of squares of all gradients bounds that of each tensor. Twice it covers the rounding of the
        // norm and of each scaled gradient.
        .bound = 2 * pass->call->norm * pass->call->norm,
        .grad_scale = pass->call->grad_scale,
        .type = DTYPE_F32,
        .grad_type = DTYPE_F32};
    return stream->device->ops->adafactor_sums(stream, &args);
}

// ---- second moments

struct moments_update {
    const struct model_states *state;
    const struct adafactor_call *call;
    atomic_int *next; // tensor
};

static void update_part(const void *context, int part, int n_parts) {
    (void)part, (void)n_parts;
    const struct moments_update *update = context;
    const struct second_moments *moments = &update->state->second_moments;
    const struct params *params = update->state->params;
    for (int i; (i = atomic_fetch_add(update->next, 1)) < params->n_params;) {
        const struct param *param = &params->params[i];
        if (optimizer_groups_freeze(&update->state->groups, i))
            continue;
        size_t first = moments->first[i], rows = (size_t)second_moments_rows(param);
        bool matrix = rows > 0;
        const struct adafactor_moments of_tensor = {.rows = rows_or_one(param),
                                                    .columns = second_moments_columns(param),
                                                    .row_moments = matrix ? moments->values + first : NULL,
                                                    .column_moments = moments->values + first + rows,
                                                    .row_sums = row_sums_at(moments, &moments->host, i),
                                                    .column_sums = column_sums_at(moments, &moments->host, i),
                                                    .row_scales =
                                                        matrix ? moments->host.scales + first : NULL,
                                                    .column_scales = moments->host.scales + first + rows};
        moments->bounds[i] = adafactor_moments_update(&of_tensor, update->call->step,
                                                      update->call->config->optimizer.beta2_decay);
    }
}

// Every rank updates all of them, from the same sums.
static void update_second_moments(const struct model_states *state, const struct adafactor_call *call) {
    atomic_int next = 0;
    parallel_run(state->host->n_threads, update_part, &(struct moments_update){state, call, &next});
}

static enum status send_scales(const struct model_states *state, struct stream *stream) {
    const struct second_moments *moments = &state->second_moments;
    if (!moments->has_device_arrays)
        return STATUS_OK;
    return state->device->copy(stream, moments->device.scales, moments->host.scales,
                               moments->n * sizeof(float));
}

// ---- update norms

static struct adafactor_direction direction_of(const struct adafactor_pass *pass,
                                               const struct second_moments_place *place,
                                               const struct tensor_slice *slice) {
    const struct model_states *state = pass->state;
    size_t rows = (size_t)second_moments_rows(&state->params->params[slice->tensor]);
    const float *scales = place->scales + state->second_moments.first[slice->tensor];
    return (struct adafactor_direction){.grad =
                                            model_states_gradients_at(state, slice->placed) + slice->offset,
                                        .row_scales = rows > 0 ? scales : NULL,
                                        .column_scales = scales + rows,
                                        .largest_scale = ADAFACTOR_LARGEST_SCALE,
                                        .grad_scale = pass->call->grad_scale,
                                        .grad_type = DTYPE_F32};
}

static float *master_at(const struct model_states *state, const struct tensor_slice *slice) {
    return model_states_optimizer_at(state, slice->placed, slice->offset).master;
}

static enum status norm_span(const struct adafactor_pass *pass, struct stream *stream,
                             const struct second_moments_place *place, const struct tensor_slice *slice) {
    const struct model_states *state = pass->state;
    const struct adafactor_norms_args args = {.sums = place->norms + UPDATE_NORMS * slice->tensor,
                                              .master = master_at(state, slice),
                                              .direction = direction_of(pass, place, slice),
                                              .span = slice->span,
                                              .elements = state->params->params[slice->tensor].elements,
                                              .update_bound = state->second_moments.bounds[slice->tensor],
                                              .type = DTYPE_F32};
    return stream->device->ops->adafactor_norms(stream, &args);
}

// ---- weights

static struct adafactor_step_args step_args(const struct adafactor_pass *pass,
                                            const struct second_moments_place *place,
                                            const struct tensor_slice *slice) {
    const struct model_states *state = pass->state;
    const struct config *config = pass->call->config;
    const struct param *param = &state->params->params[slice->tensor];
    const struct optimizer_group *group = optimizer_group_of(&state->groups, slice->tensor);
    double lr = pass->call->lr * group->lr_scale;
    const double *norms = state->second_moments.host.norms + UPDATE_NORMS * slice->tensor;
    return (struct adafactor_step_args){.master = master_at(state, slice),
                                        .direction = direction_of(pass, place, slice),
                                        .span = slice->span,
                                        .step_size =
                                            adafactor_step_size(norms, param->elements, pass->call->step, lr,
                                                                config->optimizer.clip_threshold),
                                        .decay = lr * group->weight_decay,
                                        .type = state->type};
}

// Each chunk is copied to the device while the next is updated.
static enum status step_on_host(const struct adafactor_pass *pass, struct stream *stream,
                                const struct second_moments_place *place, const struct tensor_slice *slice) {
    struct model_states *state = pass->state;
    for (size_t done = 0; done < slice->span.n; done += OFFLOAD_CHUNK) {
        size_t left = slice->span.n - done;
        struct tensor_slice now = *slice;
        now.offset += done;
        now.span.begin += done;
        now.span.n = left < OFFLOAD_CHUNK ? left : OFFLOAD_CHUNK;
        struct adafactor_step_args args = step_args(pass, place, &now);
        TRY(offload_params_buffer(&state->offload, now.placed, now.offset, &args.param));
        TRY(stream->device->ops->adafactor_step(stream, &args));
        TRY(offload_params_send(&state->offload, now.placed, now.offset, now.span.n,
                                model_states_params_at(state, now.placed, now.offset)));
    }
    return STATUS_OK;
}

static enum status step_span(const struct adafactor_pass *pass, struct stream *stream,
                             const struct second_moments_place *place, const struct tensor_slice *slice) {
    if (slice->placed->on_host)
        return step_on_host(pass, stream, place, slice);
    struct adafactor_step_args args = step_args(pass, place, slice);
    args.param = pass->state->type == DTYPE_F32
                     ? NULL
                     : model_states_params_at(pass->state, slice->placed, slice->offset);
    return stream->device->ops->adafactor_step(stream, &args);
}

// ---- a step

static size_t n_norms(const struct model_states *state) {
    return UPDATE_NORMS * (size_t)state->params->n_params;
}

enum status adafactor_update(struct model_states *state, struct stream *stream,
                             const struct adafactor_call *call) {
    const struct second_moments *moments = &state->second_moments;
    const struct adafactor_pass sums = {state, call, sum_span}, norms = {state, call, norm_span},
                                steps = {state, call, step_span};
    TRY(sum_up(&sums, stream, moments->device.sums, moments->host.sums, 2 * moments->n));
    update_second_moments(state, call);
    TRY(send_scales(state, stream));
    TRY(sum_up(&norms, stream, moments->device.norms, moments->host.norms, n_norms(state)));
    TRY(visit_device(&steps, stream));
    return visit_host(&steps);
}

enum status adafactor_skip(struct model_states *state) {
    const struct second_moments *moments = &state->second_moments;
    if (!needs_all_reduce(state))
        return STATUS_OK;
    // The values may not be finite. They are not read.
    TRY(comm_all_reduce(state->comm, moments->host.sums, 2 * moments->n));
    return comm_all_reduce(state->comm, moments->host.norms, n_norms(state));
}

void adafactor_traffic(const struct model_states *state, uint64_t *bytes, uint64_t *calls) {
    *bytes = *calls = 0;
    if (state->second_moments.n == 0 || state->world == 1 || !needs_all_reduce(state))
        return;
    *bytes = comm_all_reduce_bytes(state->rank, state->world, 2 * state->second_moments.n) +
             comm_all_reduce_bytes(state->rank, state->world, n_norms(state));
    *calls = 2;
}
