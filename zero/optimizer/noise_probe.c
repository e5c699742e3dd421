// The hooks of a probe call the hooks of the stage.
#include "zero/optimizer/noise_probe.h"

#include "kernels/ops.h"

size_t noise_probe_elements(const struct params *params) {
    size_t most = 0;
    for (int i = 0; i < params->n_params; i++)
        most = sum_squares_partials(params->params[i].elements) > most
                   ? sum_squares_partials(params->params[i].elements)
                   : most;
    return (size_t)params->n_params + 1 + most;
}

// Sums the squares of a unit's gradients, tensor by tensor. The sums of frozen tensors stay 0, their initial
// value.
static enum status add_unit(struct noise_probe *probe, struct stream *stream, void *const *grads,
                            const struct param_unit *unit) {
    const struct ops *ops = stream->device->ops;
    double *scratch = probe->sums + probe->params->n_params + 1;
    for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
        const struct param *param = &probe->params->params[i];
        if (param->is_frozen)
            continue;
        TRY(ops->sum_squares(stream, &(struct sum_squares_args){.partial = scratch,
                                                                .x = grads[i - unit->first_param],
                                                                .n = param->elements,
                                                                .type = DTYPE_F32}));
        TRY(ops->sum(stream, &(struct sum_args){.out = probe->sums + i,
                                                .x = scratch,
                                                .n = sum_squares_partials(param->elements),
                                                .type = DTYPE_F64}));
    }
    return STATUS_OK;
}

// ---- hooks

static enum status begin(void *context, enum trace_kind kind) {
    const struct noise_probe *probe = context;
    return probe->hooks->begin(probe->hooks->context, kind);
}

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    struct noise_probe *probe = context;
    TRY(probe->hooks->params_acquire(probe->hooks->context, stream, unit, pass, view));
    if (gpt_pass_adds_grads(pass) && unit == 0)
        probe->embedding_grads = view->grads;
    else if (gpt_pass_adds_grads(pass))
        probe->unit_grads = view->grads;
    return STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    const struct noise_probe *probe = context;
    return probe->hooks->params_release(probe->hooks->context, stream, unit, pass);
}

static enum status ready(void *context, struct stream *stream, int unit) {
    struct noise_probe *probe = context;
    TRY(add_unit(probe, stream, unit == 0 ? probe->embedding_grads : probe->unit_grads,
                 &probe->params->units[unit]));
    return probe->hooks->grads_ready(probe->hooks->context, stream, unit);
}

struct unit_hooks noise_probe_hooks(struct noise_probe *probe) {
    return (struct unit_hooks){.context = probe,
                               .begin = probe->hooks->begin ? begin : NULL,
                               .params_acquire = acquire,
                               .params_release = release,
                               .grads_ready = ready};
}

enum status noise_probe_finish(struct noise_probe *probe, struct stream *stream, double *sum) {
    double *total = probe->sums + probe->params->n_params;
    TRY(stream->device->ops->sum(stream, &(struct sum_args){.out = total,
                                                            .x = probe->sums,
                                                            .n = (size_t)probe->params->n_params,
                                                            .type = DTYPE_F64}));
    TRY(stream->device->copy(stream, sum, total, sizeof *sum));
    return stream->device->synchronize(stream);
}
