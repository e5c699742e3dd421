// All of forward and backward, side by side. One function serves planning and running: without a stream it
// it is a dry run (model/block.h), so what is planned is what runs.
#include "model/gpt.h"

#include <assert.h>

#include "model/gpt_memory.h"

// ---- one pass

// One pass over a micro-batch, and what it needs at hand.
struct pass {
    struct gpt *gpt;
    struct runner runner;
    const struct unit_hooks *hooks;
};

static const struct param *unit_params(const struct gpt *gpt, int unit) {
    return &gpt->params->params[gpt->params->units[unit].first_param];
}

static enum status acquire(struct pass *pass, int unit, enum gpt_pass direction, struct gpt_next next,
                           struct unit_view *view) {
    return pass->hooks->params_acquire(pass->hooks->context, pass->runner.stream, unit, direction, next,
                                       view);
}

static enum status release(struct pass *pass, int unit, enum gpt_pass direction) {
    return pass->hooks->params_release(pass->hooks->context, pass->runner.stream, unit, direction);
}

static enum status ready(struct pass *pass, int unit) {
    return pass->hooks->grads_ready(pass->hooks->context, pass->runner.stream, unit);
}

static const struct block_buffers *block_kept(const struct gpt *gpt, int block) {
    return &gpt->blocks[block % gpt->n_blocks];
}

// ---- forward

static const void *block_weight(const struct block_args *a, int index) {
    return param_at(a->params, a->table, index, a->type);
}

static enum status attention_norm_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    RUN(runner, layernorm_forward, .out = kept->ln1, .mean = kept->ln1_mean, .rstd = kept->ln1_rstd,
        .x = a->x, .weight = block_weight(a, PARAM_LN1_WEIGHT), .bias = block_weight(a, PARAM_LN1_BIAS),
        .N = a->B * a->T, .C = a->config->n_embd, .epsilon = GPT_LAYERNORM_EPSILON, .type = a->type);
    return STATUS_OK;
}

static enum status mlp_norm_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    RUN(runner, layernorm_forward, .out = kept->ln2, .mean = kept->ln2_mean, .rstd = kept->ln2_rstd,
        .x = kept->middle, .weight = block_weight(a, PARAM_LN2_WEIGHT),
        .bias = block_weight(a, PARAM_LN2_BIAS), .N = a->B * a->T, .C = a->config->n_embd,
        .epsilon = GPT_LAYERNORM_EPSILON, .type = a->type);
    return STATUS_OK;
}

// Several positions of one sequence: its keys and values go straight to the cache, and only the first C
// columns' worth of buffers->qkv is used.
static enum status append_attention_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    int C = a->config->n_embd, H = a->config->n_head, length = a->cache.lengths[0];
    enum dtype type = a->type;
    size_t size = dtype_size(type), kv_row = 2 * (size_t)C;
    const char *weight = block_weight(a, PARAM_QKV_WEIGHT), *bias = block_weight(a, PARAM_QKV_BIAS);
    char *cache = (char *)a->cache.keys_values + (size_t)a->cache.sequences[0] * a->cache.stride * size;
    RUN(runner, linear_forward, .out = kept->qkv, .x = kept->ln1, .weight = weight, .bias = bias, .N = a->T,
        .IC = C, .OC = C, .out_stride = C, .type = type, .out_type = type);
    RUN(runner, linear_forward, .out = cache + (size_t)length * kv_row * size, .x = kept->ln1,
        .weight = weight + (size_t)C * (size_t)C * size, .bias = bias + (size_t)C * size, .N = a->T, .IC = C,
        .OC = 2 * C, .out_stride = 2 * C, .type = type, .out_type = type);
    RUN(runner, attention_forward, .out = kept->attention, .lse = kept->lse, .q = kept->qkv, .k = cache,
        .v = cache + (size_t)C * size, .q_stride = (size_t)C, .kv_stride = kv_row, .B = 1, .T = a->T,
        .S = length + a->T, .H = H, .D = C / H, .type = type);
    return STATUS_OK;
}

