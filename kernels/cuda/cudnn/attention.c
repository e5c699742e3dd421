// Attention as cuDNN graphs (attention.h). cuDNN recognizes these graphs by their shape, so the operations,
// the order of operands and the layouts of virtual tensors must be exactly these:
//
//   forward    S = scale Q K^T; masked; M = max S, E = exp(S - M), L = sum E; lse = M + log L; O = (E / L) V
//   backward   delta = sum dO O; P = exp(masked(scale Q K^T - lse)); dV = P^T dO
//              dS = scale P (dO V^T - delta); dK = dS^T Q; dQ = dS K
//
// A key-value head is broadcast to the query heads that share it; their contributions to dK and dV are
// added. For dQ, cuDNN keeps whole rows of dS in its workspace and multiplies them by K. The alternative,
// atomic additions to dQ, takes less memory, but gives other bits in every run.
#include "kernels/cuda/cudnn/attention.h"

#include <math.h>

// Ids of the tensors that the caller supplies: in device memory, or by value from host memory.
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
    ID_ONE,
    ID_WINDOW
};

enum {
    ALIGNMENT = 16,        // bytes: alignment of every tensor and of every row
    DELTA_ALIGNMENT = 256, // bytes: delta is padded so that cuDNN's workspace, after it, is aligned to this
    LARGEST_TILE = 128,    // maximum rows or columns of cuDNN's tiles of scores
};

// ---- the problem of a call, if cuDNN may compute it

static bool is_aligned(const void *pointer) {
    return (uintptr_t)pointer % ALIGNMENT == 0;
}

static bool has_aligned_rows(struct cudnn_strides strides, int64_t unit) {
    return strides.position % unit == 0 && strides.sequence % unit == 0;
}

static bool is_possible(const struct cudnn_problem *problem) {
    const int64_t unit = ALIGNMENT / (int64_t)dtype_size((enum dtype)problem->type);
    return problem->type != DTYPE_F32 && problem->T > 1 && problem->D % unit == 0 &&
           has_aligned_rows(problem->q, unit) && has_aligned_rows(problem->k, unit) &&
           has_aligned_rows(problem->v, unit);
}

// Makes the problem of a forward or backward call, from the fields that both argument structs have.
#define PROBLEM_OF(args, kind_of_call)                                                                       \
    (struct cudnn_problem) {                                                                                 \
        .q = {(int64_t)(args)->q_stride, (int64_t)(args)->q_batch_stride},                                   \
        .k = {(int64_t)(args)->k_stride, (int64_t)(args)->k_batch_stride},                                   \
        .v = {(int64_t)(args)->v_stride, (int64_t)(args)->v_batch_stride}, .B = (args)->B, .T = (args)->T,   \
        .H = (args)->H, .K = (args)->K, .D = (args)->D,                                                      \
        .window = (args)->window < (args)->T ? (args)->window : 0, .type = (args)->type,                     \
        .kind = (kind_of_call)                                                                               \
    }

bool cudnn_forward_problem(const struct attention_forward_args *whole, struct cudnn_problem *problem) {
    const struct attention_forward_args rotated = attention_of_rotated(whole), *args = &rotated;
    *problem = PROBLEM_OF(args, args->lse ? CUDNN_FORWARD_LSE : CUDNN_FORWARD);
    return args->kernel == ATTENTION_CUDNN && is_possible(problem) && !args->first && args->S == args->T &&
           is_aligned(args->out) && is_aligned(args->q) && is_aligned(args->k) && is_aligned(args->v) &&
           is_aligned(args->lse);
}

bool cudnn_backward_problem(const struct attention_backward_args *whole, struct cudnn_problem *problem) {
    const struct attention_backward_args rotated = attention_backward_of_rotated(whole), *args = &rotated;
    *problem = PROBLEM_OF(args, CUDNN_BACKWARD);
    return args->kernel == ATTENTION_CUDNN && is_possible(problem) && !args->first && is_aligned(args->q) &&
           is_aligned(args->k) && is_aligned(args->v) && is_aligned(args->out) && is_aligned(args->lse) &&
           is_aligned(args->dout) && is_aligned(args->dq) && is_aligned(args->dk) && is_aligned(args->dv);
}

bool cudnn_problem_of(enum operation operation, const void *args, struct cudnn_problem *problem) {
    return (operation == OP_attention_forward && cudnn_forward_problem(args, problem)) ||
           (operation == OP_attention_backward && cudnn_backward_problem(args, problem));
}

