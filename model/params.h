// The table of parameters: every tensor's name, shape, unit, place in its unit, initialisation and weight
// decay. Sizing, checkpoints, import, export and tests read this table and nothing else.
#ifndef ZERO_MODEL_PARAMS_H
#define ZERO_MODEL_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// The sizes that make a GPT-2 architecture. head size = n_embd / n_head.
struct gpt_config {
    int n_layer, n_head, n_embd, vocab_size, n_positions;
};
#define GPT_LAYERNORM_EPSILON 1e-5f

enum param_init { INIT_NORMAL, INIT_ZEROS, INIT_ONES };

// The tensors of unit 0 (embeddings), of each block, and of the last unit (final norm; the head is tied to
// wte).
enum embedding_param { PARAM_WTE, PARAM_WPE, N_EMBEDDING_PARAMS };
enum block_param {
    PARAM_LN1_WEIGHT, // (C)
    PARAM_LN1_BIAS,
    PARAM_QKV_WEIGHT, // (3C, C)
    PARAM_QKV_BIAS,
    PARAM_ATTN_PROJ_WEIGHT, // (C, C)
    PARAM_ATTN_PROJ_BIAS,
    PARAM_LN2_WEIGHT,
    PARAM_LN2_BIAS,
    PARAM_FC_WEIGHT, // (4C, C)
    PARAM_FC_BIAS,
    PARAM_FC_PROJ_WEIGHT, // (C, 4C)
    PARAM_FC_PROJ_BIAS,
    N_BLOCK_PARAMS
};
// A block's tensors fall into groups that are used together, in order of use: each a matrix product, and the
// norm before it.
enum block_group {
    GROUP_QKV,       // ln_1, attn.c_attn
    GROUP_ATTN_PROJ, // attn.c_proj
    GROUP_FC,        // ln_2, mlp.c_fc
    GROUP_FC_PROJ,   // mlp.c_proj
    N_BLOCK_GROUPS
};
enum final_param { PARAM_LNF_WEIGHT, PARAM_LNF_BIAS, N_FINAL_PARAMS };

// One tensor. Linear weights are (out, in); Hugging Face's GPT-2 keeps them (in, out), marked by
// hf_transposed.
struct param {
    char name[40]; // Hugging Face's, without "transformer."
    int n_dims;
    int64_t shape[2];
    size_t elements;
    int unit;
    size_t offset; // in elements, from its unit's start; a multiple of PARAM_ALIGNMENT
    enum param_init init;
    double
        std; // INIT_NORMAL: 0.02, and 0.02 / sqrt(2 n_layer) for what writes to the residual stream (GPT-2)
    bool decay;         // weight decay applies: two or more dimensions
    bool gemm_gradient; // a linear layer's weight, as the head's wte: its gradient begins with a matrix
                        // product
    bool hf_transposed;
};
#define PARAM_ALIGNMENT 128 // elements

// A unit: one flat span, the piece that ZeRO gathers and releases at once.
struct param_unit {
    int first_param, n_params;
    size_t elements; // with alignment padding: a multiple of PARAM_ALIGNMENT
    size_t offset;   // of the unit in the concatenation of all units
};

// Tensors of one unit that follow each other: elements [begin, end) of it, padding included.
struct param_range {
    int first_param, n_params;
    size_t begin, end;
};

struct params {
    struct gpt_config config;
    struct param *params;
    int n_params;
    struct param_unit *units; // 0: embeddings; 1 .. n_layer: blocks; n_layer + 1: final norm
    int n_units;
    size_t n_elements; // sum of the units' elements, padding included
    size_t n_weights;  // what people call the parameter count: no padding, the tied head counted once
};

// Checks the sizes (each at least 1, n_embd a multiple of n_head, no overflow) and lays the table out.
enum status params_init(struct params *params, const struct gpt_config *config) MUST_CHECK;
void params_free(struct params *params);
// The index of the tensor with this Hugging Face name ("transformer." may stand before it), or -1.
int params_find(const struct params *params, const char *name);
struct param_range params_unit(const struct params *params, int unit); // all of its tensors
struct param_range params_group(const struct params *params, int unit, enum block_group group); // of a block

// Writes the initial fp32 values of elements [begin, end) of a unit (offsets within the unit; padding gets
// zero): a pure function of (seed, tensor, element), so any rank can make any part.
void params_init_span(const struct params *params, uint64_t seed, int unit, size_t begin, size_t end,
                      float *out);

// FLOPs of one token, forward and backward: 6 P + 6 L C T (causal attention counted as what it computes).
double params_flops_per_token(const struct params *params, int T);

#endif
