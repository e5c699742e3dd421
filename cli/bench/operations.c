// One function per operation. Operands that no result depends on share buffers.
#include "cli/bench/operations.h"

#include "kernels/ops.h"

enum { C = BENCH_C, H = 12, V = 50257 };

// Runs the operation, or in a dry run asks for its workspace, and returns from the case.
#define CALL(bench, name, ...)                                                                               \
    do {                                                                                                     \
        const struct name##_args args_ = {__VA_ARGS__};                                                      \
        size_t bytes_ = 0;                                                                                   \
        *cost = cost_of_operation(OP_##name, &args_);                                                        \
        if (!(bench)->dry_run)                                                                               \
            return (bench)->device->ops->name(&(bench)->stream, &args_);                                     \
        TRY((bench)->device->ops->workspace_bytes((bench)->device, OP_##name, &args_, &bytes_));             \
        if (bytes_ > (bench)->workspace_bytes)                                                               \
            (bench)->workspace_bytes = bytes_;                                                               \
        return STATUS_OK;                                                                                    \
    } while (0)

static enum status linear_forward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, linear_forward, .out = b->buffers[0], .x = b->buffers[1], .weight = b->buffers[2],
         .N = b->B * b->T, .IC = C, .OC = 4 * C, .out_stride = 4 * C, .type = b->type, .out_type = b->type);
}

static enum status activated_forward(struct operation_bench *b, struct operation_cost *cost,
                                     enum activation activation) {
    CALL(b, linear_forward, .out = b->buffers[0], .pre_activation = b->buffers[3], .x = b->buffers[1],
         .weight = b->buffers[2], .bias = activation == ACTIVATION_GELU ? b->buffers[4] : NULL,
         .N = b->B * b->T, .IC = C, .OC = 4 * C, .out_stride = 4 * C, .activation = activation,
         .type = b->type, .out_type = b->type);
}

static enum status linear_forward_gelu(struct operation_bench *b, struct operation_cost *cost) {
    return activated_forward(b, cost, ACTIVATION_GELU);
}

static enum status linear_forward_relu_squared(struct operation_bench *b, struct operation_cost *cost) {
    return activated_forward(b, cost, ACTIVATION_RELU_SQUARED);
}

static enum status linear_backward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, linear_backward, .dx = b->buffers[0], .dweight = b->buffers[3], .dbias = b->buffers[4],
         .dout = b->buffers[5], .x = b->buffers[1], .weight = b->buffers[2], .N = b->B * b->T, .IC = C,
         .OC = 4 * C, .dout_stride = 4 * C, .type = b->type);
}

// q, k and v in one tensor, of H query heads and K key-value heads. table: of angles, or NULL
static enum status forward_of(struct operation_bench *b, struct operation_cost *cost, int K, int window,
                              const void *table) {
    const size_t D = C / H, stride = C + 2 * (size_t)K * D, size = dtype_size(b->type);
    char *qkv = b->buffers[1];
    CALL(b, attention_forward, .out = b->buffers[0], .lse = b->buffers[3], .q = qkv, .k = qkv + C * size,
         .v = qkv + (stride - (size_t)K * D) * size, .table = table, .q_stride = stride,
         .q_batch_stride = stride * (size_t)b->T, .k_stride = stride, .k_batch_stride = stride * (size_t)b->T,
         .v_stride = stride, .v_batch_stride = stride * (size_t)b->T, .B = b->B, .T = b->T, .S = b->T, .H = H,
         .K = K, .D = C / H, .window = window, .type = b->type);
}

