// Rotary position embedding after an optional RMS normalization of each head. With normalization a head is
// read twice, the second time from the cache. The sums of squares of HEADS heads are computed before any is
// used, which hides their latency.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/channel_sums.h"
#include "kernels/cpu/simd.h"

// A part's workspace in backward, used only with normalization, has arrays of channel_sums_padded(D)
// floats: the gradients of y (keep_pair) of HEADS heads, the totals of dq_weight and dk_weight, and the sums
// of both over the heads of the current row.
#define HEADS VF_WIDTH
enum { GRADIENTS, TOTALS = GRADIENTS + HEADS, BLOCK = TOTALS + 2, N_ARRAYS = BLOCK + 2 };

// A pair of vectors: elements i and i + D / 2 of a head.
struct pair {
    vf low, high;
};

VF_INLINE struct pair get_pair(enum dtype type, const void *x, size_t at, size_t D, int lanes) {
    return (struct pair){vf_get_part(type, x, at, lanes), vf_get_part(type, x, at + D / 2, lanes)};
}

VF_INLINE void put_pair(enum dtype type, void *out, size_t at, size_t D, struct pair p, int lanes) {
    vf_put_part(type, out, at, p.low, lanes);
    vf_put_part(type, out, at + D / 2, p.high, lanes);
}

VF_INLINE struct pair times_weight(enum dtype type, struct pair p, const void *weight, size_t i, size_t D,
                                   int lanes) {
    if (!weight)
        return p;
    struct pair w = get_pair(type, weight, i, D, lanes);
    return (struct pair){p.low * w.low, p.high * w.high};
}

// Rotates `lanes` pairs by the angles whose cosines and sines are in `turns`, (lanes, 2) of the table.
VF_INLINE struct pair rotate(const float *turns, struct pair p, int lanes) {
    vf c, s;
    vf_load_pairs(turns, lanes, &c, &s);
    return (struct pair){vf_fnma(s, p.high, c * p.low), vf_fma(s, p.low, c * p.high)};
}

VF_INLINE struct pair rotate_back(const float *turns, struct pair p, int lanes) {
    vf c, s;
    vf_load_pairs(turns, lanes, &c, &s);
    return (struct pair){vf_fma(s, p.high, c * p.low), vf_fnma(s, p.low, c * p.high)};
}

static size_t heads_from(size_t first, size_t n) {
    return n - first < HEADS ? n - first : HEADS;
}

// ---- forward

VF_INLINE float sum_squares(enum dtype type, const void *x, size_t at, size_t D) {
    vf sum = vf_zero();
    size_t i = 0;
    for (; i + VF_WIDTH <= D; i += VF_WIDTH) {
        vf a = vf_get(type, x, at + i);
        sum = vf_fma(a, a, sum);
    }
    if (i < D) {
        vf a = vf_get_part(type, x, at + i, (int)(D - i));
        sum = vf_fma(a, a, sum);
    }
    return vf_reduce_add(sum);
}

// Computes the rstd of heads [first, first + n) of a row, and stores them to args->rstd unless it is NULL.
VF_INLINE void head_rstds(enum dtype type, const struct rope_forward_args *args, size_t row, size_t first,
                          size_t n, float rstds[HEADS]) {
    size_t D = (size_t)args->D, heads = (size_t)(args->H + args->K);
    memset(rstds, 0, HEADS * sizeof *rstds);
    for (size_t h = 0; h < n; h++)
        rstds[h] = sum_squares(type, args->x, row * args->x_stride + (first + h) * D, D);
    vf_store(rstds, 1.0f / vf_sqrt(vf_load(rstds) / (float)D + args->epsilon));
    if (args->rstd)
        memcpy((float *)args->rstd + row * heads + first, rstds, n * sizeof *rstds);
}

// Prefetches the same head of the next row, which hardware prefetching does not do: the heads of q and k are
// only a range of each row.
VF_INLINE void prefetch_head(enum dtype type, const void *tensor, size_t at, size_t stride, size_t D) {
    const char *begin = vf_offset(type, tensor, at + stride);
    for (size_t byte = 0; byte < D * dtype_size(type); byte += 64)
        __builtin_prefetch(begin + byte, 0, 2);
}

