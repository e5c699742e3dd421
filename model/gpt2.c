// GPT-2 (Radford et al., 2019), as in nanoGPT and llm.c:
//   x += c_proj(attention(c_attn(ln_1(x))))
//   x += c_proj(gelu(c_fc(ln_2(x))))
// with learned position embeddings, biases everywhere, and lm_head tied to the token embedding.
#include "model/decoder.h"
#include "model/layers.h"

static const struct tensor_layout embedding[] = {
    {.tensor = PARAM_WTE, .name = "wte.weight", .rows = SIZE_VOCABULARY, .columns = SIZE_EMBEDDING},
    {.tensor = PARAM_WPE, .name = "wpe.weight", .rows = SIZE_POSITIONS, .columns = SIZE_EMBEDDING}};

#define ONES(id, text)                                                                                       \
    { .tensor = id, .name = text, .rows = SIZE_EMBEDDING, .init = INIT_ONES }
#define BIAS(id, text, n)                                                                                    \
    { .tensor = id, .name = text, .rows = n, .init = INIT_ZEROS }
#define MATRIX(id, text, out, in, into_residual)                                                             \
    {                                                                                                        \
        .tensor = id, .name = text, .rows = out, .columns = in, .residual = into_residual,                   \
        .hf_transposed = true                                                                                \
    }
static const struct tensor_layout block[] = {
    ONES(PARAM_LN1_WEIGHT, "h.%d.ln_1.weight"),
    BIAS(PARAM_LN1_BIAS, "h.%d.ln_1.bias", SIZE_EMBEDDING),
    MATRIX(PARAM_QKV_WEIGHT, "h.%d.attn.c_attn.weight", SIZE_QKV, SIZE_EMBEDDING, false),
    BIAS(PARAM_QKV_BIAS, "h.%d.attn.c_attn.bias", SIZE_QKV),
    MATRIX(PARAM_ATTN_PROJ_WEIGHT, "h.%d.attn.c_proj.weight", SIZE_EMBEDDING, SIZE_HEADS, true),
    BIAS(PARAM_ATTN_PROJ_BIAS, "h.%d.attn.c_proj.bias", SIZE_EMBEDDING),
    ONES(PARAM_LN2_WEIGHT, "h.%d.ln_2.weight"),
    BIAS(PARAM_LN2_BIAS, "h.%d.ln_2.bias", SIZE_EMBEDDING),
    MATRIX(PARAM_FC_WEIGHT, "h.%d.mlp.c_fc.weight", SIZE_INTERMEDIATE, SIZE_EMBEDDING, false),
    BIAS(PARAM_FC_BIAS, "h.%d.mlp.c_fc.bias", SIZE_INTERMEDIATE),
    MATRIX(PARAM_FC_PROJ_WEIGHT, "h.%d.mlp.c_proj.weight", SIZE_EMBEDDING, SIZE_INTERMEDIATE, true),
    BIAS(PARAM_FC_PROJ_BIAS, "h.%d.mlp.c_proj.bias", SIZE_EMBEDDING)};

static const struct tensor_layout final[] = {ONES(PARAM_LNF_WEIGHT, "ln_f.weight"),
                                             BIAS(PARAM_LNF_BIAS, "ln_f.bias", SIZE_EMBEDDING)};

// ---- forward

static enum status qkv_forward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    TRY(norm(&a->unit, PARAM_LN1_WEIGHT, a->x, &kept->ln1));
    TRY(project_qkv(a, kept->ln1.out));
    return attend(a);
}

// ---- backward

static enum status qkv_backward(const struct block_pass *a) {
    const struct block_buffers *kept = a->buffers;
    const struct activation_gradients *d = a->scratch;
    TRY(attend_backward(a));
    TRY(linear_input_backward(&a->unit, PARAM_QKV_WEIGHT, d->dqkv, d->dbranch));
    TRY(norm_backward(&a->unit, PARAM_LN1_WEIGHT, a->x, &kept->ln1, d->dbranch, d->dresidual, d->dresidual,
                      a->recomputes_norm));
    return linear_weight_backward(&a->unit, PARAM_QKV_WEIGHT, d->dqkv, kept->ln1.out);
}

const struct family gpt2_family = {
    .name = "gpt2",
    .embedding = UNIT_TENSORS(embedding),
    .block = UNIT_TENSORS(block),
    .final = UNIT_TENSORS(final),
    .forward = {qkv_forward, attention_project, mlp_up, mlp_down},
    .backward = {qkv_backward, attention_project_backward, mlp_up_backward, mlp_down_backward}};