static enum status backward_of(struct operation_bench *b, struct operation_cost *cost, int K, int window,
                               const void *table) {
    const size_t D = C / H, stride = C + 2 * (size_t)K * D, size = dtype_size(b->type);
    const size_t k_at = C * size, v_at = (stride - (size_t)K * D) * size;
    char *qkv = b->buffers[1], *dqkv = b->buffers[2];
    CALL(b, attention_backward, .dq = dqkv, .dk = dqkv + k_at, .dv = dqkv + v_at, .dout = b->buffers[4],
         .out = b->buffers[0], .lse = b->buffers[3], .q = qkv, .k = qkv + k_at, .v = qkv + v_at,
         .table = table, .q_stride = stride, .q_batch_stride = stride * (size_t)b->T, .k_stride = stride,
         .k_batch_stride = stride * (size_t)b->T, .v_stride = stride, .v_batch_stride = stride * (size_t)b->T,
         .B = b->B, .T = b->T, .H = H, .K = K, .D = C / H, .window = window, .type = b->type);
}

static enum status attention_forward(struct operation_bench *b, struct operation_cost *cost) {
    return forward_of(b, cost, H, 0, NULL);
}

static enum status attention_backward(struct operation_bench *b, struct operation_cost *cost) {
    return backward_of(b, cost, H, 0, NULL);
}

// As Llama attends where device_attention_rotates. Elsewhere with a pass over queries before, or over both
// gradients after.
static enum status rotating_forward(struct operation_bench *b, struct operation_cost *cost) {
    return forward_of(b, cost, H, 0, b->buffers[2]);
}

static enum status rotating_backward(struct operation_bench *b, struct operation_cost *cost) {
    return backward_of(b, cost, H, 0, b->buffers[5]);
}

// Three query heads for each key-value head, as in SmolLM2.
static enum status grouped_forward(struct operation_bench *b, struct operation_cost *cost) {
    return forward_of(b, cost, H / 3, 0, NULL);
}

static enum status grouped_backward(struct operation_bench *b, struct operation_cost *cost) {
    return backward_of(b, cost, H / 3, 0, NULL);
}

static enum status window_forward(struct operation_bench *b, struct operation_cost *cost) {
    return forward_of(b, cost, H / 3, b->T / 4, NULL);
}

static enum status window_backward(struct operation_bench *b, struct operation_cost *cost) {
    return backward_of(b, cost, H / 3, b->T / 4, NULL);
}

// One more position for each of B sequences that fill the cache. The tokens 0, 1, 2, ... T - 1 also serve as
// sequences, and the last ones as lengths.
static enum status decode_of(struct operation_bench *b, struct operation_cost *cost, int K) {
    const size_t D = C / H, columns = (size_t)K * D, size = dtype_size(b->type);
    char *cache = b->buffers[1];
    size_t n_keys = 0;
    for (int i = 0; i < b->B; i++)
        n_keys += (size_t)(b->T - i);
    CALL(b, attention_decode, .out = b->buffers[0], .keys = cache, .values = cache + columns * size,
         .q = b->buffers[2], .k = b->buffers[3], .v = b->buffers[4], .sequences = b->tokens,
         .lengths = b->tokens + b->T - b->B, .q_stride = C, .k_stride = columns, .v_stride = columns,
         .cache_stride = 2 * columns, .cache_batch_stride = 2 * columns * (size_t)b->T, .n_keys = n_keys,
         .B = b->B, .H = H, .K = K, .D = C / H, .type = b->type);
}

static enum status attention_decode(struct operation_bench *b, struct operation_cost *cost) {
    return decode_of(b, cost, H);
}

static enum status grouped_decode(struct operation_bench *b, struct operation_cost *cost) {
    return decode_of(b, cost, H / 3);
}

static enum status layernorm_forward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, layernorm_forward, .out = b->buffers[0], .mean = b->buffers[3], .rstd = b->buffers[4],
         .x = b->buffers[1], .weight = b->buffers[2], .bias = b->buffers[2], .N = b->B * b->T, .C = C,
         .epsilon = 1e-5f, .type = b->type);
}

