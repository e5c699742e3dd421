// The sizes of a layer are the rows and columns of its weight in the parameter table.
#include "model/layers.h"

#include <assert.h>

#include "kernels/dropout.h"

// ---- a unit's tensors

const struct param *layer_tensor(const struct unit_pass *u, int tensor) {
    return u->index[tensor] < 0 ? NULL : &u->tensors[u->index[tensor]];
}

const void *layer_weight(const struct unit_pass *u, int tensor) {
    return u->index[tensor] < 0 ? NULL : param_of(&u->view, u->index[tensor]);
}

void *layer_gradient(const struct unit_pass *u, int tensor) {
    const struct param *param = layer_tensor(u, tensor);
    return param && !param->is_frozen ? grad_of(&u->view, u->index[tensor]) : NULL;
}

static void *offset(const void *data, size_t elements, enum dtype type) {
    return (char *)(uintptr_t)data + elements * dtype_size(type);
}

// ---- linear layers

static int outputs(const struct unit_pass *u, int weight) {
    return (int)layer_tensor(u, weight)->shape[0];
}

static int inputs(const struct unit_pass *u, int weight) {
    return (int)layer_tensor(u, weight)->shape[1];
}

// Returns the arguments of linear_forward for columns [row, row + n) of a layer's output. These come from
// rows [row, row + n) of its weight.
static struct linear_forward_args linear_rows(const struct unit_pass *u, int weight, int row, int n,
                                              const void *x, void *out) {
    const void *bias = layer_weight(u, weight + 1);
    int IC = inputs(u, weight);
    return (struct linear_forward_args){
        .out = out,
        .x = x,
        .weight = offset(layer_weight(u, weight), (size_t)row * (size_t)IC, u->type),
        .bias = bias ? offset(bias, (size_t)row, u->type) : NULL,
        .N = u->N,
        .IC = IC,
        .OC = n,
        .out_stride = n,
        .type = u->type,
        .out_type = u->type};
}

enum status linear(const struct unit_pass *u, int weight, const void *x, void *out) {
    RUN_ARGS(u->runner, linear_forward, linear_rows(u, weight, 0, outputs(u, weight), x, out));
    return STATUS_OK;
}

// Returns the sublayer of a weight that ends a branch: attention's output projection or the MLP's second
// matrix.
static enum sublayer sublayer_of(int weight) {
    return weight == PARAM_ATTN_PROJ_WEIGHT ? SUBLAYER_ATTN_PROJ : SUBLAYER_FC_PROJ;
}

enum status linear_add(const struct unit_pass *u, int weight, const void *x, const void *residual,
                       void *out) {
    int OC = outputs(u, weight);
    RUN(u->runner, linear_forward, .out = out, .x = x, .weight = layer_weight(u, weight),
        .bias = layer_weight(u, weight + 1), .residual = u->dropout ? NULL : residual, .N = u->N,
        .IC = inputs(u, weight), .OC = OC, .out_stride = OC, .type = u->type, .out_type = u->type);
    return drop(u, sublayer_of(weight), out, residual, out);
}

enum status linear_add_gradient(const struct unit_pass *u, int weight, const void *dout,
                                const void **gradient) {
    *gradient = u->dropout ? u->dropout->gradient : dout;
    return u->dropout ? drop_backward(u, sublayer_of(weight), dout, u->dropout->gradient) : STATUS_OK;
}

enum status linear_activated(const struct unit_pass *u, int weight, const void *x, enum activation activation,
                             void *before, void *out) {
    int OC = outputs(u, weight);
    RUN(u->runner, linear_forward, .out = out, .pre_activation = before, .x = x,
        .weight = layer_weight(u, weight), .bias = layer_weight(u, weight + 1), .N = u->N,
        .IC = inputs(u, weight), .OC = OC, .out_stride = OC, .activation = activation, .type = u->type,
        .out_type = u->type);
    return STATUS_OK;
}

