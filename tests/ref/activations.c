// Activations. With u = sqrt(2 / pi) (x + 0.044715 x^3), GELU in its tanh form uses (1 + tanh u) / 2 = s, the
// logistic function of 2 u, which stays accurate where 1 + tanh u cancels: gelu(x) = x s and gelu'(x) = s + x
// s (1 - s) 2 du/dx.
#include <math.h>

#include "tests/ref/ref.h"

#define CUBIC 0.044715

static double logistic_of_2u(double x) {
    return 1 / (1 + exp(-2 * sqrt(2 / M_PI) * (x + CUBIC * x * x * x)));
}

static double gelu(double x) {
    return x * logistic_of_2u(x);
}

static double gelu_slope(double x) {
    double s = logistic_of_2u(x);
    return s + x * s * (1 - s) * 2 * sqrt(2 / M_PI) * (1 + 3 * CUBIC * x * x);
}

static double relu_squared(double x) {
    return x < 0 ? 0 : x * x; // NaN stays NaN
}

static double relu_squared_slope(double x) {
    return x < 0 ? 0 : 2 * x;
}

double ref_activate(enum activation activation, double x) {
    return activation == ACTIVATION_GELU           ? gelu(x)
           : activation == ACTIVATION_RELU_SQUARED ? relu_squared(x)
                                                   : x;
}

double ref_activation_slope(enum activation activation, double x) {
    return activation == ACTIVATION_GELU           ? gelu_slope(x)
           : activation == ACTIVATION_RELU_SQUARED ? relu_squared_slope(x)
                                                   : 1;
}

enum status ref_gelu_forward(struct stream *stream, const struct gelu_forward_args *a) {
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->out, a->type, i, gelu(ref_load(a->x, a->type, i)));
    return STATUS_OK;
}

enum status ref_gelu_backward(struct stream *stream, const struct gelu_backward_args *a) {
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->dx, a->type, i, ref_load(a->dout, a->type, i) * gelu_slope(ref_load(a->x, a->type, i)));
    return STATUS_OK;
}

enum status ref_relu_squared_forward(struct stream *stream, const struct relu_squared_forward_args *a) {
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->out, a->type, i, relu_squared(ref_load(a->x, a->type, i)));
    return STATUS_OK;
}

enum status ref_relu_squared_backward(struct stream *stream, const struct relu_squared_backward_args *a) {
    (void)stream;
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->dx, a->type, i,
                  ref_load(a->dout, a->type, i) * relu_squared_slope(ref_load(a->x, a->type, i)));
    return STATUS_OK;
}

static double logistic(double x) {
    return 1 / (1 + exp(-x));
}

enum status ref_swiglu_forward(struct stream *stream, const struct swiglu_forward_args *a) {
    (void)stream;
    size_t F = (size_t)a->F;
    for (size_t n = 0; n < (size_t)a->N; n++)
        for (size_t f = 0; f < F; f++) {
            double gate = ref_load(a->x, a->type, n * 2 * F + f);
            double up = ref_load(a->x, a->type, n * 2 * F + F + f);
            ref_store(a->out, a->type, n * F + f, gate * logistic(gate) * up);
        }
    return STATUS_OK;
}

// silu'(z) = s + z s (1 - s), s the logistic function of z.
enum status ref_swiglu_backward(struct stream *stream, const struct swiglu_backward_args *a) {
    (void)stream;
    size_t F = (size_t)a->F;
    for (size_t n = 0; n < (size_t)a->N; n++)
        for (size_t f = 0; f < F; f++) {
            size_t at = n * 2 * F + f;
            double gate = ref_load(a->x, a->type, at), up = ref_load(a->x, a->type, at + F);
            double dout = ref_load(a->dout, a->type, n * F + f), s = logistic(gate);
            ref_store(a->dx, a->type, at, dout * up * (s + gate * s * (1 - s)));
            ref_store(a->dx, a->type, at + F, dout * gate * s);
            if (a->out)
                ref_store(a->out, a->type, n * F + f, gate * s * up);
        }
    return STATUS_OK;
}