static enum status layernorm_backward(struct operation_bench *b, struct operation_cost *cost) {
    float *sums = b->buffers[5];
    CALL(b, layernorm_backward, .dx = b->buffers[0], .dweight = sums, .dbias = sums + C,
         .dout = b->buffers[1], .dresidual = b->buffers[0], .x = b->buffers[2], .weight = b->buffers[3],
         .mean = b->buffers[4], .rstd = b->buffers[4], .N = b->B * b->T, .C = C, .type = b->type);
}

static enum status rmsnorm_forward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, rmsnorm_forward, .out = b->buffers[0], .rstd = b->buffers[4], .x = b->buffers[1],
         .weight = b->buffers[2], .N = b->B * b->T, .C = C, .epsilon = 1e-5f, .type = b->type);
}

static enum status rmsnorm_backward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, rmsnorm_backward, .dx = b->buffers[0], .dweight = b->buffers[5], .dout = b->buffers[1],
         .dresidual = b->buffers[0], .x = b->buffers[2], .weight = b->buffers[3], .rstd = b->buffers[4],
         .N = b->B * b->T, .C = C, .type = b->type);
}

// The query and key heads of a tensor that has values too, in place.
static enum status rope_forward_of(struct operation_bench *b, struct operation_cost *cost, int n_queries) {
    CALL(b, rope_forward, .out = b->buffers[0], .x = b->buffers[0], .table = b->buffers[1], .B = b->B,
         .T = b->T, .H = n_queries, .K = H, .D = C / H, .x_stride = 3 * C, .out_stride = 3 * C,
         .type = b->type);
}

static enum status rope_forward(struct operation_bench *b, struct operation_cost *cost) {
    return rope_forward_of(b, cost, H);
}

static enum status rope_forward_keys(struct operation_bench *b, struct operation_cost *cost) {
    return rope_forward_of(b, cost, 0);
}

static enum status rope_backward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, rope_backward, .dx = b->buffers[0], .dout = b->buffers[0], .table = b->buffers[1], .B = b->B,
         .T = b->T, .H = H, .K = H, .D = C / H, .dx_stride = 3 * C, .dout_stride = 3 * C, .type = b->type);
}

static enum status rope_forward_norm(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, rope_forward, .out = b->buffers[0], .rstd = b->buffers[3], .x = b->buffers[4],
         .q_weight = b->buffers[2], .k_weight = b->buffers[2], .table = b->buffers[1], .B = b->B, .T = b->T,
         .H = H, .K = H, .D = C / H, .x_stride = 3 * C, .out_stride = 2 * C, .norm = true, .epsilon = 1e-6f,
         .type = b->type);
}

static enum status rope_backward_norm(struct operation_bench *b, struct operation_cost *cost) {
    float *sums = b->buffers[5];
    CALL(b, rope_backward, .dx = b->buffers[0], .dq_weight = sums, .dk_weight = sums + C,
         .dout = b->buffers[0], .x = b->buffers[4], .rstd = b->buffers[3], .q_weight = b->buffers[2],
         .k_weight = b->buffers[2], .table = b->buffers[1], .B = b->B, .T = b->T, .H = H, .K = H, .D = C / H,
         .dx_stride = 3 * C, .dout_stride = 3 * C, .x_stride = 3 * C, .norm = true, .type = b->type);
}

static enum status swiglu_forward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, swiglu_forward, .out = b->buffers[0], .x = b->buffers[1], .N = b->B * b->T, .F = 2 * C,
         .type = b->type);
}

static enum status swiglu_backward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, swiglu_backward, .dx = b->buffers[0], .dout = b->buffers[2], .x = b->buffers[1], .N = b->B * b->T,
         .F = 2 * C, .type = b->type);
}

static enum status relu_squared_forward(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, relu_squared_forward, .out = b->buffers[0], .x = b->buffers[1], .n = n, .type = b->type);
}

static enum status relu_squared_backward(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, relu_squared_backward, .dx = b->buffers[0], .dout = b->buffers[2], .x = b->buffers[1], .n = n,
         .type = b->type);
}

static enum status gelu_forward(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, gelu_forward, .out = b->buffers[0], .x = b->buffers[1], .n = n, .type = b->type);
}