// One position each of several sequences, whose lengths may differ: one product for all, then attention for
// as many at a time as lie one after the other and are equally long.
static enum status step_attention_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    const struct block_cache *cache = &a->cache;
    int C = a->config->n_embd, H = a->config->n_head, n;
    enum dtype type = a->type;
    size_t size = dtype_size(type), stride = 3 * (size_t)C, kv_row = 2 * (size_t)C;
    RUN(runner, linear_forward, .out = kept->qkv, .x = kept->ln1, .weight = block_weight(a, PARAM_QKV_WEIGHT),
        .bias = block_weight(a, PARAM_QKV_BIAS), .N = a->B, .IC = C, .OC = 3 * C, .out_stride = 3 * C,
        .type = type, .out_type = type);
    for (int first = 0; first < a->B; first += n) {
        int length = cache->lengths[first];
        size_t at = (size_t)cache->sequences[first] * cache->stride;
        char *q = (char *)kept->qkv + (size_t)first * stride * size;
        char *keys = (char *)cache->keys_values + at * size;
        for (n = 0; first + n < a->B && cache->lengths[first + n] == length &&
                    cache->sequences[first + n] == cache->sequences[first] + n;
             n++)
            if (runner->stream)
                TRY(runner->device->copy(runner->stream,
                                         keys + ((size_t)n * cache->stride + (size_t)length * kv_row) * size,
                                         q + ((size_t)n * stride + (size_t)C) * size, kv_row * size));
        RUN(runner, attention_forward, .out = (char *)kept->attention + (size_t)first * (size_t)C * size,
            .lse = kept->lse, .q = q, .k = keys, .v = keys + (size_t)C * size, .q_stride = stride,
            .q_batch_stride = stride, .kv_stride = kv_row, .kv_batch_stride = cache->stride, .B = n, .T = 1,
            .S = length + 1, .H = H, .D = C / H, .type = type);
    }
    return STATUS_OK;
}

static enum status attention_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    int C = a->config->n_embd, H = a->config->n_head, N = a->B * a->T;
    enum dtype type = a->type;
    size_t size = dtype_size(type), stride = 3 * (size_t)C;

    TRY(attention_norm_forward(runner, a));
    if (a->cache.keys_values)
        return a->T > 1 ? append_attention_forward(runner, a) : step_attention_forward(runner, a);
    RUN(runner, linear_forward, .out = kept->qkv, .x = kept->ln1, .weight = block_weight(a, PARAM_QKV_WEIGHT),
        .bias = block_weight(a, PARAM_QKV_BIAS), .N = N, .IC = C, .OC = 3 * C, .out_stride = 3 * C,
        .type = type, .out_type = type);
    RUN(runner, attention_forward, .out = kept->attention, .lse = kept->lse, .q = kept->qkv,
        .k = (char *)kept->qkv + (size_t)C * size, .v = (char *)kept->qkv + 2 * (size_t)C * size,
        .q_stride = stride, .q_batch_stride = stride * (size_t)a->T, .kv_stride = stride,
        .kv_batch_stride = stride * (size_t)a->T, .B = a->B, .T = a->T, .S = a->T, .H = H, .D = C / H,
        .type = type);
    return STATUS_OK;
}

static enum status attn_proj_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    int C = a->config->n_embd;
    RUN(runner, linear_forward, .out = kept->middle, .x = kept->attention,
        .weight = block_weight(a, PARAM_ATTN_PROJ_WEIGHT), .bias = block_weight(a, PARAM_ATTN_PROJ_BIAS),
        .residual = a->x, .N = a->B * a->T, .IC = C, .OC = C, .out_stride = C, .type = a->type,
        .out_type = a->type);
    return STATUS_OK;
}

static enum status fc_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    int C = a->config->n_embd;
    TRY(mlp_norm_forward(runner, a));
    RUN(runner, linear_forward, .out = kept->gelu, .pre_gelu = kept->fc, .x = kept->ln2,
        .weight = block_weight(a, PARAM_FC_WEIGHT), .bias = block_weight(a, PARAM_FC_BIAS), .N = a->B * a->T,
        .IC = C, .OC = 4 * C, .out_stride = 4 * C, .gelu = true, .type = a->type, .out_type = a->type);
    return STATUS_OK;
}

static enum status fc_proj_forward(struct runner *runner, const struct block_args *a) {
    int C = a->config->n_embd;
    RUN(runner, linear_forward, .out = a->out, .x = a->buffers->gelu,
        .weight = block_weight(a, PARAM_FC_PROJ_WEIGHT), .bias = block_weight(a, PARAM_FC_PROJ_BIAS),
        .residual = a->buffers->middle, .N = a->B * a->T, .IC = 4 * C, .OC = C, .out_stride = C,
        .type = a->type, .out_type = a->type);
    return STATUS_OK;
}

