// What defines a model: its family, sizes and variants.
#ifndef ZERO_MODEL_GPT_CONFIG_H
#define ZERO_MODEL_GPT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// The families of decoders (model/family.h).
enum model_family {
    FAMILY_GPT2,
    FAMILY_LLAMA, // Llama 2 and 3, Qwen2, Qwen3, SmolLM2, TinyLlama, ...
    N_FAMILIES
};

// Rotary position embedding: its base, and how frequencies are stretched for contexts beyond those trained on
// (model/rope_table.h). Field names are those of Hugging Face's "rope_scaling".
enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };
struct rope_config {
    double theta;
    enum rope_type type;
    double factor;
    double low_freq_factor, high_freq_factor; // llama3
    double beta_fast, beta_slow;              // yarn
    double attention_factor;                  // yarn; 0: 0.1 log(factor) + 1
    int original_positions;                   // llama3 and yarn: "original_max_position_embeddings"
};

// The sizes of a model. Zero in a field of the second part means its default for the family, which
// gpt_config_resolve fills in; a table of parameters has them filled in.
#define MODEL_WINDOWS_MOST 64
struct gpt_config {
    int n_layer, n_head, n_embd, vocab_size, n_positions;

    enum model_family family;
    int n_kv_head;           // key-value heads; n_head is a multiple. Default: n_head
    int head_dim;            // default: n_embd / n_head
    int intermediate_size;   // of the MLP. Default: 4 n_embd (GPT-2); 8/3 n_embd, up to a multiple of 256
                             // (Llama)
    double norm_eps;         // default: 1e-5
    bool qkv_bias;           // Llama family: bias on queries, keys and values (Qwen2)
    bool qk_norm;            // Llama family: RMSNorm of each query and key head (Qwen3)
    bool untied;             // lm_head has a matrix of its own
    struct rope_config rope; // Llama family; default theta: 10000
    // Llama family: block i attends to at most the last windows[i % n_windows] positions; 0: to all.
    int n_windows; // 0: no windows
    int windows[MODEL_WINDOWS_MOST];
};
// Fills in the defaults.
void gpt_config_resolve(struct gpt_config *config);
// STATUS_INVALID unless each size is at least 1, heads divide evenly, and no count of elements overflows. Of
// a config whose defaults are filled in.
enum status gpt_config_check(const struct gpt_config *config) MUST_CHECK;
// The name of the first field in which two models differ, or NULL. Defaults filled in or not.
const char *gpt_config_difference(const struct gpt_config *a, const struct gpt_config *b);
// Elements of a position's keys and values in one block's cache: keys, then values.
static inline size_t gpt_cache_width(const struct gpt_config *config) {
    return 2 * (size_t)config->n_kv_head * (size_t)config->head_dim;
}
// The columns of the fused projection of queries, keys and values.
static inline int gpt_qkv_width(const struct gpt_config *config) {
    return (config->n_head + 2 * config->n_kv_head) * config->head_dim;
}
static inline int gpt_window(const struct gpt_config *config, int block) {
    return config->n_windows > 0 ? config->windows[block % config->n_windows] : 0;
}

#endif