static enum status gelu_backward(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, gelu_backward, .dx = b->buffers[0], .dout = b->buffers[2], .x = b->buffers[1], .n = n,
         .type = b->type);
}

static enum status embedding_forward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, embedding_forward, .out = b->buffers[0], .wte = b->buffers[1], .wpe = b->buffers[2],
         .tokens = b->tokens, .B = b->B, .T = b->T, .C = C, .V = b->T, .out_stride = C, .type = b->type);
}

static enum status embedding_backward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, embedding_backward, .dwte = b->buffers[1], .dwpe = b->buffers[2], .dout = b->buffers[0],
         .tokens = b->tokens, .B = b->B, .T = b->T, .C = C, .V = b->T, .dout_stride = C, .P = b->T,
         .type = b->type);
}

// Value embeddings: the last C of rows of 3 C.
static enum status embedding_forward_values(struct operation_bench *b, struct operation_cost *cost) {
    char *values = (char *)b->buffers[0] + 2 * C * dtype_size(b->type);
    CALL(b, embedding_forward, .out = values, .wte = b->buffers[1], .tokens = b->tokens, .B = b->B, .T = b->T,
         .C = C, .V = b->T, .out_stride = 3 * C, .accumulate = true, .type = b->type);
}

static enum status mix_forward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, mix_forward, .out = b->buffers[0], .x = b->buffers[0], .y = b->buffers[1],
         .x_weight = b->buffers[2], .y_weight = b->buffers[2], .n = (size_t)b->B * (size_t)b->T * C,
         .type = b->type);
}

static enum status mix_backward(struct operation_bench *b, struct operation_cost *cost) {
    float *sums = b->buffers[5];
    CALL(b, mix_backward, .dx = b->buffers[0], .dy = b->buffers[1], .dx_weight = sums, .dy_weight = sums + 1,
         .dout = b->buffers[0], .x = b->buffers[2], .y = b->buffers[3], .x_weight = b->buffers[4],
         .y_weight = b->buffers[4], .n = (size_t)b->B * (size_t)b->T * C, .type = b->type);
}

// The numbers of the sequences are zeros.
static enum status dropout_forward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, dropout_forward, .out = b->buffers[0], .x = b->buffers[1], .residual = b->buffers[2],
         .sequences = b->buffers[3], .N = b->B * b->T, .C = C, .rows_per_sequence = b->T, .p = 0.1f,
         .type = b->type);
}

static enum status dropout_backward(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, dropout_backward, .dx = b->buffers[0], .dout = b->buffers[1], .sequences = b->buffers[3],
         .N = b->B * b->T, .C = C, .rows_per_sequence = b->T, .p = 0.1f, .type = b->type);
}

static enum status soft_cap(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, soft_cap, .out = b->buffers[0], .x = b->buffers[0], .N = BENCH_LOGITS_ROWS, .V = V,
         .stride = BENCH_LOGITS_STRIDE, .cap = 15, .type = b->type);
}

static enum status cross_entropy(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, cross_entropy, .losses = b->buffers[2], .dlogits = b->buffers[1], .logits = b->buffers[0],
         .targets = b->tokens, .N = BENCH_LOGITS_ROWS, .V = V, .logits_stride = BENCH_LOGITS_STRIDE,
         .dlogits_stride = BENCH_LOGITS_STRIDE, .scale = 1, .type = b->type);
}

static enum status sample(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, sample, .tokens = b->buffers[1], .logits = b->buffers[0], .uniforms = b->buffers[2], .N = 1,
         .V = V, .logits_stride = V, .temperature = 1, .top_k = 50, .top_p = 1, .type = DTYPE_F32);
}