enum status block_group_forward(struct runner *runner, const struct block_args *a, enum block_group group) {
    static enum status (*const forward[N_BLOCK_GROUPS])(struct runner *, const struct block_args *) = {
        [GROUP_QKV] = attention_forward,
        [GROUP_ATTN_PROJ] = attn_proj_forward,
        [GROUP_FC] = fc_forward,
        [GROUP_FC_PROJ] = fc_proj_forward};
    return forward[group](runner, a);
}

enum status block_group_lent_forward(struct runner *runner, const struct unit_hooks *hooks,
                                     const struct block_args *a, int unit, enum block_group group) {
    bool last = group + 1 == N_BLOCK_GROUPS;
    const struct gpt_next next = {last ? unit + 1 : unit, last ? 0 : (int)group + 1};
    struct unit_view view = {.params = a->params};
    TRY(group_acquire(hooks, runner->stream, unit, group, GPT_FORWARD, next, &view));
    struct block_args lent = *a;
    lent.params = view.params;
    TRY(block_group_forward(runner, &lent, group));
    return group_release(hooks, runner->stream, unit, group, GPT_FORWARD);
}

static struct block_args block_arguments(const struct gpt *gpt, int block, const void *params) {
    return (struct block_args){.config = &gpt->params->config,
                               .type = gpt->options.type,
                               .B = gpt->options.B,
                               .T = gpt->options.T,
                               .params = params,
                               .table = unit_params(gpt, 1 + block),
                               .buffers = block_kept(gpt, block),
                               .x = activations_at(&gpt->activations, block),
                               .out = activations_at(&gpt->activations, block + 1)};
}

// Tokens to the residual stream after the last block.
static enum status forward(struct pass *pass, bool for_backward) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_config *config = &gpt->params->config;
    enum dtype type = gpt->options.type;
    struct unit_view view;
    TRY(acquire(pass, 0, GPT_FORWARD, (struct gpt_next){1, 0}, &view));
    RUN(&pass->runner, embedding_forward, .out = activations_at(&gpt->activations, 0),
        .wte = param_at(view.params, unit_params(gpt, 0), PARAM_WTE, type),
        .wpe = param_at(view.params, unit_params(gpt, 0), PARAM_WPE, type), .tokens = gpt->buffers.tokens,
        .B = gpt->options.B, .T = gpt->options.T, .C = config->n_embd, .V = config->vocab_size, .type = type);
    if (for_backward)
        TRY(activations_offload(&gpt->activations, pass->runner.stream, 0));
    TRY(release(pass, 0, GPT_FORWARD));
    int step = runner_block_step(&pass->runner, config->n_layer);
    for (int block = 0; block < config->n_layer; block += step) {
        TRY(acquire(pass, 1 + block, GPT_FORWARD, (struct gpt_next){2 + block, 0}, &view));
        const struct block_args args = block_arguments(gpt, block, view.params);
        for (int group = 0; group < N_BLOCK_GROUPS; group++) {
            if (for_backward && group == GROUP_FC_PROJ)
                TRY(activations_reserve(&gpt->activations, pass->runner.stream, block + 1));
            TRY(block_group_lent_forward(&pass->runner, pass->hooks, &args, 1 + block,
                                         (enum block_group)group));
        }
        if (for_backward)
            TRY(activations_offload(&gpt->activations, pass->runner.stream, block + 1));
        TRY(release(pass, 1 + block, GPT_FORWARD));
    }
    return STATUS_OK;
}

static enum status final_norm_forward(struct pass *pass, const void *params) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_config *config = &gpt->params->config;
    const struct param *table = unit_params(gpt, config->n_layer + 1);
    enum dtype type = gpt->options.type;
    RUN(&pass->runner, layernorm_forward, .out = gpt->buffers.lnf, .mean = gpt->buffers.lnf_mean,
        .rstd = gpt->buffers.lnf_rstd, .x = activations_at(&gpt->activations, config->n_layer),
        .weight = param_at(params, table, PARAM_LNF_WEIGHT, type),
        .bias = param_at(params, table, PARAM_LNF_BIAS, type), .N = gpt->options.B * gpt->options.T,
        .C = config->n_embd, .epsilon = GPT_LAYERNORM_EPSILON, .type = type);
    return STATUS_OK;
}

// ---- the classifier

