// The Llama family (Touvron et al., arXiv 2307.09288; Llama 3, arXiv 2407.21783; Qwen2, 2407.10671; Qwen3,
// 2505.09388):
//   x += o_proj(attention(rotate(q_proj(h)), rotate(k_proj(h)), v_proj(h))),  h = RMSNorm(x)
//   x += down_proj(silu(gate_proj(h)) up_proj(h)),                            h = RMSNorm(x)
// with rotary position embedding, grouped key-value heads, and no biases. Qwen2 has biases on queries, keys
// and values; models with attention_bias have one on o_proj, too. Qwen3 normalizes each query and key head
// (RMSNorm) before the rotation.
#include "model/decoder.h"
#include "model/layers.h"

static bool has_qkv_bias(const struct gpt_config *config, int block) {
    (void)block;
    return config->qkv_bias;
}

static bool has_o_bias(const struct gpt_config *config, int block) {
    (void)block;
    return config->o_bias;
}

static bool has_qk_norm(const struct gpt_config *config, int block) {
    (void)block;
    return config->qk_norm;
}

static const struct tensor_layout embedding[] = {
    {.tensor = PARAM_WTE, .name = "embed_tokens.weight", .rows = SIZE_VOCABULARY, .columns = SIZE_EMBEDDING}};

#define ONES(id, text, n)                                                                                    \
    { .tensor = id, .name = text, .rows = n, .init = INIT_ONES }
static const struct tensor_layout block[] = {
    ONES(PARAM_LN1_WEIGHT, "layers.%d.input_layernorm.weight", SIZE_EMBEDDING),
    {.tensor = PARAM_QKV_WEIGHT,
     .name = "layers.%d.self_attn.qkv_proj.weight",
     .rows = SIZE_QKV,
     .columns = SIZE_EMBEDDING,
     .hf_parts = true},
    {.tensor = PARAM_QKV_BIAS,
     .name = "layers.%d.self_attn.qkv_proj.bias",
     .rows = SIZE_QKV,
     .init = INIT_ZEROS,
     .hf_parts = true,
     .is_present = has_qkv_bias},
    {.tensor = PARAM_Q_NORM,
     .name = "layers.%d.self_attn.q_norm.weight",
     .rows = SIZE_HEAD,
     .init = INIT_ONES,
     .is_present = has_qk_norm},
    {.tensor = PARAM_K_NORM,
     .name = "layers.%d.self_attn.k_norm.weight",
     .rows = SIZE_HEAD,
     .init = INIT_ONES,
     .is_present = has_qk_norm},
    {.tensor = PARAM_ATTN_PROJ_WEIGHT,
     .name = "layers.%d.self_attn.o_proj.weight",
     .rows = SIZE_EMBEDDING,
     .columns = SIZE_HEADS,
     .residual = true},
    {.tensor = PARAM_ATTN_PROJ_BIAS,
     .name = "layers.%d.self_attn.o_proj.bias",
     .rows = SIZE_EMBEDDING,
     .init = INIT_ZEROS,
     .is_present = has_o_bias},
    ONES(PARAM_LN2_WEIGHT, "layers.%d.post_attention_layernorm.weight", SIZE_EMBEDDING),
    {.tensor = PARAM_FC_WEIGHT,
     .name = "layers.%d.mlp.gate_up_proj.weight",
     .rows = SIZE_GATE_UP,
     .columns = SIZE_EMBEDDING,
     .hf_parts = true},
    {.tensor = PARAM_FC_PROJ_WEIGHT,
     .name = "layers.%d.mlp.down_proj.weight",
     .rows = SIZE_EMBEDDING,
     .columns = SIZE_INTERMEDIATE,
     .residual = true}};

static const struct tensor_layout final[] = {ONES(PARAM_LNF_WEIGHT, "norm.weight", SIZE_EMBEDDING),
                                             {.tensor = PARAM_LM_HEAD,
                                              .name = "lm_head.weight",
                                              .rows = SIZE_VOCABULARY,
                                              .columns = SIZE_EMBEDDING,
                                              .is_present = has_untied_head}};

// ---- forward

static enum status qkv_forward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    TRY(norm(&a->unit, PARAM_LN1_WEIGHT, a->x, &kept->ln1));
    TRY(project_qkv(a, kept->ln1.out));
    return attend(a);
}

static enum status fc_forward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    TRY(norm(&a->unit, PARAM_LN2_WEIGHT, kept->middle, &kept->ln2));
    TRY(linear(&a->unit, PARAM_FC_WEIGHT, kept->ln2.out, kept->fc));
    return gated(a);
}

// ---- backward

// The gradient of down_proj's weight needs gated's output. If forward kept that output in
// buffers->activated, the weight's gradient is computed first, because linear_input_backward then
// overwrites the output with its gradient. If forward did not keep it, gated_backward recomputes it in
// buffers->activated, and the weight's gradient is computed last.
static enum status fc_proj_backward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    const void *dout;
    TRY(linear_add_gradient(&a->unit, PARAM_FC_PROJ_WEIGHT, a->scratch->dresidual, &dout));
    if (!a->recomputes_activation)
        TRY(linear_weight_backward(&a->unit, PARAM_FC_PROJ_WEIGHT, dout, kept->activated));
    TRY(linear_input_backward(&a->unit, PARAM_FC_PROJ_WEIGHT, dout, kept->activated));
    TRY(gated_backward(a));
    return a->recomputes_activation
               ? linear_weight_backward(&a->unit, PARAM_FC_PROJ_WEIGHT, dout, kept->activated)
               : STATUS_OK;
}

static enum status qkv_backward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    const struct activation_gradients *d = a->scratch;
    TRY(attend_backward(a));
    TRY(linear_input_backward(&a->unit, PARAM_QKV_WEIGHT, d->dqkv, d->dbranch));
    TRY(norm_backward(&a->unit, PARAM_LN1_WEIGHT, a->x, &kept->ln1, d->dbranch, d->dresidual, d->dresidual,
                      a->recomputes_norm));
    return linear_weight_backward(&a->unit, PARAM_QKV_WEIGHT, d->dqkv, kept->ln1.out);
}

const struct family llama_family = {
    .name = "llama",
    .embedding = UNIT_TENSORS(embedding),
    .block = UNIT_TENSORS(block),
    .final = UNIT_TENSORS(final),
    .forward = {qkv_forward, attention_project, fc_forward, mlp_down},
    .backward = {qkv_backward, attention_project_backward, mlp_up_backward, fc_proj_backward}};