static enum status adamw(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    bool narrow = b->type != DTYPE_F32;
    struct optimizer_state state = {.master = b->buffers[0], .m = b->buffers[1], .v = b->buffers[2]};
    CALL(b, optimizer_step, .rule = OPTIMIZER_ADAMW, .from = state, .to = state,
         .param = narrow ? b->buffers[4] : NULL, .grad = b->buffers[3], .n = n, .step = 1, .lr = 1e-4,
         .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .grad_scale = 1, .type = b->type);
}

// The same by the operation that a step uses on a GPU, in spans of 2 C and the rest, as of a bias and a
// matrix.
static enum status adamw_spans(struct operation_bench *b, struct operation_cost *cost) {
    const size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    struct {
        struct optimizer_span spans[2];
        struct update_plan plan;
        struct update_result result;
    } inputs = {.plan = {.step = 1, .lr = 1e-4, .loss_scale = 1, .allowed = 1}, .result = {.grad_scale = 1}},
      *there = b->buffers[5];
    size_t n_tiles = 0;
    for (int i = 0; i < 2; i++) {
        const size_t begin = i == 0 ? 0 : 2 * C;
        struct optimizer_span *span = &inputs.spans[i];
        *span = (struct optimizer_span){.state = {.master = (float *)b->buffers[0] + begin,
                                                  .m = (float *)b->buffers[1] + begin,
                                                  .v = (float *)b->buffers[2] + begin},
                                        .grad = (float *)b->buffers[3] + begin,
                                        .n = i == 0 ? 2 * C : n - 2 * C,
                                        .first_tile = n_tiles,
                                        .lr_scale = 1,
                                        .weight_decay = i * 0.1,
                                        .group = i};
        if (b->type != DTYPE_F32)
            span->param = (char *)b->buffers[4] + begin * dtype_size(b->type);
        n_tiles += (span->n + OPTIMIZER_TILE - 1) / OPTIMIZER_TILE;
    }
    if (!b->dry_run)
        TRY(b->device->copy(&b->stream, there, &inputs, sizeof inputs));
    CALL(b, optimizer_spans, .rule = OPTIMIZER_ADAMW, .spans = there->spans, .n_spans = 2, .n_moments = 2,
         .has_param = b->type != DTYPE_F32, .n = n, .n_tiles = n_tiles, .plan = &there->plan,
         .result = &there->result, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .type = b->type);
}

// The losses of a micro-batch.
static enum status sum(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, sum, .out = b->buffers[1], .x = b->buffers[0], .n = (size_t)b->B * (size_t)b->T,
         .type = DTYPE_F32);
}

static enum status sum_squares(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, sum_squares, .partial = b->buffers[1], .x = b->buffers[0], .n = n, .type = DTYPE_F32);
}

// Matrices of Newton-Schulz iterations: a large one, and a Gram matrix.
static enum status matrix_normalize(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, matrix_normalize, .out = b->buffers[0], .x = b->buffers[1], .partial = b->buffers[2],
         .n = (size_t)b->B * (size_t)b->T * 4 * C, .n_matrices = 1, .epsilon = 1e-7, .type = b->type);
}

static int least_side(const struct operation_bench *b) {
    const int rows = b->B * b->T;
    return rows < C ? rows : C;
}

static enum status matrix_product(struct operation_bench *b, struct operation_cost *cost) {
    const int n = least_side(b);
    CALL(b, matrix_product, .out = b->buffers[0], .x = b->buffers[1], .y = b->buffers[2],
         .addend = b->buffers[2], .rows = n, .columns = n, .inner = n, .n_matrices = 1, .alpha = 1,
         .beta = 3.4445, .type = b->type);
}

static enum status matrix_product_symmetric(struct operation_bench *b, struct operation_cost *cost) {
    const int n = least_side(b);
    CALL(b, matrix_product, .out = b->buffers[0], .x = b->buffers[1], .y = b->buffers[1],
         .addend = b->buffers[1], .rows = n, .columns = n, .inner = n, .n_matrices = 1, .y_transposed = true,
         .strip = b->device->symmetric_strips[b->type], .alpha = 2.0315, .beta = -4.775, .type = b->type);
}

