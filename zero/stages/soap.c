// See zero/stages/soap.h.
#include "zero/stages/soap.h"

#include <stdlib.h>

#include "kernels/ops.h"

static const struct muon_rounds *rounds_of(const struct soap *soap) {
    return &soap->state->soap.rounds;
}

bool soap_is_used(const struct soap *soap) {
    return soap->state && rounds_of(soap)->n_rounds > 0;
}

// ---- planning and binding

static enum status plan_matrices(struct soap *soap, struct region_table *table) {
    const struct muon_rounds *rounds = rounds_of(soap);
    struct soap_shape *shapes = calloc((size_t)rounds->n_tensors * PARAM_PARTS_MOST + 1, sizeof *shapes);
    int n = 0;
    if (!shapes)
        return FAIL(STATUS_FAILED, "out of memory for the shapes of %d tensors", rounds->n_tensors);
    for (int i = 0; i < rounds->n_tensors; i++) {
        struct matrix_shape of[PARAM_PARTS_MOST];
        int64_t first_row[PARAM_PARTS_MOST];
        const int n_parts = muon_matrices(&rounds->params->params[rounds->tensors[i].param], of, first_row);
        for (int part = 0; part < n_parts; part++) {
            const struct soap_shape shape =
                soap_shape_of(of[part].rows, of[part].columns, soap->state->soap.max_precond_dim);
            int known = 0;
            while (known < n && (shapes[known].rows != shape.rows || shapes[known].columns != shape.columns))
                known++;
            shapes[known] = shape;
            n = known == n ? n + 1 : n;
        }
    }
    enum status status = soap_matrix_plan(&soap->matrix, soap->state->device, DTYPE_F32, shapes, n, table);
    free(shapes);
    return status;
}

enum status soap_init(struct soap *soap, const struct config *config, struct model_states *state,
                      struct region_table *table) {
    const enum region_place place = state->device->place;
    *soap = (struct soap){.config = config, .state = state};
    if (!soap_is_used(soap))
        return STATUS_OK;
    if (state->options.offload_optimizer) // configs/rules.c names it; --fit tries such settings
        return FAIL(STATUS_INVALID, "optimizer.type=soap works without offload_optimizer only");
    TRY(plan_matrices(soap, table));
    TRY(region_add(table, REGION_WORKSPACE, place, DTYPE_F32, rounds_of(soap)->tensor_elements,
                   &soap->tensor_region, "SOAP: tensor"));
    return region_add(table, REGION_WORKSPACE, place, DTYPE_F32, rounds_of(soap)->slice_elements,
                      &soap->slices_region, "SOAP: gradients and directions");
}

// Other ranks wait.
static void show_progress(void *comm) {
    comm_progress(comm);
}

enum status soap_bind(struct soap *soap, const struct region_table *table, const struct step_memory *memory) {
    if (!soap_is_used(soap))
        return STATUS_OK;
    soap_matrix_bind(&soap->matrix, table);
    soap_matrix_watch(&soap->matrix, show_progress, soap->state->comm);
    soap->tensor = region_data(table, soap->tensor_region);
    soap->slices = region_data(table, soap->slices_region);
    soap->plan = &memory->plan;
    soap->result = &memory->result;
    return muon_rounds_link(&soap->state->soap.rounds);
}

// ---- a step

static const struct muon_tensor *tensor_of(const struct soap *soap, const struct muon_slice *slice) {
    return &rounds_of(soap)->tensors[slice->tensor];
}

// In stage 0 only the worker's gradient is read.
static enum status take_gradient(const struct soap *soap, struct stream *stream,
                                 const struct muon_slice *slice) {
    const struct model_states *state = soap->state;
    const struct muon_tensor *tensor = tensor_of(soap, slice);
    const int unit = state->params->params[tensor->param].unit;
    const struct placement_span *placed = model_states_span_at(state, unit, slice->begin);
    if (rounds_of(soap)->whole && tensor->worker != state->rank)
        return STATUS_OK;
    return state->device->copy(stream, soap->slices + slice->at,
                               model_states_gradients_at(state, placed) + (slice->begin - placed->span.begin),
                               (slice->end - slice->begin) * sizeof *soap->slices);
}

