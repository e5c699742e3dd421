// AdamW and SGD with momentum, element by element; formulas in kernels/ops.h.
#include <math.h>

#include "kernels/ref/ref.h"

enum status ref_adamw(struct stream *stream, const struct adamw_args *a) {
    enum dtype wide = ref_wide(a->type);
    (void)stream;
    double correction1 = 1 - pow(a->beta1, (double)a->step), correction2 = 1 - pow(a->beta2, (double)a->step);
    for (size_t i = 0; i < a->n; i++) {
        double g = ref_load(a->grad, wide, i) * (double)a->grad_scale;
        double m = a->beta1 * ref_load(a->m, wide, i) + (1 - a->beta1) * g;
        double v = a->beta2 * ref_load(a->v, wide, i) + (1 - a->beta2) * g * g;
        double master = ref_load(a->master, wide, i);
        master -= a->lr * (m / correction1 / (sqrt(v / correction2) + a->epsilon) + a->weight_decay * master);
        ref_store(a->m, wide, i, m);
        ref_store(a->v, wide, i, v);
        ref_store(a->master, wide, i, master);
        if (a->param)
            ref_store(a->param, a->type, i, ref_load(a->master, wide, i));
    }
    return STATUS_OK;
}

enum status ref_sgd(struct stream *stream, const struct sgd_args *a) {
    enum dtype wide = ref_wide(a->type);
    (void)stream;
    for (size_t i = 0; i < a->n; i++) {
        double master = ref_load(a->master, wide, i);
        double g = ref_load(a->grad, wide, i) * (double)a->grad_scale + a->weight_decay * master;
        if (a->m) {
            g = a->step == 1 ? g : a->momentum * ref_load(a->m, wide, i) + g;
            ref_store(a->m, wide, i, g);
        }
        ref_store(a->master, wide, i, master - a->lr * g);
        if (a->param)
            ref_store(a->param, a->type, i, ref_load(a->master, wide, i));
    }
    return STATUS_OK;
}
