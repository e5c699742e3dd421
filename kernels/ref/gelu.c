// GELU in its tanh form. With u = sqrt(2 / pi) (x + 0.044715 x^3), (1 + tanh u) / 2 is the logistic function
// s of 2 u, which keeps its digits where 1 + tanh u cancels: gelu(x) = x s and gelu'(x) = s + x s (1 - s) 2
// du/dx.
#include <math.h>

#include "kernels/ref/ref.h"

#define CUBIC 0.044715

static double logistic_of_2u(double x) {
    return 1 / (1 + exp(-2 * sqrt(2 / M_PI) * (x + CUBIC * x * x * x)));
}

double ref_gelu(double x) {
    return x * logistic_of_2u(x);
}

double ref_gelu_slope(double x) {
    double s = logistic_of_2u(x);
    return s + x * s * (1 - s) * 2 * sqrt(2 / M_PI) * (1 + 3 * CUBIC * x * x);
}

enum status ref_gelu_forward(struct stream *stream, const struct gelu_forward_args *a) {
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->out, a->type, i, ref_gelu(ref_load(a->x, a->type, i)));
    return STATUS_OK;
}

enum status ref_gelu_backward(struct stream *stream, const struct gelu_backward_args *a) {
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->dx, a->type, i,
                  ref_load(a->dout, a->type, i) * ref_gelu_slope(ref_load(a->x, a->type, i)));
    return STATUS_OK;
}
