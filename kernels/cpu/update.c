// Sums in order, and an update's scalars and spans: once for all instruction sets.
#include "kernels/update.h"

#include "kernels/cpu/cpu.h"

enum status cpu_sum(struct stream *stream, const struct sum_args *args) {
    double sum = args->accumulate ? *args->out : 0;
    (void)stream;
    for (size_t i = 0; i < args->n; i++)
        sum += args->type == DTYPE_F64 ? ((const double *)args->x)[i] : (double)((const float *)args->x)[i];
    *args->out = sum;
    return STATUS_OK;
}

enum status cpu_optimizer_spans(struct stream *stream, const struct optimizer_spans_args *args) {
    const struct cpu_device *cpu = (const struct cpu_device *)stream->device;
    for (int i = 0; i < args->n_spans && !args->result->skipped; i++) {
        const struct optimizer_step_args step = optimizer_span_step(args, i);
        TRY(cpu->isa->ops.optimizer_step(stream, &step));
    }
    return STATUS_OK;
}

enum status cpu_update_choose(struct stream *stream, const struct update_choose_args *args) {
    (void)stream;
    *args->plan = args->plans[update_choice(args->previous)];
    return STATUS_OK;
}

enum status cpu_update_decide(struct stream *stream, const struct update_decide_args *args) {
    (void)stream;
    *args->result = update_decision(args);
    return STATUS_OK;
}
