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
// not tied to wte, lm_head). Not every family or config has all of them: param_unit.index gives the
// position of each in its unit. A layer's bias follows its weight. In the shapes: C = n_embd, H = n_head, K
// = n_kv_head, D = head_dim, F = intermediate_size, V = vocab_size.
enum embedding_param { PARAM_WTE, PARAM_WPE, N_EMBEDDING_PARAMS };
enum block_param {
    PARAM_LN1_WEIGHT, // (C): the norm before attention
    PARAM_LN1_BIAS,
    PARAM_QKV_WEIGHT, // ((H + 2K) D, C): GPT-2's c_attn; other families' q_proj, k_proj and v_proj
    PARAM_QKV_BIAS,
    PARAM_ATTN_PROJ_WEIGHT, // (C, H D): GPT-2's attn.c_proj; other families' o_proj
    PARAM_ATTN_PROJ_BIAS,
    PARAM_LN2_WEIGHT, // (C): the norm before the MLP
    PARAM_LN2_BIAS,
    PARAM_FC_WEIGHT, // (F, C): GPT-2's c_fc; modern's up_proj. (2F, C): Llama's gate_proj and up_proj
    PARAM_FC_BIAS,
    PARAM_FC_PROJ_WEIGHT, // (C, F): GPT-2's mlp.c_proj; other families' down_proj
    PARAM_FC_PROJ_BIAS,
    PARAM_Q_NORM,           // (D): norm of each query head
    PARAM_K_NORM,           // (D): norm of each key head
    PARAM_RESIDUAL_WEIGHT,  // (1): weight of the residual stream in its mix with the token embedding
    PARAM_EMBEDDING_WEIGHT, // (1): weight of the token embedding in that mix
    PARAM_VALUE_EMBEDDING,  // (V, K D): a table; the token's row is added to the values
    N_BLOCK_PARAMS
};
enum final_param { PARAM_LNF_WEIGHT, PARAM_LNF_BIAS, PARAM_LM_HEAD, N_FINAL_PARAMS };

// A part of a fused tensor: the rows that are the weight or bias of one linear layer, such as q_proj. Muon
// treats each part as a matrix of its own. Where param.hf_parts is set, Hugging Face and GGUF files store
// each part as a tensor of its own.
struct param_part {
    char name[16]; // the linear layer's name in the Llama family's Hugging Face models: "q_proj"
    int64_t first_row, n_rows;
};
#define PARAM_PARTS_MOST 3

// One tensor. Linear weights are stored as (out, in), as in torch.nn.Linear.
struct param {
    // The name in Hugging Face's models, without "transformer." or "model.". With hf_parts, the name has
    // "qkv_proj" or "gate_up_proj" in place of the parts' names, such as "q_proj" (params_part_name).
    char name[48];
    int n_dims;
    int64_t shape[2];
    size_t elements;
    int unit;      // the number of its unit
    size_t offset; // in elements, from its unit's start; a multiple of PARAM_ALIGNMENT
    enum param_init init;
    double std;                                // standard deviation for INIT_NORMAL
    bool decay;                                // weight decay applies: true for tensors of two dimensions
    bool is_matrix;                            // weight of a linear layer in a block: what Muon updates
    bool is_frozen;                            // keeps its values and has no gradient
    size_t grad_offset;                        // start of its gradient in its unit's gradients, in elements
    bool hf_transposed;                        // Hugging Face stores it as (in, out), as its Conv1D does
    bool hf_parts;                             // Hugging Face stores the parts as separate tensors
    int n_parts;                               // 0: the tensor is not fused
    struct param_part parts[PARAM_PARTS_MOST]; // in order of rows, without gaps
};
#define PARAM_ALIGNMENT  128 // elements
#define UNIT_PARAMS_MOST 32  // maximum number of tensors per unit

