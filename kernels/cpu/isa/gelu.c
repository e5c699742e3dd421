// GELU and its gradient on flat spans; the formulas are in kernels/cpu/gelu.h.
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/cpu.h"

VF_INLINE void forward_range(enum dtype type, const struct gelu_forward_args *args,
                             struct parallel_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        vf_put(type, args->out, i, vf_gelu(vf_get(type, args->x, i)));
    if (i < range.end) {
        int lanes = (int)(range.end - i);
        vf_put_part(type, args->out, i, vf_gelu(vf_get_part(type, args->x, i, lanes)), lanes);
    }
}

static void forward_span(const void *context, struct parallel_span span) {
    const struct gelu_forward_args *args = context;
    VF_DISPATCH(args->type, forward_range, args, span);
}

enum status CPU_OP(gelu_forward)(struct stream *stream, const struct gelu_forward_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, forward_span, args);
    return STATUS_OK;
}

VF_INLINE void backward_step(enum dtype type, const struct gelu_backward_args *args, size_t i, int lanes) {
    vf derivative = vf_gelu_derivative(vf_get_part(type, args->x, i, lanes));
    vf_put_part(type, args->dx, i, derivative * vf_get_part(type, args->dout, i, lanes), lanes);
}

VF_INLINE void backward_range(enum dtype type, const struct gelu_backward_args *args,
                              struct parallel_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        backward_step(type, args, i, VF_WIDTH);
    if (i < range.end)
        backward_step(type, args, i, (int)(range.end - i));
}

static void backward_span(const void *context, struct parallel_span span) {
    const struct gelu_backward_args *args = context;
    VF_DISPATCH(args->type, backward_range, args, span);
}

enum status CPU_OP(gelu_backward)(struct stream *stream, const struct gelu_backward_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, backward_span, args);
    return STATUS_OK;
}
