// The sizes of a block's buffers, and the order of its sublayers in backward. The families have the code of
// each sublayer (family.h).
#include "model/decoder.h"

#include <stddef.h>
#include <stdio.h>

// ---- the buffers of a block's activations

#define BLOCK_BUFFERS 15
struct buffer_layout {
    const char *name;
    size_t member; // offset of the pointer in struct block_buffers
    size_t elements;
    enum dtype type;
    unsigned set;       // enum block_activations
    bool only_backward; // only backward reads it
};

// Lists a block's activations, in the order in which forward writes them. Activations that the model does
// not have get 0 elements.
static void list_buffers(const struct gpt_config *config, enum dtype type, size_t rows,
                         struct buffer_layout out[BLOCK_BUFFERS]) {
    const enum dtype wide = accumulation_dtype(type);
    const bool gated = config->activation == MLP_SWIGLU, layer_norm = config->family == FAMILY_GPT2;
    const bool mixes = gpt_mixes(config, config->n_layer - 1);
    const char *activation = gated                                    ? "swiglu"
                             : config->activation == MLP_RELU_SQUARED ? "relu_squared"
                                                                      : "gelu";
    const size_t C = (size_t)config->n_embd, H = (size_t)config->n_head, K = (size_t)config->n_kv_head;
    const size_t D = (size_t)config->head_dim, F = (size_t)config->intermediate_size;
    const size_t mean = layer_norm ? rows : 0, heads = config->qk_norm ? rows * (H + K) : 0;
#define BUFFER(member, name, ...)                                                                            \
    { name, offsetof(struct block_buffers, member), __VA_ARGS__ }
    const struct buffer_layout buffers[BLOCK_BUFFERS] = {
        BUFFER(mixed, "mixed", mixes ? rows * C : 0, type, BLOCK_MIXED, false),
        BUFFER(ln1.out, "ln1", rows * C, type, BLOCK_NORMS, false),
        BUFFER(ln1.mean, "ln1_mean", mean, wide, BLOCK_ATTENTION, true),
        BUFFER(ln1.rstd, "ln1_rstd", rows, wide, BLOCK_ATTENTION, true),
        BUFFER(qkv, "qkv", rows * (H + 2 * K) * D, type, BLOCK_ATTENTION, false),
        BUFFER(rotated, "rotated", heads * D, type, BLOCK_ATTENTION, true),
        BUFFER(qk_rstd, "qk_rstd", heads, wide, BLOCK_ATTENTION, true),
        BUFFER(attention, "attention", rows * H * D, type, BLOCK_ATTENTION, false),
        BUFFER(lse, "lse", rows * H, wide, BLOCK_ATTENTION, true),
        BUFFER(middle, "middle", rows * C, type, BLOCK_MLP, false),
        BUFFER(ln2.out, "ln2", rows * C, type, BLOCK_NORMS, false),
        BUFFER(ln2.mean, "ln2_mean", mean, wide, BLOCK_MLP, true),
        BUFFER(ln2.rstd, "ln2_rstd", rows, wide, BLOCK_MLP, true),
        BUFFER(fc, gated ? "gate_up" : "fc", rows * (gated ? 2 * F : F), type, BLOCK_MLP, !gated),
        BUFFER(activated, activation, rows * F, type, BLOCK_ACTIVATED, false)};
#undef BUFFER
    for (int i = 0; i < BLOCK_BUFFERS; i++)
        out[i] = buffers[i];
}