// ---- adding tensors to a graph

struct drawing { // a graph that is being built
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

// Makes a virtual tensor with a (T, T) matrix per head.
static void *scores(const struct drawing *d, unsigned type) {
    return virtual_tensor(d, type, d->problem->T, d->problem->T, d->problem->T, 1);
}

// Makes a tensor with one fp32 number per query of each head. The tensor is virtual if id is 0.
static void *row_values(const struct drawing *d, int64_t id) {
    const struct cudnn_problem *p = d->problem;
    const int64_t T = p->T, H = p->H;
    return cudnn_add_tensor(d->graph, &(struct cudnn_tensor){.id = id,
                                                             .dims = {p->B, H, T, 1},
                                                             .strides = {H * T, T, 1, 1},
                                                             .type = CUDNN9_DATA_FLOAT});
}

// Makes the tensor of q, k, v or one of their gradients: (T, D) per head, or (D, T) if `transposed`.
static void *range(const struct drawing *d, int64_t id, int heads, struct cudnn_strides strides,
                   bool transposed) {
    const struct cudnn_problem *p = d->problem;
    struct cudnn_tensor tensor = {.id = id,
                                  .dims = {p->B, heads, p->T, p->D},
                                  .strides = {strides.sequence, p->D, strides.position, 1},
                                  .type = d->type};
    if (transposed) {
        tensor.dims[2] = p->D, tensor.dims[3] = p->T;
        tensor.strides[2] = 1, tensor.strides[3] = strides.position;
    }
    return cudnn_add_tensor(d->graph, &tensor);
}

static void *query_range(const struct drawing *d, int64_t id) { // q, dq
    return range(d, id, d->problem->H, d->problem->q, false);
}

static void *dense(const struct drawing *d, int64_t id) { // out, dout
    const struct cudnn_problem *p = d->problem;
    const int64_t C = (int64_t)p->H * p->D;
    return cudnn_add_tensor(d->graph, &(struct cudnn_tensor){.id = id,
                                                             .dims = {p->B, p->H, p->T, p->D},
                                                             .strides = {p->T * C, p->D, C, 1},
                                                             .type = d->type});
}

static void *typed_number(const struct drawing *d, int64_t id, unsigned type) {
    return cudnn_add_tensor(
        d->graph,
        &(struct cudnn_tensor){
            .id = id, .dims = {1, 1, 1, 1}, .strides = {1, 1, 1, 1}, .type = type, .by_value = true});
}

static void *number(const struct drawing *d, int64_t id) {
    return typed_number(d, id, CUDNN9_DATA_FLOAT);
}

// ---- adding operations to a graph

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

// Returns x where the comparison `compares` (CUDNN9_POINTWISE_CMP_...) of a with b holds, minus infinity
// elsewhere.
static void *select_where(const struct drawing *d, void *x, void *a, unsigned compares, void *b) {
    void *visible = scores(d, CUDNN9_DATA_BOOLEAN), *y = scores(d, CUDNN9_DATA_FLOAT);
    cudnn_add_pointwise(d->graph,
                        &(struct cudnn_pointwise){
                            .mode = compares, .compute = CUDNN9_DATA_BOOLEAN, .x = a, .b = b, .y = visible});
    cudnn_add_pointwise(d->graph, &(struct cudnn_pointwise){.mode = CUDNN9_POINTWISE_BINARY_SELECT,
                                                            .compute = CUDNN9_DATA_FLOAT,
                                                            .x = x,
                                                            .b = number(d, ID_HIDDEN),
                                                            .t = visible,
                                                            .y = y});
    return y;
}

// Causal mask. Returns x where the query's position is at least the key's position and, with a window, less
// than the key's position plus the window. Returns minus infinity elsewhere.
static void *mask(const struct drawing *d, void *x) {
    void *queries = positions(d, x, 2), *keys = positions(d, x, 3);
    x = select_where(d, x, queries, CUDNN9_POINTWISE_CMP_GE, keys);
    if (d->problem->window == 0)
        return x;
    queries = positions(d, x, 2), keys = positions(d, x, 3);
    void *ends = scores(d, CUDNN9_DATA_INT32);
    cudnn_add_pointwise(d->graph,
                        &(struct cudnn_pointwise){.mode = CUDNN9_POINTWISE_ADD,
                                                  .compute = CUDNN9_DATA_INT32,
                                                  .x = keys,
                                                  .b = typed_number(d, ID_WINDOW, CUDNN9_DATA_INT32),
                                                  .y = ends});
    return select_where(d, x, ends, CUDNN9_POINTWISE_CMP_GT, queries);
}

static void draw_forward(const struct drawing *d) {
    const unsigned type = CUDNN9_DATA_FLOAT;
    const struct cudnn_problem *p = d->problem;
    void *q = query_range(d, ID_Q), *k = range(d, ID_K, p->K, p->k, true);
    void *v = range(d, ID_V, p->K, p->v, false);
    void *s = multiply(d, q, k, scores(d, type));
    s = mask(d, on_scores(d, CUDNN9_POINTWISE_MUL, s, number(d, ID_SCALE)));
    void *largest = row_values(d, 0), *sum = row_values(d, 0);
    cudnn_add_reduction(d->graph, CUDNN9_REDUCE_TENSOR_MAX, s, largest);
    void *e = on_scores(d, CUDNN9_POINTWISE_SUB, s, largest);
    e = on_scores(d, CUDNN9_POINTWISE_EXP, e, NULL);
    cudnn_add_reduction(d->graph, CUDNN9_REDUCE_TENSOR_ADD, e, sum);
    void *log = apply(d, CUDNN9_POINTWISE_LOG, sum, NULL, row_values(d, 0));
    apply(d, CUDNN9_POINTWISE_ADD, largest, log, row_values(d, p->kind == CUDNN_FORWARD_LSE ? ID_LSE : 0));
    void *weights = apply(d, CUDNN9_POINTWISE_DIV, e, sum, scores(d, d->type));
    multiply(d, weights, v, dense(d, ID_OUT));
}

static void *transposed_scores(const struct drawing *d, void *x) {
    void *y = virtual_tensor(d, d->type, d->problem->T, d->problem->T, 1, d->problem->T);
    cudnn_add_reshape(d->graph, x, y);
    return y;
}

// Adds the gradient of k or v to the graph: a times b, with a (T, T) and b (T, D) per query head, summed
// over the query heads that share a key-value head.
static void add_gradient(const struct drawing *d, void *a, void *b, int64_t id,
                         struct cudnn_strides strides) {
    const struct cudnn_problem *p = d->problem;
    void *gradient = range(d, id, p->K, strides, false);
    if (p->K == p->H) {
        multiply(d, a, b, gradient);
        return;
    }
    void *of_each = virtual_tensor(d, d->type, p->T, p->D, p->D, 1);
    multiply(d, a, b, of_each);
    cudnn_add_reduction(d->graph, CUDNN9_REDUCE_TENSOR_ADD, of_each, gradient);
}

static void draw_backward(const struct drawing *d) {
    const struct cudnn_problem *problem = d->problem;
    const unsigned type = CUDNN9_DATA_FLOAT;
    const int64_t T = problem->T, H = problem->H, D = problem->D;
    void *q = query_range(d, ID_Q), *k = range(d, ID_K, problem->K, problem->k, true);
    void *v = range(d, ID_V, problem->K, problem->v, true);
    void *dout = dense(d, ID_DOUT), *out = dense(d, ID_OUT), *scale = number(d, ID_SCALE);
    void *product = virtual_tensor(d, type, T, D, H * D, 1), *sum = row_values(d, 0);
    apply(d, CUDNN9_POINTWISE_MUL, dout, out, product);
    cudnn_add_reduction(d->graph, CUDNN9_REDUCE_TENSOR_ADD, product, sum);
    void *delta = apply(d, CUDNN9_POINTWISE_MUL, sum, number(d, ID_ONE), row_values(d, ID_DELTA));

    void *p = multiply(d, q, k, scores(d, type));
    p = on_scores(d, CUDNN9_POINTWISE_MUL, p, scale);
    p = mask(d, on_scores(d, CUDNN9_POINTWISE_SUB, p, row_values(d, ID_LSE)));
    p = on_scores(d, CUDNN9_POINTWISE_EXP, p, NULL);
    add_gradient(d, transposed_scores(d, p), dout, ID_DV, problem->v);

    void *ds = multiply(d, dout, v, scores(d, type));
    ds = on_scores(d, CUDNN9_POINTWISE_SUB, ds, delta);
    ds = on_scores(d, CUDNN9_POINTWISE_MUL, ds, p);
    ds = on_scores(d, CUDNN9_POINTWISE_MUL, ds, scale);
    add_gradient(d, transposed_scores(d, ds), q, ID_DK, problem->k);
    void *keys = range(d, 0, problem->K, problem->k, false);
    cudnn_add_reshape(d->graph, k, keys);
    multiply(d, ds, keys, query_range(d, ID_DQ));
}

// ---- the plan of a problem

static size_t delta_bytes(const struct cudnn_problem *problem) {
    size_t bytes = sizeof(float) * (size_t)problem->B * (size_t)problem->H * (size_t)problem->T;
    return problem->kind == CUDNN_BACKWARD ? (bytes + DELTA_ALIGNMENT - 1) / DELTA_ALIGNMENT * DELTA_ALIGNMENT
                                           : 0;
}

size_t cudnn_assumed_workspace(const struct cudnn_problem *problem) {
    const size_t counters = 256, size = dtype_size((enum dtype)problem->type);
    const size_t T = ((size_t)problem->T + LARGEST_TILE - 1) / LARGEST_TILE * LARGEST_TILE;
    const size_t heads = (size_t)problem->B * (size_t)problem->H;
    const size_t of_each = problem->K < problem->H ? 2 * heads * T * (size_t)problem->D : 0;
    return problem->kind == CUDNN_BACKWARD
               ? delta_bytes(problem) + (heads * T * T + of_each) * size + counters
               : counters;
}

void cudnn_attention_init(struct cudnn_attention *attention, const struct cudnn *api,
                          struct cudnn_target target, const struct cudnn_problem *problem) {
    *attention = (struct cudnn_attention){.problem = *problem,
                                          .scale = 1 / sqrtf((float)problem->D),
                                          .hidden = -INFINITY,
                                          .one = 1,
                                          .window = problem->window,
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

// ---- executing a plan

static enum status execute(struct cudnn_attention *attention, int n, const int64_t *ids, void *const *data,
                           void *workspace) {
    const struct cudnn_problem *p = &attention->problem;
    if (cudnn_graph_execute(&attention->graph, n, ids, data, (char *)workspace + attention->delta_bytes))
        return STATUS_OK;
    return FAIL(STATUS_FAILED,
                "cuDNN: attention %s failed (B %d, T %d, H %d, D %d, %s): %s; set attention=flash",
                p->kind == CUDNN_BACKWARD ? "backward" : "forward", p->B, p->T, p->H, p->D,
                dtype_name((enum dtype)p->type), attention->graph.reason);
}

// ID_WINDOW comes last in both calls, since without a window the graph does not have this tensor and the
// list ends before it.
enum status cudnn_attention_forward(struct cudnn_attention *attention,
                                    const struct attention_forward_args *args, void *workspace) {
    int64_t ids[8] = {ID_Q, ID_K, ID_V, ID_OUT, ID_SCALE, ID_HIDDEN, ID_LSE};
    void *data[8] = {(void *)args->q,   (void *)args->k,    (void *)args->v, args->out,
                     &attention->scale, &attention->hidden, args->lse};
    int n = args->lse ? 7 : 6;
    if (attention->problem.window > 0) {
        ids[n] = ID_WINDOW;
        data[n++] = &attention->window;
    }
    return execute(attention, n, ids, data, workspace);
}

enum status cudnn_attention_backward(struct cudnn_attention *attention,
                                     const struct attention_backward_args *args, void *workspace) {
    const int64_t ids[] = {ID_Q,  ID_K,  ID_V,     ID_OUT,   ID_LSE,    ID_DOUT, ID_DQ,
                           ID_DK, ID_DV, ID_DELTA, ID_SCALE, ID_HIDDEN, ID_ONE,  ID_WINDOW};
    void *const data[] = {(void *)args->q,   (void *)args->k,    (void *)args->v,   (void *)args->out,
                          (void *)args->lse, (void *)args->dout, args->dq,          args->dk,
                          args->dv,          workspace,          &attention->scale, &attention->hidden,
                          &attention->one,   &attention->window};
    const int n = sizeof ids / sizeof *ids;
    return execute(attention, attention->problem.window > 0 ? n : n - 1, ids, data, workspace);
}
