// Root mean square normalization, one row at a time. A first pass over the row sums the squares. A second
// pass, which finds the row in the cache, writes the result.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/channel_sums.h"
#include "kernels/cpu/simd.h"

// ---- forward

VF_INLINE float row_rstd(enum dtype type, const void *x, size_t row, size_t C, float epsilon) {
    vf sum = vf_zero(), other = vf_zero();
    size_t i = 0;
    for (; i + 2 * VF_WIDTH <= C; i += 2 * VF_WIDTH) {
        vf a = vf_get(type, x, row + i), b = vf_get(type, x, row + i + VF_WIDTH);
        sum = vf_fma(a, a, sum);
        other = vf_fma(b, b, other);
    }
    for (; i < C; i += VF_WIDTH) {
        vf a = vf_get_part(type, x, row + i, C - i < VF_WIDTH ? (int)(C - i) : VF_WIDTH);
        sum = vf_fma(a, a, sum);
    }
    return 1.0f / sqrtf(vf_reduce_add(sum + other) / (float)C + epsilon);
}

VF_INLINE vf weight_at(enum dtype type, const void *weight, size_t i, int lanes) {
    return weight ? vf_get_part(type, weight, i, lanes) : vf_set1(1.0f);
}

VF_INLINE void normalise(enum dtype type, const struct rmsnorm_forward_args *args, size_t row, size_t i,
                         int lanes, float rstd) {
    vf x = vf_get_part(type, args->x, row + i, lanes) * rstd;
    vf_put_part(type, args->out, row + i, x * weight_at(type, args->weight, i, lanes), lanes);
}

VF_INLINE void forward_rows(enum dtype type, const struct rmsnorm_forward_args *args,
                            struct parallel_span rows) {
    const struct rmsnorm_forward_args copy = *args; // a local copy: no store through a pointer aliases it
    size_t C = (size_t)copy.C;
    for (size_t n = rows.begin; n < rows.end; n++) {
        size_t row = n * C, i = 0;
        float rstd = row_rstd(type, copy.x, row, C, copy.epsilon);
        for (; i + VF_WIDTH <= C; i += VF_WIDTH)
            normalise(type, &copy, row, i, VF_WIDTH, rstd);
        if (i < C)
            normalise(type, &copy, row, i, (int)(C - i), rstd);
        if (copy.rstd)
            ((float *)copy.rstd)[n] = rstd;
    }
}

static void forward_span(const void *context, struct parallel_span rows) {
    const struct rmsnorm_forward_args *args = context;
    VF_DISPATCH(args->type, forward_rows, args, rows);
}

enum status CPU_OP(rmsnorm_forward)(struct stream *stream, const struct rmsnorm_forward_args *args) {
    size_t N = (size_t)args->N;
    cpu_parallel(stream->device, N * (size_t)args->C, N, 1, forward_span, args);
    return STATUS_OK;
}

// ---- backward

// Returns sum + dout weight xhat, where xhat is the normalized x.
VF_INLINE vf add_dot(enum dtype type, const struct rmsnorm_backward_args *args, size_t row, size_t i,
                     int lanes, float rstd, vf sum) {
    vf x = vf_get_part(type, args->x, row + i, lanes) * rstd;
    vf dnormal = vf_get_part(type, args->dout, row + i, lanes) * weight_at(type, args->weight, i, lanes);
    return vf_fma(dnormal, x, sum); // lanes past the end are 0 in dout
}

// Writes dx and, if args->out is not NULL, the output of forward. Adds dout xhat to `dweight`, which holds
// the sums over the current block of rows, unless it is NULL.
VF_INLINE void write_dx(enum dtype type, const struct rmsnorm_backward_args *args, float *dweight, size_t row,
                        size_t i, int lanes, float rstd, float dot_mean) {
    vf x = vf_get_part(type, args->x, row + i, lanes) * rstd;
    vf dout = vf_get_part(type, args->dout, row + i, lanes);
    vf weight = weight_at(type, args->weight, i, lanes);
    vf dx = vf_fnma(x, vf_set1(dot_mean), dout * weight);
    vf residual = args->dresidual ? vf_get_part(type, args->dresidual, row + i, lanes) : vf_zero();
    vf_put_part(type, args->dx, row + i, vf_fma(dx, vf_set1(rstd), residual), lanes);
    if (args->out) // the same arithmetic as `normalise`
        vf_put_part(type, args->out, row + i, x * weight, lanes);
    if (dweight)
        vf_store(dweight + i, vf_fma(dout, x, vf_load(dweight + i)));
}

