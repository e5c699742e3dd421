// GELU and its gradient on flat spans; the formulas are in kernels/cpu/gelu.h.
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gelu.h"

VF_INLINE void forward_range(enum dtype type, const struct gelu_forward_args *args, struct cpu_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        vf_put(type, args->out, i, vf_gelu(vf_get(type, args->x, i)));
    if (i < range.end) {
        int lanes = (int)(range.end - i);
        vf_put_part(type, args->out, i, vf_gelu(vf_get_part(type, args->x, i, lanes)), lanes);
    }
}

enum status CPU_OP(gelu_forward)(struct stream *stream, const struct gelu_forward_args *args) {
#pragma omp parallel num_threads(cpu_threads(stream->device, args->n))
    {
        struct cpu_span range = cpu_thread_span(args->n, 1024, omp_get_thread_num(), omp_get_num_threads());
        VF_DISPATCH(args->type, forward_range, args, range);
    }
    return STATUS_OK;
}

VF_INLINE void backward_step(enum dtype type, const struct gelu_backward_args *args, size_t i, int lanes) {
    vf derivative = vf_gelu_derivative(vf_get_part(type, args->x, i, lanes));
    vf_put_part(type, args->dx, i, derivative * vf_get_part(type, args->dout, i, lanes), lanes);
}

VF_INLINE void backward_range(enum dtype type, const struct gelu_backward_args *args, struct cpu_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        backward_step(type, args, i, VF_WIDTH);
    if (i < range.end)
        backward_step(type, args, i, (int)(range.end - i));
}

enum status CPU_OP(gelu_backward)(struct stream *stream, const struct gelu_backward_args *args) {
#pragma omp parallel num_threads(cpu_threads(stream->device, args->n))
    {
        struct cpu_span range = cpu_thread_span(args->n, 1024, omp_get_thread_num(), omp_get_num_threads());
        VF_DISPATCH(args->type, backward_range, args, range);
    }
    return STATUS_OK;
}
