// The FLOPs and bytes of each operation: one function NAME_work per operation. The list in kernels/ops.h
// generates the switch that calls them, so a missing function is a compile error.
#include "kernels/cost.h"

#include "kernels/cuda/workspace.h"
#include "kernels/matrix.h"
#include "kernels/moments.h"

static double size_of(enum dtype type) {
    return (double)dtype_size(type);
}

// Bytes per element of the accumulation dtype: fp32, or double if the type is double.
static double wide_size(enum dtype type) {
    return type == DTYPE_F64 ? 8 : 4;
}

static struct operation_cost embedding_forward_work(const struct embedding_forward_args *a) {
    double tensors = 2 + a->accumulate;
    return (struct operation_cost){.bytes = tensors * a->B * a->T * a->C * size_of(a->type)};
}

// Bytes: dout once, one row of dwte per token twice, and the first T rows of dwpe twice. dwte and dwpe do not
// count if they are NULL.
static struct operation_cost embedding_backward_work(const struct embedding_backward_args *a) {
    double elements = (double)a->B * a->T * a->C;
    return (struct operation_cost){.bytes = elements *
                                                (size_of(a->type) + (a->dwte ? 2 : 0) * wide_size(a->type)) +
                                            (a->dwpe ? 2.0 * a->T * a->C * wide_size(a->type) : 0)};
}

static struct operation_cost layernorm_forward_work(const struct layernorm_forward_args *a) {
    return (struct operation_cost){.bytes = 2.0 * a->N * a->C * size_of(a->type)};
}

static struct operation_cost layernorm_backward_work(const struct layernorm_backward_args *a) {
    double tensors = 3 + (a->dresidual != NULL) + (a->out != NULL);
    return (struct operation_cost){.bytes = tensors * a->N * a->C * size_of(a->type)};
}

static struct operation_cost rmsnorm_forward_work(const struct rmsnorm_forward_args *a) {
    return (struct operation_cost){.bytes = 2.0 * a->N * a->C * size_of(a->type)};
}

static struct operation_cost rmsnorm_backward_work(const struct rmsnorm_backward_args *a) {
    double tensors = 3 + (a->dresidual != NULL) + (a->out != NULL);
    return (struct operation_cost){.bytes = tensors * a->N * a->C * size_of(a->type)};
}

static struct operation_cost linear_forward_work(const struct linear_forward_args *a) {
    double in = (double)a->N * a->IC, out = (double)a->N * a->OC, weight = (double)a->OC * a->IC;
    double more = (a->pre_activation ? out : 0) + (a->residual ? out : 0);
    return (struct operation_cost){.flops = 2 * out * a->IC,
                                   .bytes =
                                       (in + weight + more) * size_of(a->type) + out * size_of(a->out_type)};
}

static struct operation_cost linear_backward_work(const struct linear_backward_args *a) {
    double in = (double)a->N * a->IC, out = (double)a->N * a->OC, weight = (double)a->OC * a->IC;
    struct operation_cost work = {.bytes = out * size_of(a->type)};
    if (a->dx) {
        work.flops += 2 * weight * a->N;
        work.bytes += (in + weight + (a->pre_activation ? in : 0)) * size_of(a->type);
    }
    if (a->dweight) {
        work.flops += 2 * weight * a->N;
        work.bytes += in * size_of(a->type) + (a->beta_zero ? 1 : 2) * weight * wide_size(a->type);
    }
    return work;
}

static struct operation_cost gelu_forward_work(const struct gelu_forward_args *a) {
    return (struct operation_cost){.bytes = 2.0 * (double)a->n * size_of(a->type)};
}

static struct operation_cost gelu_backward_work(const struct gelu_backward_args *a) {
    return (struct operation_cost){.bytes = 3.0 * (double)a->n * size_of(a->type)};
}

static struct operation_cost relu_squared_forward_work(const struct relu_squared_forward_args *a) {
    return (struct operation_cost){.bytes = 2.0 * (double)a->n * size_of(a->type)};
}

