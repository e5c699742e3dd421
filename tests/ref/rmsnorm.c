// Root mean square normalization: with xhat = x rstd, out = xhat weight. Backward, with g = dout weight:
// dx = rstd (g - xhat mean(g xhat)); dweight = sum of dout xhat.
#include <math.h>

#include "tests/ref/ref.h"

static double weight_at(const void *weight, enum dtype type, size_t c) {
    return weight ? ref_load(weight, type, c) : 1;
}

enum status ref_rmsnorm_forward(struct stream *stream, const struct rmsnorm_forward_args *a) {
    (void)stream;
    size_t C = (size_t)a->C;
    for (size_t n = 0; n < (size_t)a->N; n++) {
        double squares = 0;
        for (size_t c = 0; c < C; c++) {
            double x = ref_load(a->x, a->type, n * C + c);
            squares += x * x / (double)C;
        }
        double rstd = 1 / sqrt(squares + (double)a->epsilon);
        if (ref_wide(a->type) == DTYPE_F32) // rounded as stored, since backward recomputes `out` from it
            rstd = (double)(float)rstd;
        for (size_t c = 0; c < C; c++)
            ref_store(a->out, a->type, n * C + c,
                      ref_load(a->x, a->type, n * C + c) * rstd * weight_at(a->weight, a->type, c));
        if (a->rstd)
            ref_store(a->rstd, ref_wide(a->type), n, rstd);
    }
    return STATUS_OK;
}

enum status ref_rmsnorm_backward(struct stream *stream, const struct rmsnorm_backward_args *a) {
    (void)stream;
    size_t C = (size_t)a->C;
    for (size_t c = 0; a->dweight && a->beta_zero && c < C; c++)
        ref_store(a->dweight, ref_wide(a->type), c, 0);
    for (size_t n = 0; n < (size_t)a->N; n++) {
        double rstd = ref_load(a->rstd, ref_wide(a->type), n), mean = 0;
        for (size_t c = 0; c < C; c++) {
            double dout = ref_load(a->dout, a->type, n * C + c);
            double xhat = ref_load(a->x, a->type, n * C + c) * rstd;
            mean += dout * weight_at(a->weight, a->type, c) * xhat / (double)C;
            if (a->dweight)
                ref_accumulate(a->dweight, ref_wide(a->type), c, dout * xhat);
        }
        for (size_t c = 0; c < C; c++) {
            double xhat = ref_load(a->x, a->type, n * C + c) * rstd,
                   weight = weight_at(a->weight, a->type, c);
            double g = ref_load(a->dout, a->type, n * C + c) * weight;
            double residual = a->dresidual ? ref_load(a->dresidual, a->type, n * C + c) : 0;
            ref_store(a->dx, a->type, n * C + c, residual + rstd * (g - xhat * mean));
            if (a->out)
                ref_store(a->out, a->type, n * C + c, xhat * weight);
        }
    }
    return STATUS_OK;
}
