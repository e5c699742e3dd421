// The parameter table: each tensor's name, shape, unit, offset in its unit, initialization and weight decay.
// Sizing, partitioning, checkpoints, import, export and tests all use this table.
#ifndef ZERO_MODEL_PARAMS_H
#define ZERO_MODEL_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/region.h"
#include "base/status.h"
#include "model/gpt_config.h"

enum param_init { INIT_NORMAL, INIT_ZEROS, INIT_ONES };

// The tensors of unit 0 (embeddings), of each block's unit, and of the last unit (final norm and, if it is
// not tied to wte, lm_head). Not every family or config has all of them: param_unit.index gives their places.
// A layer's bias follows its weight.
enum embedding_param { PARAM_WTE, PARAM_WPE, N_EMBEDDING_PARAMS };
enum block_param {
    PARAM_LN1_WEIGHT, // (C): the norm before attention
    PARAM_LN1_BIAS,
    PARAM_QKV_WEIGHT, // ((H + 2K) D, C): GPT-2's c_attn; q_proj, k_proj and v_proj
    PARAM_QKV_BIAS,
    PARAM_ATTN_PROJ_WEIGHT, // (C, H D): c_proj; o_proj
    PARAM_ATTN_PROJ_BIAS,
    PARAM_LN2_WEIGHT, // (C): the norm before the MLP
    PARAM_LN2_BIAS,
    PARAM_FC_WEIGHT, // (4C, C): c_fc; gate_proj and up_proj, (2F, C)
    PARAM_FC_BIAS,
    PARAM_FC_PROJ_WEIGHT, // (C, 4C): c_proj; down_proj, (C, F)
    PARAM_FC_PROJ_BIAS,
    PARAM_Q_NORM,           // (D)
    PARAM_K_NORM,           // (D)
    PARAM_RESIDUAL_WEIGHT,  // (1): weight of the residual stream, if it is mixed with the token embedding
    PARAM_EMBEDDING_WEIGHT, // (1): weight of the embedding in that mix
    PARAM_VALUE_EMBEDDING,  // (V, K D): a table; the token's row is added to the values
    N_BLOCK_PARAMS
};
enum final_param { PARAM_LNF_WEIGHT, PARAM_LNF_BIAS, PARAM_LM_HEAD, N_FINAL_PARAMS };

// Named rows of a fused tensor: one layer's weight or bias, which other formats and whole-matrix optimizers
// treat as a tensor of its own.
struct param_part {
    char name[16]; // as in Hugging Face models that store it separately: "q_proj"
    int64_t first_row, n_rows;
};
#define PARAM_PARTS_MOST 3

// One tensor. Linear weights are stored as (out, in), as in torch.nn.Linear.
struct param {
    char name[48]; // as in Hugging Face's models, without "transformer." or "model."; of a fused tensor with
                   // parts, "qkv_proj" stands for theirs (params_part_name)
    int n_dims;
    int64_t shape[2];
    size_t elements;
    int unit;
    size_t offset; // in elements, from its unit's start; a multiple of PARAM_ALIGNMENT
    enum param_init init;
    double std;                                // standard deviation for INIT_NORMAL
    bool decay;                                // weight decay applies: tensors of two or more dimensions
    bool is_matrix;                            // of a linear layer inside a block; updated by Muon
    bool is_frozen;                            // keeps its values and has no gradient
    size_t grad_offset;                        // of its gradient in its unit's gradients
    bool hf_transposed;                        // Hugging Face stores it as (in, out), as its Conv1D does
    bool hf_parts;                             // and stores the parts as separate tensors
    int n_parts;                               // 0: the tensor is not fused
    struct param_part parts[PARAM_PARTS_MOST]; // in order, without gaps
};
#define PARAM_ALIGNMENT  128 // elements
#define UNIT_PARAMS_MOST 32  // no unit has more tensors

// A unit: the tensors that ZeRO gathers and releases together, as one flat span (like FSDP's units).
struct param_unit {
    int first_param, n_params;
    size_t elements;                   // including alignment padding; a multiple of PARAM_ALIGNMENT
    size_t offset;                     // offset of the unit if all units are concatenated
    size_t trained, trained_offset;    // elements and offset without frozen tensors: of the gradients
    signed char index[N_BLOCK_PARAMS]; // by enum *_param: the tensor's position in the unit, or -1
};