static enum status matrix_add_diagonal(struct operation_bench *b, struct operation_cost *cost) {
    CALL(b, matrix_add_diagonal, .x = b->buffers[0], .n = least_side(b), .n_matrices = 1, .value = 3.4445,
         .type = b->type);
}

static enum status muon_step(struct operation_bench *b, struct operation_cost *cost) {
    const struct {
        struct update_plan plan;
        struct update_result result;
    } inputs = {.plan = {.step = 1, .lr = 1e-2, .loss_scale = 1, .allowed = 1}, .result = {.grad_scale = 1}},
      *there = b->buffers[5];
    if (!b->dry_run)
        TRY(b->device->copy(&b->stream, b->buffers[5], &inputs, sizeof inputs));
    CALL(b, muon_step, .param = b->type == DTYPE_F32 ? NULL : b->buffers[0], .master = b->buffers[1],
         .update = b->buffers[2], .n = (size_t)b->B * (size_t)b->T * 4 * C, .scale = 0.2f,
         .plan = &there->plan, .result = &there->result, .type = b->type, .update_type = b->type);
}

static enum status cast(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, cast, .out = b->buffers[1], .x = b->buffers[0], .n = n, .type = DTYPE_F32,
         .out_type = b->type == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16);
}

static enum status lerp(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, lerp, .out = b->buffers[0], .x = b->buffers[0], .y = b->buffers[1], .n = n, .weight = 0.001f,
         .type = DTYPE_F32, .out_type = DTYPE_F32);
}

static enum status add(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * 4 * C;
    CALL(b, add, .out = b->buffers[0], .x = b->buffers[0], .y = b->buffers[1], .n = n, .type = b->type);
}

// The biases' gradients of a block of GPT-2 124M.
static enum status add_spans(struct operation_bench *b, struct operation_cost *cost) {
    float *out = b->buffers[0];
    const struct add_span spans[] = {{out, 3 * C}, {out + 3 * C, C}, {out + 4 * C, 4 * C}, {out + 8 * C, C}};
    CALL(b, add_spans, .spans = spans, .n_spans = 4, .x = b->buffers[1], .type = DTYPE_F32);
}

// The contributions of four ranks, in as much memory as the operations above use.
static enum status sum_tree(struct operation_bench *b, struct operation_cost *cost) {
    size_t n = (size_t)b->B * (size_t)b->T * C;
    CALL(b, sum_tree, .out = b->buffers[0], .x = b->buffers[1], .own = b->buffers[2], .n = n, .x_stride = n,
         .count = 4, .rank = 1, .type = b->type);
}