// A head of one row: indices of its first element in x and in out, its weight and its rstd.
struct head {
    size_t x, out;
    const void *weight;
    float rstd;
};

VF_INLINE void forward_pair(enum dtype type, const bool norm, const struct rope_forward_args *args,
                            const struct head *head, const float *turns, size_t i, int lanes) {
    size_t D = (size_t)args->D;
    struct pair p = get_pair(type, args->x, head->x + i, D, lanes);
    if (norm) {
        p = (struct pair){p.low * head->rstd, p.high * head->rstd};
        p = times_weight(type, p, head->weight, i, D, lanes);
    }
    put_pair(type, args->out, head->out + i, D, rotate(turns + 2 * i, p, lanes), lanes);
}

VF_INLINE void forward_head(enum dtype type, const bool norm, const struct rope_forward_args *args,
                            const struct head *head, const float *turns) {
    size_t half = (size_t)args->D / 2, i = 0;
    prefetch_head(type, args->x, head->x, args->x_stride, (size_t)args->D);
    for (; i + VF_WIDTH <= half; i += VF_WIDTH)
        forward_pair(type, norm, args, head, turns, i, VF_WIDTH);
    if (i < half)
        forward_pair(type, norm, args, head, turns, i, (int)(half - i));
}

VF_INLINE void forward_row(enum dtype type, const bool norm, const struct rope_forward_args *args, size_t row,
                           struct parallel_span heads) {
    size_t D = (size_t)args->D, T = (size_t)args->T;
    size_t position = (size_t)(args->positions ? args->positions[row / T] : args->position) + row % T;
    const float *turns = (const float *)args->table + position * D;
    for (size_t first = heads.begin; first < heads.end; first += HEADS) {
        float rstds[HEADS];
        const size_t n = heads_from(first, heads.end);
        if (norm)
            head_rstds(type, args, row, first, n, rstds);
        for (size_t h = first; h < first + n; h++)
            forward_head(type, norm, args,
                         &(struct head){.x = row * args->x_stride + h * D,
                                        .out = row * args->out_stride + h * D,
                                        .weight = h < (size_t)args->H ? args->q_weight : args->k_weight,
                                        .rstd = norm ? rstds[h - first] : 1},
                         turns);
    }
}

VF_INLINE void forward_rows(enum dtype type, const struct rope_forward_args *args, struct parallel_span rows,
                            struct parallel_span heads) {
    const struct rope_forward_args copy = *args; // a local copy: no store through a pointer aliases it
    for (size_t row = rows.begin; row < rows.end && copy.norm; row++)
        forward_row(type, true, &copy, row, heads);
    for (size_t row = rows.begin; row < rows.end && !copy.norm; row++)
        forward_row(type, false, &copy, row, heads);
}

void CPU_OP(rotate_part)(const struct rope_forward_args *args, struct parallel_span rows,
                         struct parallel_span heads) {
    VF_DISPATCH(args->type, forward_rows, args, rows, heads);
}

static void forward_part(const void *context, struct parallel_span rows) {
    const struct rope_forward_args *args = context;
    CPU_OP(rotate_part)(args, rows, (struct parallel_span){0, (size_t)(args->H + args->K)});
}

enum status CPU_OP(rope_forward)(struct stream *stream, const struct rope_forward_args *args) {
    const size_t rows = (size_t)args->B * (size_t)args->T;
    cpu_parallel(stream->device, rows * (size_t)(args->H + args->K) * (size_t)args->D, rows, 1, forward_part,
                 args);
    return STATUS_OK;
}

// ---- backward

struct backward_head {
    size_t dx, dout, x; // index of the head's first element in each tensor
    const void *weight;
    // Gradient of `weight`, summed over this row's query or key heads so far; NULL if not wanted.
    float *dweight;
    float rstd, dot_mean; // dot_mean: the mean of gradient * weight * xhat over the head (keep_pair)
};