// Returns where a product writes the gradient of a bias: its place in the unit's gradients or, with
// unit_pass.later, scratch memory.
static void *bias_gradient(const struct unit_pass *u, int bias) {
    void *gradient = layer_gradient(u, bias);
    struct bias_gradients *later = u->later;
    if (!gradient || !later)
        return gradient;
    assert(later->n < ADD_SPANS_MOST);
    size_t from = later->elements, n = layer_tensor(u, bias)->elements;
    later->spans[later->n++] = (struct add_span){.out = gradient, .n = n};
    later->elements += n;
    return offset(later->scratch, from, accumulation_dtype(u->type));
}

enum status linear_input_backward(const struct unit_pass *u, int weight, const void *dout, void *dx) {
    int OC = outputs(u, weight);
    RUN(u->runner, linear_backward, .dx = dx, .dout = dout, .weight = layer_weight(u, weight), .N = u->N,
        .IC = inputs(u, weight), .OC = OC, .dout_stride = OC, .type = u->type);
    return STATUS_OK;
}

enum status linear_weight_backward(const struct unit_pass *u, int weight, const void *dout, const void *x) {
    int OC = outputs(u, weight);
    void *dweight = layer_gradient(u, weight), *dbias = bias_gradient(u, weight + 1);
    if (dweight || dbias)
        RUN(u->runner, linear_backward, .dweight = dweight, .dbias = dbias, .dout = dout, .x = x, .N = u->N,
            .IC = inputs(u, weight), .OC = OC, .dout_stride = OC, .beta_zero = u->view.beta_zero,
            .writes_dbias = u->later != NULL, .type = u->type);
    return STATUS_OK;
}

enum status linear_backward(const struct unit_pass *u, int weight, const void *dout, const void *x,
                            enum activation activation, const void *before, void *dx) {
    int OC = outputs(u, weight);
    void *dbias = bias_gradient(u, weight + 1);
    RUN(u->runner, linear_backward, .dx = dx, .dweight = layer_gradient(u, weight), .dbias = dbias,
        .dout = dout, .x = x, .weight = layer_weight(u, weight), .pre_activation = before,
        .activation = activation, .N = u->N, .IC = inputs(u, weight), .OC = OC, .dout_stride = OC,
        .beta_zero = u->view.beta_zero, .writes_dbias = u->later != NULL, .type = u->type);
    return STATUS_OK;
}

// ---- dropout

static uint64_t dropout_key(const struct unit_pass *u, int sublayer) {
    return dropout_mixed(u->dropout->seed ^ dropout_mixed((uint64_t)(u->unit * N_SUBLAYERS + sublayer)));
}

enum status drop(const struct unit_pass *u, int sublayer, const void *x, const void *residual, void *out) {
    const struct dropout *dropout = u->dropout;
    if (dropout)
        RUN(u->runner, dropout_forward, .out = out, .x = x, .residual = residual,
            .sequences = dropout->sequences, .N = u->N, .C = u->config->n_embd,
            .rows_per_sequence = dropout->T, .key = dropout_key(u, sublayer), .p = dropout->p,
            .type = u->type);
    return STATUS_OK;
}

enum status drop_backward(const struct unit_pass *u, int sublayer, const void *dout, void *dx) {
    const struct dropout *dropout = u->dropout;
    if (dropout)
        RUN(u->runner, dropout_backward, .dx = dx, .dout = dout, .sequences = dropout->sequences, .N = u->N,
            .C = u->config->n_embd, .rows_per_sequence = dropout->T, .key = dropout_key(u, sublayer),
            .p = dropout->p, .type = u->type);
    return STATUS_OK;
}

// ---- norms

enum status norm(const struct unit_pass *u, int weight, const void *x, const struct norm_buffers *kept) {
    const void *bias = layer_weight(u, weight + 1);
    int C = u->config->n_embd;
    float epsilon = (float)u->config->norm_eps;
    if (bias)
        RUN(u->runner, layernorm_forward, .out = kept->out, .mean = kept->mean, .rstd = kept->rstd, .x = x,
            .weight = layer_weight(u, weight), .bias = bias, .N = u->N, .C = C, .epsilon = epsilon,
            .type = u->type);
    else
        RUN(u->runner, rmsnorm_forward, .out = kept->out, .rstd = kept->rstd, .x = x,
            .weight = layer_weight(u, weight), .N = u->N, .C = C, .epsilon = epsilon, .type = u->type);
    return STATUS_OK;
}

