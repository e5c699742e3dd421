// Layer normalization, one row at a time. Mean and variance take two passes over a row, the second from the
// cache. E[x^2] - E[x]^2 would need one pass but suffers from cancellation.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/channel_sums.h"
#include "kernels/cpu/simd.h"

// ---- forward

VF_INLINE float row_mean(enum dtype type, const void *x, size_t row, size_t C) {
    vf sum = vf_zero(), other = vf_zero();
    size_t i = 0;
    for (; i + 2 * VF_WIDTH <= C; i += 2 * VF_WIDTH) {
        sum += vf_get(type, x, row + i);
        other += vf_get(type, x, row + i + VF_WIDTH);
    }
    for (; i < C; i += VF_WIDTH)
        sum += vf_get_part(type, x, row + i, C - i < VF_WIDTH ? (int)(C - i) : VF_WIDTH);
    return vf_reduce_add(sum + other) / (float)C;
}

VF_INLINE float row_variance(enum dtype type, const void *x, size_t row, size_t C, float mean) {
    vf sum = vf_zero(), other = vf_zero();
    size_t i = 0;
    for (; i + 2 * VF_WIDTH <= C; i += 2 * VF_WIDTH) {
        vf a = vf_get(type, x, row + i) - mean, b = vf_get(type, x, row + i + VF_WIDTH) - mean;
        sum = vf_fma(a, a, sum);
        other = vf_fma(b, b, other);
    }
    for (; i < C; i += VF_WIDTH) {
        int lanes = C - i < VF_WIDTH ? (int)(C - i) : VF_WIDTH;
        vf a = vf_first(vf_get_part(type, x, row + i, lanes) - mean, lanes, vf_zero());
        sum = vf_fma(a, a, sum);
    }
    return vf_reduce_add(sum + other) / (float)C;
}

VF_INLINE void normalise(enum dtype type, const struct layernorm_forward_args *args, size_t row, size_t i,
                         int lanes, float mean, float rstd) {
    vf x = (vf_get_part(type, args->x, row + i, lanes) - mean) * rstd;
    vf weight = vf_get_part(type, args->weight, i, lanes), bias = vf_get_part(type, args->bias, i, lanes);
    vf_put_part(type, args->out, row + i, vf_fma(x, weight, bias), lanes);
}

VF_INLINE void forward_rows(enum dtype type, const struct layernorm_forward_args *args,
                            struct parallel_span rows) {
    size_t C = (size_t)args->C;
    for (size_t n = rows.begin; n < rows.end; n++) {
        size_t row = n * C, i = 0;
        float mean = row_mean(type, args->x, row, C);
        float rstd = 1.0f / sqrtf(row_variance(type, args->x, row, C, mean) + args->epsilon);
        for (; i + VF_WIDTH <= C; i += VF_WIDTH)
            normalise(type, args, row, i, VF_WIDTH, mean, rstd);
        if (i < C)
            normalise(type, args, row, i, (int)(C - i), mean, rstd);
        if (args->mean) {
            ((float *)args->mean)[n] = mean;
            ((float *)args->rstd)[n] = rstd;
        }
    }
}

static void forward_span(const void *context, struct parallel_span rows) {
    const struct layernorm_forward_args *args = context;
    VF_DISPATCH(args->type, forward_rows, args, rows);
}

enum status CPU_OP(layernorm_forward)(struct stream *stream, const struct layernorm_forward_args *args) {
    size_t N = (size_t)args->N;
    cpu_parallel(stream->device, N * (size_t)args->C, N, 1, forward_span, args);
    return STATUS_OK;
}

// ---- backward

// Sums over the current block of rows, channel_sums_padded(C) floats each. Both are NULL if none is wanted.
struct param_sums {
    float *dweight; // sums of dout * xhat, where xhat is the normalized x
    float *dbias;   // sums of dout
};

// dot[0] += dout * weight, dot[1] += dout * weight * xhat, for `lanes` elements of a row from i on
VF_INLINE void add_dots(enum dtype type, const struct layernorm_backward_args *args, size_t row, size_t i,
                        int lanes, float mean, float rstd, vf dot[2]) {
    vf x = (vf_get_part(type, args->x, row + i, lanes) - mean) * rstd;
    vf dnormal = vf_get_part(type, args->dout, row + i, lanes) * vf_get_part(type, args->weight, i, lanes);
    dot[0] += dnormal; // lanes past the end are 0 in dout
    dot[1] = vf_fma(dnormal, x, dot[1]);
}