// Logits of rows [row, row + n), to buffers.logits.
static enum status logits_block(struct pass *pass, const void *wte, int row, int n) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_config *config = &gpt->params->config;
    size_t offset = (size_t)row * (size_t)config->n_embd * dtype_size(gpt->options.type);
    RUN(&pass->runner, linear_forward, .out = gpt->buffers.logits, .x = (char *)gpt->buffers.lnf + offset,
        .weight = wte, .N = n, .IC = config->n_embd, .OC = config->vocab_size,
        .out_stride = gpt->logits_stride, .type = gpt->options.type, .out_type = gpt->accumulation);
    return STATUS_OK;
}

static enum status losses_block(struct pass *pass, int row, int n, float scale, void *dlogits) {
    struct gpt *gpt = pass->gpt;
    RUN(&pass->runner, cross_entropy,
        .losses = (char *)gpt->buffers.losses + (size_t)row * dtype_size(gpt->accumulation),
        .dlogits = dlogits, .logits = gpt->buffers.logits,
        .targets = (const int32_t *)gpt->buffers.targets + row, .N = n, .V = gpt->params->config.vocab_size,
        .logits_stride = gpt->logits_stride, .dlogits_stride = gpt->logits_stride, .scale = scale,
        .type = gpt->options.type);
    return STATUS_OK;
}

// The last block of rows is as long as the others wherever that is possible, so that few shapes occur.
static int rows_from(const struct gpt *gpt, int row) {
    int left = gpt->options.B * gpt->options.T - row;
    return left < gpt->logits_rows ? left : gpt->logits_rows;
}

// ---- what backward computes again

// The last block's is still there.
static unsigned recomputed_of(const struct gpt *gpt, int block) {
    return block < gpt->params->config.n_layer - 1 ? gpt_recomputed(gpt) : 0;
}

// What backward asks for first of a block.
static struct gpt_next backward_next(const struct gpt *gpt, int block) {
    if (block < 0)
        return (struct gpt_next){-1, 0};
    return (struct gpt_next){1 + block, recomputed_of(gpt, block) & BLOCK_MLP ? GROUP_QKV : GROUP_FC_PROJ};
}

int gpt_group_uses(const struct params *params, enum gpt_recompute recompute, int unit,
                   enum block_group group) {
    bool again = recompute == RECOMPUTE_BLOCK && unit < params->config.n_layer;
    return again && (group == GROUP_QKV || group == GROUP_ATTN_PROJ) ? 3 : 2;
}

// ---- the head

// Final norm, losses and, a block of rows at a time, their gradients: dresidual gets that of the last block's
// output.
static enum status head_forward_backward(struct pass *pass, float loss_scale) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_config *config = &gpt->params->config;
    int last = config->n_layer + 1, C = config->n_embd, N = gpt->options.B * gpt->options.T;
    enum dtype type = gpt->options.type;
    struct unit_view norm, embedding;
    TRY(acquire(pass, last, GPT_BACKWARD, (struct gpt_next){0, 0}, &norm));
    TRY(final_norm_forward(pass, norm.params));
    TRY(acquire(pass, 0, GPT_BACKWARD, backward_next(gpt, config->n_layer - 1), &embedding));
    const void *wte = param_at(embedding.params, unit_params(gpt, 0), PARAM_WTE, type);
    void *dwte = param_at(embedding.grads, unit_params(gpt, 0), PARAM_WTE, gpt->accumulation);
    for (int row = 0; row < N; row += rows_from(gpt, row)) {
        int n = rows_from(gpt, row);
        size_t offset = (size_t)row * (size_t)C * dtype_size(type);
        TRY(logits_block(pass, wte, row, n));
        TRY(losses_block(pass, row, n, loss_scale, gpt->buffers.dlogits));
        RUN(&pass->runner, linear_backward, .dx = (char *)gpt->buffers.dbranch + offset, .dweight = dwte,
            .dout = gpt->buffers.dlogits, .x = (char *)gpt->buffers.lnf + offset, .weight = wte, .N = n,
            .IC = C, .OC = config->vocab_size, .dout_stride = gpt->logits_stride,
            .beta_zero = embedding.beta_zero && row == 0, .type = type);
    }
    TRY(release(pass, 0, GPT_BACKWARD));
    const struct param *table = unit_params(gpt, last);
    RUN(&pass->runner, layernorm_backward, .dx = gpt->buffers.dresidual,
        .dweight = param_at(norm.grads, table, PARAM_LNF_WEIGHT, gpt->accumulation),
        .dbias = param_at(norm.grads, table, PARAM_LNF_BIAS, gpt->accumulation), .dout = gpt->buffers.dbranch,
        .x = activations_at(&gpt->activations, config->n_layer),
        .weight = param_at(norm.params, table, PARAM_LNF_WEIGHT, type), .mean = gpt->buffers.lnf_mean,
        .rstd = gpt->buffers.lnf_rstd, .N = N, .C = C, .type = type);
    TRY(ready(pass, last));
    return release(pass, last, GPT_BACKWARD);
}