enum status norm_backward(const struct unit_pass *u, int weight, const void *x,
                          const struct norm_buffers *kept, const void *dout, const void *dresidual, void *dx,
                          bool recomputes) {
    const void *bias = layer_weight(u, weight + 1);
    int C = u->config->n_embd;
    if (bias)
        RUN(u->runner, layernorm_backward, .dx = dx, .dweight = layer_gradient(u, weight),
            .dbias = layer_gradient(u, weight + 1), .dout = dout, .dresidual = dresidual, .x = x,
            .weight = layer_weight(u, weight), .mean = kept->mean, .rstd = kept->rstd,
            .out = recomputes ? kept->out : NULL, .bias = bias, .N = u->N, .C = C,
            .beta_zero = u->view.beta_zero, .type = u->type);
    else
        RUN(u->runner, rmsnorm_backward, .dx = dx, .dweight = layer_gradient(u, weight), .dout = dout,
            .dresidual = dresidual, .x = x, .weight = layer_weight(u, weight), .rstd = kept->rstd,
            .out = recomputes ? kept->out : NULL, .N = u->N, .C = C, .beta_zero = u->view.beta_zero,
            .type = u->type);
    return STATUS_OK;
}

// ---- the block's input

static bool mixes(const struct block_pass *a) {
    return gpt_mixes(a->unit.config, a->block);
}

const void *block_input(const struct block_pass *a) {
    return mixes(a) ? a->buffers->mixed : a->x;
}

enum status mix(const struct block_pass *a) {
    if (mixes(a))
        RUN(a->unit.runner, mix_forward, .out = a->buffers->mixed, .x = a->x, .y = a->embedding,
            .x_weight = layer_weight(&a->unit, PARAM_RESIDUAL_WEIGHT),
            .y_weight = layer_weight(&a->unit, PARAM_EMBEDDING_WEIGHT),
            .n = (size_t)a->unit.N * (size_t)a->unit.config->n_embd, .type = a->unit.type);
    return STATUS_OK;
}

// Backward of the last block is the first to add to dembedding, so it overwrites what dembedding holds.
enum status mix_backward(const struct block_pass *a) {
    const struct unit_pass *u = &a->unit;
    const struct activation_gradients *d = a->scratch;
    if (mixes(a))
        RUN(u->runner, mix_backward, .dx = d->dresidual, .dy = d->dembedding,
            .dx_weight = layer_gradient(u, PARAM_RESIDUAL_WEIGHT),
            .dy_weight = layer_gradient(u, PARAM_EMBEDDING_WEIGHT), .dout = d->dresidual, .x = a->x,
            .y = a->embedding, .x_weight = layer_weight(u, PARAM_RESIDUAL_WEIGHT),
            .y_weight = layer_weight(u, PARAM_EMBEDDING_WEIGHT),
            .n = (size_t)u->N * (size_t)u->config->n_embd, .dy_zero = a->block == u->config->n_layer - 1,
            .beta_zero = u->view.beta_zero, .type = u->type);
    return STATUS_OK;
}

// ---- attention

// The queries, keys and values of a pass's rows, and their strides in elements.
struct heads {
    void *q, *k, *v;
    size_t q_stride, k_stride, v_stride;
};

static bool appends(const struct block_pass *a) {
    return a->cache.keys_values && a->T > 1;
}

static size_t query_width(const struct block_pass *a) {
    return (size_t)a->unit.config->n_head * (size_t)a->unit.config->head_dim;
}

static size_t key_width(const struct block_pass *a) {
    return (size_t)a->unit.config->n_kv_head * (size_t)a->unit.config->head_dim;
}