struct params {
    struct gpt_config config;
    struct param *params;
    int n_params;
    struct param_unit *units; // 0: embeddings; 1 .. n_layer: blocks; n_layer + 1: final norm, untied lm_head
    int n_units;
    size_t n_elements; // sum of the units' elements, padding included
    size_t n_trained;  // the same without frozen tensors
    size_t n_weights;  // the usual parameter count: without padding, a tied lm_head counted once
};

// Fills the table. STATUS_INVALID unless each size is at least 1, heads divide evenly, the family supports
// what the config names, and no count overflows.
enum status params_init(struct params *params, const struct gpt_config *config) MUST_CHECK;
void params_free(struct params *params);
// Computes the offsets of gradients again. Call after is_frozen of some tensors has changed.
void params_lay_out_gradients(struct params *params);
// True if a unit has tensors and all of them are frozen.
static inline bool params_unit_is_frozen(const struct params *params, int unit) {
    return params->units[unit].elements > 0 && params->units[unit].trained == 0;
}
// The end of a tensor in its unit, with the padding behind it.
size_t params_padded_end(const struct params *params, int i);
// The offset, in its unit's gradients, of the gradient of an element of a trained tensor.
size_t params_grad_position(const struct params *params, int unit, size_t element);
// The lowest unit that has a trained tensor: backward ends with it.
int params_lowest_trained(const struct params *params);
// The index of the tensor with this name (with or without "transformer." or "model."), or -1.
int params_find(const struct params *params, const char *name);
// The name of a part of a fused tensor: "layers.0.self_attn.q_proj.weight".
void params_part_name(const struct param *param, int part, char *out, size_t size);
// The tensor `tensor` (enum *_param) of a unit, or NULL if the unit does not have it.
const struct param *params_tensor(const struct params *params, int unit, int tensor);
// The matrix of lm_head: its own, or the token embedding that it is tied to.
const struct param *params_lm_head(const struct params *params);
// The columns of lm_head's products. In GPU memory the vocabulary is padded to a multiple of 128, if that
// adds at most a sixteenth, so that tensor cores get whole tiles.
int params_lm_head_columns(const struct params *params, enum region_place place);
// The number of elements, from a tensor's start, that products access. For lm_head's matrix these are as many
// rows as its products have columns: the rows of the padding are the memory after the matrix. No tensor is
// padded itself. The values read there must be finite and change no result.
size_t params_accessed(const struct params *params, int index, enum region_place place);
// The number of elements of memory for a unit, and for all units one after another. It exceeds the unit (or
// the model) if lm_head's padding reaches beyond its end.
size_t params_unit_memory(const struct params *params, int unit, enum region_place place);
size_t params_memory(const struct params *params, enum region_place place);
// The same for gradients. Only an lm_head with its own matrix has its padding written, with zeros: a tied one
// is followed by other gradients.
size_t params_unit_grad_memory(const struct params *params, int unit, enum region_place place);
size_t params_grad_memory(const struct params *params, enum region_place place);

// True if the tensors of two units begin and end at the same places, and the same ones are frozen.
bool params_same_layout(const struct params *params, int unit, int other);

// Writes the initial fp32 values of elements [begin, end) of a unit to out[0 ..]; padding becomes zero. They
// are a pure function of (seed, tensor, element), so any rank can initialize any span.
void params_init_span(const struct params *params, uint64_t seed, int unit, size_t begin, size_t end,
                      float *out);

// ---- the tensors that a span of a unit overlaps: a rank's shard, a checkpoint's span

// Elements [begin, end) of a unit, never empty: the intersection of a tensor and the span.
struct param_overlap {
    int param; // index of the tensor in params->params
    size_t begin, end;
};

// Iterates over the tensors that overlap elements [begin, end) of `unit`, in order; padding belongs to no
// tensor. Start with a zeroed `overlap`. Each call moves it to the next overlap, and returns false at the
// end.
//
//   for (struct param_overlap it = {0}; params_next_overlap(params, unit, begin, end, &it);)
bool params_next_overlap(const struct params *params, int unit, size_t begin, size_t end,
                         struct param_overlap *overlap);

#endif
