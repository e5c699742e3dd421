#include "zero/partition/config_model.h"

struct gpt_config config_model(const struct config *config) {
    const struct rope_config rope = {.theta = config->model.rope_theta,
                                     .type = (enum rope_type)config->model.rope_scaling.rope_type,
                                     .factor = config->model.rope_scaling.factor,
                                     .low_freq_factor = config->model.rope_scaling.low_freq_factor,
                                     .high_freq_factor = config->model.rope_scaling.high_freq_factor,
                                     .beta_fast = config->model.rope_scaling.beta_fast,
                                     .beta_slow = config->model.rope_scaling.beta_slow,
                                     .attention_factor = config->model.rope_scaling.attention_factor,
                                     .original_positions =
                                         (int)config->model.rope_scaling.original_max_position_embeddings};
    struct gpt_config sizes = {.n_layer = (int)config->model.n_layer,
                               .n_head = (int)config->model.n_head,
                               .n_embd = (int)config->model.n_embd,
                               .vocab_size = (int)config->model.vocab_size,
                               .n_positions = (int)config->model.n_positions,
                               .family = (enum model_family)config->model.family,
                               .n_kv_head = (int)config->model.n_kv_head,
                               .head_dim = (int)config->model.head_dim,
                               .intermediate_size = (int)config->model.intermediate_size,
                               .norm_eps = config->model.norm_eps,
                               .qkv_bias = config->model.qkv_bias,
                               .qk_norm = config->model.qk_norm,
                               .untied = !config->model.tied,
                               .rope = rope,
                               .n_windows = config->model.window.n,
                               .activation = (enum mlp_activation)(config->model.activation + 1),
                               .partial_rotary_factor = config->model.partial_rotary_factor,
                               .soft_cap = config->model.soft_cap,
                               .zero_init = config->model.zero_init,
                               .embedding_skip = config->model.embedding_skip,
                               .n_value_embeddings = config->model.value_embeddings.n};
    for (int i = 0; i < sizes.n_windows; i++)
        sizes.windows[i] = (int)config->model.window.values[i];
    for (int i = 0; i < sizes.n_value_embeddings; i++)
        sizes.value_embeddings[i] = (int)config->model.value_embeddings.values[i];
    gpt_config_resolve(&sizes);
    return sizes;
}
