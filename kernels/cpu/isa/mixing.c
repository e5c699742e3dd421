// Weighted sums, dropout and the soft-cap of logits. All are bound by memory bandwidth. Elementwise results
// do not depend on the division among threads. The gradients of the weights are summed in blocks of MIX_BLOCK
// elements, and the blocks' sums are added in order.
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu.h"
#include "kernels/dropout.h"

// ---- weighted sums: mix_forward and mix_backward

VF_INLINE vf weight_of(enum dtype type, const void *weight) {
    return vf_set1(vf_get_part(type, weight, 0, 1)[0]);
}

VF_INLINE void mix_step(enum dtype type, const struct mix_forward_args *args, vf x_weight, vf y_weight,
                        size_t i, int lanes) {
    vf x = vf_get_part(type, args->x, i, lanes), y = vf_get_part(type, args->y, i, lanes);
    vf_put_part(type, args->out, i, vf_fma(x, x_weight, y * y_weight), lanes);
}

VF_INLINE void mix_range(enum dtype type, const struct mix_forward_args *args, struct parallel_span range) {
    const struct mix_forward_args copy = *args; // a local copy: no store through a pointer aliases it
    const vf x_weight = weight_of(type, copy.x_weight), y_weight = weight_of(type, copy.y_weight);
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        mix_step(type, &copy, x_weight, y_weight, i, VF_WIDTH);
    if (i < range.end)
        mix_step(type, &copy, x_weight, y_weight, i, (int)(range.end - i));
}

static void mix_span(const void *context, struct parallel_span span) {
    const struct mix_forward_args *args = context;
    VF_DISPATCH(args->type, mix_range, args, span);
}

enum status CPU_OP(mix_forward)(struct stream *stream, const struct mix_forward_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, mix_span, args);
    return STATUS_OK;
}

// The sums of dout * x and of dout * y over one block.
struct mix_sums {
    float x, y;
};

static size_t mix_blocks(const struct mix_backward_args *args) {
    return (args->n + MIX_BLOCK - 1) / MIX_BLOCK;
}

size_t CPU_OP(mix_backward_workspace)(const struct device *device, const struct mix_backward_args *args) {
    (void)device;
    return mix_blocks(args) * sizeof(struct mix_sums);
}

struct mix_backward_call {
    const struct mix_backward_args *args;
    struct mix_sums *of_block;
};

VF_INLINE void mix_backward_step(enum dtype type, const struct mix_backward_args *args, vf x_weight,
                                 vf y_weight, size_t i, int lanes, vf *x_sum, vf *y_sum) {
    float *dy = args->dy ? (float *)args->dy + i : NULL;
    vf dout = vf_get_part(type, args->dout, i, lanes);
    *x_sum = vf_fma(dout, vf_get_part(type, args->x, i, lanes), *x_sum);
    *y_sum = vf_fma(dout, vf_get_part(type, args->y, i, lanes), *y_sum);
    if (dy) {
        vf before = args->dy_zero ? vf_zero() : lanes == VF_WIDTH ? vf_load(dy) : vf_load_part(dy, lanes);
        vf_put_part(DTYPE_F32, dy, 0, vf_fma(dout, y_weight, before), lanes);
    }
    vf_put_part(type, args->dx, i, dout * x_weight, lanes);
}

VF_INLINE struct mix_sums mix_backward_block(enum dtype type, const struct mix_backward_args *args,
                                             size_t begin, size_t end) {
    const vf x_weight = weight_of(type, args->x_weight), y_weight = weight_of(type, args->y_weight);
    vf x[2] = {vf_zero(), vf_zero()}, y[2] = {vf_zero(), vf_zero()};
    size_t i = begin;
    for (; i + 2 * VF_WIDTH <= end; i += 2 * VF_WIDTH) {
        mix_backward_step(type, args, x_weight, y_weight, i, VF_WIDTH, &x[0], &y[0]);
        mix_backward_step(type, args, x_weight, y_weight, i + VF_WIDTH, VF_WIDTH, &x[1], &y[1]);
    }
    for (; i < end; i += VF_WIDTH)
        mix_backward_step(type, args, x_weight, y_weight, i, end - i < VF_WIDTH ? (int)(end - i) : VF_WIDTH,
                          &x[0], &y[0]);
    return (struct mix_sums){vf_reduce_add(x[0] + x[1]), vf_reduce_add(y[0] + y[1])};
}

VF_INLINE void mix_backward_blocks(enum dtype type, const struct mix_backward_call *call,
                                   struct parallel_span blocks) {
    const struct mix_backward_args copy = *call->args; // local: no store through a pointer aliases it
    for (size_t block = blocks.begin; block < blocks.end; block++) {
        size_t begin = block * MIX_BLOCK, left = copy.n - begin;
        call->of_block[block] =
            mix_backward_block(type, &copy, begin, begin + (left < MIX_BLOCK ? left : MIX_BLOCK));
    }
}

static void mix_backward_span(const void *context, struct parallel_span blocks) {
    const struct mix_backward_call *call = context;
    VF_DISPATCH(call->args->type, mix_backward_blocks, call, blocks);
}

