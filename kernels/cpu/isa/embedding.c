// Token and position embeddings. Forward divides the rows among threads; backward divides the channels. In
// backward, each thread adds to its own channels of every row, in order of (b, t). So the bits do not depend
// on the number of threads, and no atomics are needed.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

#define CHANNEL_GRAIN 16 // a cache line of fp32, so that threads never share one

VF_INLINE void forward_step(enum dtype type, const struct embedding_forward_args *args, size_t token,
                            size_t position, size_t row, size_t i, int lanes) {
    vf sum = vf_get_part(type, args->wte, token + i, lanes);
    if (args->accumulate)
        sum += vf_get_part(type, args->out, row + i, lanes);
    if (args->wpe)
        sum += vf_get_part(type, args->wpe, position + i, lanes);
    vf_put_part(type, args->out, row + i, sum, lanes);
}

VF_INLINE void forward_rows(enum dtype type, const struct embedding_forward_args *args,
                            struct parallel_span rows) {
    const struct embedding_forward_args copy = *args; // a local copy: no store through a pointer aliases it
    size_t C = (size_t)copy.C, T = (size_t)copy.T;
    for (size_t n = rows.begin; n < rows.end; n++) {
        size_t start = (size_t)(copy.positions ? copy.positions[n / T] : copy.position);
        size_t token = (size_t)copy.tokens[n] * C, position = (start + n % T) * C, i = 0;
        for (; i + VF_WIDTH <= C; i += VF_WIDTH)
            forward_step(type, &copy, token, position, n * copy.out_stride, i, VF_WIDTH);
        if (i < C)
            forward_step(type, &copy, token, position, n * copy.out_stride, i, (int)(C - i));
    }
}

static void forward_span(const void *context, struct parallel_span rows) {
    const struct embedding_forward_args *args = context;
    VF_DISPATCH(args->type, forward_rows, args, rows);
}

enum status CPU_OP(embedding_forward)(struct stream *stream, const struct embedding_forward_args *args) {
    size_t n_rows = (size_t)args->B * (size_t)args->T;
    cpu_parallel(stream->device, n_rows * (size_t)args->C, n_rows, 1, forward_span, args);
    return STATUS_OK;
}

VF_INLINE void add_row(enum dtype type, float *gradient, const void *dout, size_t row,
                       struct parallel_span channels) {
    size_t i = channels.begin;
    for (; i + VF_WIDTH <= channels.end; i += VF_WIDTH)
        vf_store(gradient + i, vf_load(gradient + i) + vf_get(type, dout, row + i));
    if (i < channels.end) {
        int lanes = (int)(channels.end - i);
        vf_store_part(gradient + i,
                      vf_load_part(gradient + i, lanes) + vf_get_part(type, dout, row + i, lanes), lanes);
    }
}

VF_INLINE void backward_channels(enum dtype type, const struct embedding_backward_args *args,
                                 struct parallel_span channels) {
    size_t C = (size_t)args->C, T = (size_t)args->T;
    for (size_t t = 0; args->dwpe && args->beta_zero && t < (size_t)args->P; t++)
        memset((float *)args->dwpe + t * C + channels.begin, 0,
               (channels.end - channels.begin) * sizeof(float));
    for (size_t n = 0; n < (size_t)args->B * T; n++) {
        if (args->dwte)
            add_row(type, (float *)args->dwte + (size_t)args->tokens[n] * C, args->dout,
                    n * args->dout_stride, channels);
        if (args->dwpe)
            add_row(type, (float *)args->dwpe + n % T * C, args->dout, n * args->dout_stride, channels);
    }
}

static void backward_span(const void *context, struct parallel_span channels) {
    const struct embedding_backward_args *args = context;
    VF_DISPATCH(args->type, backward_channels, args, channels);
}

enum status CPU_OP(embedding_backward)(struct stream *stream, const struct embedding_backward_args *args) {
    size_t C = (size_t)args->C;
    cpu_parallel(stream->device, (size_t)args->B * (size_t)args->T * C, C, CHANNEL_GRAIN, backward_span,
                 args);
    return STATUS_OK;
}
