// Cross-entropy of a softmax: loss = lse(logits) - logits[target]; dlogits = (softmax - onehot) scale; with a
// cap on logits, label smoothing and z-loss as kernels/ops_layers.h defines them.
#include <math.h>

#include "tests/ref/ref.h"

static double capped(double logit, double cap) {
    return cap > 0 ? cap * tanh(logit / cap) : logit;
}

// What a row's gradient needs of its softmax.
struct row {
    double highest, total, lse, mean; // of the capped logits
};

static struct row row_of(const struct cross_entropy_args *a, enum dtype type, size_t at) {
    struct row row = {.highest = -HUGE_VAL};
    double cap = (double)a->soft_cap;
    for (size_t v = 0; v < (size_t)a->V; v++)
        row.highest = fmax(row.highest, capped(ref_load(a->logits, type, at + v), cap));
    for (size_t v = 0; v < (size_t)a->V; v++) {
        double before = ref_load(a->logits, type, at + v), logit = capped(before, cap);
        row.total += exp(logit - row.highest);
        row.mean += isinf(before) ? NAN : logit / a->V;
    }
    row.lse = row.highest + log(row.total);
    return row;
}

enum status ref_cross_entropy(struct stream *stream, const struct cross_entropy_args *a) {
    enum dtype wide = ref_wide(a->type), type = a->type == DTYPE_F64 ? DTYPE_F64 : a->logits_type;
    double scale = a->scale_from ? ref_load(a->scale_from, wide, 0) : (double)a->scale;
    double cap = (double)a->soft_cap, smoothing = (double)a->label_smoothing, z = (double)a->z_loss;
    (void)stream;
    for (size_t n = 0; n < (size_t)a->N; n++) {
        size_t at = n * (size_t)a->logits_stride, target = (size_t)a->targets[n];
        const struct row row = row_of(a, type, at);
        const double weight = a->weights ? ref_load(a->weights, wide, n) : 1;
        double of_target = capped(ref_load(a->logits, type, at + target), cap);
        double loss = row.lse - (1 - smoothing) * of_target - smoothing * row.mean + z * row.lse * row.lse;
        ref_store(a->losses, wide, n, weight > 0 ? loss * weight : 0);
        // Each logit is read before the same element is written: dlogits may alias the logits.
        size_t gradient = n * (size_t)a->dlogits_stride;
        for (size_t v = 0; a->dlogits && v < (size_t)a->V; v++) {
            double logit = capped(ref_load(a->logits, type, at + v), cap);
            double p = exp(logit - row.highest) / row.total, slope = 1 - logit * logit / (cap * cap);
            double d = (1 + 2 * z * row.lse) * p - (1 - smoothing) * (v == target) - smoothing / a->V;
            d = weight > 0 ? d * scale * weight * (cap > 0 ? slope : 1) : 0;
            ref_store(a->dlogits, a->type, gradient + v, d);
        }
        for (size_t v = (size_t)a->V; a->dlogits && v < (size_t)a->V + (size_t)a->n_zeros; v++)
            ref_store(a->dlogits, a->type, gradient + v, 0);
    }
    return STATUS_OK;
}
