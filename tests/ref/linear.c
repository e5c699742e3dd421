// A linear layer: out = x weight^T + bias, and its three gradients.
#include "tests/ref/ref.h"

enum status ref_linear_forward(struct stream *stream, const struct linear_forward_args *a) {
    (void)stream;
    size_t IC = (size_t)a->IC, OC = (size_t)a->OC;
    for (size_t n = 0; n < (size_t)a->N; n++)
        for (size_t o = 0; o < OC; o++) {
            double sum = a->bias ? ref_load(a->bias, a->type, o) : 0;
            for (size_t i = 0; i < IC; i++)
                sum += ref_load(a->x, a->type, n * IC + i) * ref_load(a->weight, a->type, o * IC + i);
            if (a->pre_activation) {
                ref_store(a->pre_activation, a->type, n * OC + o, sum);
                sum = ref_load(a->pre_activation, a->type, n * OC + o);
            }
            sum = ref_activate(a->activation, sum);
            if (a->residual)
                sum += ref_load(a->residual, a->type, n * OC + o);
            ref_store(a->out, a->out_type, n * (size_t)a->out_stride + o, sum);
        }
    return STATUS_OK;
}

enum status ref_linear_backward(struct stream *stream, const struct linear_backward_args *a) {
    (void)stream;
    size_t N = (size_t)a->N, IC = (size_t)a->IC, OC = (size_t)a->OC, stride = (size_t)a->dout_stride;
    for (size_t n = 0; a->dx && n < N; n++)
        for (size_t i = 0; i < IC; i++) {
            double sum = 0;
            for (size_t o = 0; o < OC; o++)
                sum += ref_load(a->dout, a->type, n * stride + o) * ref_load(a->weight, a->type, o * IC + i);
            if (a->pre_activation)
                sum *= ref_activation_slope(a->activation, ref_load(a->pre_activation, a->type, n * IC + i));
            ref_store(a->dx, a->type, n * IC + i, sum);
        }
    for (size_t o = 0; a->dweight && o < OC; o++)
        for (size_t i = 0; i < IC; i++) {
            double sum = 0;
            for (size_t n = 0; n < N; n++)
                sum += ref_load(a->dout, a->type, n * stride + o) * ref_load(a->x, a->type, n * IC + i);
            if (a->beta_zero)
                ref_store(a->dweight, ref_wide(a->type), o * IC + i, sum);
            else
                ref_accumulate(a->dweight, ref_wide(a->type), o * IC + i, sum);
        }
    for (size_t o = 0; a->dbias && o < OC; o++) {
        double sum = 0;
        for (size_t n = 0; n < N; n++)
            sum += ref_load(a->dout, a->type, n * stride + o);
        if (a->beta_zero || a->writes_dbias)
            ref_store(a->dbias, ref_wide(a->type), o, sum);
        else
            ref_accumulate(a->dbias, ref_wide(a->type), o, sum);
    }
    return STATUS_OK;
}