static struct operation_cost relu_squared_backward_work(const struct relu_squared_backward_args *a) {
    return (struct operation_cost){.bytes = 3.0 * (double)a->n * size_of(a->type)};
}

static struct operation_cost swiglu_forward_work(const struct swiglu_forward_args *a) {
    return (struct operation_cost){.bytes = 3.0 * a->N * a->F * size_of(a->type)};
}

static struct operation_cost swiglu_backward_work(const struct swiglu_backward_args *a) {
    return (struct operation_cost){.bytes = (5.0 + (a->out != NULL)) * a->N * a->F * size_of(a->type)};
}

static struct operation_cost rope_forward_work(const struct rope_forward_args *a) {
    return (struct operation_cost){.bytes = 2.0 * a->B * a->T * (a->H + a->K) * a->D * size_of(a->type)};
}

static struct operation_cost rope_backward_work(const struct rope_backward_args *a) {
    double tensors = 2 + a->norm;
    return (struct operation_cost){.bytes = tensors * a->B * a->T * (a->H + a->K) * a->D * size_of(a->type)};
}

// Number of (query, key) pairs that attention computes. The queries are the last T of S positions; each sees
// at most `window` positions (0: no limit).
static double causal_pairs(double T, double S, int window) {
    double own = S - T, pairs = T * own + T * (T + 1) / 2;
    if (window <= 0 || window >= S)
        return pairs;
    // Query t sees own + t + 1 positions without a window; those beyond the window are dropped.
    double first = own + 1 > window ? 0 : window - own; // the first query that the window restricts
    double misses = T - first, least = own + first + 1 - window;
    return pairs - misses * (least + least + misses - 1) / 2;
}

// FLOPs: two products, q k^T and the probabilities times v.
// Bytes: RoPE fused into a GPU's attention kernels also writes the rotated queries, and another launch
// reads and writes the keys. If RoPE is a separate pass over queries and keys, its bytes are not counted.
// The boundaries of documents (`first`) are ignored, so with them this is an upper bound. They may be in
// device memory and are unknown to a plan. Ignoring them also keeps utilization comparable with and without
// documents.
static struct operation_cost attention_forward_work(const struct attention_forward_args *a) {
    const double pairs = (double)a->B * a->H * causal_pairs(a->T, a->S, a->window);
    const double queries = (double)a->T * a->H, keys = (double)a->S * a->K;
    const double rotated =
        cuda_attention_rotates(&a->rope, a->kernel, a->type, a->D) ? (double)a->T * (a->H + 2.0 * a->K) : 0;
    return (struct operation_cost){.flops = 4 * pairs * a->D,
                                   .bytes =
                                       (2 * queries + 2 * keys + rotated) * a->B * a->D * size_of(a->type)};
}

// FLOPs: five products, for the recomputed scores and for the gradients of v, of the scores, of q and of k.
static struct operation_cost attention_backward_work(const struct attention_backward_args *a) {
    double pairs = (double)a->B * a->H * causal_pairs(a->T, a->T, a->window), tensors = 4;
    if (a->rope.table && !cuda_attention_rotates(&a->rope, a->kernel, a->type, a->D))
        tensors += 2 + a->rope.norm; // rope_backward's pass over the gradients of q and k
    return (struct operation_cost){.flops = 10 * pairs * a->D,
                                   .bytes = tensors * a->B * a->T * (a->H + a->K) * a->D * size_of(a->type)};
}

// Counts the cached keys and values that are read and written, and q, k, v and out. Exact with windows and
// documents: n_keys accounts for both.
static struct operation_cost attention_decode_work(const struct attention_decode_args *a) {
    double keys = (double)a->n_keys, rows = (keys + a->B) * a->K + (double)a->B * a->H;
    return (struct operation_cost){.flops = 4 * keys * a->H * a->D,
                                   .bytes = 2 * rows * a->D * size_of(a->type)};
}

