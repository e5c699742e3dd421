// Activations and their gradients; the formulas are in kernels/cpu/activations.h. All are elementwise, so no
// bit depends on the division among threads.
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu.h"

// ---- GELU and squared ReLU, on flat spans

VF_INLINE void forward_range(enum dtype type, enum activation activation, void *out, const void *x,
                             struct parallel_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        vf_put(type, out, i, vf_activate(activation, vf_get(type, x, i)));
    if (i < range.end) {
        int lanes = (int)(range.end - i);
        vf_put_part(type, out, i, vf_activate(activation, vf_get_part(type, x, i, lanes)), lanes);
    }
}

static void gelu_span(const void *context, struct parallel_span span) {
    const struct gelu_forward_args *args = context;
    VF_DISPATCH(args->type, forward_range, ACTIVATION_GELU, args->out, args->x, span);
}

static void relu_squared_span(const void *context, struct parallel_span span) {
    const struct relu_squared_forward_args *args = context;
    VF_DISPATCH(args->type, forward_range, ACTIVATION_RELU_SQUARED, args->out, args->x, span);
}

enum status CPU_OP(gelu_forward)(struct stream *stream, const struct gelu_forward_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, gelu_span, args);
    return STATUS_OK;
}

enum status CPU_OP(relu_squared_forward)(struct stream *stream,
                                         const struct relu_squared_forward_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, relu_squared_span, args);
    return STATUS_OK;
}

VF_INLINE void backward_step(enum dtype type, enum activation activation, void *dx, const void *dout,
                             const void *x, size_t i, int lanes) {
    vf derivative = vf_activation_derivative(activation, vf_get_part(type, x, i, lanes));
    vf_put_part(type, dx, i, derivative * vf_get_part(type, dout, i, lanes), lanes);
}

VF_INLINE void backward_range(enum dtype type, enum activation activation, void *dx, const void *dout,
                              const void *x, struct parallel_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        backward_step(type, activation, dx, dout, x, i, VF_WIDTH);
    if (i < range.end)
        backward_step(type, activation, dx, dout, x, i, (int)(range.end - i));
}

static void gelu_backward_span(const void *context, struct parallel_span span) {
    const struct gelu_backward_args *args = context;
    VF_DISPATCH(args->type, backward_range, ACTIVATION_GELU, args->dx, args->dout, args->x, span);
}

static void relu_squared_backward_span(const void *context, struct parallel_span span) {
    const struct relu_squared_backward_args *args = context;
    VF_DISPATCH(args->type, backward_range, ACTIVATION_RELU_SQUARED, args->dx, args->dout, args->x, span);
}

enum status CPU_OP(gelu_backward)(struct stream *stream, const struct gelu_backward_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, gelu_backward_span, args);
    return STATUS_OK;
}

enum status CPU_OP(relu_squared_backward)(struct stream *stream,
                                          const struct relu_squared_backward_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, relu_squared_backward_span, args);
    return STATUS_OK;
}

// ---- SwiGLU

// A range of elements within one row. It ends at the end of the row or of a thread's span of the (N, F)
// elements, whichever comes first.
struct gated_row {
    size_t gate, up; // indices in x of the range's first element of gate and of up
    size_t out;      // index of the range's first element in out
    size_t n;
};

VF_INLINE struct gated_row gated_row_at(size_t at, size_t end, size_t F) {
    size_t row = at / F, column = at % F;
    size_t left = F - column < end - at ? F - column : end - at;
    return (struct gated_row){row * 2 * F + column, row * 2 * F + F + column, at, left};
}

// Prefetches the same columns of the next row, which is row_elements away. Each row begins in another page,
// and hardware prefetching does not cross pages.
VF_INLINE void prefetch_next_row(enum dtype type, const void *tensor, size_t index, size_t row_elements) {
    __builtin_prefetch(vf_offset(type, tensor, index + row_elements), 0, 2);
}

VF_INLINE void swiglu_step(enum dtype type, void *out, const void *x, struct gated_row row, size_t i,
                           int lanes) {
    vf gate = vf_get_part(type, x, row.gate + i, lanes), up = vf_get_part(type, x, row.up + i, lanes);
    vf_put_part(type, out, row.out + i, vf_silu(gate).value * up, lanes);
}

VF_INLINE void swiglu_range(enum dtype type, const struct swiglu_forward_args *args,
                            struct parallel_span range) {
    void *out = args->out;
    const void *x = args->x;
    const size_t F = (size_t)args->F;
    for (size_t at = range.begin; at < range.end;) {
        struct gated_row row = gated_row_at(at, range.end, F);
        size_t i = 0;
        for (; i + VF_WIDTH <= row.n; i += VF_WIDTH) {
            prefetch_next_row(type, x, row.gate + i, 2 * F);
            prefetch_next_row(type, x, row.up + i, 2 * F);
            swiglu_step(type, out, x, row, i, VF_WIDTH);
        }
        if (i < row.n)
            swiglu_step(type, out, x, row, i, (int)(row.n - i));
        at += row.n;
    }
}

static void swiglu_span(const void *context, struct parallel_span span) {
    const struct swiglu_forward_args *args = context;
    VF_DISPATCH(args->type, swiglu_range, args, span);
}

enum status CPU_OP(swiglu_forward)(struct stream *stream, const struct swiglu_forward_args *args) {
    size_t n = (size_t)args->N * (size_t)args->F;
    cpu_parallel(stream->device, n, n, 1024, swiglu_span, args);
    return STATUS_OK;
}

VF_INLINE void swiglu_backward_step(enum dtype type, const struct swiglu_backward_args *args,
                                    struct gated_row row, size_t i, int lanes) {
    vf gate = vf_get_part(type, args->x, row.gate + i, lanes);
    vf up = vf_get_part(type, args->x, row.up + i, lanes);
    vf dout = vf_get_part(type, args->dout, row.out + i, lanes);
    struct silu_terms silu = vf_silu(gate);
    if (args->out) // the same arithmetic as swiglu_step
        vf_put_part(type, args->out, row.out + i, silu.value * up, lanes);
    vf_put_part(type, args->dx, row.gate + i, dout * up * silu.derivative, lanes);
    vf_put_part(type, args->dx, row.up + i, dout * silu.value, lanes);
}

VF_INLINE void swiglu_backward_range(enum dtype type, const struct swiglu_backward_args *args,
                                     struct parallel_span range) {
    const struct swiglu_backward_args copy = *args; // a local copy: no store through a pointer aliases it
    const size_t F = (size_t)copy.F;
    for (size_t at = range.begin; at < range.end;) {
        struct gated_row row = gated_row_at(at, range.end, F);
        size_t i = 0;
        for (; i + VF_WIDTH <= row.n; i += VF_WIDTH) {
            prefetch_next_row(type, copy.x, row.gate + i, 2 * F);
            prefetch_next_row(type, copy.x, row.up + i, 2 * F);
            prefetch_next_row(type, copy.dout, row.out + i, F);
            swiglu_backward_step(type, &copy, row, i, VF_WIDTH);
        }
        if (i < row.n)
            swiglu_backward_step(type, &copy, row, i, (int)(row.n - i));
        at += row.n;
    }
}

static void swiglu_backward_span(const void *context, struct parallel_span span) {
    const struct swiglu_backward_args *args = context;
    VF_DISPATCH(args->type, swiglu_backward_range, args, span);
}

enum status CPU_OP(swiglu_backward)(struct stream *stream, const struct swiglu_backward_args *args) {
    size_t n = (size_t)args->N * (size_t)args->F;
    cpu_parallel(stream->device, n, n, 1024, swiglu_backward_span, args);
    return STATUS_OK;
}
