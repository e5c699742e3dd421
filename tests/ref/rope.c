// Rotary position embedding after an optional RMS normalization of each head. Backward rotates the gradient
// back by the same angles. Then, with g = (rotated gradient) weight and xhat = x rstd, dx = rstd (g - xhat
// mean(g xhat)).
#include <math.h>

#include "tests/ref/ref.h"

// The cosine *c and sine *s of a pair's angle at a position.
static void angle_at(const void *table, enum dtype type, size_t position, size_t D, size_t i, double *c,
                     double *s) {
    size_t at = (position * (D / 2) + i) * 2;
    *c = ref_load(table, ref_wide(type), at);
    *s = ref_load(table, ref_wide(type), at + 1);
}

static const void *weight_of(const void *q_weight, const void *k_weight, int head, int H) {
    return head < H ? q_weight : k_weight;
}

static double weight_at(const void *weight, enum dtype type, size_t d) {
    return weight ? ref_load(weight, type, d) : 1;
}

// 1 / sqrt(mean of squares + epsilon) of the head that begins at `at`.
static double rstd_of(const struct rope_forward_args *a, size_t at) {
    double squares = 0;
    for (size_t d = 0; d < (size_t)a->D; d++) {
        double x = ref_load(a->x, a->type, at + d);
        squares += x * x / a->D;
    }
    double rstd = 1 / sqrt(squares + (double)a->epsilon);
    return ref_wide(a->type) == DTYPE_F32 ? (double)(float)rstd : rstd; // rounded as stored
}

enum status ref_rope_forward(struct stream *stream, const struct rope_forward_args *a) {
    (void)stream;
    size_t D = (size_t)a->D, heads = (size_t)(a->H + a->K);
    for (size_t row = 0; row < (size_t)a->B * (size_t)a->T; row++)
        for (size_t head = 0; head < heads; head++) {
            size_t b = row / (size_t)a->T, x = row * a->x_stride + head * D,
                   o = row * a->out_stride + head * D;
            size_t position = (size_t)(a->positions ? a->positions[b] : a->position) + row % (size_t)a->T;
            const void *weight = weight_of(a->q_weight, a->k_weight, (int)head, a->H);
            double rstd = a->norm ? rstd_of(a, x) : 1;
            for (size_t i = 0; i < D / 2; i++) {
                double c, s, low = ref_load(a->x, a->type, x + i) * rstd;
                double high = ref_load(a->x, a->type, x + i + D / 2) * rstd;
                if (a->norm) {
                    low *= weight_at(weight, a->type, i);
                    high *= weight_at(weight, a->type, i + D / 2);
                }
                angle_at(a->table, a->type, position, D, i, &c, &s);
                ref_store(a->out, a->type, o + i, c * low - s * high);
                ref_store(a->out, a->type, o + i + D / 2, c * high + s * low);
            }
            if (a->norm && a->rstd)
                ref_store(a->rstd, ref_wide(a->type), row * heads + head, rstd);
        }
    return STATUS_OK;
}

// A head: where it begins in the tensors of backward.
struct head {
    size_t dx, dout, x, rstd, position;
    const void *weight;
    void *dweight;
};

static struct head head_at(const struct rope_backward_args *a, size_t row, size_t h) {
    size_t D = (size_t)a->D;
    bool is_query = h < (size_t)a->H;
    return (struct head){.dx = row * a->dx_stride + h * D,
                         .dout = row * a->dout_stride + h * D,
                         .x = row * a->x_stride + h * D,
                         .rstd = row * (size_t)(a->H + a->K) + h,
                         .position = row % (size_t)a->T,
                         .weight = is_query ? a->q_weight : a->k_weight,
                         .dweight = is_query ? a->dq_weight : a->dk_weight};
}

// Elements i and i + D / 2 of dout, rotated back: the gradient of the normalized head.
static void turned_back(const struct rope_backward_args *a, const struct head *head, size_t i, double g[2]) {
    size_t D = (size_t)a->D;
    double c, s, low = ref_load(a->dout, a->type, head->dout + i);
    double high = ref_load(a->dout, a->type, head->dout + i + D / 2);
    angle_at(a->table, a->type, head->position, D, i, &c, &s);
    g[0] = c * low + s * high;
    g[1] = c * high - s * low;
}

// Backward of one head's normalization. dx may be dout: both elements of a pair are read before either is
// written.
static void norm_backward(const struct rope_backward_args *a, const struct head *head) {
    size_t D = (size_t)a->D;
    double rstd = ref_load(a->rstd, ref_wide(a->type), head->rstd), mean = 0, g[2];
    for (size_t i = 0; i < D / 2; i++) {
        turned_back(a, head, i, g);
        for (size_t k = 0; k < 2; k++) {
            size_t d = i + k * D / 2;
            double xhat = ref_load(a->x, a->type, head->x + d) * rstd;
            mean += g[k] * weight_at(head->weight, a->type, d) * xhat / (double)D;
            if (head->dweight)
                ref_accumulate(head->dweight, ref_wide(a->type), d, g[k] * xhat);
        }
    }
    for (size_t i = 0; i < D / 2; i++) {
        turned_back(a, head, i, g);
        for (size_t k = 0; k < 2; k++) {
            size_t d = i + k * D / 2;
            double xhat = ref_load(a->x, a->type, head->x + d) * rstd;
            ref_store(a->dx, a->type, head->dx + d,
                      rstd * (g[k] * weight_at(head->weight, a->type, d) - xhat * mean));
        }
    }
}

enum status ref_rope_backward(struct stream *stream, const struct rope_backward_args *a) {
    (void)stream;
    size_t D = (size_t)a->D, heads = (size_t)(a->H + a->K);
    for (size_t d = 0; a->beta_zero && d < D; d++) {
        if (a->dq_weight)
            ref_store(a->dq_weight, ref_wide(a->type), d, 0);
        if (a->dk_weight)
            ref_store(a->dk_weight, ref_wide(a->type), d, 0);
    }
    for (size_t i = 0; i < (size_t)a->B * (size_t)a->T * heads; i++) {
        const struct head head = head_at(a, i / heads, i % heads);
        if (a->norm) {
            norm_backward(a, &head);
            continue;
        }
        for (size_t d = 0; d < D / 2; d++) {
            double g[2];
            turned_back(a, &head, d, g);
            ref_store(a->dx, a->type, head.dx + d, g[0]);
            ref_store(a->dx, a->type, head.dx + d + D / 2, g[1]);
        }
    }
    return STATUS_OK;
}