// Returns the address of the pass's sequence in the cache: of the keys of its first position.
static void *cached(const struct block_pass *a) {
    return offset(a->cache.keys_values, (size_t)a->cache.sequence * a->cache.stride, a->unit.type);
}

// Returns where project_qkv writes queries, keys and values: to buffers->qkv. If positions are appended to
// a cache, keys and values go to the cache instead.
static struct heads projected(const struct block_pass *a) {
    enum dtype type = a->unit.type;
    size_t HD = query_width(a), KD = key_width(a), width = HD + 2 * KD;
    void *qkv = a->buffers->qkv;
    if (!appends(a))
        return (struct heads){qkv, offset(qkv, HD, type), offset(qkv, HD + KD, type), width, width, width};
    void *k = offset(cached(a), (size_t)a->cache.length * 2 * KD, type);
    return (struct heads){qkv, k, offset(k, KD, type), HD, 2 * KD, 2 * KD};
}

// Returns where attention writes the rotated queries and keys: to buffers->rotated or, if NULL, in place.
static struct heads rotated(const struct block_pass *a) {
    struct heads heads = projected(a);
    if (a->buffers->rotated) {
        heads.q = a->buffers->rotated;
        heads.k = offset(a->buffers->rotated, query_width(a), a->unit.type);
        heads.q_stride = heads.k_stride = query_width(a) + key_width(a);
    }
    return heads;
}

enum status project_qkv(const struct block_pass *a, const void *x) {
    const struct unit_pass *u = &a->unit;
    const struct heads heads = projected(a);
    const int HD = (int)query_width(a), KD = (int)key_width(a);
    const int columns = appends(a) ? HD : HD + 2 * KD;
    RUN_ARGS(u->runner, linear_forward, linear_rows(u, PARAM_QKV_WEIGHT, 0, columns, x, heads.q));
    if (appends(a))
        RUN_ARGS(u->runner, linear_forward, linear_rows(u, PARAM_QKV_WEIGHT, HD, 2 * KD, x, heads.k));
    return STATUS_OK;
}

enum status add_value_embedding(const struct block_pass *a) {
    const void *table = layer_weight(&a->unit, PARAM_VALUE_EMBEDDING);
    const struct heads heads = projected(a);
    if (table)
        RUN(a->unit.runner, embedding_forward, .out = heads.v, .wte = table, .tokens = a->tokens, .B = a->B,
            .T = a->T, .C = (int)key_width(a), .V = a->unit.config->vocab_size, .out_stride = heads.v_stride,
            .accumulate = true, .type = a->unit.type);
    return STATUS_OK;
}

// embedding_backward adds to rows of the table's gradient. So with beta_zero the gradient is first zeroed.
enum status value_embedding_backward(const struct block_pass *a) {
    const struct unit_pass *u = &a->unit;
    const struct param *table = layer_tensor(u, PARAM_VALUE_EMBEDDING);
    const size_t HD = query_width(a), KD = key_width(a);
    void *gradient = layer_gradient(u, PARAM_VALUE_EMBEDDING);
    if (!gradient)
        return STATUS_OK;
    if (u->view.beta_zero)
        RUN(u->runner, fill, .out = gradient, .n = table->elements, .type = accumulation_dtype(u->type));
    RUN(u->runner, embedding_backward, .dwte = gradient, .dout = offset(a->scratch->dqkv, HD + KD, u->type),
        .tokens = a->tokens, .B = a->B, .T = a->T, .C = (int)KD, .V = u->config->vocab_size,
        .dout_stride = HD + 2 * KD, .P = u->config->n_positions, .type = u->type);
    return STATUS_OK;
}

static struct attention_rope rope_of(const struct block_pass *a) {
    const struct gpt_config *config = a->unit.config;
    const struct heads heads = rotated(a);
    return (struct attention_rope){.table = a->rope,
                                   .q_weight = layer_weight(&a->unit, PARAM_Q_NORM),
                                   .k_weight = layer_weight(&a->unit, PARAM_K_NORM),
                                   .norm = config->qk_norm,
                                   .epsilon = (float)config->norm_eps,
                                   .rotated_q = heads.q,
                                   .rotated_k = heads.k,
                                   .q_stride = heads.q_stride,
                                   .k_stride = heads.k_stride,
                                   .rstd = a->buffers->qk_rstd};
}