// ---- backward

// Every block has its tensors at the same places.
static const void *weight_at(const struct pass *pass, const struct unit_view *view, int index) {
    return param_at(view->params, unit_params(pass->gpt, 1), index, pass->gpt->options.type);
}

static void *grad_at(const struct pass *pass, const struct unit_view *view, int index) {
    return param_at(view->grads, unit_params(pass->gpt, 1), index, pass->gpt->accumulation);
}

// dresidual: from the gradient of the block's output to that of its input, group by group.

static enum status fc_proj_backward(struct pass *pass, int block, const struct unit_view *view) {
    struct gpt *gpt = pass->gpt;
    struct runner *runner = &pass->runner;
    const struct block_buffers *kept = block_kept(gpt, block);
    const struct gpt_buffers *scratch = &gpt->buffers;
    int C = gpt->params->config.n_embd, N = gpt->options.B * gpt->options.T;
    enum dtype type = gpt->options.type;
    RUN(runner, linear_backward, .dx = scratch->dfc, .dweight = grad_at(pass, view, PARAM_FC_PROJ_WEIGHT),
        .dbias = grad_at(pass, view, PARAM_FC_PROJ_BIAS), .dout = scratch->dresidual, .x = kept->gelu,
        .weight = weight_at(pass, view, PARAM_FC_PROJ_WEIGHT), .pre_gelu = kept->fc, .N = N, .IC = 4 * C,
        .OC = C, .dout_stride = C, .beta_zero = view->beta_zero, .type = type);
    return STATUS_OK;
}

static enum status fc_backward(struct pass *pass, int block, const struct unit_view *view) {
    struct gpt *gpt = pass->gpt;
    struct runner *runner = &pass->runner;
    const struct block_buffers *kept = block_kept(gpt, block);
    const struct gpt_buffers *scratch = &gpt->buffers;
    int C = gpt->params->config.n_embd, N = gpt->options.B * gpt->options.T;
    enum dtype type = gpt->options.type;
    RUN(runner, linear_backward, .dx = scratch->dbranch, .dweight = grad_at(pass, view, PARAM_FC_WEIGHT),
        .dbias = grad_at(pass, view, PARAM_FC_BIAS), .dout = scratch->dfc, .x = kept->ln2,
        .weight = weight_at(pass, view, PARAM_FC_WEIGHT), .N = N, .IC = C, .OC = 4 * C, .dout_stride = 4 * C,
        .beta_zero = view->beta_zero, .type = type);
    RUN(runner, layernorm_backward, .dx = scratch->dresidual,
        .dweight = grad_at(pass, view, PARAM_LN2_WEIGHT), .dbias = grad_at(pass, view, PARAM_LN2_BIAS),
        .dout = scratch->dbranch, .dresidual = scratch->dresidual, .x = kept->middle,
        .weight = weight_at(pass, view, PARAM_LN2_WEIGHT), .mean = kept->ln2_mean, .rstd = kept->ln2_rstd,
        .N = N, .C = C, .type = type);
    return STATUS_OK;
}

static enum status attn_proj_backward(struct pass *pass, int block, const struct unit_view *view) {
    struct gpt *gpt = pass->gpt;
    struct runner *runner = &pass->runner;
    const struct block_buffers *kept = block_kept(gpt, block);
    const struct gpt_buffers *scratch = &gpt->buffers;
    int C = gpt->params->config.n_embd, N = gpt->options.B * gpt->options.T;
    enum dtype type = gpt->options.type;
    RUN(runner, linear_backward, .dx = scratch->dbranch,
        .dweight = grad_at(pass, view, PARAM_ATTN_PROJ_WEIGHT),
        .dbias = grad_at(pass, view, PARAM_ATTN_PROJ_BIAS), .dout = scratch->dresidual, .x = kept->attention,
        .weight = weight_at(pass, view, PARAM_ATTN_PROJ_WEIGHT), .N = N, .IC = C, .OC = C, .dout_stride = C,
        .beta_zero = view->beta_zero, .type = type);
    return STATUS_OK;
}

