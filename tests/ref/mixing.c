// Weighted sums, dropout and the soft-cap of logits.
#include <math.h>

#include "kernels/dropout.h"
#include "tests/ref/ref.h"

enum status ref_mix_forward(struct stream *stream, const struct mix_forward_args *a) {
    (void)stream;
    double x_weight = ref_load(a->x_weight, a->type, 0), y_weight = ref_load(a->y_weight, a->type, 0);
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->out, a->type, i,
                  x_weight * ref_load(a->x, a->type, i) + y_weight * ref_load(a->y, a->type, i));
    return STATUS_OK;
}

enum status ref_mix_backward(struct stream *stream, const struct mix_backward_args *a) {
    (void)stream;
    double x_weight = ref_load(a->x_weight, a->type, 0), y_weight = ref_load(a->y_weight, a->type, 0);
    double dx_weight = a->beta_zero || !a->dx_weight ? 0 : ref_load(a->dx_weight, ref_wide(a->type), 0);
    double dy_weight = a->beta_zero || !a->dy_weight ? 0 : ref_load(a->dy_weight, ref_wide(a->type), 0);
    for (size_t i = 0; i < a->n; i++) {
        double dout = ref_load(a->dout, a->type, i);
        double dy = a->dy_zero || !a->dy ? 0 : ref_load(a->dy, ref_wide(a->type), i);
        dx_weight += dout * ref_load(a->x, a->type, i);
        dy_weight += dout * ref_load(a->y, a->type, i);
        if (a->dy)
            ref_store(a->dy, ref_wide(a->type), i, dy + y_weight * dout);
        ref_store(a->dx, a->type, i, x_weight * dout);
    }
    if (a->dx_weight)
        ref_store(a->dx_weight, ref_wide(a->type), 0, dx_weight);
    if (a->dy_weight)
        ref_store(a->dy_weight, ref_wide(a->type), 0, dy_weight);
    return STATUS_OK;
}

// The factor of an element: 0, or 1 / (1 - p).
static double factor(const struct dropout_backward_args *a, size_t n, size_t c) {
    size_t rows = (size_t)a->rows_per_sequence;
    uint64_t row = dropout_row(a->key, a->sequences[n / rows], (uint32_t)(n % rows));
    return dropout_keeps(row, (uint32_t)c, dropout_threshold(a->p)) ? 1 / (1 - (double)a->p) : 0;
}

enum status ref_dropout_forward(struct stream *stream, const struct dropout_forward_args *a) {
    (void)stream;
    const struct dropout_backward_args mask = {
        .sequences = a->sequences, .rows_per_sequence = a->rows_per_sequence, .key = a->key, .p = a->p};
    for (size_t n = 0, i = 0; n < (size_t)a->N; n++)
        for (size_t c = 0; c < (size_t)a->C; c++, i++) {
            double residual = a->residual ? ref_load(a->residual, a->type, i) : 0;
            ref_store(a->out, a->type, i, residual + ref_load(a->x, a->type, i) * factor(&mask, n, c));
        }
    return STATUS_OK;
}

enum status ref_dropout_backward(struct stream *stream, const struct dropout_backward_args *a) {
    (void)stream;
    for (size_t n = 0, i = 0; n < (size_t)a->N; n++)
        for (size_t c = 0; c < (size_t)a->C; c++, i++)
            ref_store(a->dx, a->type, i, ref_load(a->dout, a->type, i) * factor(a, n, c));
    return STATUS_OK;
}

enum status ref_soft_cap(struct stream *stream, const struct soft_cap_args *a) {
    (void)stream;
    for (size_t n = 0; n < (size_t)a->N; n++)
        for (size_t i = n * (size_t)a->stride; i < n * (size_t)a->stride + (size_t)a->V; i++)
            ref_store(a->out, a->type, i, (double)a->cap * tanh(ref_load(a->x, a->type, i) / (double)a->cap));
    return STATUS_OK;
}