enum status block_buffers_add(struct buffer_list *buffers, struct region_table *table,
                              const struct block_memory *memory, unsigned sets, bool for_backward,
                              const char *label, struct block_buffers *blocks, int n) {
    struct buffer_layout layouts[BLOCK_BUFFERS];
    list_buffers(memory->config, memory->type, memory->rows, layouts);
    for (int i = 0; i < BLOCK_BUFFERS; i++) {
        const struct buffer_layout *layout = &layouts[i];
        char name[64];
        if (!(sets & layout->set) || layout->elements == 0 || (layout->only_backward && !for_backward))
            continue;
        snprintf(name, sizeof name, "%s.%s", label, layout->name);
        TRY(buffer_add(buffers, table, REGION_ACTIVATIONS, memory->place, layout->type, layout->elements,
                       (char *)blocks + layout->member, name));
        for (int block = 1; block < n; block++)
            buffer_share(buffers, (char *)&blocks[block] + layout->member);
    }
    return STATUS_OK;
}

struct activation_widths activation_widths(const struct params *params) {
    const struct gpt_config *config = &params->config;
    size_t C = (size_t)config->n_embd, HD = (size_t)config->n_head * (size_t)config->head_dim;
    size_t KD = (size_t)config->n_kv_head * (size_t)config->head_dim;
    struct activation_widths widths = {
        .dbranch = C > HD ? C : HD,
        .dqkv = HD + 2 * KD,
        .drotated = config->qk_norm ? HD + KD : 0,
        .dfc = (size_t)gpt_mlp_width(config),
        .dembedding = gpt_mixes(config, config->n_layer - 1) && params->units[0].trained ? C : 0};
    static const int biases[] = {PARAM_QKV_BIAS, PARAM_ATTN_PROJ_BIAS, PARAM_FC_BIAS, PARAM_FC_PROJ_BIAS};
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
        const struct param *bias = params_tensor(params, 1, biases[i]);
        widths.dbiases += bias ? bias->elements : 0;
    }
    return widths;
}

// ---- a unit's arguments of the layers

struct unit_pass unit_pass_of(struct runner *runner, const struct params *params, enum dtype type, int N,
                              int unit, struct unit_view view) {
    const struct param_unit *u = &params->units[unit];
    return (struct unit_pass){.runner = runner,
                              .config = &params->config,
                              .type = type,
                              .N = N,
                              .tensors = &params->params[u->first_param],
                              .index = u->index,
                              .view = view,
                              .unit = unit};
}

// ---- backward of a block

// With BLOCK_MLP in `recomputed`, first runs all of the block's forward again except its last sublayer.
// Otherwise, each activation is recomputed as late as possible:
// - BLOCK_ATTENTION: by forward of SUBLAYER_QKV, just before backward of SUBLAYER_ATTN_PROJ
// - BLOCK_NORMS, BLOCK_ACTIVATED, BLOCK_MIXED: by the backward functions that read these activations
enum status block_backward(const struct block_pass *block, unsigned recomputed) {
    const struct family *family = family_of(block->unit.config);
    const bool all = recomputed & BLOCK_MLP, attention = !all && recomputed & BLOCK_ATTENTION;
    struct bias_gradients later = {.scratch = block->scratch->dbiases};
    struct block_pass pass = *block;
    if (later.scratch && !pass.unit.view.beta_zero)
        pass.unit.later = &later;
    pass.recomputes_activation = recomputed & BLOCK_ACTIVATED && !all;
    for (int sublayer = SUBLAYER_QKV; all && sublayer <= SUBLAYER_FC; sublayer++)
        TRY(family->forward[sublayer](&pass));
    for (int sublayer = SUBLAYER_FC_PROJ; sublayer >= SUBLAYER_QKV; sublayer--) {
        if (attention && sublayer == SUBLAYER_ATTN_PROJ)
            TRY(family->forward[SUBLAYER_QKV](&pass));
        pass.recomputes_norm = recomputed & BLOCK_NORMS && !all && !(attention && sublayer == SUBLAYER_QKV);
        TRY(family->backward[sublayer](&pass));
    }
    if (later.n > 0)
        RUN(pass.unit.runner, add_spans, .spans = later.spans, .n_spans = later.n, .x = later.scratch,
            .type = accumulation_dtype(pass.unit.type));
    return STATUS_OK;
}
