// The hooks through which a model gets its parameters and delivers its gradients. A ZeRO stage implements
// them (zero/stages); inference implements them for weights that are all in memory (model/unsharded.h). The
// model itself knows nothing of ranks or shards.
#ifndef ZERO_MODEL_HOOKS_H
#define ZERO_MODEL_HOOKS_H

#include <stdbool.h>

#include "base/status.h"
#include "kernels/device.h"
#include "model/params.h"

// What a unit is acquired for, and what the pass then needs of it.
enum gpt_pass {
    GPT_FORWARD,         // its parameters
    GPT_BACKWARD,        // its parameters and gradients
    GPT_BACKWARD_FROZEN, // its parameters; none of its tensors is trained
    GPT_BACKWARD_GRADS   // only its gradients, to add the tokens' contribution to the embeddings' gradients
};
static inline bool gpt_pass_adds_grads(enum gpt_pass pass) {
    return pass == GPT_BACKWARD || pass == GPT_BACKWARD_GRADS;
}

// An acquired unit: the address of each of its tensors, by the tensor's position in the unit
// (param_unit.index). Tensors need not be adjacent. From the start of each tensor, as many elements as
// params_accessed returns must be readable. From the start of the gradient of an untied lm_head's matrix,
// the same number of elements must be writable.
struct unit_view {
    void *const *params; // in the compute type; NULL with GPT_BACKWARD_GRADS
    void *const *grads;  // fp32 gradients to add to, if gpt_pass_adds_grads; frozen tensors have none
    // True if the gradients hold arbitrary values, because nothing of this step has been added to them yet
    // (beta = 0). The first contribution to each tensor then overwrites them. The padding between gradients
    // always holds zeros.
    bool beta_zero;
};
// The address of a tensor of the view, or of its gradient.
static inline void *param_of(const struct unit_view *view, int index) {
    return view->params[index];
}
static inline void *grad_of(const struct unit_view *view, int index) {
    return view->grads[index];
}

// The passes over a model's units. All passes of one kind acquire and release units in the same order
// (model/trace.h).
enum trace_kind {
    TRACE_TRAINING,
    TRACE_EVALUATION,
    TRACE_PROMPT,   // generation: several tokens of one sequence, no logits
    TRACE_DECODING, // generation: one token of each sequence, and the logits of the next tokens
    N_TRACES
};

// The functions that a ZeRO stage implements. `stream` is the stream of the pass.
//
// Passes: the model calls `begin` at the start of each. A pass that has begun runs to its end, or fails.
//
// Units: the model calls params_acquire before it uses a unit and params_release afterwards; the view stays
// valid in between. Only one unit is held at a time, except if lm_head is tied: then the embeddings are
// held together with the last unit.
//
// Gradients: backward calls grads_ready once for each unit that has a trained tensor, after the last
// contribution to its gradients and before its release. Backward ends with the lowest such unit. With a
// tied lm_head, the embeddings' gradients receive two contributions, from lm_head and from the tokens. They
// must persist from the first acquire until grads_ready.
struct unit_hooks {
    void *context;
    enum status (*begin)(void *context, enum trace_kind kind); // NULL: not called
    enum status (*params_acquire)(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                                  struct unit_view *view);
    enum status (*params_release)(void *context, struct stream *stream, int unit, enum gpt_pass pass);
    enum status (*grads_ready)(void *context, struct stream *stream, int unit); // training only
};

// For code that fills views: returns the address of a tensor in a unit whose memory begins at `unit`.
static inline void *tensor_at(const struct param *tensor, const void *unit, enum dtype type) {
    return (void *)((uintptr_t)unit + tensor->offset * dtype_size(type));
}

#endif
