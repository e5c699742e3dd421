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

// What follows the MLP's first matrix. SwiGLU is gated: that matrix has twice as many rows.
enum mlp_activation { MLP_DEFAULT, MLP_GELU, MLP_SWIGLU, MLP_RELU_SQUARED };

// Rotary position embedding: its base, and how frequencies are stretched for contexts beyond those trained on
// (model/rope_table.h). Field names are those of Hugging Face's "rope_scaling".
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

// The sizes of a model. Zero in a field of the second part means its default for the family, which
// gpt_config_resolve fills in; a table of parameters has them filled in.
#define MODEL_WINDOWS_MOST          64
#define MODEL_VALUE_EMBEDDINGS_MOST 64
struct gpt_config {
    int n_layer, n_head, n_embd, vocab_size, n_positions;

    enum model_family family;
    int n_kv_head;           // key-value heads; n_head is a multiple. Default: n_head
    int head_dim;            // default: n_embd / n_head
    int intermediate_size;   // of the MLP. Default: 4 n_embd (GPT-2, modern); 8/3 n_embd, up to a multiple
                             // of 256 (Llama)
    double norm_eps;         // default: 1e-5
    bool qkv_bias;           // Llama family: bias on queries, keys and values (Qwen2)
    bool o_bias;             // Llama family: bias of the projection that follows attention
    bool qk_norm;            // RMSNorm of each query and key head: Llama family, with weights (Qwen3); modern
    bool untied;             // lm_head has a matrix of its own
    struct rope_config rope; // Llama family, modern; default theta: 10000, modern: 1024
    // Llama family, modern: block i attends to at most the last windows[i % n_windows] positions; 0: to all.
    int n_windows; // 0: no windows
    int windows[MODEL_WINDOWS_MOST];
    enum mlp_activation activation; // default: the family's; only modern has a choice

    // Modern only.
    double partial_rotary_factor; // the fraction of each head that is rotated. Default: 0.5; others: 1
    double soft_cap;              // logits become soft_cap tanh(logits / soft_cap); 0: they stay
    bool zero_init;               // projections into the residual stream and lm_head begin at zero
    bool embedding_skip;          // blocks but the first mix their input with the token embedding
    int n_value_embeddings;       // blocks that add a row of a table, the token's, to their values
    int value_embeddings[MODEL_VALUE_EMBEDDINGS_MOST];
};

// The table of the fields above but the lists: what options, checks and files know of a model.
struct gpt_field {
    const char *name;                                                 // in messages: "n_layer", "rope.factor"
    const char *option;                                               // "model.n_layer"
    size_t offset;                                                    // in struct gpt_config
    enum { FIELD_SIZE, FIELD_NUMBER, FIELD_BOOL, FIELD_CHOICE } type; // int, double, bool, an enum
    // Its keys in the Llama family's config.json (GPT-2's are the names), and in GGUF after the architecture.
    const char *hf, *gguf;
    bool is_needed;       // in these files
    bool zero_is_default; // the option's 0 stands for a default
    bool is_negated;      // the option says the opposite
    int first_choice;     // what the option's first word stands for
    unsigned rope_types;  // of RoPE's scaling: those that have it, 1 << type each
};
#define GPT_N_SIZES 5 // the first ones: n_layer to n_positions, then the family; the others GPT-2 has not
extern const struct gpt_field gpt_fields[];
extern const int gpt_n_fields;
// The value as the option counts it: of a bool 0 or 1, of an enum the number of the word.
double gpt_field_get(const struct gpt_field *field, const struct gpt_config *config);
void gpt_field_set(const struct gpt_field *field, struct gpt_config *config, double value);
#define GPT_FIELD_IS(field, member) ((field)->offset == offsetof(struct gpt_config, member))
// Fields of struct rope_config.
static inline bool gpt_field_is_rope(const struct gpt_field *field) {
    return field->offset - offsetof(struct gpt_config, rope) < sizeof(struct rope_config);
}

// Fills in the defaults.
void gpt_config_resolve(struct gpt_config *config);
// STATUS_INVALID unless each size is at least 1, heads divide evenly, RoPE rotates a pair at least, value
// embeddings are of different blocks that the model has, and no count of elements overflows. Of a config
// whose defaults are filled in.
enum status gpt_config_check(const struct gpt_config *config) MUST_CHECK;
// The same of a config that was read from a file, whose name the message begins with.
enum status gpt_config_check_read(const struct gpt_config *config, const char *source) MUST_CHECK;
// The name of the first field in which two models differ, or NULL. Defaults filled in or not. Initial values
// (zero_init) are no difference.
const char *gpt_config_difference(const struct gpt_config *a, const struct gpt_config *b);
// Takes over from another model of a family without a table of positions what no tensor depends on:
// n_positions, RoPE and windows. Weights can be trained further with others.
void gpt_config_take_context(struct gpt_config *config, const struct gpt_config *from);
// Elements of a position's keys and values in one block's cache: keys, then values.
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
// GPT-2 has embeddings of positions instead.
static inline bool gpt_has_rope(const struct gpt_config *config) {
    return config->family != FAMILY_GPT2;
}
// The pairs of each head that RoPE rotates, of head_dim / 2.
static inline int gpt_rotated_pairs(const struct gpt_config *config) {
    return (int)(config->head_dim * config->partial_rotary_factor / 2);
}
static inline bool gpt_has_value_embedding(const struct gpt_config *config, int block) {
    for (int i = 0; i < config->n_value_embeddings; i++)
        if (config->value_embeddings[i] == block)
            return true;
    return false;
}
// Whether a block's input is mixed with the token embedding.
static inline bool gpt_mixes(const struct gpt_config *config, int block) {
    return config->embedding_skip && block > 0;
}
static inline int gpt_window(const struct gpt_config *config, int block) {
    return config->n_windows > 0 ? config->windows[block % config->n_windows] : 0;
}

#endif