const struct operation_case operation_cases[] = {
    {"linear_forward", linear_forward, true, ATTENTION_FLASH},
    {"linear_forward + GELU", linear_forward_gelu, true, ATTENTION_FLASH},
    {"linear_forward + ReLU squared", linear_forward_relu_squared, true, ATTENTION_FLASH},
    {"linear_backward", linear_backward, true, ATTENTION_FLASH},
    {"attention_forward", attention_forward, true, ATTENTION_FLASH},
    {"attention_backward", attention_backward, true, ATTENTION_FLASH},
    {"attention_forward, RoPE", rotating_forward, true, ATTENTION_FLASH},
    {"attention_backward, RoPE", rotating_backward, true, ATTENTION_FLASH},
    {"attention_forward, GQA", grouped_forward, true, ATTENTION_FLASH},
    {"attention_backward, GQA", grouped_backward, true, ATTENTION_FLASH},
    {"attention_forward, window", window_forward, true, ATTENTION_FLASH},
    {"attention_backward, window", window_backward, true, ATTENTION_FLASH},
    {"attention_decode", attention_decode, true, ATTENTION_FLASH},
    {"attention_decode, GQA", grouped_decode, true, ATTENTION_FLASH},
    {"attention_forward, cuDNN", attention_forward, true, ATTENTION_CUDNN},
    {"attention_backward, cuDNN", attention_backward, true, ATTENTION_CUDNN},
    {"layernorm_forward", layernorm_forward, false, ATTENTION_FLASH},
    {"layernorm_backward", layernorm_backward, false, ATTENTION_FLASH},
    {"rmsnorm_forward", rmsnorm_forward, false, ATTENTION_FLASH},
    {"rmsnorm_backward", rmsnorm_backward, false, ATTENTION_FLASH},
    {"rope_forward", rope_forward, false, ATTENTION_FLASH},
    {"rope_forward, keys", rope_forward_keys, false, ATTENTION_FLASH},
    {"rope_backward", rope_backward, false, ATTENTION_FLASH},
    {"rope_forward, qk-norm", rope_forward_norm, false, ATTENTION_FLASH},
    {"rope_backward, qk-norm", rope_backward_norm, false, ATTENTION_FLASH},
    {"gelu_forward", gelu_forward, false, ATTENTION_FLASH},
    {"gelu_backward", gelu_backward, false, ATTENTION_FLASH},
    {"relu_squared_forward", relu_squared_forward, false, ATTENTION_FLASH},
    {"relu_squared_backward", relu_squared_backward, false, ATTENTION_FLASH},
    {"swiglu_forward", swiglu_forward, false, ATTENTION_FLASH},
    {"swiglu_backward", swiglu_backward, false, ATTENTION_FLASH},
    {"embedding_forward", embedding_forward, false, ATTENTION_FLASH},
    {"embedding_backward", embedding_backward, false, ATTENTION_FLASH},
    {"embedding_forward, values", embedding_forward_values, false, ATTENTION_FLASH},
    {"mix_forward", mix_forward, false, ATTENTION_FLASH},
    {"mix_backward", mix_backward, false, ATTENTION_FLASH},
    {"dropout_forward", dropout_forward, false, ATTENTION_FLASH},
    {"dropout_backward", dropout_backward, false, ATTENTION_FLASH},
    {"soft_cap", soft_cap, false, ATTENTION_FLASH},
    {"cross_entropy", cross_entropy, false, ATTENTION_FLASH},
    {"adamw", adamw, false, ATTENTION_FLASH},
    {"adamw, spans", adamw_spans, false, ATTENTION_FLASH},
    {"sum", sum, false, ATTENTION_FLASH},
    {"sum_squares", sum_squares, false, ATTENTION_FLASH},
    {"matrix_normalize", matrix_normalize, false, ATTENTION_FLASH},
    {"matrix_product", matrix_product, true, ATTENTION_FLASH},
    {"matrix_product, symmetric", matrix_product_symmetric, true, ATTENTION_FLASH},
    {"matrix_add_diagonal", matrix_add_diagonal, false, ATTENTION_FLASH},
    {"muon_step", muon_step, false, ATTENTION_FLASH},
    {"cast", cast, false, ATTENTION_FLASH},
    {"lerp", lerp, false, ATTENTION_FLASH},
    {"add", add, false, ATTENTION_FLASH},
    {"add_spans", add_spans, false, ATTENTION_FLASH},
    {"sum_tree", sum_tree, false, ATTENTION_FLASH},
    {"sample, top_k", sample, false, ATTENTION_FLASH},
};
const int n_operation_cases = sizeof operation_cases / sizeof *operation_cases;

enum status operation_case_begin(struct operation_bench *bench, const struct operation_case *one,
                                 bool *runs) {
    const struct attention_shape shape = {
        .B = bench->B, .T = bench->T, .H = H, .K = H, .D = C / H, .type = bench->type};
    struct device *device = bench->device;
    struct cudnn_support support = {.usable = one->attention == ATTENTION_FLASH};
    if (!support.usable && device->cudnn_support)
        TRY(device->cudnn_support(device, &shape, &support));
    device->attention = one->attention;
    *runs = support.usable;
    return STATUS_OK;
}