// Without normalization: writes the gradient of x.
VF_INLINE void backward_pair(enum dtype type, const struct rope_backward_args *args,
                             const struct backward_head *head, const float *turns, size_t i, int lanes) {
    size_t D = (size_t)args->D;
    struct pair p = get_pair(type, args->dout, head->dout + i, D, lanes);
    put_pair(type, args->dx, head->dx + i, D, rotate_back(turns + 2 * i, p, lanes), lanes);
}

// With normalization, forward rotated y = weight * xhat, where xhat is x * rstd. Stores the gradient of y to
// `gradient`. Returns `dot` plus the products gradient * weight * xhat.
VF_INLINE vf keep_pair(enum dtype type, const struct rope_backward_args *args,
                       const struct backward_head *head, const float *turns, float *gradient, size_t i,
                       int lanes, vf dot) {
    size_t D = (size_t)args->D;
    struct pair p = rotate_back(turns + 2 * i, get_pair(type, args->dout, head->dout + i, D, lanes), lanes);
    put_pair(DTYPE_F32, gradient, i, D, p, lanes);
    struct pair g = times_weight(type, p, head->weight, i, D, lanes);
    struct pair x = get_pair(type, args->x, head->x + i, D, lanes); // lanes past the end are 0
    return vf_fma(g.high, x.high * head->rstd, vf_fma(g.low, x.low * head->rstd, dot));
}

VF_INLINE float keep_head(enum dtype type, const struct rope_backward_args *args,
                          const struct backward_head *head, const float *turns, float *gradient) {
    size_t half = (size_t)args->D / 2, i = 0;
    vf dot = vf_zero();
    for (; i + VF_WIDTH <= half; i += VF_WIDTH)
        dot = keep_pair(type, args, head, turns, gradient, i, VF_WIDTH, dot);
    if (i < half)
        dot = keep_pair(type, args, head, turns, gradient, i, (int)(half - i), dot);
    return vf_reduce_add(dot) / (float)args->D;
}

VF_INLINE void write_part(enum dtype type, const struct rope_backward_args *args,
                          const struct backward_head *head, const float *gradient, size_t i, int lanes) {
    vf x = vf_get_part(type, args->x, head->x + i, lanes) * head->rstd;
    vf dout = vf_load_part(gradient + i, lanes);
    vf g = head->weight ? dout * vf_get_part(type, head->weight, i, lanes) : dout;
    vf dx = vf_fnma(x, vf_set1(head->dot_mean), g) * head->rstd;
    vf_put_part(type, args->dx, head->dx + i, dx, lanes);
    if (head->dweight)
        vf_store(head->dweight + i, vf_fma(dout, x, vf_load(head->dweight + i)));
}

VF_INLINE void write_head(enum dtype type, const struct rope_backward_args *args,
                          const struct backward_head *head, const float *gradient) {
    size_t D = (size_t)args->D, i = 0;
    for (; i + VF_WIDTH <= D; i += VF_WIDTH)
        write_part(type, args, head, gradient, i, VF_WIDTH);
    if (i < D)
        write_part(type, args, head, gradient, i, (int)(D - i));
}

VF_INLINE struct backward_head backward_head_of(const struct rope_backward_args *args, size_t row, size_t h,
                                                float *arrays) {
    size_t D = (size_t)args->D, padded = channel_sums_padded(D);
    const bool is_query = h < (size_t)args->H;
    struct backward_head head = {.dx = row * args->dx_stride + h * D,
                                 .dout = row * args->dout_stride + h * D,
                                 .x = row * args->x_stride + h * D,
                                 .weight = is_query ? args->q_weight : args->k_weight};
    if (is_query ? args->dq_weight : args->dk_weight)
        head.dweight = arrays + (size_t)(is_query ? BLOCK : BLOCK + 1) * padded;
    return head;
}

