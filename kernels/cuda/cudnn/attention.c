// Attention as graphs for cuDNN (attention.h). cuDNN recognizes these graphs by their shape, so their
// operations, the order of their operands and the layouts of their virtual tensors are not free:
//
//   forward    S = scale Q K^T; masked; M = max S, E = exp(S - M), L = sum E; lse = M + log L; O = (E / L) V
//   backward   delta = sum dO O; P = exp(masked(scale Q K^T - lse)); dV = P^T dO
//              dS = scale P (dO V^T - delta); dK = dS^T Q; dQ = dS K
//
// dQ is a product over whole rows of dS, which the kernel keeps in its workspace, rather than a sum of
// atomic additions: the slower form in memory, and the only one with the same bits in every run.
#include "kernels/cuda/cudnn/attention.h"

#include <math.h>

// The graph's tensors that have data.
enum {
    ID_Q = 1,
    ID_K,
    ID_V,
    ID_OUT,
    ID_LSE,
    ID_DOUT,
    ID_DQ,
    ID_DK,
    ID_DV,
    ID_DELTA,
    ID_SCALE,
    ID_HIDDEN,
    ID_ONE
};

enum {
    ALIGNMENT = 16,        // bytes, of every tensor and of its rows
    DELTA_ALIGNMENT = 256, // bytes, of what follows delta in the workspace
    LARGEST_TILE = 128,    // rows or columns of scores
};

// ---- problems

static bool is_aligned(const void *pointer) {
    return (uintptr_t)pointer % ALIGNMENT == 0;
}

static bool is_possible(const struct cudnn_problem *problem) {
    const int64_t unit = ALIGNMENT / (int64_t)dtype_size((enum dtype)problem->type);
    return problem->type != DTYPE_F32 && problem->T > 1 && problem->D % unit == 0 &&
           problem->stride % unit == 0 && problem->batch_stride % unit == 0;
}

bool cudnn_forward_problem(const struct attention_forward_args *args, struct cudnn_problem *problem) {
    *problem = (struct cudnn_problem){.stride = (int64_t)args->q_stride,
                                      .batch_stride = (int64_t)args->q_batch_stride,
                                      .B = args->B,
                                      .T = args->T,
                                      .H = args->H,
                                      .D = args->D,
                                      .type = args->type,
                                      .kind = args->lse ? CUDNN_FORWARD_LSE : CUDNN_FORWARD};
    return is_possible(problem) && !args->first && args->S == args->T && args->k_stride == args->q_stride &&
           args->k_batch_stride == args->q_batch_stride && is_aligned(args->out) && is_aligned(args->q) &&
           is_aligned(args->k) && is_aligned(args->v) && is_aligned(args->lse);
}

bool cudnn_backward_problem(const struct attention_backward_args *args, struct cudnn_problem *problem) {
    *problem = (struct cudnn_problem){.stride = (int64_t)args->q_stride,
                                      .batch_stride = (int64_t)args->q_batch_stride,
                                      .B = args->B,
                                      .T = args->T,
                                      .H = args->H,
                                      .D = args->D,
                                      .type = args->type,
                                      .kind = CUDNN_BACKWARD};
    return is_possible(problem) && !args->first && is_aligned(args->q) && is_aligned(args->k) &&
           is_aligned(args->v) && is_aligned(args->out) && is_aligned(args->lse) && is_aligned(args->dout) &&
           is_aligned(args->dq) && is_aligned(args->dk) && is_aligned(args->dv);
}

// ---- tensors

struct drawing { // of a graph
    struct cudnn_graph *graph;
    const struct cudnn_problem *problem;
    unsigned type; // of q, k, v and the outputs
};

static void *virtual_tensor(const struct drawing *d, unsigned type, int64_t rows, int64_t columns,
                            int64_t row_stride, int64_t column_stride) {
    const struct cudnn_problem *p = d->problem;
    return cudnn_add_tensor(
        d->graph,
        &(struct cudnn_tensor){.dims = {p->B, p->H, rows, columns},
                               .strides = {p->H * rows * columns, rows * columns, row_stride, column_stride},
                               .type = type});
}

