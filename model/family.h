// The families of decoders and their differences. Each family has a file that reads like its paper (gpt2.c,
// llama.c, modern.c); decoder.h has the shared code. Internal to model/.
#ifndef ZERO_MODEL_FAMILY_H
#define ZERO_MODEL_FAMILY_H

#include "model/layers.h"

// The sizes that appear in tensors' shapes. Fused tensors name their rows (struct param_part).
enum tensor_size {
    SIZE_NONE,         // no second dimension
    SIZE_SCALAR,       // one element
    SIZE_EMBEDDING,    // n_embd
    SIZE_VOCABULARY,   // vocab_size
    SIZE_POSITIONS,    // n_positions
    SIZE_HEADS,        // n_head head_dim
    SIZE_HEAD,         // head_dim
    SIZE_QKV,          // (n_head + 2 n_kv_head) head_dim: q_proj, k_proj, v_proj
    SIZE_INTERMEDIATE, // intermediate_size
    SIZE_GATE_UP,      // 2 intermediate_size: gate_proj, up_proj
    SIZE_KEYS          // n_kv_head head_dim
};

// The standard deviation of INIT_NORMAL.
enum init_std {
    STD_GPT2,   // 0.02, but 0.02 / sqrt(2 n_layer) for projections into the residual stream (GPT-2)
    STD_FAN_IN, // 0.5 / sqrt(columns): modded-nanogpt's linear layers
    STD_UNIT    // 1: torch.nn.Embedding's default
};

// A tensor of a unit.
struct tensor_layout {
    int tensor;       // enum *_param
    const char *name; // with %d for the number of the block
    enum tensor_size rows, columns;
    enum param_init init;
    enum init_std std;
    bool residual;          // a projection into the residual stream
    bool may_begin_at_zero; // zero if model.zero_init is set
    bool is_table;          // rows are looked up, not multiplied
    bool hf_transposed, hf_parts;
    bool (*is_present)(const struct gpt_config *config, int block); // NULL: always
};
struct unit_layout {
    const struct tensor_layout *tensors; // in order of use
    int n;
};
#define UNIT_TENSORS(list)                                                                                   \
    { list, sizeof list / sizeof *list }

struct family {
    const char *name; // of model.family
    struct unit_layout embedding, block, final;
    enum status (*forward[N_SUBLAYERS])(const struct block_pass *block);
    enum status (*backward[N_SUBLAYERS])(const struct block_pass *block);
};
extern const struct family gpt2_family, llama_family, modern_family;

// gpt_config.untied, in the form of tensor_layout.is_present.
static inline bool has_untied_head(const struct gpt_config *config, int block) {
    (void)block;
    return config->untied;
}

const struct family *family_of(const struct gpt_config *config);

#endif