// Runs attention for several positions: whole sequences, or positions appended to one sequence's cache.
static enum status attend_all(const struct block_pass *a) {
    const struct gpt_config *config = a->unit.config;
    const struct heads heads = projected(a);
    const size_t T = (size_t)a->T;
    void *k = heads.k, *v = heads.v;
    if (appends(a)) {
        k = cached(a);
        v = offset(k, key_width(a), a->unit.type);
    }
    RUN(a->unit.runner, attention_forward, .out = a->buffers->attention, .lse = a->buffers->lse, .q = heads.q,
        .k = k, .v = v, .q_stride = heads.q_stride, .k_stride = heads.k_stride, .v_stride = heads.v_stride,
        .q_batch_stride = heads.q_stride * T, .k_batch_stride = heads.k_stride * T,
        .v_batch_stride = heads.v_stride * T, .first = a->first, .B = a->B, .T = a->T,
        .S = (appends(a) ? a->cache.length : 0) + a->T, .H = config->n_head, .K = config->n_kv_head,
        .D = config->head_dim, .window = gpt_window(config, a->block), .rope = rope_of(a),
        .kernel = a->attention, .type = a->unit.type);
    return STATUS_OK;
}

// Runs attention for one position of each of several sequences, whose lengths may differ.
static enum status attend_step(const struct block_pass *a) {
    const struct gpt_config *config = a->unit.config;
    const struct block_cache *cache = &a->cache;
    const struct heads heads = projected(a);
    RUN(a->unit.runner, attention_decode, .out = a->buffers->attention, .keys = cache->keys_values,
        .values = offset(cache->keys_values, key_width(a), a->unit.type), .q = heads.q, .k = heads.k,
        .v = heads.v, .sequences = cache->sequences, .lengths = cache->lengths, .first = a->first,
        .q_stride = heads.q_stride, .k_stride = heads.k_stride, .v_stride = heads.v_stride,
        .cache_stride = gpt_cache_width(config), .cache_batch_stride = cache->stride, .n_keys = cache->n_keys,
        .B = a->B, .H = config->n_head, .K = config->n_kv_head, .D = config->head_dim,
        .window = gpt_window(config, a->block), .rope = rope_of(a), .type = a->unit.type);
    return STATUS_OK;
}

enum status attend(const struct block_pass *a) {
    return a->cache.keys_values && a->T == 1 ? attend_step(a) : attend_all(a);
}

enum status attend_backward(const struct block_pass *a) {
    const struct gpt_config *config = a->unit.config;
    const struct activation_gradients *d = a->scratch;
    const struct heads heads = projected(a);
    const enum dtype type = a->unit.type;
    const size_t HD = query_width(a), KD = key_width(a), T = (size_t)a->T;
    struct attention_rope rope = rope_of(a);
    rope.drotated_q = d->drotated ? d->drotated : d->dqkv;
    rope.drotated_k = offset(rope.drotated_q, HD, type);
    rope.dq_weight = layer_gradient(&a->unit, PARAM_Q_NORM);
    rope.dk_weight = layer_gradient(&a->unit, PARAM_K_NORM);
    rope.beta_zero = a->unit.view.beta_zero;
    RUN(a->unit.runner, attention_backward, .dq = d->dqkv, .dk = offset(d->dqkv, HD, type),
        .dv = offset(d->dqkv, HD + KD, type), .dout = d->dbranch, .out = a->buffers->attention,
        .lse = a->buffers->lse, .q = heads.q, .k = heads.k, .v = heads.v, .q_stride = heads.q_stride,
        .q_batch_stride = heads.q_stride * T, .k_stride = heads.k_stride,
        .k_batch_stride = heads.k_stride * T, .v_stride = heads.v_stride,
        .v_batch_stride = heads.v_stride * T, .first = a->first, .B = a->B, .T = a->T, .H = config->n_head,
        .K = config->n_kv_head, .D = config->head_dim, .window = gpt_window(config, a->block), .rope = rope,
        .kernel = a->attention, .type = type);
    return STATUS_OK;
}

