// Every operation of the CPU backend, on every instruction set that this processor has, against the oracle.
//
// Tolerances. Operands are uniform in [-1, 1]. A sum of k products in fp32 errs by at most
// lambda sqrt(k) eps sum|terms| with overwhelming probability (Higham and Mary, SIAM J. Sci. Comput. 41,
// 2019; lambda = 4), which SUM(k) gives for terms of at most 1; what stands before the sums (a rounded
// exponential, say) adds a few eps. Rounding the result adds eps of its type, relative. Where an operand of
// size m multiplies a sum, so does its error.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/ops/compare.h"

#define EPS       0x1p-23
#define SUM(k)    (4 * sqrt((double)(k)) * EPS * (double)(k))
#define MOST_ROWS 8192

static struct device *device, *oracle;
static int32_t ids[MOST_ROWS]; // tokens and targets

static const int32_t *ids_below(int bound) {
    for (int i = 0; i < MOST_ROWS; i++)
        ids[i] = (int32_t)rng_below(11, 5, (uint64_t)i, (uint64_t)bound);
    return ids;
}

// Asks for the workspace when `workspace` is given, else runs.
#define CALL(name, ...)                                                                                      \
    do {                                                                                                     \
        const struct name##_args args_ = {__VA_ARGS__};                                                      \
        if (workspace)                                                                                       \
            return stream->device->ops->workspace_bytes(stream->device, OP_##name, &args_, workspace);       \
        return stream->device->ops->name(stream, &args_);                                                    \
    } while (0)

// The shape of a call, as its runner reads it.
struct shape {
    int N, IC, OC, B, T, S, H, D, V, stride;
    bool gelu;
    enum dtype type, out_type;
    int64_t step;
    size_t n;
    const int32_t *ids;
};
#define RUNNER(name)                                                                                         \
    static enum status run_##name(struct stream *stream, void *const *p, const void *context,                \
                                  size_t *workspace)
#define SHAPE const struct shape *s = context

static struct operand in(enum dtype type, size_t n) {
    return (struct operand){.role = READ, .type = type, .n = n, .low = -1, .high = 1};
}

static struct operand out(enum dtype type, size_t n, double absolute) {
    return (struct operand){
        .role = WRITE, .type = type, .n = n, .absolute = absolute, .relative = dtype_epsilon(type)};
}

static struct operand sum(size_t n, double absolute) {
    return (struct operand){
        .role = ADD, .type = DTYPE_F32, .n = n, .low = -1, .high = 1, .absolute = absolute, .relative = EPS};
}

static struct operand none(void) {
    return (struct operand){0};
}

static struct operand range(struct operand operand, float low, float high) {
    operand.low = low;
    operand.high = high;
    return operand;
}

static struct operand rows(struct operand operand, int row, int stride) {
    operand.row = (size_t)row;
    operand.stride = (size_t)stride;
    return operand;
}

#define COMPARE(name, shape, what_text, ...)                                                                 \
    do {                                                                                                     \
        struct comparison comparison_ = {.operation = OP_##name,                                             \
                                         .what = what_text,                                                  \
                                         .operands = {__VA_ARGS__},                                          \
                                         .run = run_##name,                                                  \
                                         .context = shape};                                                  \
        const struct operand list_[] = {__VA_ARGS__};                                                        \
        comparison_.n_operands = sizeof list_ / sizeof *list_;                                               \
        ops_compare(device, oracle, &comparison_);                                                           \
    } while (0)

#define EACH_TYPE(type) for (enum dtype type = DTYPE_F32; type <= DTYPE_BF16; type++)

// ------------------------------------------------------------------------------------------------------
// embedding

RUNNER(embedding_forward) {
    SHAPE;
    CALL(embedding_forward, .out = p[0], .wte = p[1], .wpe = p[2], .tokens = s->ids, .B = s->B, .T = s->T,
         .C = s->IC, .V = s->V, .position = s->S, .type = s->type);
}

RUNNER(embedding_backward) {
    SHAPE;
    CALL(embedding_backward, .dwte = p[0], .dwpe = p[1], .dout = p[2], .tokens = s->ids, .B = s->B, .T = s->T,
         .C = s->IC, .V = s->V, .type = s->type);
}

