// Cross-entropy of a softmax: loss = lse(logits) - logits[target]; dlogits = (softmax - onehot) scale.
#include <math.h>

#include "kernels/ref/ref.h"

enum status ref_cross_entropy(struct stream *stream, const struct cross_entropy_args *a) {
    enum dtype wide = ref_wide(a->type), type = a->type == DTYPE_F64 ? DTYPE_F64 : a->logits_type;
    double scale = a->scale_from ? ref_load(a->scale_from, wide, 0) : (double)a->scale;
    (void)stream;
    for (size_t n = 0; n < (size_t)a->N; n++) {
        size_t row = n * (size_t)a->logits_stride;
        double highest = -HUGE_VAL, total = 0;
        for (size_t v = 0; v < (size_t)a->V; v++)
            highest = fmax(highest, ref_load(a->logits, type, row + v));
        for (size_t v = 0; v < (size_t)a->V; v++)
            total += exp(ref_load(a->logits, type, row + v) - highest);
        double lse = highest + log(total);
        ref_store(a->losses, wide, n, lse - ref_load(a->logits, type, row + (size_t)a->targets[n]));
        // Each logit is read before the same element is written: dlogits may alias the logits.
        size_t gradient = n * (size_t)a->dlogits_stride;
        for (size_t v = 0; a->dlogits && v < (size_t)a->V; v++) {
            double p = exp(ref_load(a->logits, type, row + v) - highest) / total;
            ref_store(a->dlogits, a->type, gradient + v, (p - (v == (size_t)a->targets[n])) * scale);
        }
        for (size_t v = (size_t)a->V; a->dlogits && v < (size_t)a->V + (size_t)a->n_zeros; v++)
            ref_store(a->dlogits, a->type, gradient + v, 0);
    }
    return STATUS_OK;
}
