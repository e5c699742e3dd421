// Cross-entropy of rows of logits, with its gradient (kernels/ops.h: cross_entropy). Three passes over a row
// while it is in the cache: the maximum, the sum of exp(logit - maximum), the gradient. The target's term is
// kept apart from the sum of the others, and the target's gradient is computed from the loss by expm1, so
// that a loss near 0 and its gradient keep their relative accuracy.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include <math.h>

size_t CPU_OP(cross_entropy_workspace)(const struct device *device, const struct cross_entropy_args *args) {
    (void)device;
    (void)args;
    return 0;
}

VF_INLINE float row_maximum(enum dtype type, const void *logits, size_t row, int V) {
    vf top[4];
    for (int i = 0; i < 4; i++)
        top[i] = vf_set1(-INFINITY);
    int c = 0;
    for (; c + 4 * VF_WIDTH <= V; c += 4 * VF_WIDTH)
        for (int i = 0; i < 4; i++)
            top[i] = vf_max(vf_get(type, logits, row + (size_t)(c + i * VF_WIDTH)), top[i]);
    for (; c < V; c += VF_WIDTH) {
        int lanes = V - c < VF_WIDTH ? V - c : VF_WIDTH;
        top[0] = vf_max(
            vf_first(vf_get_part(type, logits, row + (size_t)c, lanes), lanes, vf_set1(-INFINITY)), top[0]);
    }
    return vf_reduce_max(vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3])));
}

// The sum of exp(logit - maximum) over logits [first, first + n): float sums over spans of SPAN_STEPS steps,
// added up in double.
#define N_SUMS     4
#define SPAN_STEPS 16

VF_INLINE double sum_exponentials(enum dtype type, const void *logits, size_t first, int n, float maximum) {
    double sum = 0.0;
    int c = 0;
    while (c + N_SUMS * VF_WIDTH <= n) {
        vf sums[N_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (int step = 0; step < SPAN_STEPS && c + N_SUMS * VF_WIDTH <= n; step++, c += N_SUMS * VF_WIDTH)
            for (int i = 0; i < N_SUMS; i++)
                sums[i] += vf_exp(vf_get(type, logits, first + (size_t)(c + i * VF_WIDTH)) - maximum);
        sum += (double)vf_reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    for (; c < n; c += VF_WIDTH) {
        int lanes = n - c < VF_WIDTH ? n - c : VF_WIDTH;
        sum += (double)vf_reduce_add(vf_first(
            vf_exp(vf_get_part(type, logits, first + (size_t)c, lanes) - maximum), lanes, vf_zero()));
    }
    return sum;
}

VF_INLINE void write_row_gradient(enum dtype type, enum dtype logits_type,
                                  const struct cross_entropy_args *args, size_t row, float maximum,
                                  float factor) {
    size_t from = row * (size_t)args->logits_stride, to = row * (size_t)args->dlogits_stride;
    size_t V = (size_t)args->V, c = 0;
    for (; c + VF_WIDTH <= V; c += VF_WIDTH)
        vf_put(type, args->dlogits, to + c,
               vf_exp(vf_get(logits_type, args->logits, from + c) - maximum) * factor);
    if (c < V) {
        int lanes = (int)(V - c);
        vf_put_part(type, args->dlogits, to + c,
                    vf_exp(vf_get_part(logits_type, args->logits, from + c, lanes) - maximum) * factor,
                    lanes);
    }
    for (c = V; c < V + (size_t)args->n_zeros; c++)
        vf_put_one(type, args->dlogits, to + c, 0);
}

VF_INLINE void one_row(enum dtype type, enum dtype logits_type, const struct cross_entropy_args *args,
                       size_t row) {
    const void *logits = args->logits;
    size_t first = row * (size_t)args->logits_stride, index = row * (size_t)args->dlogits_stride;
    int target = args->targets[row];
    size_t at_target = first + (size_t)target;
    float maximum = row_maximum(logits_type, logits, first, args->V);
    float own_logit = vf_reduce_add(vf_get_part(logits_type, logits, at_target, 1));
    double others = sum_exponentials(logits_type, logits, first, target, maximum) +
                    sum_exponentials(logits_type, logits, at_target + 1, args->V - target - 1, maximum);
    double below = (double)maximum - (double)own_logit, own = exp(-below), sum = own + others;
    double loss = others < own ? log1p(others / own) : log(sum) + below;
    ((float *)args->losses)[row] = (float)loss;
    if (!args->dlogits)
        return;
    write_row_gradient(type, logits_type, args, row, maximum, (float)(args->scale / sum));
    vf_put_one(type, args->dlogits, index + (size_t)target, (float)(expm1(-loss) * args->scale));
}

VF_INLINE void one_row_of(enum dtype type, const struct cross_entropy_args *args, size_t row) {
    if (args->logits_type == DTYPE_F32)
        one_row(type, DTYPE_F32, args, row);
    else
        one_row(type, type, args, row);
}

static void rows_span(const void *context, struct parallel_span rows) {
    const struct cross_entropy_args *args = context;
    for (size_t row = rows.begin; row < rows.end; row++)
        VF_DISPATCH(args->type, one_row_of, args, row);
}

enum status CPU_OP(cross_entropy)(struct stream *stream, const struct cross_entropy_args *args) {
    size_t n_rows = (size_t)args->N;
    struct cross_entropy_args scaled = *args;
    if (args->scale_from)
        scaled.scale = *(const float *)args->scale_from;
    cpu_parallel(stream->device, n_rows * (size_t)args->V, n_rows, 1, rows_span, &scaled);
    return STATUS_OK;
}