static enum status attention_backward(struct pass *pass, int block, const struct unit_view *view) {
    struct gpt *gpt = pass->gpt;
    struct runner *runner = &pass->runner;
    const struct block_buffers *kept = block_kept(gpt, block);
    const struct gpt_buffers *scratch = &gpt->buffers;
    int C = gpt->params->config.n_embd, H = gpt->params->config.n_head;
    int B = gpt->options.B, T = gpt->options.T, N = B * T;
    enum dtype type = gpt->options.type;
    size_t size = dtype_size(type), stride = 3 * (size_t)C;
    RUN(runner, attention_backward, .dq = scratch->dqkv, .dk = (char *)scratch->dqkv + (size_t)C * size,
        .dv = (char *)scratch->dqkv + 2 * (size_t)C * size, .dout = scratch->dbranch, .out = kept->attention,
        .lse = kept->lse, .q = kept->qkv, .k = (char *)kept->qkv + (size_t)C * size,
        .v = (char *)kept->qkv + 2 * (size_t)C * size, .stride = stride, .batch_stride = stride * (size_t)T,
        .B = B, .T = T, .H = H, .D = C / H, .type = type);
    RUN(runner, linear_backward, .dx = scratch->dbranch, .dweight = grad_at(pass, view, PARAM_QKV_WEIGHT),
        .dbias = grad_at(pass, view, PARAM_QKV_BIAS), .dout = scratch->dqkv, .x = kept->ln1,
        .weight = weight_at(pass, view, PARAM_QKV_WEIGHT), .N = N, .IC = C, .OC = 3 * C, .dout_stride = 3 * C,
        .beta_zero = view->beta_zero, .type = type);
    RUN(runner, layernorm_backward, .dx = scratch->dresidual,
        .dweight = grad_at(pass, view, PARAM_LN1_WEIGHT), .dbias = grad_at(pass, view, PARAM_LN1_BIAS),
        .dout = scratch->dbranch, .dresidual = scratch->dresidual,
        .x = activations_at(&gpt->activations, block), .weight = weight_at(pass, view, PARAM_LN1_WEIGHT),
        .mean = kept->ln1_mean, .rstd = kept->ln1_rstd, .N = N, .C = C, .type = type);
    return STATUS_OK;
}

// One group: its norm computed again where it was not kept, and its gradients. held: it is held already, with
// this view, since its activations were computed again.
static enum status backward_group(struct pass *pass, int block, const struct unit_view *unit,
                                  enum block_group group, struct gpt_next next,
                                  const struct unit_view *held) {
    static enum status (*const backward[N_BLOCK_GROUPS])(struct pass *, int, const struct unit_view *) = {
        [GROUP_QKV] = attention_backward,
        [GROUP_ATTN_PROJ] = attn_proj_backward,
        [GROUP_FC] = fc_backward,
        [GROUP_FC_PROJ] = fc_proj_backward};
    enum gpt_pass use = held ? GPT_BACKWARD_GRADS : GPT_BACKWARD;
    struct stream *stream = pass->runner.stream;
    struct unit_view view = *unit;
    TRY(group_acquire(pass->hooks, stream, 1 + block, group, use, next, &view));
    if (held)
        view.params = held->params;
    const struct block_args args = block_arguments(pass->gpt, block, view.params);
    unsigned parts = recomputed_of(pass->gpt, block);
    bool norms = !held && parts & BLOCK_NORMS && !(parts & BLOCK_MLP);
    if (norms && group == GROUP_FC)
        TRY(mlp_norm_forward(&pass->runner, &args));
    if (norms && group == GROUP_QKV)
        TRY(attention_norm_forward(&pass->runner, &args));
    TRY(backward[group](pass, block, &view));
    TRY(group_release(pass->hooks, stream, 1 + block, group, use));
    return held ? group_release(pass->hooks, stream, 1 + block, group, GPT_FORWARD) : STATUS_OK;
}

