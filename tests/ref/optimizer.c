// Optimizer steps, element by element in double, and the decision whether to take one; formulas are in
// kernels/ops.h. Moments are processed a block at a time, since the elements of a block share a scale in
// int8.
#include <math.h>

#include "kernels/matrix.h"
#include "kernels/moments.h"
#include "kernels/update.h"
#include "tests/ref/ref.h"

static void load_moments(const struct optimizer_step_args *a, enum moment moment, size_t i, size_t n,
                         double *values) {
    const void *state = moment == FIRST_MOMENT ? a->state.m : a->state.v;
    const float *scales = moment == FIRST_MOMENT ? a->state.m_scales : a->state.v_scales;
    float rounded_values[MOMENT_BLOCK];
    if (a->type != DTYPE_F64)
        moments_load(a->state_type, moment, (const char *)state + i * dtype_size(a->state_type),
                     scales ? scales + i / MOMENT_BLOCK : NULL, n, rounded_values);
    for (size_t k = 0; k < n; k++)
        values[k] = a->type == DTYPE_F64 ? ref_load(state, DTYPE_F64, i + k) : (double)rounded_values[k];
}

static void store_moments(const struct optimizer_step_args *a, enum moment moment, size_t i, size_t n,
                          const double *values) {
    void *state = moment == FIRST_MOMENT ? a->state.m : a->state.v;
    float *scales = moment == FIRST_MOMENT ? a->state.m_scales : a->state.v_scales;
    float rounded_values[MOMENT_BLOCK];
    for (size_t k = 0; k < n; k++)
        if (a->type == DTYPE_F64)
            ref_store(state, DTYPE_F64, i + k, values[k]);
        else
            rounded_values[k] = (float)values[k];
    if (a->type != DTYPE_F64)
        moments_store_step(a->state_type, moment, rounded_values, n, moment_noise_key(a->step), a->first + i,
                           (char *)state + i * dtype_size(a->state_type),
                           scales ? scales + i / MOMENT_BLOCK : NULL);
}

static double sign(double x) {
    return x > 0 ? 1 : x < 0 ? -1 : x; // zero and NaN
}

// Returns the new weight (Muon: the direction) from the old one and the unscaled gradient, and updates m and
// v. correction: 1 - beta^step for both betas.
static double step(const struct optimizer_step_args *a, const double correction[2], double g, double weight,
                   double *m, double *v) {
    if (a->rule == OPTIMIZER_ADAM || a->rule == OPTIMIZER_SGD)
        g += a->weight_decay * weight;
    double decay = a->rule == OPTIMIZER_ADAMW || a->rule == OPTIMIZER_LION ? a->weight_decay * weight : 0;
    switch (a->rule) {
    case OPTIMIZER_SGD:
        *m = a->state.m && a->step > 1 ? a->beta1 * *m + g : g;
        return weight - a->lr * *m;
    case OPTIMIZER_MUON:
        *m = a->beta1 * *m + (1 - a->beta1) * g;
        return a->beta1 * *m + (1 - a->beta1) * g; // the direction
    case OPTIMIZER_LION: {
        double direction = sign(a->beta1 * *m + (1 - a->beta1) * g);
        *m = a->beta2 * *m + (1 - a->beta2) * g;
        return weight - a->lr * (direction + decay);
    }
    case OPTIMIZER_SCHEDULE_FREE: {
        const double z = a->step > 1 ? *m : weight, c = (double)a->average_weight;
        *v = a->beta2 * *v + (1 - a->beta2) * g * g;
        const double d = g / (sqrt(*v / correction[1]) + a->epsilon) + a->weight_decay * weight;
        *m = z - a->lr * d;
        return weight + c * (z - weight) + a->lr * (a->beta1 * (1 - c) - 1) * d;
    }
    default:
        *m = a->beta1 * *m + (1 - a->beta1) * g;
        *v = a->beta2 * *v + (1 - a->beta2) * g * g;
        return weight - a->lr * (*m / correction[0] / (sqrt(*v / correction[1]) + a->epsilon) + decay);
    }
}

