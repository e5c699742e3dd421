// Layer normalization: with xhat = (x - mean) rstd, out = xhat weight + bias. Backward, with g = dout weight:
// dx = rstd (g - mean(g) - xhat mean(g xhat)); dweight = sum of dout xhat; dbias = sum of dout.
#include <math.h>

#include "tests/ref/ref.h"

enum status ref_layernorm_forward(struct stream *stream, const struct layernorm_forward_args *a) {
    (void)stream;
    size_t C = (size_t)a->C;
    for (size_t n = 0; n < (size_t)a->N; n++) {
        double mean = 0, variance = 0;
        for (size_t c = 0; c < C; c++)
            mean += ref_load(a->x, a->type, n * C + c) / (double)C;
        for (size_t c = 0; c < C; c++) {
            double deviation = ref_load(a->x, a->type, n * C + c) - mean;
            variance += deviation * deviation / (double)C;
        }
        double rstd = 1 / sqrt(variance + (double)a->epsilon);
        if (ref_wide(a->type) == DTYPE_F32) { // rounded as stored, since backward recomputes `out` from these
            mean = (double)(float)mean;
            rstd = (double)(float)rstd;
        }
        for (size_t c = 0; c < C; c++) {
            double xhat = (ref_load(a->x, a->type, n * C + c) - mean) * rstd;
            ref_store(a->out, a->type, n * C + c,
                      xhat * ref_load(a->weight, a->type, c) + ref_load(a->bias, a->type, c));
        }
        if (a->mean) {
            ref_store(a->mean, ref_wide(a->type), n, mean);
            ref_store(a->rstd, ref_wide(a->type), n, rstd);
        }
    }
    return STATUS_OK;
}

enum status ref_layernorm_backward(struct stream *stream, const struct layernorm_backward_args *a) {
    (void)stream;
    size_t C = (size_t)a->C;
    void *const gradients[] = {a->dweight, a->dbias}; // each or NULL
    for (int k = 0; k < 2; k++)
        for (size_t c = 0; gradients[k] && a->beta_zero && c < C; c++)
            ref_store(gradients[k], ref_wide(a->type), c, 0);
    for (size_t n = 0; n < (size_t)a->N; n++) {
        double mean = ref_load(a->mean, ref_wide(a->type), n), rstd = ref_load(a->rstd, ref_wide(a->type), n);
        double mean_g = 0, mean_g_xhat = 0;
        for (size_t c = 0; c < C; c++) {
            double dout = ref_load(a->dout, a->type, n * C + c);
            double xhat = (ref_load(a->x, a->type, n * C + c) - mean) * rstd;
            double g = dout * ref_load(a->weight, a->type, c);
            mean_g += g / (double)C;
            mean_g_xhat += g * xhat / (double)C;
            for (int k = 0; k < 2; k++)
                if (gradients[k])
                    ref_accumulate(gradients[k], ref_wide(a->type), c, k == 0 ? dout * xhat : dout);
        }
        for (size_t c = 0; c < C; c++) {
            double xhat = (ref_load(a->x, a->type, n * C + c) - mean) * rstd;
            double g = ref_load(a->dout, a->type, n * C + c) * ref_load(a->weight, a->type, c);
            double residual = a->dresidual ? ref_load(a->dresidual, a->type, n * C + c) : 0;
            ref_store(a->dx, a->type, n * C + c, residual + rstd * (g - mean_g - xhat * mean_g_xhat));
            if (a->out)
                ref_store(a->out, a->type, n * C + c,
                          xhat * ref_load(a->weight, a->type, c) + ref_load(a->bias, a->type, c));
        }
    }
    return STATUS_OK;
}
