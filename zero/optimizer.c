// Walks the units' tensors; neighbours with the same weight decay are updated by one call.
#include "zero/optimizer.h"

#include <math.h>
#include <string.h>

#include "kernels/ops.h"

static size_t unit_partials(const struct param_unit *unit) {
    return (unit->elements + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK;
}

enum status optimizer_init(struct optimizer *optimizer, const struct config *config, struct state *state,
                           struct region_table *table) {
    *optimizer = (struct optimizer){.config = config, .state = state};
    for (int unit = 0; unit < state->params->n_units; unit++)
        optimizer->n_partials += unit_partials(&state->params->units[unit]);
    TRY(region_add(table, REGION_DATA, state->device->place, DTYPE_F64, optimizer->n_partials,
                   &optimizer->partials_region, "norm"));
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_F64, optimizer->n_partials,
                      &optimizer->host_region, "norm on host");
}

void optimizer_bind(struct optimizer *optimizer, const struct region_table *table) {
    optimizer->partials = region_data(table, optimizer->partials_region);
    optimizer->host_partials = region_data(table, optimizer->host_region);
}

enum status optimizer_norm(struct optimizer *optimizer, struct stream *stream, double *norm) {
    struct state *state = optimizer->state;
    double *partial = optimizer->partials;
    for (int i = 0; i < state->params->n_units; i++) {
        const struct param_unit *unit = &state->params->units[i];
        TRY(state->device->ops->sum_squares(
            stream, &(struct sum_squares_args){.partial = partial,
                                               .x = (float *)state->grads + unit->offset,
                                               .n = unit->elements,
                                               .type = DTYPE_F32}));
        partial += unit_partials(unit);
    }
    TRY(state->device->copy(stream, optimizer->host_partials, optimizer->partials,
                            optimizer->n_partials * sizeof(double)));
    TRY(state->device->synchronize(stream));
    double sum = 0;
    for (size_t i = 0; i < optimizer->n_partials; i++)
        sum += optimizer->host_partials[i];
    *norm = sqrt(sum);
    return STATUS_OK;
}

// Where a run of tensors begins in every kind of state.
struct span {
    size_t offset, n; // elements of the whole
    bool decay;
};

static enum status update_span(const struct optimizer *optimizer, struct stream *stream,
                               const struct span *span, int64_t step, double lr, float grad_scale) {
    const struct state *state = optimizer->state;
    const struct config *config = optimizer->config;
    void *param =
        state->type == DTYPE_F32 ? NULL : (char *)state->compute + span->offset * dtype_size(state->type);
    float *kinds[N_CHECKPOINT_KINDS] = {NULL};
    for (int kind = 0; kind < state->n_kinds; kind++)
        kinds[kind] = (float *)state->kinds[kind] + span->offset;
    double decay = span->decay ? config->optimizer.weight_decay : 0;
    const float *grad = (const float *)state->grads + span->offset;
    if (strcmp(config->optimizer.type, "adamw") == 0)
        return state->device->ops->adamw(stream,
                                         &(struct adamw_args){.param = param,
                                                              .master = kinds[CHECKPOINT_MASTER],
                                                              .m = kinds[CHECKPOINT_M],
                                                              .v = kinds[CHECKPOINT_V],
                                                              .grad = grad,
                                                              .n = span->n,
                                                              .step = step,
                                                              .lr = lr,
                                                              .beta1 = config->optimizer.betas.value[0],
                                                              .beta2 = config->optimizer.betas.value[1],
                                                              .epsilon = config->optimizer.eps,
                                                              .weight_decay = decay,
                                                              .grad_scale = grad_scale,
                                                              .type = state->type});
    return state->device->ops->sgd(stream, &(struct sgd_args){.param = param,
                                                              .master = kinds[CHECKPOINT_MASTER],
                                                              .m = kinds[CHECKPOINT_M],
                                                              .grad = grad,
                                                              .n = span->n,
                                                              .step = step,
                                                              .lr = lr,
                                                              .momentum = config->optimizer.momentum,
                                                              .weight_decay = decay,
                                                              .grad_scale = grad_scale,
                                                              .type = state->type});
}

enum status optimizer_update(struct optimizer *optimizer, struct stream *stream, int64_t step, double lr,
                             double norm) {
    const struct params *params = optimizer->state->params;
    double clip = optimizer->config->train.gradient_clipping;
    float grad_scale = clip > 0 && clip < norm + 1e-6 ? (float)(clip / (norm + 1e-6)) : 1.0f;
    struct span span = {0};
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        size_t offset = params->units[param->unit].offset + param->offset;
        if (span.n > 0 && param->decay != span.decay) {
            TRY(update_span(optimizer, stream, &span, step, lr, grad_scale));
            span.n = 0;
        }
        if (span.n == 0)
            span = (struct span){.offset = offset, .decay = param->decay};
        span.n = offset + param->elements - span.offset; // padding between tensors is zero and stays so
    }
    return update_span(optimizer, stream, &span, step, lr, grad_scale);
}