enum status attention_project(const struct block_pass *a) {
    return linear_add(&a->unit, PARAM_ATTN_PROJ_WEIGHT, a->buffers->attention, block_input(a),
                      a->buffers->middle);
}

enum status attention_project_backward(const struct block_pass *a) {
    const void *dout;
    TRY(linear_add_gradient(&a->unit, PARAM_ATTN_PROJ_WEIGHT, a->scratch->dresidual, &dout));
    return linear_backward(&a->unit, PARAM_ATTN_PROJ_WEIGHT, dout, a->buffers->attention, ACTIVATION_NONE,
                           NULL, a->scratch->dbranch);
}

// ---- MLP

static enum activation activation_of(const struct block_pass *a) {
    return a->unit.config->activation == MLP_RELU_SQUARED ? ACTIVATION_RELU_SQUARED : ACTIVATION_GELU;
}

enum status mlp_up(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    TRY(norm(&a->unit, PARAM_LN2_WEIGHT, kept->middle, &kept->ln2));
    return linear_activated(&a->unit, PARAM_FC_WEIGHT, kept->ln2.out, activation_of(a), kept->fc,
                            kept->activated);
}

enum status mlp_up_backward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    const struct activation_gradients *d = a->scratch;
    TRY(linear_input_backward(&a->unit, PARAM_FC_WEIGHT, d->dfc, d->dbranch));
    TRY(norm_backward(&a->unit, PARAM_LN2_WEIGHT, kept->middle, &kept->ln2, d->dbranch, d->dresidual,
                      d->dresidual, a->recomputes_norm));
    return linear_weight_backward(&a->unit, PARAM_FC_WEIGHT, d->dfc, kept->ln2.out);
}

enum status mlp_down(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    return linear_add(&a->unit, PARAM_FC_PROJ_WEIGHT, kept->activated, kept->middle, a->out);
}

static enum status recompute_activation(const struct block_pass *a) {
    const size_t n = (size_t)a->unit.N * (size_t)a->unit.config->intermediate_size;
    if (activation_of(a) == ACTIVATION_RELU_SQUARED)
        RUN(a->unit.runner, relu_squared_forward, .out = a->buffers->activated, .x = a->buffers->fc, .n = n,
            .type = a->unit.type);
    else
        RUN(a->unit.runner, gelu_forward, .out = a->buffers->activated, .x = a->buffers->fc, .n = n,
            .type = a->unit.type);
    return STATUS_OK;
}

enum status mlp_down_backward(const struct block_pass *a) {
    if (a->recomputes_activation)
        TRY(recompute_activation(a));
    const void *dout;
    TRY(linear_add_gradient(&a->unit, PARAM_FC_PROJ_WEIGHT, a->scratch->dresidual, &dout));
    return linear_backward(&a->unit, PARAM_FC_PROJ_WEIGHT, dout, a->buffers->activated, activation_of(a),
                           a->buffers->fc, a->scratch->dfc);
}

enum status gated(const struct block_pass *a) {
    RUN(a->unit.runner, swiglu_forward, .out = a->buffers->activated, .x = a->buffers->fc, .N = a->unit.N,
        .F = a->unit.config->intermediate_size, .type = a->unit.type);
    return STATUS_OK;
}

enum status gated_backward(const struct block_pass *a) {
    void *activated = a->buffers->activated;
    RUN(a->unit.runner, swiglu_backward, .dx = a->scratch->dfc, .dout = activated, .x = a->buffers->fc,
        .out = a->recomputes_activation ? activated : NULL, .N = a->unit.N,
        .F = a->unit.config->intermediate_size, .type = a->unit.type);
    return STATUS_OK;
}
