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
// (model/rope_table.h). Fields are named as in Hugging Face's "rope_scaling". A field's comment begins with
// the types that use it.
enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, N_ROPE_TYPES };
extern const char *const rope_type_names[N_ROPE_TYPES]; // Hugging Face's "rope_type"
struct rope_config {
    double theta; // base of the frequencies
    enum rope_type type;
    double factor;                            // linear, llama3 and yarn
    double low_freq_factor, high_freq_factor; // llama3
    double beta_fast, beta_slow;              // yarn
    double attention_factor;                  // yarn; 0 means 0.1 log(factor) + 1
    // llama3 and yarn: context length before it was extended; "original_max_position_embeddings" in files.
    int original_positions;
};

// The sizes and variants of a model. From n_kv_head on, zero means the family's default, which
// gpt_config_resolve fills in. In the config of a parameter table (struct params) the defaults are always
// filled in.
#define MODEL_WINDOWS_MOST          64
#define MODEL_VALUE_EMBEDDINGS_MOST 64
struct gpt_config {
    int n_layer, n_head, n_embd, vocab_size, n_positions;

    enum model_family family;
    int n_kv_head; // number of key-value heads; divides n_head. Default: n_head
    int head_dim;  // default: n_embd / n_head
    // Width of the MLP. Default: 4 n_embd (GPT-2, modern) or 8/3 n_embd, rounded up to a multiple of 256
    // (Llama family).
    int intermediate_size;
    double norm_eps; // epsilon of the norms. Default: 1e-5
    bool qkv_bias;   // Llama family: bias on queries, keys and values (Qwen2)
    bool o_bias;     // Llama family: bias of attention's output projection
    // RMSNorm of each query and key head: in the Llama family (Qwen3) with weights, in modern without.
    bool qk_norm;
    bool untied;             // lm_head has its own matrix
    struct rope_config rope; // unused by GPT-2. Default theta: 10000 (Llama family), 1024 (modern)
    // Llama family, modern: in block i, a position attends to at most the last windows[i % n_windows]
    // positions, including itself. A window of 0 is no limit.
    int n_windows; // 0: no block has a window
    int windows[MODEL_WINDOWS_MOST];
    enum mlp_activation activation; // default: the family's; other values only for modern

    // Modern only.
    double partial_rotary_factor; // fraction of a head that RoPE rotates. Default: 0.5; other families: 1
    double soft_cap;              // logits become soft_cap tanh(logits / soft_cap); 0: unchanged
    bool zero_init;               // lm_head and the projections into the residual stream are initially zero
    bool embedding_skip;          // all blocks but the first mix their input with the token embedding
    int n_value_embeddings;       // number of blocks that add the token's row of a table to their values
    int value_embeddings[MODEL_VALUE_EMBEDDINGS_MOST]; // the numbers of these blocks
};

// A row of the table of gpt_config's fields (gpt_fields). The lists `windows` and `value_embeddings` are
// not in it. Options, checks and file formats use the table.
struct gpt_field {
    const char *name;                                                 // in messages: "n_layer", "rope.factor"
    const char *option;                                               // name of its option: "model.n_layer"
    size_t offset;                                                    // in bytes, in struct gpt_config
    enum { FIELD_SIZE, FIELD_NUMBER, FIELD_BOOL, FIELD_CHOICE } type; // int, double, bool, an enum
    const char *hf;       // key in the Llama family's config.json; in GPT-2's the key is `name`
    const char *gguf;     // key in GGUF files, without the prefix of the architecture
    bool is_needed;       // a file must have the key
    bool zero_is_default; // the value 0 of the option means the default
    bool is_negated;      // the option means the opposite: model.tied for `untied`
    int first_choice;     // enum value of the option's first word
    unsigned rope_types;  // for a field of RoPE's scaling: bits 1 << type of the rope_types that use it
};
// gpt_fields begins with the GPT_N_SIZES fields n_layer to n_positions. Then comes `family`. In a GPT-2
// model the other fields have their defaults.
#define GPT_N_SIZES 5
extern const struct gpt_field gpt_fields[];
extern const int gpt_n_fields;
// Get and set a field as the value of its option: 0 or 1 for a bool, the index of the option's word for an
// enum.
double gpt_field_get(const struct gpt_field *field, const struct gpt_config *config);
void gpt_field_set(const struct gpt_field *field, struct gpt_config *config, double value);
#define GPT_FIELD_IS(field, member) ((field)->offset == offsetof(struct gpt_config, member))
// True for the fields of struct rope_config.
static inline bool gpt_field_is_rope(const struct gpt_field *field) {
    return field->offset - offsetof(struct gpt_config, rope) < sizeof(struct rope_config);
}

// Fills in the defaults.
void gpt_config_resolve(struct gpt_config *config);
// Checks a config whose defaults are filled in. STATUS_INVALID unless:
// - each size is at least 1, and the model is not so large that a count of elements could overflow
// - n_head is a multiple of n_kv_head and, in GPT-2, n_embd a multiple of n_head
// - with RoPE, head_dim is even, and at least one and at most all pairs of each head are rotated
// - value embeddings are in distinct existing blocks
enum status gpt_config_check(const struct gpt_config *config) MUST_CHECK;
// Like gpt_config_check, for a config read from a file; messages begin with the file's name, `source`.
enum status gpt_config_check_read(const struct gpt_config *config, const char *source) MUST_CHECK;
// Returns the name of the first field in which two models differ, or NULL. Defaults need not be filled in.
// Initial values (zero_init) do not count as a difference.
const char *gpt_config_difference(const struct gpt_config *a, const struct gpt_config *b);
// Copies from `from` to `config` the fields that change no tensor's shape: n_positions, RoPE and windows.
// Trained weights can be trained further with other values of these. No-op for GPT-2, whose position
// embeddings depend on n_positions.
void gpt_config_take_context(struct gpt_config *config, const struct gpt_config *from);
// Elements per position in a block's key-value cache: keys, then values.
static inline size_t gpt_cache_width(const struct gpt_config *config) {
    return 2 * (size_t)config->n_kv_head * (size_t)config->head_dim;
}
// The number of outputs of the fused projection of queries, keys and values.
static inline int gpt_qkv_width(const struct gpt_config *config) {
    return (config->n_head + 2 * config->n_kv_head) * config->head_dim;
}
// The number of rows of the MLP's first matrix.
static inline int gpt_mlp_width(const struct gpt_config *config) {
    return config->activation == MLP_SWIGLU ? 2 * config->intermediate_size : config->intermediate_size;
}
// True if the model has RoPE. GPT-2 has position embeddings instead.
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
// True if the block mixes its input with the token embedding.
static inline bool gpt_mixes(const struct gpt_config *config, int block) {
    return config->embedding_skip && block > 0;
}
// The maximum number of positions that a position of this block attends to, including itself; 0: no limit.
static inline int gpt_window(const struct gpt_config *config, int block) {
    return config->n_windows > 0 ? config->windows[block % config->n_windows] : 0;
}

#endif
