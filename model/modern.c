// The recipe of modded-nanogpt (K. Jordan and others, github.com/KellerJordan/modded-nanogpt), which
// reached GPT-2's loss with a fraction of its tokens. Each feature can be switched off (docs/models.md).
// With all of them, a block computes:
//   x = residual_weight x + embedding_weight embedding       (model.embedding_skip; not in the first block)
//   v = v_proj(h) + value_embedding[token], h = norm(x)      (model.value_embeddings; not in all blocks)
//   x += o_proj(attention(rotate(norm(q_proj(h))), rotate(norm(k_proj(h))), v))
//   x += down_proj(relu(up_proj(norm(x)))^2)
// with RMSNorm without weights, rotary positions on part of each head, no biases, an lm_head with its own
// matrix, and soft-capped logits.
#include "model/decoder.h"
#include "model/layers.h"

static bool mixes_embedding(const struct gpt_config *config, int block) {
    return gpt_mixes(config, block);
}

static const struct tensor_layout embedding[] = {{.tensor = PARAM_WTE,
                                                  .name = "embed_tokens.weight",
                                                  .rows = SIZE_VOCABULARY,
                                                  .columns = SIZE_EMBEDDING,
                                                  .std = STD_UNIT}};

// The initial value embeddings have standard deviation 1. Their scale relative to the projected values, to
// which they are added, is that of modded-nanogpt.
static const struct tensor_layout block[] = {{.tensor = PARAM_RESIDUAL_WEIGHT,
                                              .name = "layers.%d.residual_weight",
                                              .rows = SIZE_SCALAR,
                                              .init = INIT_ONES,
                                              .is_present = mixes_embedding},
                                             {.tensor = PARAM_EMBEDDING_WEIGHT,
                                              .name = "layers.%d.embedding_weight",
                                              .rows = SIZE_SCALAR,
                                              .init = INIT_ZEROS,
                                              .is_present = mixes_embedding},
                                             {.tensor = PARAM_QKV_WEIGHT,
                                              .name = "layers.%d.self_attn.qkv_proj.weight",
                                              .rows = SIZE_QKV,
                                              .columns = SIZE_EMBEDDING,
                                              .std = STD_FAN_IN,
                                              .hf_parts = true},
                                             {.tensor = PARAM_VALUE_EMBEDDING,
                                              .name = "layers.%d.self_attn.value_embedding.weight",
                                              .rows = SIZE_VOCABULARY,
                                              .columns = SIZE_KEYS,
                                              .std = STD_UNIT,
                                              .is_table = true,
                                              .is_present = gpt_has_value_embedding},
                                             {.tensor = PARAM_ATTN_PROJ_WEIGHT,
                                              .name = "layers.%d.self_attn.o_proj.weight",
                                              .rows = SIZE_EMBEDDING,
                                              .columns = SIZE_HEADS,
                                              .std = STD_FAN_IN,
                                              .residual = true,
                                              .may_begin_at_zero = true},
                                             {.tensor = PARAM_FC_WEIGHT,
                                              .name = "layers.%d.mlp.up_proj.weight",
                                              .rows = SIZE_INTERMEDIATE,
                                              .columns = SIZE_EMBEDDING,
                                              .std = STD_FAN_IN},
                                             {.tensor = PARAM_FC_PROJ_WEIGHT,
                                              .name = "layers.%d.mlp.down_proj.weight",
                                              .rows = SIZE_EMBEDDING,
                                              .columns = SIZE_INTERMEDIATE,
                                              .std = STD_FAN_IN,
                                              .residual = true,
                                              .may_begin_at_zero = true}};

static const struct tensor_layout final[] = {{.tensor = PARAM_LM_HEAD,
                                              .name = "lm_head.weight",
                                              .rows = SIZE_VOCABULARY,
                                              .columns = SIZE_EMBEDDING,
                                              .std = STD_FAN_IN,
                                              .may_begin_at_zero = true,
                                              .is_present = has_untied_head}};

static enum status qkv_forward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    TRY(mix(a));
    TRY(norm(&a->unit, PARAM_LN1_WEIGHT, block_input(a), &kept->ln1));
    TRY(project_qkv(a, kept->ln1.out));
    TRY(add_value_embedding(a));
    return attend(a);
}

static enum status qkv_backward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    const struct activation_gradients *d = a->scratch;
    TRY(attend_backward(a));
    TRY(value_embedding_backward(a));
    TRY(linear_input_backward(&a->unit, PARAM_QKV_WEIGHT, d->dqkv, d->dbranch));
    if (a->recomputes_norm)
        TRY(mix(a));
    TRY(norm_backward(&a->unit, PARAM_LN1_WEIGHT, block_input(a), &kept->ln1, d->dbranch, d->dresidual,
                      d->dresidual, a->recomputes_norm));
    TRY(linear_weight_backward(&a->unit, PARAM_QKV_WEIGHT, d->dqkv, kept->ln1.out));
    return mix_backward(a);
}

const struct family modern_family = {
    .name = "modern",
    .embedding = UNIT_TENSORS(embedding),
    .block = UNIT_TENSORS(block),
    .final = UNIT_TENSORS(final),
    .forward = {qkv_forward, attention_project, mlp_up, mlp_down},
    .backward = {qkv_backward, attention_project_backward, mlp_up_backward, mlp_down_backward}};