VF_INLINE void write_dx(enum dtype type, const struct layernorm_backward_args *args, struct param_sums block,
                        size_t row, size_t i, int lanes, float mean, float rstd, const float dot_mean[2]) {
    vf x = (vf_get_part(type, args->x, row + i, lanes) - mean) * rstd;
    vf dout = vf_get_part(type, args->dout, row + i, lanes);
    vf dnormal = dout * vf_get_part(type, args->weight, i, lanes);
    vf dx = vf_fnma(x, vf_set1(dot_mean[1]), dnormal - dot_mean[0]);
    vf residual = args->dresidual ? vf_get_part(type, args->dresidual, row + i, lanes) : vf_zero();
    vf_put_part(type, args->dx, row + i, vf_fma(dx, vf_set1(rstd), residual), lanes);
    if (args->out) { // the same arithmetic as `normalise`
        vf weight = vf_get_part(type, args->weight, i, lanes), bias = vf_get_part(type, args->bias, i, lanes);
        vf_put_part(type, args->out, row + i, vf_fma(x, weight, bias), lanes);
    }
    if (!block.dweight)
        return;
    vf_store(block.dweight + i, vf_fma(dout, x, vf_load(block.dweight + i)));
    vf_store(block.dbias + i, dout + vf_load(block.dbias + i));
}

VF_INLINE void backward_row(enum dtype type, const struct layernorm_backward_args *args,
                            struct param_sums block, size_t n) {
    size_t C = (size_t)args->C, row = n * C, i = 0;
    float mean = ((const float *)args->mean)[n], rstd = ((const float *)args->rstd)[n];
    vf dot[2] = {vf_zero(), vf_zero()}, other[2] = {vf_zero(), vf_zero()};
    for (; i + 2 * VF_WIDTH <= C; i += 2 * VF_WIDTH) {
        add_dots(type, args, row, i, VF_WIDTH, mean, rstd, dot);
        add_dots(type, args, row, i + VF_WIDTH, VF_WIDTH, mean, rstd, other);
    }
    for (; i < C; i += VF_WIDTH)
        add_dots(type, args, row, i, C - i < VF_WIDTH ? (int)(C - i) : VF_WIDTH, mean, rstd, dot);
    float dot_mean[2] = {vf_reduce_add(dot[0] + other[0]) / (float)C,
                         vf_reduce_add(dot[1] + other[1]) / (float)C};
    for (i = 0; i + VF_WIDTH <= C; i += VF_WIDTH)
        write_dx(type, args, block, row, i, VF_WIDTH, mean, rstd, dot_mean);
    if (i < C)
        write_dx(type, args, block, row, i, (int)(C - i), mean, rstd, dot_mean);
}

// The workspace of a part holds its totals of dweight and dbias, then the sums of the current block.
VF_INLINE void backward_rows(enum dtype type, const struct layernorm_backward_args *args,
                             struct parallel_span rows, float *workspace) {
    size_t padded = channel_sums_padded((size_t)args->C);
    const bool sums = args->dweight || args->dbias;
    const struct param_sums block = {sums ? workspace + 2 * padded : NULL,
                                     sums ? workspace + 3 * padded : NULL};
    memset(workspace, 0, 4 * padded * sizeof(float));
    for (size_t n = rows.begin; n < rows.end; n++) {
        backward_row(type, args, block, n);
        if (!sums)
            continue;
        if ((n - rows.begin) % CHANNEL_SUMS_ROWS == CHANNEL_SUMS_ROWS - 1 || n + 1 == rows.end)
            channel_sums_flush(workspace, block.dweight, 2 * padded);
    }
}

size_t CPU_OP(layernorm_backward_workspace)(const struct layernorm_backward_args *args) {
    return (size_t)channel_sums_parts((size_t)args->N) * 4 * channel_sums_padded((size_t)args->C) *
           sizeof(float);
}

struct backward_call {
    const struct layernorm_backward_args *args;
    float *workspace;
    size_t padded;
    int n_parts;
};

static void backward_parts(const void *context, struct parallel_span parts) {
    const struct backward_call *call = context;
    for (size_t part = parts.begin; part < parts.end; part++) {
        const struct parallel_span rows =
            parallel_span_of((size_t)call->args->N, 1, (int)part, call->n_parts);
        VF_DISPATCH(call->args->type, backward_rows, call->args, rows,
                    call->workspace + part * 4 * call->padded);
    }
}

static void add_totals(const void *context, struct parallel_span channels) {
    const struct backward_call *call = context;
    const struct layernorm_backward_args *args = call->args;
    channel_sums_add(args->dweight, args->beta_zero, call->workspace, 4 * call->padded, call->n_parts,
                     channels);
    channel_sums_add(args->dbias, args->beta_zero, call->workspace + call->padded, 4 * call->padded,
                     call->n_parts, channels);
}

enum status CPU_OP(layernorm_backward)(struct stream *stream, const struct layernorm_backward_args *args) {
    const struct backward_call call = {args, stream->workspace, channel_sums_padded((size_t)args->C),
                                       channel_sums_parts((size_t)args->N)};
    const size_t work = (size_t)args->N * (size_t)args->C;
    cpu_parallel(stream->device, work, (size_t)call.n_parts, 1, backward_parts, &call);
    cpu_parallel(stream->device, work, (size_t)args->C, 16, add_totals, &call);
    return STATUS_OK;
}