// (T, T) per head, between operations
static void *scores(const struct drawing *d, unsigned type) {
    return virtual_tensor(d, type, d->problem->T, d->problem->T, d->problem->T, 1);
}

// One number per row; id 0: virtual.
static void *row_values(const struct drawing *d, int64_t id) {
    const struct cudnn_problem *p = d->problem;
    const int64_t T = p->T, H = p->H;
    return cudnn_add_tensor(d->graph, &(struct cudnn_tensor){.id = id,
                                                             .dims = {p->B, H, T, 1},
                                                             .strides = {H * T, T, 1, 1},
                                                             .type = CUDNN9_DATA_FLOAT});
}

// q, k, v or a gradient of theirs: (T, D) per head, or its transpose
static void *range(const struct drawing *d, int64_t id, bool transposed) {
    const struct cudnn_problem *p = d->problem;
    struct cudnn_tensor tensor = {.id = id,
                                  .dims = {p->B, p->H, p->T, p->D},
                                  .strides = {p->batch_stride, p->D, p->stride, 1},
                                  .type = d->type};
    if (transposed) {
        tensor.dims[2] = p->D, tensor.dims[3] = p->T;
        tensor.strides[2] = 1, tensor.strides[3] = p->stride;
    }
    return cudnn_add_tensor(d->graph, &tensor);
}

static void *dense(const struct drawing *d, int64_t id) { // out, dout
    const struct cudnn_problem *p = d->problem;
    const int64_t C = (int64_t)p->H * p->D;
    return cudnn_add_tensor(d->graph, &(struct cudnn_tensor){.id = id,
                                                             .dims = {p->B, p->H, p->T, p->D},
                                                             .strides = {p->T * C, p->D, C, 1},
                                                             .type = d->type});
}

static void *number(const struct drawing *d, int64_t id) {
    return cudnn_add_tensor(d->graph, &(struct cudnn_tensor){.id = id,
                                                             .dims = {1, 1, 1, 1},
                                                             .strides = {1, 1, 1, 1},
                                                             .type = CUDNN9_DATA_FLOAT,
                                                             .by_value = true});
}

// ---- operations

static void *apply(const struct drawing *d, unsigned mode, void *x, void *b, void *y) {
    cudnn_add_pointwise(d->graph, &(struct cudnn_pointwise){
                                      .mode = mode, .compute = CUDNN9_DATA_FLOAT, .x = x, .b = b, .y = y});
    return y;
}

static void *on_scores(const struct drawing *d, unsigned mode, void *x, void *b) {
    return apply(d, mode, x, b, scores(d, CUDNN9_DATA_FLOAT));
}

static void *multiply(const struct drawing *d, void *a, void *b, void *c) {
    cudnn_add_matmul(d->graph, a, b, c);
    return c;
}

static void *positions(const struct drawing *d, void *x, int64_t axis) {
    void *y = scores(d, CUDNN9_DATA_INT32);
    cudnn_add_pointwise(
        d->graph,
        &(struct cudnn_pointwise){
            .mode = CUDNN9_POINTWISE_GEN_INDEX, .compute = CUDNN9_DATA_FLOAT, .axis = axis, .x = x, .y = y});
    return y;
}

// x where the query's position is at least the key's, minus infinity elsewhere
static void *mask(const struct drawing *d, void *x) {
    void *queries = positions(d, x, 2), *keys = positions(d, x, 3);
    void *visible = scores(d, CUDNN9_DATA_BOOLEAN), *y = scores(d, CUDNN9_DATA_FLOAT);
    cudnn_add_pointwise(d->graph, &(struct cudnn_pointwise){.mode = CUDNN9_POINTWISE_CMP_GE,
                                                            .compute = CUDNN9_DATA_BOOLEAN,
                                                            .x = queries,
                                                            .b = keys,
                                                            .y = visible});
    cudnn_add_pointwise(d->graph, &(struct cudnn_pointwise){.mode = CUDNN9_POINTWISE_BINARY_SELECT,
                                                            .compute = CUDNN9_DATA_FLOAT,
                                                            .x = x,
                                                            .b = number(d, ID_HIDDEN),
                                                            .t = visible,
                                                            .y = y});
    return y;
}

