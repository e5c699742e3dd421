// Cross-entropy of rows of logits with its gradient (kernels/ops.h: cross_entropy), a row at a time while it
// lies in the cache: the maximum, the sum of exp(logit - maximum), then the gradient. The sum is compensated,
// and the target's own gradient comes from the loss by expm1, so that a loss near 0 and its gradient keep
// their relative accuracy.
#include <math.h>
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

size_t CPU_OP(cross_entropy_workspace)(const struct device *device, const struct cross_entropy_args *args) {
    (void)device;
    (void)args;
    return 0;
}

static float row_maximum(const float *logits, int V) {
    vf top[4];
    for (int i = 0; i < 4; i++)
        top[i] = vf_set1(-INFINITY);
    int c = 0;
    for (; c + 4 * VF_WIDTH <= V; c += 4 * VF_WIDTH)
        for (int i = 0; i < 4; i++)
            top[i] = vf_max(vf_load(logits + c + i * VF_WIDTH), top[i]);
    for (; c < V; c += VF_WIDTH) {
        int lanes = V - c < VF_WIDTH ? V - c : VF_WIDTH;
        top[0] = vf_max(vf_first(vf_load_part(logits + c, lanes), lanes, vf_set1(-INFINITY)), top[0]);
    }
    return vf_reduce_max(vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3])));
}

// A sum by lane with what its rounding lost (Knuth's two-sum).
struct compensated {
    vf sum, lost;
};

VF_INLINE void add_compensated(struct compensated *total, vf term) {
    vf sum = total->sum + term, added = sum - total->sum;
    total->lost += (total->sum - (sum - added)) + (term - added);
    total->sum = sum;
}

static double row_sum(const float *logits, int V, float maximum) {
    struct compensated totals[2] = {{vf_zero(), vf_zero()}, {vf_zero(), vf_zero()}};
    int c = 0;
    for (; c + 2 * VF_WIDTH <= V; c += 2 * VF_WIDTH)
        for (int i = 0; i < 2; i++)
            add_compensated(&totals[i], vf_exp(vf_load(logits + c + i * VF_WIDTH) - maximum));
    for (; c < V; c += VF_WIDTH) {
        int lanes = V - c < VF_WIDTH ? V - c : VF_WIDTH;
        add_compensated(&totals[0],
                        vf_first(vf_exp(vf_load_part(logits + c, lanes) - maximum), lanes, vf_zero()));
    }
    double sum = 0.0;
    for (int i = 0; i < 2; i++)
        for (int lane = 0; lane < VF_WIDTH; lane++)
            sum += (double)totals[i].sum[lane] + (double)totals[i].lost[lane];
    return sum;
}

VF_INLINE void row_gradient(const enum dtype type, void *dlogits, size_t index, const float *logits, int V,
                            float maximum, float factor) {
    int c = 0;
    for (; c + VF_WIDTH <= V; c += VF_WIDTH)
        vf_put(type, dlogits, index + (size_t)c, vf_exp(vf_load(logits + c) - maximum) * factor);
    if (c < V)
        vf_put_part(type, dlogits, index + (size_t)c,
                    vf_exp(vf_load_part(logits + c, V - c) - maximum) * factor, V - c);
}

VF_INLINE void one_row(const enum dtype type, const struct cross_entropy_args *args, size_t row) {
    const float *logits = (const float *)args->logits + row * (size_t)args->logits_stride;
    size_t index = row * (size_t)args->dlogits_stride;
    int target = args->targets[row];
    float maximum = row_maximum(logits, args->V);
    double sum = row_sum(logits, args->V, maximum);
    double loss = log(sum) + ((double)maximum - (double)logits[target]);
    ((float *)args->losses)[row] = (float)loss;
    if (!args->dlogits)
        return;
    row_gradient(type, args->dlogits, index, logits, args->V, maximum, (float)(args->scale / sum));
    vf_put_one(type, args->dlogits, index + (size_t)target, (float)(expm1(-loss) * args->scale));
}

enum status CPU_OP(cross_entropy)(struct stream *stream, const struct cross_entropy_args *args) {
    size_t n_rows = (size_t)args->N;
#pragma omp parallel num_threads(cpu_threads(stream->device, n_rows *(size_t)args->V))
    {
        struct cpu_range range = cpu_thread_range(n_rows, 1, omp_get_thread_num(), omp_get_num_threads());
        for (size_t row = range.begin; row < range.end; row++)
            VF_DISPATCH(args->type, one_row, args, row);
    }
    return STATUS_OK;
}
