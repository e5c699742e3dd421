// Cross-entropy of rows of logits, with its gradient (kernels/ops_layers.h: cross_entropy). Three passes over
// a row while it is in the cache: the maximum; the exponentials exp(logit - maximum), which are stored, and
// their sum; the gradient. The target's exponential is not part of this sum, and the target's gradient is
// computed from the loss with expm1, so that a loss near 0 and its gradient keep their relative accuracy.
#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu.h"
#include <math.h>

static bool has_options(const struct cross_entropy_args *args) {
    return args->soft_cap != 0 || args->label_smoothing != 0 || args->z_loss != 0;
}

// Floats of scratch per thread: the exponentials of a row and, with options, soft_cap's tanh of each logit.
static size_t row_floats(const struct cross_entropy_args *args) {
    return ((size_t)args->V + 2 * VF_WIDTH - 1) / VF_WIDTH * VF_WIDTH;
}

size_t CPU_OP(cross_entropy_workspace)(const struct device *device, const struct cross_entropy_args *args) {
    const size_t rows = args->dlogits ? has_options(args) ? 2 : 1 : 0;
    return (size_t)device->n_threads * rows * row_floats(args) * sizeof(float);
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

// Returns the sum of exp(logit - maximum) over logits [first, first + n). A step adds N_SUMS vectors. Spans
// of SPAN_STEPS steps are summed in float, and these sums are added in double.
//   exponentials   [out] (n) exp(logit - maximum) of each logit; NULL: not wanted
#define N_SUMS     4
#define SPAN_STEPS 16

VF_INLINE double sum_exponentials(enum dtype type, const void *logits, size_t first, int n, float maximum,
                                  float *exponentials) {
    double sum = 0.0;
    int c = 0;
    while (c + N_SUMS * VF_WIDTH <= n) {
        vf sums[N_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (int step = 0; step < SPAN_STEPS && c + N_SUMS * VF_WIDTH <= n; step++, c += N_SUMS * VF_WIDTH)
            for (int i = 0; i < N_SUMS; i++) {
                int at = c + i * VF_WIDTH;
                vf e = vf_exp(vf_get(type, logits, first + (size_t)at) - maximum);
                sums[i] += e;
                if (exponentials)
                    vf_store(exponentials + at, e);
            }
        sum += (double)vf_reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    for (; c < n; c += VF_WIDTH) {
        int lanes = n - c < VF_WIDTH ? n - c : VF_WIDTH;
        vf e = vf_exp(vf_get_part(type, logits, first + (size_t)c, lanes) - maximum);
        sum += (double)vf_reduce_add(vf_first(e, lanes, vf_zero()));
        if (exponentials)
            vf_store_part(exponentials + c, e, lanes);
    }
    return sum;
}

// Writes dlogits = exponential * factor to a row, and its n_zeros zeros. The target's gradient is overwritten
// afterwards.
VF_INLINE void write_row_gradient(enum dtype type, const struct cross_entropy_args *args, size_t row,
                                  const float *exponentials, float factor) {
    size_t to = row * (size_t)args->dlogits_stride, V = (size_t)args->V, c = 0;
    void *dlogits = args->dlogits;
    for (; c + VF_WIDTH <= V; c += VF_WIDTH)
        vf_put(type, dlogits, to + c, vf_load(exponentials + c) * factor);
    if (c < V) {
        int lanes = (int)(V - c);
        vf_put_part(type, dlogits, to + c, vf_load_part(exponentials + c, lanes) * factor, lanes);
    }
    for (c = V; c < V + (size_t)args->n_zeros; c++)
        vf_put_one(type, dlogits, to + c, 0);
}

// Writes zeros as the gradient of a row whose target has weight 0.
VF_INLINE void write_row_zeros(enum dtype type, const struct cross_entropy_args *args, size_t row) {
    size_t to = row * (size_t)args->dlogits_stride, n = (size_t)args->V + (size_t)args->n_zeros, c = 0;
    for (; c + VF_WIDTH <= n; c += VF_WIDTH)
        vf_put(type, args->dlogits, to + c, vf_zero());
    for (; c < n; c++)
        vf_put_one(type, args->dlogits, to + c, 0);
}

// ---- with options: capped logits, label smoothing, z-loss

// Sums over a row.
struct row_sums {
    double others; // sum of exp(capped logit - maximum) over all logits but the target's
    double logits; // sum of the capped logits; NaN if a logit was infinite before it was capped
};

// Values that the gradient reads again: exp(logit - maximum) and tanh(x / soft_cap) of each logit, padded to
// whole vectors. NULL in evaluation.
struct row_terms {
    float *exponentials, *tanhs;
};

VF_INLINE void sum_step(enum dtype type, const struct cross_entropy_args *args, size_t first, int target,
                        float maximum, struct row_terms terms, int c, int lanes, vf *others, vf *logits) {
    vf x = vf_get_part(type, args->logits, first + (size_t)c, lanes);
    struct capped capped = vf_soft_cap(x, args->soft_cap);
    vf e = vf_exp(capped.logit - maximum);
    if (terms.exponentials) {
        vf_store(terms.exponentials + c, e);
        vf_store(terms.tanhs + c, capped.tanh);
    }
    e = vf_select(vi_iota() == vi_set1(target - c), vf_zero(), e);
    *others += lanes < VF_WIDTH ? vf_first(e, lanes, vf_zero()) : e;
    vf logit = vf_fma(x, vf_zero(), capped.logit); // adds 0 x, which is NaN if x is infinite
    *logits += lanes < VF_WIDTH ? vf_first(logit, lanes, vf_zero()) : logit;
}

VF_INLINE struct row_sums sum_row(enum dtype type, const struct cross_entropy_args *args, size_t first,
                                  int target, float maximum, struct row_terms terms) {
    struct row_sums sums = {0, 0};
    int V = args->V;
    for (int c = 0; c < V;) {
        vf others = vf_zero(), logits = vf_zero();
        int step = 0;
        for (; step < SPAN_STEPS && c + VF_WIDTH <= V; step++, c += VF_WIDTH)
            sum_step(type, args, first, target, maximum, terms, c, VF_WIDTH, &others, &logits);
        if (step < SPAN_STEPS && c < V) {
            sum_step(type, args, first, target, maximum, terms, c, V - c, &others, &logits);
            c = V;
        }
        sums.others += (double)vf_reduce_add(others);
        sums.logits += (double)vf_reduce_add(logits);
    }
    return sums;
}

// dlogits = (exp(logit - maximum) factor - of_others) (1 - tanh^2); for the target: of_target (1 - tanh^2).
struct row_slope {
    float factor, of_others, of_target;
    int target;
};

VF_INLINE void write_slope_step(enum dtype type, const struct cross_entropy_args *args, size_t to,
                                struct row_terms terms, struct row_slope slope, int c, int lanes) {
    vf tanh = vf_load(terms.tanhs + c);
    vf d = vf_load(terms.exponentials + c) * slope.factor - slope.of_others;
    d = vf_select(vi_iota() == vi_set1(slope.target - c), vf_set1(slope.of_target), d);
    vf_put_part(type, args->dlogits, to + (size_t)c, vf_fnma(d * tanh, tanh, d), lanes);
}

VF_INLINE void write_row_slope(enum dtype type, const struct cross_entropy_args *args, size_t row,
                               struct row_terms terms, struct row_slope slope) {
    size_t to = row * (size_t)args->dlogits_stride;
    int c = 0;
    for (; c + VF_WIDTH <= args->V; c += VF_WIDTH)
        write_slope_step(type, args, to, terms, slope, c, VF_WIDTH);
    if (c < args->V)
        write_slope_step(type, args, to, terms, slope, c, args->V - c);
    for (size_t i = (size_t)args->V; i < (size_t)args->V + (size_t)args->n_zeros; i++)
        vf_put_one(type, args->dlogits, to + i, 0);
}

VF_INLINE void one_row_with_options(enum dtype type, enum dtype logits_type,
                                    const struct cross_entropy_args *args, size_t row, double weight,
                                    float *memory) {
    const struct row_terms terms = {memory, memory ? memory + row_floats(args) : NULL};
    const struct cross_entropy_args copy = *args; // a local copy: no store through a pointer aliases it
    size_t first = row * (size_t)copy.logits_stride;
    int target = copy.targets[row];
    double smoothing = (double)copy.label_smoothing, z = (double)copy.z_loss;
    double scale = (double)copy.scale * weight;
    // tanh is increasing, so the maximum of the capped logits is the capped maximum.
    float maximum = row_maximum(logits_type, copy.logits, first, copy.V);
    maximum = vf_soft_cap(vf_set1(maximum), copy.soft_cap).logit[0];
    vf own_logit = vf_get_part(logits_type, copy.logits, first + (size_t)target, 1);
    double of_target = (double)vf_soft_cap(own_logit, copy.soft_cap).logit[0];
    struct row_sums sums = sum_row(logits_type, &copy, first, target, maximum, terms);
    double below = (double)maximum - of_target, own = exp(-below), sum = own + sums.others;
    double loss = sums.others < own ? log1p(sums.others / own) : log(sum) + below;
    double lse = (double)maximum + log(sum), more = 1 + 2 * z * lse;
    ((float *)copy.losses)[row] =
        (float)(((1 - smoothing) * loss + smoothing * (lse - sums.logits / copy.V) + z * lse * lse) * weight);
    if (!copy.dlogits)
        return;
    double target_slope = expm1(-loss) + (more - 1) * (own / sum) + smoothing * (1 - 1.0 / copy.V);
    write_row_slope(type, &copy, row, terms,
                    (struct row_slope){.factor = (float)(more * scale / sum),
                                       .of_others = (float)(smoothing / copy.V * scale),
                                       .of_target = (float)(target_slope * scale),
                                       .target = target});
}

// ---- rows without options, and the choice for each row

VF_INLINE void one_row(enum dtype type, enum dtype logits_type, const struct cross_entropy_args *args,
                       size_t row, double weight, float *exponentials) {
    const void *logits = args->logits;
    size_t first = row * (size_t)args->logits_stride, index = row * (size_t)args->dlogits_stride;
    int target = args->targets[row];
    size_t at_target = first + (size_t)target;
    float *after = exponentials ? exponentials + target + 1 : NULL;
    float maximum = row_maximum(logits_type, logits, first, args->V);
    float own_logit = vf_reduce_add(vf_get_part(logits_type, logits, at_target, 1));
    double others =
        sum_exponentials(logits_type, logits, first, target, maximum, exponentials) +
        sum_exponentials(logits_type, logits, at_target + 1, args->V - target - 1, maximum, after);
    double below = (double)maximum - (double)own_logit, own = exp(-below), sum = own + others;
    double loss = others < own ? log1p(others / own) : log(sum) + below;
    ((float *)args->losses)[row] = (float)(loss * weight);
    if (!exponentials)
        return;
    exponentials[target] = 0;
    double scale = (double)args->scale * weight;
    write_row_gradient(type, args, row, exponentials, (float)(scale / sum));
    vf_put_one(type, args->dlogits, index + (size_t)target, (float)(expm1(-loss) * scale));
}

VF_INLINE void one_row_of(enum dtype type, const struct cross_entropy_args *args, size_t row, float *memory) {
    const double weight = args->weights ? (double)((const float *)args->weights)[row] : 1;
    if (weight == 0) {
        ((float *)args->losses)[row] = 0;
        if (args->dlogits)
            write_row_zeros(type, args, row);
    } else if (args->logits_type == DTYPE_F32 && has_options(args))
        one_row_with_options(type, DTYPE_F32, args, row, weight, memory);
    else if (args->logits_type == DTYPE_F32)
        one_row(type, DTYPE_F32, args, row, weight, memory);
    else if (has_options(args))
        one_row_with_options(type, type, args, row, weight, memory);
    else
        one_row(type, type, args, row, weight, memory);
}

struct rows_call {
    const struct cross_entropy_args *args;
    char *workspace; // scratch of all threads, one after another
    size_t bytes;    // bytes per thread
};

static void rows_part(const void *context, int part, int n_parts) {
    const struct rows_call *call = context;
    const struct cross_entropy_args *args = call->args;
    struct parallel_span rows = parallel_span_of((size_t)args->N, 1, part, n_parts);
    float *own = args->dlogits ? (float *)(call->workspace + (size_t)part * call->bytes) : NULL;
    for (size_t row = rows.begin; row < rows.end; row++)
        VF_DISPATCH(args->type, one_row_of, args, row, own);
}

enum status CPU_OP(cross_entropy)(struct stream *stream, const struct cross_entropy_args *args) {
    struct cross_entropy_args scaled = *args;
    if (args->scale_from)
        scaled.scale = *(const float *)args->scale_from;
    const size_t bytes = CPU_OP(cross_entropy_workspace)(stream->device, args);
    const struct rows_call call = {&scaled, stream->workspace, bytes / (size_t)stream->device->n_threads};
    parallel_run(cpu_threads(stream->device, (size_t)args->N * (size_t)args->V), rows_part, &call);
    return STATUS_OK;
}