// Turns the gradient of the tensor that this rank works on into its direction.
static enum status update_matrices(const struct soap *soap, struct stream *stream,
                                   const struct muon_round *round, const struct soap_call *call) {
    const struct model_states *state = soap->state;
    const struct config *config = soap->config;
    const struct soap_step step = {
        .step = call->step,
        .refresh = call->step > 1 && (call->step - 1) % config->optimizer.precondition_frequency == 0,
        .beta1 = config->optimizer.betas.value[0],
        .beta2 = config->optimizer.betas.value[1],
        .epsilon = config->optimizer.eps,
        .grad_scale = call->grad_scale};
    for (int i = round->first_tensor; i < round->first_tensor + round->n_tensors; i++) {
        const struct muon_tensor *tensor = &rounds_of(soap)->tensors[i];
        struct matrix_shape shapes[PARAM_PARTS_MOST];
        int64_t first_row[PARAM_PARTS_MOST];
        if (tensor->worker != state->rank)
            continue;
        const struct param *param = &state->params->params[tensor->param];
        float *states = soap_states_at(&state->soap, i);
        const int n_parts = muon_matrices(param, shapes, first_row);
        for (int part = 0; part < n_parts; part++) {
            const struct soap_shape shape =
                soap_shape_of(shapes[part].rows, shapes[part].columns, state->soap.max_precond_dim);
            TRY(soap_matrix_update(&soap->matrix, stream, shape, states,
                                   soap->tensor + first_row[part] * param->shape[1], &step));
            states += soap_state_elements(shape);
            comm_progress(state->comm);
        }
    }
    return STATUS_OK;
}

// With the step's decay d = lr weight_decay: (weight - lr direction) (1 - d).
static enum status step_slice(const struct soap *soap, struct stream *stream, const struct muon_slice *slice,
                              const struct soap_call *call) {
    const struct model_states *state = soap->state;
    const int param = tensor_of(soap, slice)->param, group = state->groups.of_param[param];
    const struct optimizer_group *of = &state->groups.groups[group];
    const struct placement_span *placed =
        model_states_span_at(state, state->params->params[param].unit, slice->begin);
    const size_t offset = slice->begin - placed->span.begin;
    const struct muon_step_args args = {
        .param = state->type == DTYPE_F32 ? NULL : model_states_params_at(state, placed, offset),
        .master = model_states_optimizer_at(state, placed, offset).master,
        .update = soap->slices + slice->at,
        .n = slice->end - slice->begin,
        .group = group,
        .scale = (float)(1 - call->lr * of->lr_scale * of->weight_decay),
        .plan = soap->plan,
        .result = soap->result,
        .type = state->type,
        .update_type = DTYPE_F32};
    return state->device->ops->muon_step(stream, &args);
}

// call NULL: the exchanges only.
static enum status run_round(const struct soap *soap, struct stream *stream, const struct muon_round *round,
                             const struct soap_call *call) {
    struct comm *comm = soap->state->comm;
    const int end = round->first_slice + round->n_slices;
    for (int i = round->first_slice; i < end && call; i++)
        if (rounds_of(soap)->slices[i].rank == soap->state->rank)
            TRY(take_gradient(soap, stream, &rounds_of(soap)->slices[i]));
    TRY(muon_rounds_exchange(round, &round->there, comm, stream, soap->slices, soap->tensor, DTYPE_F32));
    if (call)
        TRY(update_matrices(soap, stream, round, call));
    TRY(muon_rounds_exchange(round, &round->back, comm, stream, soap->tensor, soap->slices, DTYPE_F32));
    for (int i = round->first_slice; i < end && call && call->step > 1; i++)
        if (rounds_of(soap)->slices[i].rank == soap->state->rank)
            TRY(step_slice(soap, stream, &rounds_of(soap)->slices[i], call));
    return STATUS_OK;
}

enum status soap_update(const struct soap *soap, struct stream *stream, const struct soap_call *call) {
    for (int k = 0; k < rounds_of(soap)->n_rounds; k++)
        TRY(run_round(soap, stream, &rounds_of(soap)->rounds[k], call));
    return STATUS_OK;
}

enum status soap_skip(const struct soap *soap, struct stream *stream) {
    for (int k = 0; k < rounds_of(soap)->n_rounds; k++)
        if (rounds_of(soap)->rounds[k].sends)
            TRY(run_round(soap, stream, &rounds_of(soap)->rounds[k], NULL));
    return STATUS_OK;
}

void soap_traffic(const struct soap *soap, uint64_t *bytes, uint64_t *calls) {
    uint64_t elements, exchanges;
    if (!soap_is_used(soap))
        return;
    muon_rounds_traffic(rounds_of(soap), soap->state->rank, &elements, &exchanges);
    *bytes += elements * sizeof *soap->slices;
    *calls += exchanges;
}