static void draw_forward(const struct drawing *d) {
    const unsigned type = CUDNN9_DATA_FLOAT;
    void *q = range(d, ID_Q, false), *k = range(d, ID_K, true), *v = range(d, ID_V, false);
    void *s = multiply(d, q, k, scores(d, type));
    s = mask(d, on_scores(d, CUDNN9_POINTWISE_MUL, s, number(d, ID_SCALE)));
    void *largest = row_values(d, 0), *sum = row_values(d, 0);
    cudnn_add_reduction(d->graph, CUDNN9_REDUCE_TENSOR_MAX, s, largest);
    void *e = on_scores(d, CUDNN9_POINTWISE_SUB, s, largest);
    e = on_scores(d, CUDNN9_POINTWISE_EXP, e, NULL);
    cudnn_add_reduction(d->graph, CUDNN9_REDUCE_TENSOR_ADD, e, sum);
    void *log = apply(d, CUDNN9_POINTWISE_LOG, sum, NULL, row_values(d, 0));
    apply(d, CUDNN9_POINTWISE_ADD, largest, log,
          row_values(d, d->problem->kind == CUDNN_FORWARD_LSE ? ID_LSE : 0));
    void *p = apply(d, CUDNN9_POINTWISE_DIV, e, sum, scores(d, d->type));
    multiply(d, p, v, dense(d, ID_OUT));
}

static void *transposed_scores(const struct drawing *d, void *x) {
    void *y = virtual_tensor(d, d->type, d->problem->T, d->problem->T, 1, d->problem->T);
    cudnn_add_reshape(d->graph, x, y);
    return y;
}

static void draw_backward(const struct drawing *d) {
    const struct cudnn_problem *problem = d->problem;
    const unsigned type = CUDNN9_DATA_FLOAT;
    const int64_t T = problem->T, H = problem->H, D = problem->D;
    void *q = range(d, ID_Q, false), *k = range(d, ID_K, true), *v = range(d, ID_V, true);
    void *dout = dense(d, ID_DOUT), *out = dense(d, ID_OUT), *scale = number(d, ID_SCALE);
    void *product = virtual_tensor(d, type, T, D, H * D, 1), *sum = row_values(d, 0);
    apply(d, CUDNN9_POINTWISE_MUL, dout, out, product);
    cudnn_add_reduction(d->graph, CUDNN9_REDUCE_TENSOR_ADD, product, sum);
    void *delta = apply(d, CUDNN9_POINTWISE_MUL, sum, number(d, ID_ONE), row_values(d, ID_DELTA));

    void *p = multiply(d, q, k, scores(d, type));
    p = on_scores(d, CUDNN9_POINTWISE_MUL, p, scale);
    p = mask(d, on_scores(d, CUDNN9_POINTWISE_SUB, p, row_values(d, ID_LSE)));
    p = on_scores(d, CUDNN9_POINTWISE_EXP, p, NULL);
    multiply(d, transposed_scores(d, p), dout, range(d, ID_DV, false));

    void *ds = multiply(d, dout, v, scores(d, type));
    ds = on_scores(d, CUDNN9_POINTWISE_SUB, ds, delta);
    ds = on_scores(d, CUDNN9_POINTWISE_MUL, ds, p);
    ds = on_scores(d, CUDNN9_POINTWISE_MUL, ds, scale);
    multiply(d, transposed_scores(d, ds), q, range(d, ID_DK, false));
    void *keys = range(d, 0, false);
    cudnn_add_reshape(d->graph, k, keys);
    multiply(d, ds, keys, range(d, ID_DQ, false));
}

// ---- plans

