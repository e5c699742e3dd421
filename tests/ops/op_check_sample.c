// Checks of sample: every device must draw the reference's token, with any top_k, top_p and min_p, ties and
// boundary cases.
#include <math.h>

#include "base/rng.h"
#include "tests/ops/op_check.h"

static const struct sample_shape {
    int N, V, gap;
} sample_shapes[] = {{1, 1, 0}, {6, 2, 1}, {6, 61, 0}, {12, 257, 3}, {1, 2500, 0}, {66, 257, 1}};

static const struct sample_setting {
    double temperature;
    int top_k;
    double top_p, min_p;
} sample_settings[] = {
    {0, 0, 1, 0},         {0, 7, 0.5, 0},     {1, 0, 1, 0},       {0.7, 0, 1, 0}, {1.8, 0, 1, 0},
    {1, 5, 1, 0},         {1, 1, 1, 0},       {1, 1000, 1, 0},    {1, 0, 0.9, 0}, {1, 0, 1e-9, 0},
    {1, 0, 0, 0},         {1.3, 12, 0.8, 0},  {0.9, 40, 0.95, 0}, {1, 2, 0.5, 0}, {1e-3, 0, 1, 0},
    {1e-3, 100, 0.99, 0}, {1e3, 0, 0.999, 0}, {1, 0, 1, 0.1},     {0.8, 0, 1, 1}, {1.3, 0, 0.9, 0.2},
    {1, 40, 0.99, 0.05},  {1, 9, 1, 0.3},     {0, 0, 1, 0.5},
};

// Ordinary logits; ties; all equal; zeros of both signs among negative ones; some with probability 0.
static void give_logits(struct op_tensor *logits, int N, int V, size_t stride) {
    for (int n = 0; n < N; n++)
        for (int v = 0; v < V; v++) {
            size_t i = (size_t)n * stride + (size_t)v;
            double x = 4 * logits->given[i];
            switch (n % 6) {
            case 1:
                x = round(x);
                break;
            case 2:
                x = -1.5;
                break;
            case 3:
                x = v % 3 == 0 ? 0.0 : v % 3 == 1 ? -0.0 : -fabs(x);
                break;
            case 4:
                x = v % 2 && v > 1 ? -INFINITY : x;
                break;
            case 5:
                x = v == V / 2 ? 3e38 : 1e37 * x;
                break;
            default:
                break;
            }
            op_give(logits, i, x);
        }
}

static void sample_call(struct op_bench *bench, const struct sample_shape *s,
                        const struct sample_setting *setting) {
    static const double uniforms[] = {0, 1 - 0x1p-53, 0.5, 0.25, 0.75, 1.0 / 3};
    size_t stride = (size_t)(s->V + s->gap), N = (size_t)s->N;
    struct sample_args args = {.N = s->N,
                               .V = s->V,
                               .logits_stride = (int)stride,
                               .temperature = setting->temperature,
                               .top_k = setting->top_k,
                               .top_p = setting->top_p,
                               .min_p = setting->min_p,
                               .type = DTYPE_F32};
    struct op_call call;
    op_call_begin(&call, bench, sample, &args, "N %d V %d temperature %g top_k %d top_p %g min_p %g", s->N,
                  s->V, setting->temperature, setting->top_k, setting->top_p, setting->min_p);
    struct op_tensor *logits =
        op_add_tensor(&call, "logits", &args.logits, DTYPE_F32, OP_READ, op_rows(N, (size_t)s->V, stride));
    struct op_tensor *uniform =
        op_add_tensor(&call, "uniforms", &args.uniforms, DTYPE_F64, OP_READ, op_span(N));
    op_add_tensor(&call, "tokens", &args.tokens, DTYPE_I32, OP_WRITE, op_span(N))->exact = true;
    give_logits(logits, s->N, s->V, stride);
    for (size_t n = 0; n < N; n++) {
        uint32_t draw = bench->n_tensors + (uint32_t)n;
        op_give(uniform, n, draw % 2 ? uniforms[draw / 2 % 6] : rng_uniform(33, 1, draw));
    }
    op_call_reference(&call);
    op_call_judge(&call);
}

void check_sample(struct op_bench *bench) {
    for (size_t i = 0; i < sizeof sample_shapes / sizeof *sample_shapes; i++)
        for (size_t k = 0; k < sizeof sample_settings / sizeof *sample_settings; k++)
            sample_call(bench, &sample_shapes[i], &sample_settings[k]);
}
