// The parameter table: every tensor's name, shape, unit, offset in its unit, initialization and weight decay.
// Sizing, partitioning, checkpoints, import, export and tests all read this table.
#ifndef ZERO_MODEL_PARAMS_H
#define ZERO_MODEL_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// The sizes of a GPT-2 model. The head size is n_embd / n_head.
struct gpt_config {
    int n_layer, n_head, n_embd, vocab_size, n_positions;
};
#define GPT_LAYERNORM_EPSILON 1e-5f

enum param_init { INIT_NORMAL, INIT_ZEROS, INIT_ONES };

// The tensors of unit 0 (embeddings), of each block's unit, and of the last unit (final norm). lm_head is
// tied to wte and has no tensor of its own.
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
// The tensors of a block that are used together, in order of use: those of one matrix product, with the norm
// before it.
enum block_group {
    GROUP_QKV,       // ln_1, attn.c_attn
    GROUP_ATTN_PROJ, // attn.c_proj
    GROUP_FC,        // ln_2, mlp.c_fc
    GROUP_FC_PROJ,   // mlp.c_proj
    N_BLOCK_GROUPS
};
enum final_param { PARAM_LNF_WEIGHT, PARAM_LNF_BIAS, N_FINAL_PARAMS };

// Named rows of a fused tensor: one layer's weight or bias, which other formats and whole-matrix optimizers
// treat as a tensor of its own.
struct param_part {
    char name[16]; // as in Hugging Face's models that keep it apart: "q_proj"
    int64_t first_row, n_rows;
};
#define PARAM_PARTS_MOST 3

// One tensor. Linear weights are stored as (out, in), as in torch.nn.Linear.
struct param {
    char name[40]; // as in Hugging Face's GPT-2, without "transformer."
    int n_dims;
    int64_t shape[2];
    size_t elements;
    int unit;
    size_t offset; // in elements, from its unit's start; a multiple of PARAM_ALIGNMENT
    enum param_init init;
    // INIT_NORMAL: 0.02, but 0.02 / sqrt(2 n_layer) for projections into the residual stream (GPT-2).
    double std;
    bool decay;                                // weight decay applies: tensors of two or more dimensions
    bool hf_transposed;                        // Hugging Face stores it as (in, out), as its Conv1D does
    int n_parts;                               // 0: the tensor is one layer's
    struct param_part parts[PARAM_PARTS_MOST]; // in order, without gaps
};
#define PARAM_ALIGNMENT 128 // elements

// A unit: the tensors that ZeRO gathers and releases together, as one flat span (FSDP's unit).
struct param_unit {
    int first_param, n_params;
    size_t elements; // with alignment padding: a multiple of PARAM_ALIGNMENT
    size_t offset;   // of the unit in the concatenation of all units
};

// Consecutive tensors of one unit, and the span of elements that they fill: [begin, end) within the unit,
// padding included.
struct param_span {
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
    size_t n_weights;  // the usual parameter count: without padding, the tied lm_head counted once
};

// Fills the table. STATUS_INVALID unless each size is at least 1, n_embd is a multiple of n_head, and no
// count overflows.
enum status params_init(struct params *params, const struct gpt_config *config) MUST_CHECK;
void params_free(struct params *params);
// The index of the tensor with this Hugging Face name (with or without "transformer."), or -1.
int params_find(const struct params *params, const char *name);
struct param_span params_unit(const struct params *params, int unit); // the whole unit
struct param_span params_group(const struct params *params, int unit, enum block_group group); // of a block

// Writes the initial fp32 values of elements [begin, end) of a unit to out[0 ..]; padding gets zero. They are
// a pure function of (seed, tensor, element), so any rank can initialize any span.
void params_init_span(const struct params *params, uint64_t seed, int unit, size_t begin, size_t end,
                      float *out);

// FLOPs per token, forward and backward: 6 P + 6 L C T for P parameters, L layers and sequences of T tokens.
// Causal attention is counted as half of the full square.
double params_flops_per_token(const struct params *params, int T);

#endif