static size_t delta_bytes(const struct cudnn_problem *problem) {
    size_t bytes = sizeof(float) * (size_t)problem->B * (size_t)problem->H * (size_t)problem->T;
    return problem->kind == CUDNN_BACKWARD ? (bytes + DELTA_ALIGNMENT - 1) / DELTA_ALIGNMENT * DELTA_ALIGNMENT
                                           : 0;
}

size_t cudnn_assumed_workspace(const struct cudnn_problem *problem) {
    const size_t counters = 256, T = ((size_t)problem->T + LARGEST_TILE - 1) / LARGEST_TILE * LARGEST_TILE;
    const size_t products = (size_t)problem->B * (size_t)problem->H * T * T;
    return problem->kind == CUDNN_BACKWARD
               ? delta_bytes(problem) + products * dtype_size((enum dtype)problem->type) + counters
               : counters;
}

void cudnn_attention_init(struct cudnn_attention *attention, const struct cudnn *api,
                          struct cudnn_target target, const struct cudnn_problem *problem) {
    *attention = (struct cudnn_attention){.problem = *problem,
                                          .scale = 1 / sqrtf((float)problem->D),
                                          .hidden = -INFINITY,
                                          .one = 1,
                                          .delta_bytes = delta_bytes(problem)};
    const struct drawing drawing = {&attention->graph, &attention->problem,
                                    problem->type == DTYPE_F16 ? CUDNN9_DATA_HALF : CUDNN9_DATA_BFLOAT16};
    cudnn_graph_init(&attention->graph, api, target);
    if (problem->kind == CUDNN_BACKWARD)
        draw_backward(&drawing);
    else
        draw_forward(&drawing);
    attention->supported = cudnn_graph_plan(&attention->graph);
    attention->workspace_bytes = attention->delta_bytes + (size_t)attention->graph.workspace_bytes;
}

void cudnn_attention_free(struct cudnn_attention *attention) {
    cudnn_graph_free(&attention->graph);
}

// ---- execution

static enum status execute(struct cudnn_attention *attention, int n, const int64_t *ids, void *const *data,
                           void *workspace) {
    const struct cudnn_problem *p = &attention->problem;
    if (cudnn_graph_execute(&attention->graph, n, ids, data, (char *)workspace + attention->delta_bytes))
        return STATUS_OK;
    return FAIL(STATUS_FAILED, "cuDNN: attention %s of (%d, %d, %d, %d) %s: %s; attention=flash avoids it",
                p->kind == CUDNN_BACKWARD ? "backward" : "forward", p->B, p->T, p->H, p->D,
                dtype_name((enum dtype)p->type), attention->graph.reason);
}

enum status cudnn_attention_forward(struct cudnn_attention *attention,
                                    const struct attention_forward_args *args, void *workspace) {
    const int64_t ids[] = {ID_Q, ID_K, ID_V, ID_OUT, ID_SCALE, ID_HIDDEN, ID_LSE};
    void *const data[] = {(void *)args->q,   (void *)args->k,    (void *)args->v, args->out,
                          &attention->scale, &attention->hidden, args->lse};
    return execute(attention, args->lse ? 7 : 6, ids, data, workspace);
}

enum status cudnn_attention_backward(struct cudnn_attention *attention,
                                     const struct attention_backward_args *args, void *workspace) {
    const int64_t ids[] = {ID_Q,  ID_K,  ID_V,     ID_OUT,   ID_LSE,    ID_DOUT, ID_DQ,
                           ID_DK, ID_DV, ID_DELTA, ID_SCALE, ID_HIDDEN, ID_ONE};
    void *const data[] = {(void *)args->q,   (void *)args->k,    (void *)args->v,   (void *)args->out,
                          (void *)args->lse, (void *)args->dout, args->dq,          args->dk,
                          args->dv,          workspace,          &attention->scale, &attention->hidden,
                          &attention->one};
    return execute(attention, sizeof ids / sizeof *ids, ids, data, workspace);
}