static void test_embedding(void **state) {
    static const int shapes[][4] = {{1, 1, 1, 1}, {1, 3, 7, 5}, {3, 5, 48, 257}, {2, 17, 257, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        EACH_TYPE(type) {
            const int *z = shapes[i];
            size_t n = (size_t)(z[0] * z[1] * z[2]), C = (size_t)z[2];
            struct shape s = {
                .B = z[0], .T = z[1], .IC = z[2], .V = z[3], .S = 2, .type = type, .ids = ids_below(z[3])};
            COMPARE(embedding_forward, &s, "", out(type, n, 2 * EPS), in(type, (size_t)z[3] * C),
                    in(type, (size_t)(z[1] + 2) * C));
            double bound = SUM(z[0] * z[1] + 1);
            COMPARE(embedding_backward, &s, "", sum((size_t)z[3] * C, bound), sum((size_t)z[1] * C, bound),
                    in(type, n));
        }
}

// ------------------------------------------------------------------------------------------------------
// layernorm

RUNNER(layernorm_forward) {
    SHAPE;
    CALL(layernorm_forward, .out = p[0], .mean = p[1], .rstd = p[2], .x = p[3], .weight = p[4], .bias = p[5],
         .N = s->N, .C = s->IC, .epsilon = 1e-5f, .type = s->type);
}

RUNNER(layernorm_backward) {
    SHAPE;
    CALL(layernorm_backward, .dx = p[0], .dweight = p[1], .dbias = p[2], .dout = p[3], .dresidual = p[4],
         .x = p[5], .weight = p[6], .mean = p[7], .rstd = p[8], .N = s->N, .C = s->IC, .type = s->type);
}

static void test_layernorm(void **state) {
    static const int shapes[][2] = {{1, 1}, {3, 7}, {7, 48}, {5, 257}, {65, 100}, {33, 768}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        EACH_TYPE(type) {
            int N = shapes[i][0], C = shapes[i][1];
            size_t n = (size_t)N * (size_t)C, c = (size_t)C, rows_n = (size_t)N;
            struct shape s = {.N = N, .IC = C, .type = type};
            // The mean errs by SUM(C) / C, and the division by a deviation (at least a tenth here) magnifies
            // it.
            double mean_error = SUM(C) / C + EPS, xhat_error = 10 * mean_error + 8 * EPS * sqrt(C);
            struct operand mean = out(DTYPE_F32, rows_n, mean_error), rstd = out(DTYPE_F32, rows_n, 0);
            rstd.relative = 200 * mean_error; // of the variance, squared deviations and all
            if (C == 1)                       // a row of one: no deviation, rstd = 1 / sqrt(epsilon)
                rstd.relative = 8 * EPS;
            COMPARE(layernorm_forward, &s, "with statistics", out(type, n, xhat_error), mean, rstd,
                    in(type, n), in(type, c), in(type, c));
            COMPARE(layernorm_forward, &s, "without statistics", out(type, n, xhat_error), none(), none(),
                    in(type, n), in(type, c), in(type, c));
            // |xhat| <= 3 with these statistics: g (1) + mean g (1) + xhat mean (g xhat) (9), times rstd (2).
            double dx = 22 * (SUM(C) / C + 8 * EPS), dweight = 3 * SUM(N + 1) + 8 * EPS * N;
            const struct operand m = range(in(DTYPE_F32, rows_n), -0.5f, 0.5f),
                                 r = range(in(DTYPE_F32, rows_n), 0.5f, 2);
            COMPARE(layernorm_backward, &s, "", out(type, n, dx), sum(c, dweight), sum(c, SUM(N + 1)),
                    in(type, n), in(type, n), in(type, n), in(type, c), m, r);
            COMPARE(layernorm_backward, &s, "without residual", out(type, n, dx), sum(c, dweight),
                    sum(c, SUM(N + 1)), in(type, n), none(), in(type, n), in(type, c), m, r);
        }
}

// ---------------------------------------------------------------------------------------------------------
// linear

RUNNER(linear_forward) {
    SHAPE;
    CALL(linear_forward, .out = p[0], .pre_gelu = p[1], .x = p[2], .weight = p[3], .bias = p[4],
         .residual = p[5], .N = s->N, .IC = s->IC, .OC = s->OC, .out_stride = s->stride, .gelu = s->gelu,
         .type = s->type, .out_type = s->out_type);
}

RUNNER(linear_backward) {
    SHAPE;
    CALL(linear_backward, .dx = p[0], .dweight = p[1], .dbias = p[2], .dout = p[3], .x = p[4], .weight = p[5],
         .N = s->N, .IC = s->IC, .OC = s->OC, .dout_stride = s->stride, .type = s->type);
}

static const int linear_shapes[][3] = {{1, 1, 1},      {3, 7, 5},     {7, 48, 257},
                                       {1, 257, 1000}, {65, 100, 48}, {130, 256, 96}};
#define N_LINEAR_SHAPES (sizeof linear_shapes / sizeof *linear_shapes)

static void test_linear_forward(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LINEAR_SHAPES; i++)
        EACH_TYPE(type) {
            int N = linear_shapes[i][0], IC = linear_shapes[i][1], OC = linear_shapes[i][2], wide = OC + 13;
            size_t x = (size_t)(N * IC), w = (size_t)(OC * IC), o = (size_t)(N * OC);
            struct operand plain = out(type, o, SUM(IC + 2));
            struct shape s = {.N = N, .IC = IC, .OC = OC, .stride = OC, .type = type, .out_type = type};
            COMPARE(linear_forward, &s, "bare", plain, none(), in(type, x), in(type, w), none(), none());
            COMPARE(linear_forward, &s, "bias", plain, none(), in(type, x), in(type, w), in(type, (size_t)OC),
                    none());
            COMPARE(linear_forward, &s, "bias, residual", plain, none(), in(type, x), in(type, w),
                    in(type, (size_t)OC), in(type, o));
            // GELU's slope is at most 1.13, and its own evaluation errs by a few eps of its argument. The
            // argument may be the rounded pre_gelu: its size is below 4 sqrt(IC) (12 standard deviations).
            s.gelu = true;
            double size = 4 * sqrt(IC) + 1;
            COMPARE(linear_forward, &s, "GELU", out(type, o, 1.13 * SUM(IC + 2) + 16 * EPS * size), none(),
                    in(type, x), in(type, w), in(type, (size_t)OC), none());
            COMPARE(linear_forward, &s, "GELU kept",
                    out(type, o, 1.13 * (SUM(IC + 2) + dtype_epsilon(type) * size) + 16 * EPS * size), plain,
                    in(type, x), in(type, w), in(type, (size_t)OC), none());
            s.gelu = false;
            s.stride = wide;
            COMPARE(linear_forward, &s, "stride", rows(out(type, (size_t)(N * wide), SUM(IC + 2)), OC, wide),
                    none(), in(type, x), in(type, w), none(), none());
            s.out_type = DTYPE_F32;
            COMPARE(linear_forward, &s, "stride, fp32 out",
                    rows(out(DTYPE_F32, (size_t)(N * wide), SUM(IC + 2)), OC, wide), none(), in(type, x),
                    in(type, w), none(), none());
        }
}

static void test_linear_backward(void **state) {
    (void)state;
    for (size_t i = 0; i < N_LINEAR_SHAPES; i++)
        EACH_TYPE(type) {
            int N = linear_shapes[i][0], IC = linear_shapes[i][1], OC = linear_shapes[i][2], wide = OC + 13;
            size_t x = (size_t)(N * IC), w = (size_t)(OC * IC);
            struct operand dx = out(type, x, SUM(OC)), dw = sum(w, SUM(N + 1)),
                           db = sum((size_t)OC, SUM(N + 1));
            for (int stride = OC; stride <= wide; stride += wide - OC) {
                struct shape s = {.N = N, .IC = IC, .OC = OC, .stride = stride, .type = type};
                struct operand dout = in(type, (size_t)(N * stride));
                COMPARE(linear_backward, &s, "all", dx, dw, db, dout, in(type, x), in(type, w));
                COMPARE(linear_backward, &s, "dx", dx, none(), none(), dout, in(type, x), in(type, w));
                COMPARE(linear_backward, &s, "dx, dweight", dx, dw, none(), dout, in(type, x), in(type, w));
                COMPARE(linear_backward, &s, "dbias", none(), none(), db, dout, in(type, x), in(type, w));
            }
        }
}

// -----------------------------------------------------------------------------------------------------------
// GELU

RUNNER(gelu_forward) {
    SHAPE;
    CALL(gelu_forward, .out = p[0], .x = p[1], .n = s->n, .type = s->type);
}

RUNNER(gelu_backward) {
    SHAPE;
    CALL(gelu_backward, .dx = p[0], .dout = p[1], .x = p[2], .n = s->n, .type = s->type);
}

static void test_gelu(void **state) {
    static const size_t lengths[] = {1, 7, 48, 257, 70001};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        EACH_TYPE(type) {
            size_t n = lengths[i];
            struct shape s = {.n = n, .type = type};
            struct operand x = range(in(type, n), -12, 12); // far into both tails
            COMPARE(gelu_forward, &s, "", out(type, n, 12 * 8 * EPS), x);
            COMPARE(gelu_backward, &s, "", out(type, n, 12 * 8 * EPS), in(type, n), x);
        }
}

// ------------------------------------------------------------------------------------------------------
// attention

RUNNER(attention_forward) {
    SHAPE;
    size_t C = (size_t)(s->H * s->D), row = 3 * C, size = dtype_size(s->type);
    CALL(attention_forward, .out = p[0], .lse = p[1], .q = p[2], .k = (char *)p[3] + C * size,
         .v = (char *)p[3] + 2 * C * size, .q_stride = row, .q_batch_stride = row * (size_t)s->T,
         .kv_stride = row, .kv_batch_stride = row * (size_t)s->S, .B = s->B, .T = s->T, .S = s->S, .H = s->H,
         .D = s->D, .type = s->type);
}

RUNNER(attention_backward) {
    SHAPE;
    size_t C = (size_t)(s->H * s->D), row = 3 * C, size = dtype_size(s->type);
    char *dqkv = p[0], *qkv = p[4];
    CALL(attention_backward, .dq = dqkv, .dk = dqkv + C * size, .dv = dqkv + 2 * C * size, .dout = p[1],
         .out = p[2], .lse = p[3], .q = qkv, .k = qkv + C * size, .v = qkv + 2 * C * size, .stride = row,
         .batch_stride = row * (size_t)s->T, .B = s->B, .T = s->T, .H = s->H, .D = s->D, .type = s->type);
}

// B, T, S, H, D. With S == T both halves of the call read the same rows; a longer S is a key-value cache.
static const int attention_shapes[][5] = {{1, 1, 1, 1, 1},    {2, 3, 3, 1, 7},      {1, 17, 17, 3, 16},
                                          {2, 65, 65, 2, 64}, {1, 130, 130, 1, 80}, {1, 1, 100, 2, 64},
                                          {1, 5, 70, 3, 33}};

static void test_attention(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof attention_shapes / sizeof *attention_shapes; i++)
        EACH_TYPE(type) {
            const int *z = attention_shapes[i];
            struct shape s = {.B = z[0], .T = z[1], .S = z[2], .H = z[3], .D = z[4], .type = type};
            size_t C = (size_t)(s.H * s.D), q = (size_t)(s.B * s.T) * 3 * C, kv = (size_t)(s.B * s.S) * 3 * C;
            size_t o = (size_t)(s.B * s.T) * C, statistics = (size_t)(s.B * s.H * s.T);
            // A score is a sum over D divided by sqrt(D); its error is the relative error of its probability.
            double score = SUM(s.D) / sqrt(s.D) + 4 * EPS * sqrt(s.D),
                   p = 2 * score + SUM(s.S) / s.S + 8 * EPS;
            COMPARE(attention_forward, &s, "", out(type, o, 2 * p), out(DTYPE_F32, statistics, 2 * p),
                    in(type, q), in(type, kv));
            COMPARE(attention_forward, &s, "no lse", out(type, o, 2 * p), none(), in(type, q), in(type, kv));
            if (s.S != s.T)
                continue;
            // Backward needs a forward that belongs to it: the oracle's.
            void *qkv = malloc(q * dtype_size(type)), *result = malloc(o * dtype_size(type));
            float *lse = malloc(statistics * sizeof *lse);
            assert_true(qkv && result && lse);
            for (size_t k = 0; k < q; k++) {
                float value = (float)(2 * rng_uniform(3, 4, k) - 1);
                if (type == DTYPE_BF16)
                    ((uint16_t *)qkv)[k] = bf16_from_float(value);
                else
                    ((float *)qkv)[k] = value;
            }
            void *const forward[] = {result, lse, qkv, qkv};
            struct stream stream = {.device = oracle};
            assert_int_equal(run_attention_forward(&stream, forward, &s, NULL), STATUS_OK);
            struct operand fixed_qkv = in(type, q), fixed_out = in(type, o),
                           fixed_lse = in(DTYPE_F32, statistics);
            fixed_qkv.fixed = qkv;
            fixed_out.fixed = result;
            fixed_lse.fixed = lse;
            // ds = p (dp - delta) / sqrt(D), |dp| and |delta| up to D; a key is seen with a total weight of
            // about 1 + ln T over all queries, magnified by e for uneven scores.
            double weight = exp(1) * (2 + log(s.T));
            double bound = weight * 2 * sqrt(s.D) * (p + score + SUM(s.D) / s.D + SUM(s.T) / s.T);
            COMPARE(attention_backward, &s, "", out(type, q, bound), in(type, o), fixed_out, fixed_lse,
                    fixed_qkv);
            free(qkv);
            free(result);
            free(lse);
        }
}

// --------------------------------------------------------------------------------------------------
// cross-entropy

RUNNER(cross_entropy) {
    SHAPE;
    CALL(cross_entropy, .losses = p[0], .dlogits = p[1], .logits = p[2], .targets = s->ids, .N = s->N,
         .V = s->V, .logits_stride = s->stride, .dlogits_stride = s->stride, .scale = 0.25f, .type = s->type);
}

// dlogits written over the logits.
static enum status run_in_place(struct stream *stream, void *const *p, const void *context,
                                size_t *workspace) {
    SHAPE;
    CALL(cross_entropy, .losses = p[0], .dlogits = p[1], .logits = p[1], .targets = s->ids, .N = s->N,
         .V = s->V, .logits_stride = s->stride, .dlogits_stride = s->stride, .scale = 0.25f, .type = s->type);
}

static void test_cross_entropy(void **state) {
    static const int shapes[][2] = {{1, 1}, {3, 7}, {5, 257}, {9, 1000}, {4, 50257}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        EACH_TYPE(type) {
            int N = shapes[i][0], V = shapes[i][1], stride = V + 5;
            size_t n = (size_t)(N * stride);
            struct shape s = {.N = N, .V = V, .stride = stride, .type = type, .ids = ids_below(V)};
            // Exponents up to 16 apart round by 16 eps; the sum of V of them by SUM(V) / V of itself.
            double relative = 16 * EPS + SUM(V) / V + 8 * EPS;
            struct operand losses = out(DTYPE_F32, (size_t)N, relative),
                           dlogits = rows(out(type, n, 0.25 * 0.25 * EPS), V, stride);
            dlogits.relative += relative;
            dlogits.absolute += 0.25 * relative * EPS;
            struct operand logits = range(in(DTYPE_F32, n), -8, 8);
            COMPARE(cross_entropy, &s, "", losses, dlogits, logits);
            COMPARE(cross_entropy, &s, "losses only", losses, none(), logits);
            if (type != DTYPE_F32)
                continue;
            struct operand both = rows(range(in(DTYPE_F32, n), -8, 8), V, stride);
            both.role = UPDATE;
            both.relative = dlogits.relative;
            both.absolute = dlogits.absolute;
            const struct comparison in_place = {.operation = OP_cross_entropy,
                                                .what = "in place",
                                                .operands = {losses, both},
                                                .n_operands = 2,
                                                .run = run_in_place,
                                                .context = &s};
            ops_compare(device, oracle, &in_place);
        }
}

// ------------------------------------------------------------------------------------------------------
// optimizers

RUNNER(adamw) {
    SHAPE;
    CALL(adamw, .param = p[0], .master = p[1], .m = p[2], .v = p[3], .grad = p[4], .n = s->n, .step = s->step,
         .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 0.5f,
         .type = s->type);
}

RUNNER(sgd) {
    SHAPE;
    CALL(sgd, .param = p[0], .master = p[1], .m = p[2], .grad = p[3], .n = s->n, .step = s->step, .lr = 1e-2,
         .momentum = 0.9, .weight_decay = 0.1, .grad_scale = 0.5f, .type = s->type);
}

static struct operand update(size_t n, double absolute, double relative) {
    return (struct operand){.role = UPDATE,
                            .type = DTYPE_F32,
                            .n = n,
                            .low = -1,
                            .high = 1,
                            .absolute = absolute,
                            .relative = relative};
}

static void test_optimizers(void **state) {
    (void)state;
    for (size_t n = 1; n <= 257; n++)
        EACH_TYPE(type) {
            struct shape s = {.n = n, .type = type, .step = 1 + (int64_t)n % 5};
            // Both moments err by a few eps of terms of at most 1; the step is lr times a ratio that errs by
            // 16 eps, with v >= 0.01 so at most 1 / (0.1 (1 - beta1)) in size; a bf16 parameter may round to
            // the other side.
            struct operand master = update(n, 1e-2 * 16 * EPS * 100, 2 * EPS),
                           m = update(n, 4 * EPS, 4 * EPS);
            struct operand v = range(update(n, 4 * EPS, 4 * EPS), 0.01f, 1),
                           param = out(type, n, master.absolute);
            if (type == DTYPE_F32)
                param = none();
            COMPARE(adamw, &s, "", param, master, m, v, in(DTYPE_F32, n));
            COMPARE(sgd, &s, "momentum", param, update(n, 8 * EPS, 2 * EPS), m, in(DTYPE_F32, n));
            COMPARE(sgd, &s, "plain", param, update(n, 8 * EPS, 2 * EPS), none(), in(DTYPE_F32, n));
        }
}

// -----------------------------------------------------------------------------------------------------
// elementwise

RUNNER(sum_squares) {
    SHAPE;
    CALL(sum_squares, .partial = p[0], .x = p[1], .n = s->n, .type = DTYPE_F32);
}

RUNNER(fill) {
    SHAPE;
    CALL(fill, .out = p[0], .n = s->n, .value = 0.3f, .type = s->type);
}

RUNNER(cast) {
    SHAPE;
    CALL(cast, .out = p[0], .x = p[1], .n = s->n, .type = s->type, .out_type = s->out_type);
}

static void test_elementwise(void **state) {
    static const size_t lengths[] = {1, 7, 257, SUM_SQUARES_BLOCK, 3 * SUM_SQUARES_BLOCK + 5};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        EACH_TYPE(type) {
            size_t n = lengths[i], blocks = (n + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK;
            struct shape s = {.n = n, .type = type};
            struct operand partial = out(DTYPE_F64, blocks, 0);
            partial.relative = 0x1p-52 * SUM_SQUARES_BLOCK; // sums in double, in another order
            COMPARE(sum_squares, &s, "", partial, in(DTYPE_F32, n));
            struct operand exact = out(type, n, 0);
            exact.relative = 0;
            COMPARE(fill, &s, "", exact);
            EACH_TYPE(out_type) {
                s.out_type = out_type;
                exact.type = out_type;
                COMPARE(cast, &s, "", exact, in(type, n));
            }
        }
}

// -------------------------------------------------------------------------------------------------------
// coverage

static void test_every_operation_was_compared(void **state) {
    (void)state;
    for (int operation = 0; operation < N_OPERATIONS; operation++) {
        if (ops_worst((enum operation)operation) < 0)
            fail_msg("%s was never compared with the oracle", operation_name((enum operation)operation));
        print_message("reached: %s %.3f of its tolerance\n", operation_name((enum operation)operation),
                      ops_worst((enum operation)operation));
    }
}

static int open_devices(const char *instruction_set) {
    if (ref_device_open(&oracle) != STATUS_OK)
        return -1;
    if (cpu_device_open(instruction_set, 2, &device) == STATUS_OK)
        return 0;
    print_message("skip: this processor has no %s\n", instruction_set);
    status_clear();
    device_close(oracle);
    return 1;
}

int main(void) {
    static const char *const instruction_sets[] = {"portable", "avx2", "avx512"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),      cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_linear_forward), cmocka_unit_test(test_linear_backward),
        cmocka_unit_test(test_gelu),           cmocka_unit_test(test_attention),
        cmocka_unit_test(test_cross_entropy),  cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_elementwise),    cmocka_unit_test(test_every_operation_was_compared),
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof instruction_sets / sizeof *instruction_sets; i++) {
        int opened = open_devices(instruction_sets[i]);
        if (opened < 0)
            return 1;
        if (opened > 0)
            continue;
        failed += cmocka_run_group_tests_name(instruction_sets[i], tests, NULL, NULL);
        device_close(device);
        device_close(oracle);
    }
    return failed;
}