// A unit: the tensors that ZeRO gathers and releases together, as one flat span (like FSDP's units).
struct param_unit {
    int first_param, n_params;
    size_t elements;                   // including alignment padding; a multiple of PARAM_ALIGNMENT
    size_t offset;                     // its start in elements, if all units are concatenated
    size_t trained, trained_offset;    // `elements` and `offset` of its gradients: frozen tensors have none
    signed char index[N_BLOCK_PARAMS]; // by enum *_param: the tensor's position in the unit, or -1
};

struct params {
    struct gpt_config config;
    struct param *params;
    int n_params;
    struct param_unit *units; // 0: embeddings; 1 .. n_layer: blocks; n_layer + 1: final norm, untied lm_head
    int n_units;
    size_t n_elements; // sum of the units' elements, padding included
    size_t n_trained;  // n_elements without those of frozen tensors
    size_t n_weights;  // the usual parameter count: without padding, a tied lm_head counted once
};

// Fills the table, and the defaults in its config. STATUS_INVALID: gpt_config_check refuses the config.
enum status params_init(struct params *params, const struct gpt_config *config) MUST_CHECK;
void params_free(struct params *params);
// Computes the offsets of gradients again. Call after is_frozen of some tensors has changed.
void params_lay_out_gradients(struct params *params);
// True if a unit has tensors and all of them are frozen.
static inline bool params_unit_is_frozen(const struct params *params, int unit) {
    return params->units[unit].elements > 0 && params->units[unit].trained == 0;
}
// Returns where tensor i and the padding after it end: an offset in its unit, in elements.
size_t params_padded_end(const struct params *params, int i);
// Returns the offset of an element's gradient in its unit's gradients.
//   element  its offset in the unit; it must belong to a trained tensor
size_t params_grad_position(const struct params *params, int unit, size_t element);
// Returns the lowest unit that has a trained tensor. Backward ends with this unit.
int params_lowest_trained(const struct params *params);
// Returns the index of the tensor with this name (with or without "transformer." or "model."), or -1.
int params_find(const struct params *params, const char *name);
// Writes the name of a part of a fused tensor to `out`: "layers.0.self_attn.q_proj.weight".
void params_part_name(const struct param *param, int part, char *out, size_t size);
// Returns the tensor `tensor` (enum *_param) of a unit, or NULL if the unit does not have it.
const struct param *params_tensor(const struct params *params, int unit, int tensor);
// Returns the matrix of lm_head: its own, or the token embedding that it is tied to.
const struct param *params_lm_head(const struct params *params);
// Returns how many logits lm_head's product computes per position: the vocabulary and its padding. On a GPU
// the vocabulary is padded to a multiple of 128, so that tensor cores get whole tiles, unless that adds
// more than a sixteenth.
int params_lm_head_columns(const struct params *params, enum region_place place);
// Returns how many elements products access from a tensor's start on. For lm_head's matrix, products access
// params_lm_head_columns rows. The rows of the padding are not part of the tensor: they are in the memory
// after it. The values there must be finite; they change no result.
size_t params_accessed(const struct params *params, int index, enum region_place place);
// Return the memory, in elements, for the tensors of one unit, or for all units one after another. It is
// more than param_unit.elements (for all units: params.n_elements) if the rows of lm_head's padding reach
// beyond the end of the unit (of the last unit).
size_t params_unit_memory(const struct params *params, int unit, enum region_place place);
size_t params_memory(const struct params *params, enum region_place place);
// Return the memory, in elements, for the gradients of one unit, or of all units. Products write gradients
// (zeros) of the padding's rows only if lm_head has its own matrix: other gradients may follow that of a
// tied one.
size_t params_unit_grad_memory(const struct params *params, int unit, enum region_place place);
size_t params_grad_memory(const struct params *params, enum region_place place);

// True if the tensors of two units begin and end at the same offsets, and the same tensors are frozen.
bool params_same_layout(const struct params *params, int unit, int other);

// Writes the initial fp32 values of elements [begin, end) of a unit to out[0 ..]; padding becomes zero. A
// value is a pure function of (seed, tensor, element), so any rank can initialize any span.
void params_init_span(const struct params *params, uint64_t seed, int unit, size_t begin, size_t end,
                      float *out);

// ---- iteration over the tensors that overlap a span of a unit

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