// Computes a group's activations again and goes on holding it.
static enum status recompute_and_hold(struct pass *pass, int block, const struct unit_view *unit,
                                      enum block_group group, struct gpt_next next, struct unit_view *held) {
    *held = *unit;
    TRY(group_acquire(pass->hooks, pass->runner.stream, 1 + block, group, GPT_FORWARD, next, held));
    const struct block_args args = block_arguments(pass->gpt, block, held->params);
    return block_group_forward(&pass->runner, &args, group);
}

// Computes again what backward reads and forward did not keep, each thing no earlier than it must, so that of
// two groups in a row at most two are held and as few as can be are asked for twice.
static enum status block_backward(struct pass *pass, int block, const struct unit_view *unit) {
    unsigned parts = recomputed_of(pass->gpt, block);
    const struct block_args args = block_arguments(pass->gpt, block, unit->params);
    const struct gpt_next before = backward_next(pass->gpt, block - 1);
    const struct gpt_next qkv = {1 + block, GROUP_QKV}, attn_proj = {1 + block, GROUP_ATTN_PROJ},
                          fc = {1 + block, GROUP_FC}, fc_proj = {1 + block, GROUP_FC_PROJ};
    bool whole = parts & BLOCK_MLP, attention = !whole && parts & BLOCK_ATTENTION;
    struct unit_view held;
    if (whole) {
        TRY(block_group_lent_forward(&pass->runner, pass->hooks, &args, 1 + block, GROUP_QKV));
        TRY(block_group_lent_forward(&pass->runner, pass->hooks, &args, 1 + block, GROUP_ATTN_PROJ));
        TRY(recompute_and_hold(pass, block, unit, GROUP_FC, fc_proj, &held));
    } else if (parts & BLOCK_GELU)
        RUN(&pass->runner, gelu_forward, .out = args.buffers->gelu, .x = args.buffers->fc,
            .n = 4 * (size_t)args.B * (size_t)args.T * (size_t)args.config->n_embd, .type = args.type);
    TRY(backward_group(pass, block, unit, GROUP_FC_PROJ, whole ? attn_proj : fc, NULL));
    TRY(backward_group(pass, block, unit, GROUP_FC, attention ? qkv : attn_proj, whole ? &held : NULL));
    if (attention)
        TRY(recompute_and_hold(pass, block, unit, GROUP_QKV, attn_proj, &held));
    TRY(backward_group(pass, block, unit, GROUP_ATTN_PROJ, attention ? before : qkv, NULL));
    return backward_group(pass, block, unit, GROUP_QKV, before, attention ? &held : NULL);
}

static enum status backward(struct pass *pass) {
    struct gpt *gpt = pass->gpt;
    struct unit_view view;
    int n_layer = gpt->params->config.n_layer, step = runner_block_step(&pass->runner, n_layer);
    for (int block = n_layer - 1; block >= 0; block -= step) {
        TRY(activations_prefetch(&gpt->activations, pass->runner.stream, block - 1));
        TRY(acquire(pass, 1 + block, GPT_BACKWARD, backward_next(gpt, block - 1), &view));
        TRY(activations_wait(&gpt->activations, pass->runner.stream, block));
        TRY(block_backward(pass, block, &view));
        TRY(ready(pass, 1 + block));
        TRY(release(pass, 1 + block, GPT_BACKWARD));
    }
    TRY(acquire(pass, 0, GPT_BACKWARD_GRADS, (struct gpt_next){-1, 0}, &view));
    RUN(&pass->runner, embedding_backward,
        .dwte = param_at(view.grads, unit_params(gpt, 0), PARAM_WTE, gpt->accumulation),
        .dwpe = param_at(view.grads, unit_params(gpt, 0), PARAM_WPE, gpt->accumulation),
        .dout = gpt->buffers.dresidual, .tokens = gpt->buffers.tokens, .B = gpt->options.B,
        .T = gpt->options.T, .C = gpt->params->config.n_embd, .V = gpt->params->config.vocab_size,
        .type = gpt->options.type);
    TRY(ready(pass, 0));
    return release(pass, 0, GPT_BACKWARD_GRADS);
}

// ---- whole passes

static enum status run_training(struct pass *pass, float loss_scale) {
    TRY(forward(pass, true));
    TRY(head_forward_backward(pass, loss_scale));
    return backward(pass);
}

