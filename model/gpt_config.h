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
    FAMILY_LLAMA,  // Llama 2 and 3, Qwen2, Qwen3, SmolLM2, TinyLlama, ...
    FAMILY_MODERN, // the recipe of modded-nanogpt
    N_FAMILIES
};

// The activation after the MLP's first matrix. SwiGLU is gated: its matrix has twice as many rows.
enum mlp_activation { MLP_DEFAULT, MLP_GELU, MLP_SWIGLU, MLP_RELU_SQUARED };

// Rotary position embedding: the base, and how frequencies are scaled for contexts longer than in training
// (model/rope_table.h). Fields are named as in Hugging Face's "rope_scaling".
enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, N_ROPE_TYPES };
extern const char *const rope_type_names[N_ROPE_TYPES]; // Hugging Face's "rope_type"
struct rope_config {
    double theta;
    enum rope_type type;
    double factor;
    double low_freq_factor, high_freq_factor; // llama3
    double beta_fast, beta_slow;              // yarn
    double attention_factor;                  // yarn; 0: 0.1 log(factor) + 1
    int original_positions;                   // llama3 and yarn: "original_max_position_embeddings"
};

// The sizes of a model. From n_kv_head on, zero means the family's default, which gpt_config_resolve fills
// in. The config in a parameter table always has them filled in.
#define MODEL_WINDOWS_MOST          64
#define MODEL_VALUE_EMBEDDINGS_MOST 64
struct gpt_config {
    int n_layer, n_head, n_embd, vocab_size, n_positions;

    enum model_family family;
    int n_kv_head;           // key-value heads; n_head is a multiple. Default: n_head
    int head_dim;            // default: n_embd / n_head
    int intermediate_size;   // of the MLP. Default: 4 n_embd (GPT-2, modern); 8/3 n_embd, rounded up to a
                             // multiple of 256 (Llama)
    double norm_eps;         // default: 1e-5
    bool qkv_bias;           // Llama family: bias on queries, keys and values (Qwen2)
    bool o_bias;             // Llama family: bias of attention's output projection
    bool qk_norm;            // RMSNorm of each query and key head: Llama family, with weights (Qwen3); modern
    bool untied;             // lm_head has its own matrix
    struct rope_config rope; // Llama family, modern; default theta: 10000, modern: 1024
    // Llama family, modern: block i attends to at most the last windows[i % n_windows] positions; 0: no
    // limit.
    int n_windows; // 0: no windows
    int windows[MODEL_WINDOWS_MOST];
    enum mlp_activation activation; // default: the family's; only modern has a choice

    // Modern only.
    double partial_rotary_factor; // the fraction of each head that is rotated. Default: 0.5; others: 1
    double soft_cap;              // logits become soft_cap tanh(logits / soft_cap); 0: unchanged
    bool zero_init;               // projections into the residual stream and lm_head are initialized to zero
    bool embedding_skip;          // blocks but the first mix their input with the token embedding
    int n_value_embeddings;       // number of blocks that add the token's row of a table to their values
    int value_embeddings[MODEL_VALUE_EMBEDDINGS_MOST];
};

// The table of these fields, except the lists. Options, checks and file formats use it.
struct gpt_field {
    const char *name;                                                 // in messages: "n_layer", "rope.factor"
    const char *option;                                               // "model.n_layer"
    size_t offset;                                                    // in struct gpt_config
    enum { FIELD_SIZE, FIELD_NUMBER, FIELD_BOOL, FIELD_CHOICE } type; // int, double, bool, an enum
    // Keys in the Llama family's config.json (GPT-2's equal `name`), and in GGUF after the architecture
    // prefix.
    const char *hf, *gguf;
    bool is_needed;       // required in these files
    bool zero_is_default; // the option's 0 means the default
    bool is_negated;      // the option has the opposite meaning
    int first_choice;     // enum value of the option's first word
    unsigned rope_types;  // bits 1 << type of the RoPE types that have this field
};
// The first fields are n_layer to n_positions. The family follows; GPT-2 does not have the rest.
#define GPT_N_SIZES 5
extern const struct gpt_field gpt_fields[];
extern const int gpt_n_fields;
// Get and set a field as the option numbers it: 0 or 1 for a bool, the index of the word for an enum.
double gpt_field_get(const struct gpt_field *field, const struct gpt_config *config);
void gpt_field_set(const struct gpt_field *field, struct gpt_config *config, double value);
#define GPT_FIELD_IS(field, member) ((field)->offset == offsetof(struct gpt_config, member))
// Fields of struct rope_config.
static inline bool gpt_field_is_rope(const struct gpt_field *field) {
    return field->offset - offsetof(struct gpt_config, rope) < sizeof(struct rope_config);
}

// Fills in the defaults.
void gpt_config_resolve(struct gpt_config *config);
// Checks a config whose defaults are filled in. STATUS_INVALID unless each size is at least 1, heads divide
// evenly, RoPE rotates at least one pair, value embeddings are in distinct existing blocks, and no count of
// elements overflows.
enum status gpt_config_check(const struct gpt_config *config) MUST_CHECK;
// Likewise for a config that was read from a file; messages begin with the file's name, `source`.
enum status gpt_config_check_read(const struct gpt_config *config, const char *source) MUST_CHECK;
// Returns the name of the first field in which two models differ, or NULL. Defaults need not be filled in.
// Initial values (zero_init) do not count as a difference.
const char *gpt_config_difference(const struct gpt_config *a, const struct gpt_config *b);
// Copies the fields on which no tensor depends: n_positions, RoPE and windows. Trained weights can be trained
// further with other values. For families without a table of positions.
void gpt_config_take_context(struct gpt_config *config, const struct gpt_config *from);
// Elements per position in a block's key-value cache: keys, then values.
static inline size_t gpt_cache_width(const struct gpt_config *config) {
    return 2 * (size_t)config->n_kv_head * (size_t)config->head_dim;
}
// The columns of the fused projection of queries, keys and values.
static inline int gpt_qkv_width(const struct gpt_config *config) {
    return (config->n_head + 2 * config->n_kv_head) * config->head_dim;
}
// The rows of the MLP's first matrix.
static inline int gpt_mlp_width(const struct gpt_config *config) {
    return config->activation == MLP_SWIGLU ? 2 * config->intermediate_size : config->intermediate_size;
}
// GPT-2 has position embeddings instead.
static inline bool gpt_has_rope(const struct gpt_config *config) {
    return config->family != FAMILY_GPT2;
}
// The number of pairs of each head that RoPE rotates, at most head_dim / 2.
static inline int gpt_rotated_pairs(const struct gpt_config *config) {
    return (int)(config->head_dim * config->partial_rotary_factor / 2);
}
static inline bool gpt_has_value_embedding(const struct gpt_config *config, int block) {
    for (int i = 0; i < config->n_value_embeddings; i++)
        if (config->value_embeddings[i] == block)
            return true;
    return false;
}
// Whether the block mixes its input with the token embedding.
static inline bool gpt_mixes(const struct gpt_config *config, int block) {
    return config->embedding_skip && block > 0;
}
static inline int gpt_window(const struct gpt_config *config, int block) {
    return config->n_windows > 0 ? config->windows[block % config->n_windows] : 0;
}

#endif
