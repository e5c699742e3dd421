// Forward and backward of one block, side by side: the five products with their norms, GELU and attention.
#include "model/block.h"

#include <assert.h>

// ---- activations

enum status block_regions_add(struct region_table *table, struct device *device,
                              const struct gpt_config *config, enum dtype type, size_t rows, unsigned sets,
                              bool for_backward, const char *label, struct block_regions *out) {
    size_t C = (size_t)config->n_embd, H = (size_t)config->n_head;
    enum dtype accumulation = accumulation_dtype(type);
#define BLOCK_ADD(buffer, elements, buffer_type, set, backward)                                              \
    if (sets & set) {                                                                                        \
        out->buffer = -1;                                                                                    \
        if (for_backward || !backward)                                                                       \
            TRY(region_add(table, REGION_ACTIVATIONS, device->place, buffer_type, elements, &out->buffer,    \
                           "%s.%s", label, #buffer));                                                        \
    }
    BLOCK_BUFFERS(BLOCK_ADD)
#undef BLOCK_ADD
    return STATUS_OK;
}

void block_buffers_find(const struct block_regions *regions, const struct region_table *table,
                        struct block_buffers *out) {
#define BLOCK_FIND(buffer, elements, type, set, backward) out->buffer = buffer_find(table, regions->buffer);
    BLOCK_BUFFERS(BLOCK_FIND)
#undef BLOCK_FIND
}

// ---- forward

static const void *block_weight(const struct block_args *a, int index) {
    return param_at(a->params, a->tensors, index, a->type);
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

// Several positions of one sequence. Keys and values are written directly to the cache; of buffers->qkv only
// (T, C) elements are used, for the queries.
static enum status append_attention_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    int C = a->config->n_embd, H = a->config->n_head, length = a->cache.length;
    enum dtype type = a->type;
    size_t size = dtype_size(type), kv_row = 2 * (size_t)C;
    const char *weight = block_weight(a, PARAM_QKV_WEIGHT), *bias = block_weight(a, PARAM_QKV_BIAS);
    char *cache = (char *)a->cache.keys_values + (size_t)a->cache.sequence * a->cache.stride * size;
    RUN(runner, linear_forward, .out = kept->qkv, .x = kept->ln1, .weight = weight, .bias = bias, .N = a->T,
        .IC = C, .OC = C, .out_stride = C, .type = type, .out_type = type);
    RUN(runner, linear_forward, .out = cache + (size_t)length * kv_row * size, .x = kept->ln1,
        .weight = weight + (size_t)C * (size_t)C * size, .bias = bias + (size_t)C * size, .N = a->T, .IC = C,
        .OC = 2 * C, .out_stride = 2 * C, .type = type, .out_type = type);
    RUN(runner, attention_forward, .out = kept->attention, .lse = kept->lse, .q = kept->qkv, .k = cache,
        .v = cache + (size_t)C * size, .q_stride = (size_t)C, .k_stride = kv_row, .v_stride = kv_row, .B = 1,
        .T = a->T, .S = length + a->T, .H = H, .K = H, .D = C / H, .type = type);
    return STATUS_OK;
}

// One position for each of several sequences, whose lengths may differ.
static enum status step_attention_forward(struct runner *runner, const struct block_args *a) {
    const struct block_buffers *kept = a->buffers;
    const struct block_cache *cache = &a->cache;
    int C = a->config->n_embd, H = a->config->n_head;
    enum dtype type = a->type;
    size_t row_bytes = (size_t)C * dtype_size(type);
    RUN(runner, linear_forward, .out = kept->qkv, .x = kept->ln1, .weight = block_weight(a, PARAM_QKV_WEIGHT),
        .bias = block_weight(a, PARAM_QKV_BIAS), .N = a->B, .IC = C, .OC = 3 * C, .out_stride = 3 * C,
        .type = type, .out_type = type);
    RUN(runner, attention_decode, .out = kept->attention, .keys = cache->keys_values,
        .values = (char *)cache->keys_values + row_bytes, .q = kept->qkv, .k = (char *)kept->qkv + row_bytes,
        .v = (char *)kept->qkv + 2 * row_bytes, .sequences = cache->sequences, .lengths = cache->lengths,
        .q_stride = 3 * (size_t)C, .k_stride = 3 * (size_t)C, .v_stride = 3 * (size_t)C,
        .cache_stride = 2 * (size_t)C, .cache_batch_stride = cache->stride, .n_keys = cache->n_keys,
        .B = a->B, .H = H, .K = H, .D = C / H, .type = type);
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
        .q_stride = stride, .q_batch_stride = stride * (size_t)a->T, .k_stride = stride,
        .k_batch_stride = stride * (size_t)a->T, .v_stride = stride, .v_batch_stride = stride * (size_t)a->T,
        .first = a->first, .B = a->B, .T = a->T, .S = a->T, .H = H, .K = H, .D = C / H, .type = type);
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
    RUN(runner, linear_forward, .out = kept->gelu, .pre_activation = kept->fc, .x = kept->ln2,
        .weight = block_weight(a, PARAM_FC_WEIGHT), .bias = block_weight(a, PARAM_FC_BIAS), .N = a->B * a->T,
        .IC = C, .OC = 4 * C, .out_stride = 4 * C, .activation = ACTIVATION_GELU, .type = a->type,
        .out_type = a->type);
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

// ---- groups between the hooks' acquire and release

static enum status acquire(struct runner *runner, const struct unit_hooks *hooks, int unit,
                           enum block_group group, enum gpt_pass pass, struct gpt_next next,
                           struct unit_view *view) {
    if (!hooks->group_acquire)
        return STATUS_OK;
    return hooks->group_acquire(hooks->context, runner->stream, unit, group, pass, next, view);
}

static enum status release(struct runner *runner, const struct unit_hooks *hooks, int unit,
                           enum block_group group, enum gpt_pass pass) {
    if (!hooks->group_release)
        return STATUS_OK;
    return hooks->group_release(hooks->context, runner->stream, unit, group, pass);
}

enum status block_group_forward_acquired(struct runner *runner, const struct unit_hooks *hooks,
                                         const struct block_args *a, enum block_group group) {
    bool last = group + 1 == N_BLOCK_GROUPS;
    const struct gpt_next next = {last ? a->unit + 1 : a->unit, last ? 0 : (int)group + 1};
    struct unit_view view = {.params = a->params};
    TRY(acquire(runner, hooks, a->unit, group, GPT_FORWARD, next, &view));
    struct block_args of_group = *a;
    of_group.params = view.params;
    TRY(block_group_forward(runner, &of_group, group));
    return release(runner, hooks, a->unit, group, GPT_FORWARD);
}

// ---- backward

// What one group's backward needs.
struct group_backward {
    const struct block_args *block;
    const struct activation_gradients *scratch;
    struct unit_view view; // of the group
    bool recomputes_norm;  // forward did not keep its output
    struct bias_gradients *later;
};

// The gradients of biases that wait in scratch->dbiases to be added. With ZeRO-3's groups there are none:
// each group's gradients are complete when it is released.
struct bias_gradients {
    struct add_span spans[ADD_SPANS_MOST];
    int n;
    size_t elements; // of all spans
};

static const void *weight_at(const struct group_backward *a, int index) {
    return param_at(a->view.params, a->block->tensors, index, a->block->type);
}

static void *grad_at(const struct group_backward *a, int index) {
    return param_at(a->view.grads, a->block->tensors, index, accumulation_dtype(a->block->type));
}

// Where a product leaves a bias's gradient: in its place, or in scratch, to be added later.
static void *bias_grad_at(const struct group_backward *a, int index) {
    void *grad = grad_at(a, index);
    struct bias_gradients *later = a->later;
    if (!later)
        return grad;
    assert(later->n < ADD_SPANS_MOST);
    size_t from = later->elements;
    later->spans[later->n++] = (struct add_span){.out = grad, .n = a->block->tensors[index].elements};
    later->elements += a->block->tensors[index].elements;
    return (char *)a->scratch->dbiases + from * dtype_size(accumulation_dtype(a->block->type));
}

// The gradients of a layer's weight and bias.
static enum status weight_backward(struct runner *runner, const struct group_backward *a, int weight,
                                   int bias, const void *dout, const void *x, int IC, int OC) {
    void *dbias = bias_grad_at(a, bias);
    RUN(runner, linear_backward, .dweight = grad_at(a, weight), .dbias = dbias, .dout = dout, .x = x,
        .N = a->block->B * a->block->T, .IC = IC, .OC = OC, .dout_stride = OC, .beta_zero = a->view.beta_zero,
        .writes_dbias = a->later != NULL, .type = a->block->type);
    return STATUS_OK;
}

// dresidual goes from the gradient of the block's output to that of its input, group by group. Where a norm
// precedes a layer, its backward comes before the gradient of the layer's weight, which reads the norm's
// output: there it is recomputed in the same pass over the norm's input.

static enum status fc_proj_backward(struct runner *runner, const struct group_backward *a) {
    const struct block_buffers *kept = a->block->buffers;
    int C = a->block->config->n_embd;
    void *dbias = bias_grad_at(a, PARAM_FC_PROJ_BIAS);
    RUN(runner, linear_backward, .dx = a->scratch->dfc, .dweight = grad_at(a, PARAM_FC_PROJ_WEIGHT),
        .dbias = dbias, .dout = a->scratch->dresidual, .x = kept->gelu,
        .weight = weight_at(a, PARAM_FC_PROJ_WEIGHT), .pre_activation = kept->fc,
        .activation = ACTIVATION_GELU, .N = a->block->B * a->block->T, .IC = 4 * C, .OC = C, .dout_stride = C,
        .beta_zero = a->view.beta_zero, .writes_dbias = a->later != NULL, .type = a->block->type);
    return STATUS_OK;
}

static enum status fc_backward(struct runner *runner, const struct group_backward *a) {
    const struct block_buffers *kept = a->block->buffers;
    const struct activation_gradients *scratch = a->scratch;
    int C = a->block->config->n_embd, N = a->block->B * a->block->T;
    enum dtype type = a->block->type;
    RUN(runner, linear_backward, .dx = scratch->dbranch, .dout = scratch->dfc,
        .weight = weight_at(a, PARAM_FC_WEIGHT), .N = N, .IC = C, .OC = 4 * C, .dout_stride = 4 * C,
        .type = type);
    RUN(runner, layernorm_backward, .dx = scratch->dresidual, .dweight = grad_at(a, PARAM_LN2_WEIGHT),
        .dbias = grad_at(a, PARAM_LN2_BIAS), .dout = scratch->dbranch, .dresidual = scratch->dresidual,
        .x = kept->middle, .weight = weight_at(a, PARAM_LN2_WEIGHT), .mean = kept->ln2_mean,
        .rstd = kept->ln2_rstd, .out = a->recomputes_norm ? kept->ln2 : NULL,
        .bias = weight_at(a, PARAM_LN2_BIAS), .N = N, .C = C, .beta_zero = a->view.beta_zero, .type = type);
    return weight_backward(runner, a, PARAM_FC_WEIGHT, PARAM_FC_BIAS, scratch->dfc, kept->ln2, C, 4 * C);
}

static enum status attn_proj_backward(struct runner *runner, const struct group_backward *a) {
    int C = a->block->config->n_embd;
    void *dbias = bias_grad_at(a, PARAM_ATTN_PROJ_BIAS);
    RUN(runner, linear_backward, .dx = a->scratch->dbranch, .dweight = grad_at(a, PARAM_ATTN_PROJ_WEIGHT),
        .dbias = dbias, .dout = a->scratch->dresidual, .x = a->block->buffers->attention,
        .weight = weight_at(a, PARAM_ATTN_PROJ_WEIGHT), .N = a->block->B * a->block->T, .IC = C, .OC = C,
        .dout_stride = C, .beta_zero = a->view.beta_zero, .writes_dbias = a->later != NULL,
        .type = a->block->type);
    return STATUS_OK;
}

static enum status attention_backward(struct runner *runner, const struct group_backward *a) {
    const struct block_buffers *kept = a->block->buffers;
    const struct activation_gradients *scratch = a->scratch;
    int C = a->block->config->n_embd, H = a->block->config->n_head;
    int B = a->block->B, T = a->block->T, N = B * T;
    enum dtype type = a->block->type;
    size_t size = dtype_size(type), stride = 3 * (size_t)C;
    RUN(runner, attention_backward, .dq = scratch->dqkv, .dk = (char *)scratch->dqkv + (size_t)C * size,
        .dv = (char *)scratch->dqkv + 2 * (size_t)C * size, .dout = scratch->dbranch, .out = kept->attention,
        .lse = kept->lse, .q = kept->qkv, .k = (char *)kept->qkv + (size_t)C * size,
        .v = (char *)kept->qkv + 2 * (size_t)C * size, .q_stride = stride,
        .q_batch_stride = stride * (size_t)T, .k_stride = stride, .k_batch_stride = stride * (size_t)T,
        .v_stride = stride, .v_batch_stride = stride * (size_t)T, .first = a->block->first, .B = B, .T = T,
        .H = H, .K = H, .D = C / H, .type = type);
    RUN(runner, linear_backward, .dx = scratch->dbranch, .dout = scratch->dqkv,
        .weight = weight_at(a, PARAM_QKV_WEIGHT), .N = N, .IC = C, .OC = 3 * C, .dout_stride = 3 * C,
        .type = type);
    RUN(runner, layernorm_backward, .dx = scratch->dresidual, .dweight = grad_at(a, PARAM_LN1_WEIGHT),
        .dbias = grad_at(a, PARAM_LN1_BIAS), .dout = scratch->dbranch, .dresidual = scratch->dresidual,
        .x = a->block->x, .weight = weight_at(a, PARAM_LN1_WEIGHT), .mean = kept->ln1_mean,
        .rstd = kept->ln1_rstd, .out = a->recomputes_norm ? kept->ln1 : NULL,
        .bias = weight_at(a, PARAM_LN1_BIAS), .N = N, .C = C, .beta_zero = a->view.beta_zero, .type = type);
    return weight_backward(runner, a, PARAM_QKV_WEIGHT, PARAM_QKV_BIAS, scratch->dqkv, kept->ln1, C, 3 * C);
}

// The gradients of one group.
//   held   not NULL: the group is still held with this view, since its activations were recomputed
//   later  takes the gradients of biases that are to be added
static enum status backward_group(struct runner *runner, const struct unit_hooks *hooks,
                                  const struct block_backward_args *a, enum block_group group,
                                  struct gpt_next next, const struct unit_view *held,
                                  struct bias_gradients *later) {
    static enum status (*const backward[N_BLOCK_GROUPS])(struct runner *, const struct group_backward *) = {
        [GROUP_QKV] = attention_backward,
        [GROUP_ATTN_PROJ] = attn_proj_backward,
        [GROUP_FC] = fc_backward,
        [GROUP_FC_PROJ] = fc_proj_backward};
    enum gpt_pass use = held ? GPT_BACKWARD_GRADS : GPT_BACKWARD;
    int unit = a->forward.unit;
    struct unit_view view = a->view;
    TRY(acquire(runner, hooks, unit, group, use, next, &view));
    if (held)
        view.params = held->params;
    struct block_args of_group = a->forward;
    of_group.params = view.params;
    const struct group_backward args = {
        .block = &of_group,
        .scratch = a->scratch,
        .view = view,
        .recomputes_norm = !held && a->recomputed & BLOCK_NORMS && !(a->recomputed & BLOCK_MLP),
        .later = a->scratch->dbiases && !view.beta_zero && view.grads == a->view.grads ? later : NULL};
    TRY(backward[group](runner, &args));
    TRY(release(runner, hooks, unit, group, use));
    return held ? release(runner, hooks, unit, group, GPT_FORWARD) : STATUS_OK;
}

// Recomputes a group's activations and keeps holding the group.
static enum status recompute_and_hold(struct runner *runner, const struct unit_hooks *hooks,
                                      const struct block_backward_args *a, enum block_group group,
                                      struct gpt_next next, struct unit_view *held) {
    *held = a->view;
    TRY(acquire(runner, hooks, a->forward.unit, group, GPT_FORWARD, next, held));
    struct block_args of_group = a->forward;
    of_group.params = held->params;
    return block_group_forward(runner, &of_group, group);
}

enum block_group block_backward_first(unsigned recomputed) {
    return recomputed & BLOCK_MLP ? GROUP_QKV : GROUP_FC_PROJ;
}

// Recomputes each activation as late as possible: then at most two groups are held at a time, consecutive
// ones, and as few as possible are acquired twice.
enum status block_backward(struct runner *runner, const struct unit_hooks *hooks,
                           const struct block_backward_args *a) {
    const struct block_args *block = &a->forward;
    const struct gpt_next qkv = {block->unit, GROUP_QKV}, attn_proj = {block->unit, GROUP_ATTN_PROJ},
                          fc = {block->unit, GROUP_FC}, fc_proj = {block->unit, GROUP_FC_PROJ};
    bool all = a->recomputed & BLOCK_MLP, attention = !all && a->recomputed & BLOCK_ATTENTION;
    struct bias_gradients later = {.n = 0};
    struct unit_view held;
    if (all) {
        TRY(block_group_forward_acquired(runner, hooks, block, GROUP_QKV));
        TRY(block_group_forward_acquired(runner, hooks, block, GROUP_ATTN_PROJ));
        TRY(recompute_and_hold(runner, hooks, a, GROUP_FC, fc_proj, &held));
    } else if (a->recomputed & BLOCK_GELU)
        RUN(runner, gelu_forward, .out = block->buffers->gelu, .x = block->buffers->fc,
            .n = 4 * (size_t)block->B * (size_t)block->T * (size_t)block->config->n_embd,
            .type = block->type);
    TRY(backward_group(runner, hooks, a, GROUP_FC_PROJ, all ? attn_proj : fc, NULL, &later));
    TRY(backward_group(runner, hooks, a, GROUP_FC, attention ? qkv : attn_proj, all ? &held : NULL, &later));
    if (attention)
        TRY(recompute_and_hold(runner, hooks, a, GROUP_QKV, attn_proj, &held));
    TRY(backward_group(runner, hooks, a, GROUP_ATTN_PROJ, attention ? a->next : qkv, NULL, &later));
    TRY(backward_group(runner, hooks, a, GROUP_QKV, a->next, attention ? &held : NULL, &later));
    if (later.n > 0)
        RUN(runner, add_spans, .spans = later.spans, .n_spans = later.n, .x = a->scratch->dbiases,
            .type = accumulation_dtype(block->type));
    return STATUS_OK;
}