enum status CPU_OP(mix_backward)(struct stream *stream, const struct mix_backward_args *args) {
    const struct mix_backward_call call = {args, stream->workspace};
    const size_t n_blocks = mix_blocks(args);
    cpu_parallel(stream->device, args->n, n_blocks, 1, mix_backward_span, &call);
    float *dx_weight = args->dx_weight, *dy_weight = args->dy_weight;
    double x = 0, y = 0;
    for (size_t block = 0; block < n_blocks; block++) {
        x += (double)call.of_block[block].x;
        y += (double)call.of_block[block].y;
    }
    if (dx_weight)
        *dx_weight = (float)(args->beta_zero ? x : (double)*dx_weight + x);
    if (dy_weight)
        *dy_weight = (float)(args->beta_zero ? y : (double)*dy_weight + y);
    return STATUS_OK;
}

// ---- dropout

struct dropout_call {
    void *out;
    const void *x, *residual; // residual may be NULL
    const uint64_t *sequences;
    size_t C, rows_per_sequence;
    uint64_t key;
    uint32_t threshold;
    float scale; // 1 / (1 - p)
    enum dtype type;
};

// Returns the factors of a row's elements from column c on: `scale` for elements that dropout_keeps() keeps,
// 0 for the others.
VF_INLINE vf dropout_factors(uint64_t row, size_t c, uint32_t threshold, float scale) {
    vu x = (vu)vi_iota() + (uint32_t)c;
    DROPOUT_HASH(x, row);
    vi kept = (vi)(x >> 8) >= (vi)(threshold + (vu){0}); // a signed comparison of numbers below 2^31
    return (vf)(kept & (vi)vf_set1(scale));
}

VF_INLINE void dropout_step(enum dtype type, const struct dropout_call *call, uint64_t row, size_t at,
                            size_t c, int lanes) {
    vf x = vf_get_part(type, call->x, at + c, lanes);
    vf factors = dropout_factors(row, c, call->threshold, call->scale);
    vf out =
        call->residual ? vf_fma(x, factors, vf_get_part(type, call->residual, at + c, lanes)) : x * factors;
    vf_put_part(type, call->out, at + c, out, lanes);
}

VF_INLINE void dropout_rows(enum dtype type, const struct dropout_call *shared, struct parallel_span rows) {
    const struct dropout_call call = *shared; // a local copy: no store through a pointer aliases it
    for (size_t n = rows.begin; n < rows.end; n++) {
        uint64_t row = dropout_row(call.key, call.sequences[n / call.rows_per_sequence],
                                   (uint32_t)(n % call.rows_per_sequence));
        size_t c = 0;
        for (; c + VF_WIDTH <= call.C; c += VF_WIDTH)
            dropout_step(type, &call, row, n * call.C, c, VF_WIDTH);
        if (c < call.C)
            dropout_step(type, &call, row, n * call.C, c, (int)(call.C - c));
    }
}

static void dropout_span(const void *context, struct parallel_span rows) {
    const struct dropout_call *call = context;
    VF_DISPATCH(call->type, dropout_rows, call, rows);
}

static void dropout(const struct stream *stream, int N, float p, struct dropout_call call) {
    call.threshold = dropout_threshold(p);
    call.scale = (float)(1 / (1 - (double)p));
    cpu_parallel(stream->device, (size_t)N * call.C, (size_t)N, 1, dropout_span, &call);
}

enum status CPU_OP(dropout_forward)(struct stream *stream, const struct dropout_forward_args *args) {
    dropout(stream, args->N, args->p,
            (struct dropout_call){.out = args->out,
                                  .x = args->x,
                                  .residual = args->residual,
                                  .sequences = args->sequences,
                                  .C = (size_t)args->C,
                                  .rows_per_sequence = (size_t)args->rows_per_sequence,
                                  .key = args->key,
                                  .type = args->type});
    return STATUS_OK;
}

enum status CPU_OP(dropout_backward)(struct stream *stream, const struct dropout_backward_args *args) {
    dropout(stream, args->N, args->p,
            (struct dropout_call){.out = args->dx,
                                  .x = args->dout,
                                  .sequences = args->sequences,
                                  .C = (size_t)args->C,
                                  .rows_per_sequence = (size_t)args->rows_per_sequence,
                                  .key = args->key,
                                  .type = args->type});
    return STATUS_OK;
}

// ---- soft-cap

VF_INLINE void cap_step(enum dtype type, const struct soft_cap_args *args, size_t i, int lanes) {
    vf_put_part(type, args->out, i, vf_soft_cap(vf_get_part(type, args->x, i, lanes), args->cap).logit,
                lanes);
}

// Processes a span of the (N, V) elements.
VF_INLINE void cap_range(enum dtype type, const struct soft_cap_args *args, struct parallel_span range) {
    const struct soft_cap_args copy = *args; // a local copy: no store through a pointer aliases it
    const size_t V = (size_t)copy.V, stride = (size_t)copy.stride;
    for (size_t at = range.begin; at < range.end;) {
        size_t column = at % V, first = at / V * stride + column, i = 0;
        size_t n = V - column < range.end - at ? V - column : range.end - at;
        for (; i + VF_WIDTH <= n; i += VF_WIDTH)
            cap_step(type, &copy, first + i, VF_WIDTH);
        if (i < n)
            cap_step(type, &copy, first + i, (int)(n - i));
        at += n;
    }
}

static void cap_span(const void *context, struct parallel_span span) {
    const struct soft_cap_args *args = context;
    VF_DISPATCH(args->type, cap_range, args, span);
}

enum status CPU_OP(soft_cap)(struct stream *stream, const struct soft_cap_args *args) {
    size_t n = (size_t)args->N * (size_t)args->V;
    cpu_parallel(stream->device, n, n, 1024, cap_span, args);
    return STATUS_OK;
}