static struct operation_cost cross_entropy_work(const struct cross_entropy_args *a) {
    double elements = (double)a->N * a->V, logit = a->type == DTYPE_F64 ? 8 : size_of(a->logits_type);
    return (struct operation_cost){.bytes = elements * (logit + (a->dlogits ? size_of(a->type) : 0))};
}

static struct operation_cost mix_forward_work(const struct mix_forward_args *a) {
    return (struct operation_cost){.bytes = 3 * (double)a->n * size_of(a->type)};
}

static struct operation_cost mix_backward_work(const struct mix_backward_args *a) {
    return (struct operation_cost){
        .bytes = (double)a->n * (4 * size_of(a->type) + (a->dy_zero ? 1 : 2) * wide_size(a->type))};
}

static struct operation_cost dropout_forward_work(const struct dropout_forward_args *a) {
    return (struct operation_cost){.bytes = (double)a->N * a->C * (a->residual ? 3 : 2) * size_of(a->type)};
}

static struct operation_cost dropout_backward_work(const struct dropout_backward_args *a) {
    return (struct operation_cost){.bytes = 2.0 * a->N * a->C * size_of(a->type)};
}

static struct operation_cost soft_cap_work(const struct soft_cap_args *a) {
    return (struct operation_cost){.bytes = 2.0 * a->N * a->V * size_of(a->type)};
}

static double moment_bytes(const struct optimizer_step_args *a) {
    if (a->state_type != DTYPE_I8)
        return a->type == DTYPE_F64 ? 8 : size_of(a->state_type);
    return 1 + (double)sizeof(float) / MOMENT_BLOCK;
}

static struct operation_cost optimizer_step_work(const struct optimizer_step_args *a) {
    double moments = (a->state.m ? 2 : 0) + (a->state.v ? 2 : 0);
    const int weights = a->rule == OPTIMIZER_MUON ? 0 : 2;
    double element = weights * wide_size(a->type) + moments * moment_bytes(a) +
                     (a->type == DTYPE_F64 ? 8 : size_of(a->grad_type)) + (a->param ? size_of(a->type) : 0);
    return (struct operation_cost){.bytes = (double)a->n * element};
}

static struct operation_cost optimizer_spans_work(const struct optimizer_spans_args *a) {
    // optimizer_step_work only tests whether pointers are NULL, so any address will do.
    static char there;
    const struct optimizer_step_args step = {
        .rule = a->rule,
        .state = {.m = a->n_moments > 0 ? &there : NULL, .v = a->n_moments > 1 ? &there : NULL},
        .param = a->has_param ? &there : NULL,
        .n = a->n,
        .type = a->type,
        .grad_type = a->grad_type,
        .state_type = a->state_type};
    return optimizer_step_work(&step);
}

static struct operation_cost update_decide_work(const struct update_decide_args *a) {
    return (struct operation_cost){.bytes = (double)(sizeof *a->result + sizeof *a->plan) +
                                            (double)a->ranks * (double)update_sums_bytes(a->n_losses)};
}

static struct operation_cost matrix_normalize_work(const struct matrix_normalize_args *a) {
    return (struct operation_cost){.bytes = 3.0 * a->n_matrices * (double)a->n * size_of(a->type)};
}

static struct operation_cost matrix_product_work(const struct matrix_product_args *a) {
    const double out = (double)a->rows * a->columns, x = (double)a->rows * a->inner,
                 y = (double)a->columns * a->inner,
                 computed = a->strip > 0 ? symmetric_elements(a->rows, a->strip) : out;
    return (struct operation_cost){.flops = 2 * a->n_matrices * computed * a->inner,
                                   .bytes = a->n_matrices * (out + x + y + (a->addend ? out : 0)) *
                                            size_of(a->type)};
}

static struct operation_cost matrix_add_diagonal_work(const struct matrix_add_diagonal_args *a) {
    return (struct operation_cost){.bytes = 2.0 * a->n_matrices * a->n * size_of(a->type)};
}