VF_INLINE void backward_row(enum dtype type, const struct rmsnorm_backward_args *args, float *dweight,
                            size_t n) {
    size_t C = (size_t)args->C, row = n * C, i = 0;
    float rstd = ((const float *)args->rstd)[n];
    vf dot = vf_zero(), other = vf_zero();
    for (; i + 2 * VF_WIDTH <= C; i += 2 * VF_WIDTH) {
        dot = add_dot(type, args, row, i, VF_WIDTH, rstd, dot);
        other = add_dot(type, args, row, i + VF_WIDTH, VF_WIDTH, rstd, other);
    }
    for (; i < C; i += VF_WIDTH)
        dot = add_dot(type, args, row, i, C - i < VF_WIDTH ? (int)(C - i) : VF_WIDTH, rstd, dot);
    float dot_mean = vf_reduce_add(dot + other) / (float)C;
    for (i = 0; i + VF_WIDTH <= C; i += VF_WIDTH)
        write_dx(type, args, dweight, row, i, VF_WIDTH, rstd, dot_mean);
    if (i < C)
        write_dx(type, args, dweight, row, i, (int)(C - i), rstd, dot_mean);
}

// A part's workspace holds its totals of dweight, then the sums of the current block of rows.
VF_INLINE void backward_rows(enum dtype type, const struct rmsnorm_backward_args *args,
                             struct parallel_span rows, float *sums) {
    const struct rmsnorm_backward_args copy = *args;
    size_t padded = channel_sums_padded((size_t)copy.C);
    float *block = copy.dweight ? sums + padded : NULL;
    if (block)
        memset(sums, 0, 2 * padded * sizeof *sums);
    for (size_t n = rows.begin; n < rows.end; n++) {
        backward_row(type, &copy, block, n);
        if (block && ((n - rows.begin) % CHANNEL_SUMS_ROWS == CHANNEL_SUMS_ROWS - 1 || n + 1 == rows.end))
            channel_sums_flush(sums, block, padded);
    }
}

static size_t part_floats(const struct rmsnorm_backward_args *args) {
    return args->dweight ? 2 * channel_sums_padded((size_t)args->C) : 0;
}

size_t CPU_OP(rmsnorm_backward_workspace)(const struct rmsnorm_backward_args *args) {
    return (size_t)channel_sums_parts((size_t)args->N) * part_floats(args) * sizeof(float);
}

struct backward_call {
    const struct rmsnorm_backward_args *args;
    float *workspace;
    int n_parts;
};

static void backward_parts(const void *context, struct parallel_span parts) {
    const struct backward_call *call = context;
    for (size_t part = parts.begin; part < parts.end; part++) {
        const struct parallel_span rows =
            parallel_span_of((size_t)call->args->N, 1, (int)part, call->n_parts);
        VF_DISPATCH(call->args->type, backward_rows, call->args, rows,
                    call->workspace + part * part_floats(call->args));
    }
}

static void add_totals(const void *context, struct parallel_span channels) {
    const struct backward_call *call = context;
    channel_sums_add(call->args->dweight, call->args->beta_zero, call->workspace, part_floats(call->args),
                     call->n_parts, channels);
}

enum status CPU_OP(rmsnorm_backward)(struct stream *stream, const struct rmsnorm_backward_args *args) {
    const struct backward_call call = {args, stream->workspace, channel_sums_parts((size_t)args->N)};
    const size_t work = (size_t)args->N * (size_t)args->C;
    cpu_parallel(stream->device, work, (size_t)call.n_parts, 1, backward_parts, &call);
    if (args->dweight)
        cpu_parallel(stream->device, work, (size_t)args->C, 16, add_totals, &call);
    return STATUS_OK;
}