// Losses of a forward pass; with host_logits, the logits themselves instead, (B T, vocab_size) fp32.
static enum status run_evaluation(struct pass *pass, float *host_logits) {
    struct gpt *gpt = pass->gpt;
    int last = gpt->params->config.n_layer + 1, N = gpt->options.B * gpt->options.T;
    size_t V = (size_t)gpt->params->config.vocab_size;
    struct unit_view norm, embedding;
    TRY(forward(pass, false));
    TRY(acquire(pass, last, GPT_FORWARD, (struct gpt_next){0, 0}, &norm));
    TRY(final_norm_forward(pass, norm.params));
    TRY(acquire(pass, 0, GPT_FORWARD, (struct gpt_next){-1, 0}, &embedding));
    const void *wte = param_at(embedding.params, unit_params(gpt, 0), PARAM_WTE, gpt->options.type);
    for (int row = 0; row < N; row += rows_from(gpt, row)) {
        int n = rows_from(gpt, row);
        TRY(logits_block(pass, wte, row, n));
        if (!host_logits) {
            TRY(losses_block(pass, row, n, 0.0f, NULL));
            continue;
        }
        for (int i = 0; i < n; i++)
            TRY(gpt->device->copy(pass->runner.stream, host_logits + (size_t)(row + i) * V,
                                  (float *)gpt->buffers.logits + (size_t)i * (size_t)gpt->logits_stride,
                                  V * sizeof(float)));
        TRY(gpt->device->synchronize(pass->runner.stream));
    }
    TRY(release(pass, 0, GPT_FORWARD));
    return release(pass, last, GPT_FORWARD);
}

static enum status copy_in(struct gpt *gpt, struct stream *stream, const int32_t *tokens,
                           const int32_t *targets) {
    size_t bytes = (size_t)gpt->options.B * (size_t)gpt->options.T * sizeof *tokens;
    TRY(gpt->device->copy(stream, gpt->buffers.tokens, tokens, bytes));
    return targets ? gpt->device->copy(stream, gpt->buffers.targets, targets, bytes) : STATUS_OK;
}

// Brings the losses to the host and adds them up in double, in order.
static enum status copy_losses(struct gpt *gpt, struct stream *stream, double *sum, float *losses) {
    size_t n = (size_t)gpt->options.B * (size_t)gpt->options.T;
    TRY(gpt->device->copy(stream, gpt->buffers.host_losses, gpt->buffers.losses,
                          n * dtype_size(gpt->accumulation)));
    TRY(gpt->device->synchronize(stream));
    *sum = 0;
    for (size_t i = 0; i < n; i++) {
        double loss = gpt->accumulation == DTYPE_F64 ? ((const double *)gpt->buffers.host_losses)[i]
                                                     : (double)((const float *)gpt->buffers.host_losses)[i];
        *sum += loss;
        if (losses)
            losses[i] = (float)loss;
    }
    return STATUS_OK;
}

static struct pass pass_on(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks) {
    return (struct pass){gpt, {.device = gpt->device, .stream = stream}, hooks};
}

enum status gpt_forward_backward(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                                 const int32_t *tokens, const int32_t *targets, float loss_scale,
                                 double *loss_sum) {
    assert(gpt->options.training);
    struct pass pass = pass_on(gpt, stream, hooks);
    TRY(copy_in(gpt, stream, tokens, targets));
    TRY(run_training(&pass, loss_scale));
    return copy_losses(gpt, stream, loss_sum, NULL);
}

enum status gpt_evaluate(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                         const int32_t *tokens, const int32_t *targets, double *loss_sum, float *losses) {
    struct pass pass = pass_on(gpt, stream, hooks);
    TRY(copy_in(gpt, stream, tokens, targets));
    TRY(run_evaluation(&pass, NULL));
    return copy_losses(gpt, stream, loss_sum, losses);
}

enum status gpt_logits(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                       const int32_t *tokens, float *logits) {
    assert(gpt->accumulation == DTYPE_F32);
    struct pass pass = pass_on(gpt, stream, hooks);
    TRY(copy_in(gpt, stream, tokens, NULL));
    return run_evaluation(&pass, logits);
}

enum status gpt_dry_run(struct gpt *gpt, size_t *workspace_bytes) {
    struct pass pass = pass_on(gpt, NULL, &dry_run_hooks);
    TRY(run_evaluation(&pass, NULL));
    if (gpt->options.training)
        TRY(run_training(&pass, 1.0f));
    *workspace_bytes = pass.runner.workspace_bytes;
    return STATUS_OK;
}