enum status ref_optimizer_step(struct stream *stream, const struct optimizer_step_args *a) {
    enum dtype wide = ref_wide(a->type), grad_type = a->type == DTYPE_F64 ? DTYPE_F64 : a->grad_type;
    const double correction[2] = {1 - pow(a->beta1, (double)a->step), 1 - pow(a->beta2, (double)a->step)};
    const bool makes_direction = a->rule == OPTIMIZER_MUON;
    (void)stream;
    for (size_t begin = 0; begin < a->n; begin += MOMENT_BLOCK) {
        size_t n = a->n - begin < MOMENT_BLOCK ? a->n - begin : MOMENT_BLOCK;
        double m[MOMENT_BLOCK] = {0}, v[MOMENT_BLOCK] = {0};
        if (a->state.m)
            load_moments(a, FIRST_MOMENT, begin, n, m);
        if (a->state.v)
            load_moments(a, SECOND_MOMENT, begin, n, v);
        for (size_t k = 0; k < n; k++) {
            size_t i = begin + k;
            double g = ref_load(a->grad, grad_type, i) * (double)a->grad_scale;
            double weight = a->rule == OPTIMIZER_MUON ? 0 : ref_load(a->state.master, wide, i);
            double new = step(a, correction, g, weight, &m[k], &v[k]);
            if (!makes_direction)
                ref_store(a->state.master, wide, i, new);
            if (a->param)
                ref_store(a->param, a->type, i, makes_direction ? new : ref_load(a->state.master, wide, i));
        }
        if (a->state.m)
            store_moments(a, FIRST_MOMENT, begin, n, m);
        if (a->state.v)
            store_moments(a, SECOND_MOMENT, begin, n, v);
    }
    return STATUS_OK;
}

enum status ref_optimizer_spans(struct stream *stream, const struct optimizer_spans_args *a) {
    for (int i = 0; i < a->n_spans && !a->result->skipped; i++) {
        const struct optimizer_step_args step = optimizer_span_step(a, i);
        TRY(ref_optimizer_step(stream, &step));
    }
    return STATUS_OK;
}

static enum status normalize_one(struct stream *stream, const struct matrix_normalize_args *a) {
    const struct sum_squares_args squares = {.partial = a->partial, .x = a->x, .n = a->n, .type = a->type};
    double sum = 0;
    TRY(ref_sum_squares(stream, &squares));
    for (size_t i = 0; i < sum_squares_partials(a->n); i++)
        sum += a->partial[i];
    for (size_t i = 0; i < a->n; i++)
        ref_store(a->out, a->type, i, ref_load(a->x, a->type, i) / fmax(sqrt(sum), a->epsilon));
    return STATUS_OK;
}

enum status ref_matrix_normalize(struct stream *stream, const struct matrix_normalize_args *a) {
    for (int i = 0; i < a->n_matrices; i++) {
        const struct matrix_normalize_args one = matrix_normalize_of(a, i);
        TRY(normalize_one(stream, &one));
    }
    return STATUS_OK;
}

// Computes every element, even of a symmetric product.
static void multiply_one(const struct matrix_product_args *a) {
    const size_t rows = (size_t)a->rows, columns = (size_t)a->columns, inner = (size_t)a->inner,
                 x_row = a->x_transposed ? 1 : inner, x_column = a->x_transposed ? rows : 1,
                 y_row = a->y_transposed ? 1 : columns, y_column = a->y_transposed ? inner : 1;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) {
            double sum = 0;
            for (size_t k = 0; k < inner; k++)
                sum += ref_load(a->x, a->type, i * x_row + k * x_column) *
                       ref_load(a->y, a->type, k * y_row + j * y_column);
            sum *= a->alpha;
            if (a->addend)
                sum += a->beta * ref_load(a->addend, a->type, i * columns + j);
            ref_store(a->out, a->type, i * columns + j, sum);
        }
}

enum status ref_matrix_product(struct stream *stream, const struct matrix_product_args *a) {
    (void)stream;
    for (int i = 0; i < a->n_matrices; i++) {
        const struct matrix_product_args one = matrix_product_of(a, i);
        multiply_one(&one);
    }
    return STATUS_OK;
}

enum status ref_matrix_add_diagonal(struct stream *stream, const struct matrix_add_diagonal_args *a) {
    const size_t n = (size_t)a->n;
    (void)stream;
    for (int matrix = 0; matrix < a->n_matrices; matrix++)
        for (size_t i = 0; i < n; i++) {
            const size_t at = (size_t)matrix * a->distance + i * (n + 1);
            ref_store(a->x, a->type, at, ref_load(a->x, a->type, at) + a->value);
        }
    return STATUS_OK;
}

enum status ref_muon_step(struct stream *stream, const struct muon_step_args *a) {
    const struct optimizer_constants *constants = &a->plan->constants[a->group];
    const enum dtype wide = ref_wide(a->type);
    (void)stream;
    for (size_t i = 0; i < a->n && !a->result->skipped; i++) {
        const double weight = ref_load(a->master, wide, i),
                     update = ref_load(a->update, a->type == DTYPE_F64 ? DTYPE_F64 : a->update_type, i);
        ref_store(a->master, wide, i,
                  weight - (double)constants->lr * (double)a->scale * update -
                      (double)constants->decay * weight);
        if (a->param)
            ref_store(a->param, a->type, i, ref_load(a->master, wide, i));
    }
    return STATUS_OK;
}

enum status ref_update_decide(struct stream *stream, const struct update_decide_args *a) {
    (void)stream;
    *a->result = update_decision(a);
    return STATUS_OK;
}
