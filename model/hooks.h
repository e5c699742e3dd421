// The hooks through which a model gets its parameters and delivers its gradients. A ZeRO stage implements
// them (zero/stages); inference implements them for weights that are all in memory (model/unsharded.h). The
// model itself knows nothing of ranks or shards.
#ifndef ZERO_MODEL_HOOKS_H
#define ZERO_MODEL_HOOKS_H

#include <stdbool.h>

#include "base/status.h"
#include "kernels/device.h"
#include "model/params.h"

// What a unit is acquired for. GPT_BACKWARD_FROZEN: backward of a unit without trained tensors, which needs
// its parameters only. GPT_BACKWARD_GRADS: its gradients only (the second contribution to the embeddings'
// gradients reads no parameters).
enum gpt_pass { GPT_FORWARD, GPT_BACKWARD, GPT_BACKWARD_FROZEN, GPT_BACKWARD_GRADS };
static inline bool gpt_pass_adds_grads(enum gpt_pass pass) {
    return pass == GPT_BACKWARD || pass == GPT_BACKWARD_GRADS;
}

// An acquired unit: the address of each of its tensors, by the tensor's index in the unit (enum *_param).
// Tensors need not be adjacent. But params_accessed elements from the start of each tensor must be readable
// and, for the gradient of an untied lm_head, writable.
struct unit_view {
    void *const *params; // in the compute type; NULL with GPT_BACKWARD_GRADS
    void *const *grads;  // fp32 gradients, to be added to, where gpt_pass_adds_grads; not of frozen tensors
    // The first micro-batch in this buffer (beta = 0). The gradients then hold arbitrary values, and the
    // first contribution to each tensor overwrites them. The padding between tensors always holds zeros.
    bool beta_zero;
};
// The address of a tensor of the view, or of its gradient.
static inline void *param_of(const struct unit_view *view, int index) {
    return view->params[index];
}
static inline void *grad_of(const struct unit_view *view, int index) {
    return view->grads[index];
}

// The passes over a model's units. A pass of one kind always acquires and releases in the same order
// (model/trace.h).
enum trace_kind {
    TRACE_TRAINING,
    TRACE_EVALUATION,
    TRACE_PROMPT,   // generation: several tokens of one sequence, no logits
    TRACE_DECODING, // generation: one token of each sequence, and the logits of the next
    N_TRACES
};

// The functions that a ZeRO stage implements. `stream` is the stream of the pass.
//
// Passes: the model calls `begin` at the start of each. A pass that has begun runs to its end, or fails.
//
// Units: the model calls params_acquire before and params_release after it uses a unit; the view stays valid
// in between. At most two units are held at a time (lm_head needs the embeddings, too). grads_ready is called
// once per backward pass and unit that has a trained tensor: after the last contribution to its gradients,
// before its release. Backward ends with the lowest such unit. The embeddings' gradients receive two
// contributions (lm_head, then tokens) and must persist from the first acquire until grads_ready.
struct unit_hooks {
    void *context;
    enum status (*begin)(void *context, enum trace_kind kind); // NULL: not needed
    enum status (*params_acquire)(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                                  struct unit_view *view);
    enum status (*params_release)(void *context, struct stream *stream, int unit, enum gpt_pass pass);
    enum status (*grads_ready)(void *context, struct stream *stream, int unit); // training only
};

// For code that makes views: the address of a tensor in a unit that begins at `unit`.
static inline void *tensor_at(const struct param *tensor, const void *unit, enum dtype type) {
    return (void *)((uintptr_t)unit + tensor->offset * dtype_size(type));
}

#endif
