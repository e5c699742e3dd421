// GELU in its tanh form: gelu(x) = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), and its slope
// (1 + tanh u) / 2 + x (1 - tanh^2 u) / 2 du/dx.
#include <math.h>

#include "kernels/ref/ref.h"

#define CUBIC 0.044715

double ref_gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + CUBIC * x * x * x)));
}

double ref_gelu_slope(double x) {
    double t = tanh(sqrt(2 / M_PI) * (x + CUBIC * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * CUBIC * x * x);
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