static struct operation_cost muon_step_work(const struct muon_step_args *a) {
    return (struct operation_cost){.bytes = (double)a->n * (2 * wide_size(a->type) + size_of(a->update_type) +
                                                            (a->param ? size_of(a->type) : 0))};
}

static struct operation_cost sum_work(const struct sum_args *a) {
    return (struct operation_cost){.bytes = (double)a->n * (a->type == DTYPE_F64 ? 8 : 4)};
}

static struct operation_cost sum_squares_work(const struct sum_squares_args *a) {
    return (struct operation_cost){.bytes = (double)a->n * size_of(a->type)};
}

static struct operation_cost add_squares_work(const struct add_squares_args *a) {
    return (struct operation_cost){.bytes = (double)a->n * sizeof *a->x};
}

static struct operation_cost fill_work(const struct fill_args *a) {
    return (struct operation_cost){.bytes = (double)a->n * size_of(a->type)};
}

static struct operation_cost cast_work(const struct cast_args *a) {
    return (struct operation_cost){.bytes = (double)a->n * (size_of(a->type) + size_of(a->out_type))};
}

static struct operation_cost lerp_work(const struct lerp_args *a) {
    return (struct operation_cost){.bytes = (double)a->n * (2 * wide_size(a->type) + size_of(a->out_type))};
}

static struct operation_cost add_work(const struct add_args *a) {
    return (struct operation_cost){.bytes = (double)a->n * (2 * wide_size(a->type) + size_of(a->type))};
}

static struct operation_cost add_spans_work(const struct add_spans_args *a) {
    double n = 0;
    for (int i = 0; i < a->n_spans; i++)
        n += (double)a->spans[i].n;
    return (struct operation_cost){.bytes = 3 * n * wide_size(a->type)};
}

static struct operation_cost sum_tree_work(const struct sum_tree_args *a) {
    return (struct operation_cost){
        .bytes = (double)a->n * (a->count * size_of(a->type) + (1 + a->accumulate) * wide_size(a->type))};
}

static struct operation_cost sample_work(const struct sample_args *a) {
    return (struct operation_cost){.bytes = (double)a->N * a->V * size_of(a->type)};
}

struct operation_cost cost_of_operation(enum operation operation, const void *args) {
    switch (operation) {
#define WORK_CASE(name)                                                                                      \
    case OP_##name:                                                                                          \
        return name##_work(args);
        OPERATIONS(WORK_CASE)
#undef WORK_CASE
    case N_OPERATIONS:
        break;
    }
    return (struct operation_cost){0};
}

const char *operation_name(enum operation operation) {
#define OPERATION_TEXT(name) #name,
    static const char *const names[N_OPERATIONS] = {OPERATIONS(OPERATION_TEXT)};
#undef OPERATION_TEXT
    return names[operation];
}

struct linear_shape operation_linear_shape(enum operation operation, const void *args) {
    if (operation == OP_linear_forward) {
        const struct linear_forward_args *a = args;
        return (struct linear_shape){a->IC, a->OC};
    }
    if (operation == OP_linear_backward) {
        const struct linear_backward_args *a = args;
        return (struct linear_shape){a->IC, a->OC};
    }
    return (struct linear_shape){0, 0};
}

const char *cost_limit_name(enum cost_limit limit) {
    static const char *const names[] = {"", "GEMM", "bandwidth"};
    return names[limit];
}

double cost_least_seconds(const struct operation_cost *work, const struct device_peak *limits,
                          enum cost_limit *which) {
    double computing = work->flops / limits->flops_per_s, moving = work->bytes / limits->bytes_per_s;
    *which = computing > moving ? COST_LIMIT_GEMM : moving > 0 ? COST_LIMIT_BANDWIDTH : COST_LIMIT_NONE;
    return computing > moving ? computing : moving;
}
