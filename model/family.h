// What a family of decoders defines: its tensors, and the code of a block's sublayers. Each family has a
// file that begins with its equations (gpt2.c, llama.c, modern.c). decoder.h and layers.h have the shared
// code. Internal to model/.
#ifndef ZERO_MODEL_FAMILY_H
#define ZERO_MODEL_FAMILY_H

#include "model/layers.h"

// The sizes in tensors' shapes. After a colon: the parts of a fused tensor, in order of its rows (struct
// param_part).
enum tensor_size {
    SIZE_NONE,         // no second dimension
    SIZE_SCALAR,       // one element
    SIZE_EMBEDDING,    // n_embd
    SIZE_VOCABULARY,   // vocab_size
    SIZE_POSITIONS,    // n_positions
    SIZE_HEADS,        // n_head * head_dim
    SIZE_HEAD,         // head_dim
    SIZE_QKV,          // (n_head + 2 * n_kv_head) * head_dim: q_proj, k_proj, v_proj
    SIZE_INTERMEDIATE, // intermediate_size
    SIZE_GATE_UP,      // 2 * intermediate_size: gate_proj, up_proj
    SIZE_KEYS          // n_kv_head * head_dim
};

// The standard deviation of a tensor's initial values, for INIT_NORMAL.
enum init_std {
    STD_GPT2,   // 0.02; for projections into the residual stream 0.02 / sqrt(2 n_layer)
    STD_FAN_IN, // 0.5 / sqrt(columns), as in modded-nanogpt's linear layers
    STD_UNIT    // 1, as in torch.nn.Embedding; 0.02 for a token embedding that is tied to lm_head
};

// A tensor of a unit.
struct tensor_layout {
    int tensor;       // enum embedding_param, block_param or final_param
    const char *name; // param.name, with %d in place of the block's number
    enum tensor_size rows, columns;
    enum param_init init;
    enum init_std std;
    bool residual;                // it is a projection into the residual stream
    bool may_begin_at_zero;       // initialized to zero if the config sets zero_init
    bool is_table;                // it is in a block, and its rows are looked up, not multiplied
    bool hf_transposed, hf_parts; // as in struct param
    // Returns whether the unit has the tensor; NULL: it always has. Only units of blocks use `block`.
    bool (*is_present)(const struct gpt_config *config, int block);
};
struct unit_layout {
    const struct tensor_layout *tensors; // in order of use
    int n;
};
#define UNIT_TENSORS(list)                                                                                   \
    { list, sizeof list / sizeof *list }

struct family {
    const char *name; // value of model.family
    struct unit_layout embedding, block, final;
    enum status (*forward[N_SUBLAYERS])(const struct block_pass *block);
    enum status (*backward[N_SUBLAYERS])(const struct block_pass *block);
};
extern const struct family gpt2_family, llama_family, modern_family;

// For tensor_layout.is_present: returns gpt_config.untied.
static inline bool has_untied_head(const struct gpt_config *config, int block) {
    (void)block;
    return config->untied;
}

const struct family *family_of(const struct gpt_config *config);

#endif