// Backward of n heads of a row, from `first` on. Computes first the dot_mean of each head, then dx from it.
VF_INLINE void norm_backward(enum dtype type, const struct rope_backward_args *args, size_t row, size_t first,
                             size_t n, const float *turns, float *arrays) {
    size_t heads = (size_t)(args->H + args->K), padded = channel_sums_padded((size_t)args->D);
    struct backward_head of[HEADS];
    for (size_t k = 0; k < n; k++) {
        of[k] = backward_head_of(args, row, first + k, arrays);
        prefetch_head(type, args->dout, of[k].dout, args->dout_stride, (size_t)args->D);
        of[k].rstd = ((const float *)args->rstd)[row * heads + first + k];
        of[k].dot_mean = keep_head(type, args, &of[k], turns, arrays + (GRADIENTS + k) * padded);
    }
    for (size_t k = 0; k < n; k++)
        write_head(type, args, &of[k], arrays + (GRADIENTS + k) * padded);
}

VF_INLINE void backward_row(enum dtype type, const struct rope_backward_args *args, size_t row,
                            float *arrays) {
    size_t D = (size_t)args->D, half = D / 2, heads = (size_t)(args->H + args->K);
    const float *turns = (const float *)args->table + row % (size_t)args->T * D;
    for (size_t first = 0; first < heads && args->norm; first += HEADS)
        norm_backward(type, args, row, first, heads_from(first, heads), turns, arrays);
    for (size_t h = 0; h < heads && !args->norm; h++) {
        const struct backward_head head = backward_head_of(args, row, h, arrays);
        prefetch_head(type, args->dout, head.dout, args->dout_stride, D);
        size_t i = 0;
        for (; i + VF_WIDTH <= half; i += VF_WIDTH)
            backward_pair(type, args, &head, turns, i, VF_WIDTH);
        if (i < half)
            backward_pair(type, args, &head, turns, i, (int)(half - i));
    }
}

VF_INLINE void backward_rows(enum dtype type, const struct rope_backward_args *args,
                             struct parallel_span rows, float *arrays) {
    const struct rope_backward_args copy = *args;
    size_t padded = channel_sums_padded((size_t)copy.D);
    bool sums = copy.dq_weight || copy.dk_weight;
    if (sums)
        memset(arrays + TOTALS * padded, 0, (N_ARRAYS - TOTALS) * padded * sizeof *arrays);
    for (size_t row = rows.begin; row < rows.end; row++) {
        backward_row(type, &copy, row, arrays);
        if (sums) // for channel_sums.h, the heads of a row form a block
            channel_sums_flush(arrays + TOTALS * padded, arrays + BLOCK * padded, 2 * padded);
    }
}

size_t CPU_OP(rope_backward_workspace)(const struct rope_backward_args *args) {
    return (size_t)channel_sums_parts((size_t)args->B * (size_t)args->T) * N_ARRAYS *
           channel_sums_padded((size_t)args->D) * sizeof(float);
}

struct backward_call {
    const struct rope_backward_args *args;
    float *workspace;
    size_t padded, n_rows;
    int n_parts;
};

static void backward_parts(const void *context, struct parallel_span parts) {
    const struct backward_call *call = context;
    for (size_t part = parts.begin; part < parts.end; part++) {
        const struct parallel_span rows = parallel_span_of(call->n_rows, 1, (int)part, call->n_parts);
        VF_DISPATCH(call->args->type, backward_rows, call->args, rows,
                    call->workspace + part * N_ARRAYS * call->padded);
    }
}

enum status CPU_OP(rope_backward)(struct stream *stream, const struct rope_backward_args *args) {
    const size_t n_rows = (size_t)args->B * (size_t)args->T, D = (size_t)args->D;
    const struct backward_call call = {args, stream->workspace, channel_sums_padded(D), n_rows,
                                       channel_sums_parts(n_rows)};
    cpu_parallel(stream->device, n_rows * (size_t)(args->H + args->K) * D, (size_t)call.n_parts, 1,
                 backward_parts, &call);
    void *const gradients[2] = {args->dq_weight, args->dk_weight};
    for (size_t k = 0; k < 2; k++) // D is small, so this thread does it alone
        channel_sums_add(gradients[k], args->beta_zero, call.workspace + (TOTALS + k) * call.padded,
                         N_ARRAYS * call.padded, call.n_parts, (struct parallel_span){0, D});
    return STATUS_OK;
}
