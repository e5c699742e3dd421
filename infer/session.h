// A trained model for inference. Finds its weights and tokenizer, and loads them onto a device. For commands
// that do not train.
#ifndef ZERO_INFER_SESSION_H
#define ZERO_INFER_SESSION_H

#include "data/tokenizer/tokenizer.h"
#include "infer/weights.h"
#include "kernels/region_memory.h"
#include "model/generate.h"
#include "model/unsharded.h"

struct session {
    struct weights weights; // the source; open until session_load
    struct params params;
    struct device *device;
    struct stream stream;
    enum dtype type;
    struct region_memory memory;
    struct tokenizer *tokenizer;        // NULL: none was given or found with the weights
    struct tokenizer_identity identity; // of the tokenizer; n_ids 0: none
    bool masks_documents;   // trained with data.mask_documents; for gpt_options and generator_options
    int32_t document_start; // the token that begins a document of such a model; -1: of another model
    struct unsharded unsharded;
    struct unit_hooks hooks; // hooks of `unsharded`
    char *span;              // all units, in `type`
    int span_region;
};

struct session_options {
    const char *path;      // a run, a checkpoint or another program's weights (infer/weights.h)
    const char *device;    // like the option `device`
    int64_t threads;       // like run.threads
    const char *tokenizer; // "" or NULL: the weights' own tokenizer; a different one is refused
    const char *weights;   // "average", "latest" or NULL, as in weights_choose
    bool needs_tokenizer;  // STATUS_INVALID without one
};

// Usage: session_open; add regions to session->memory.table (gpt_new, generator_new); session_load; bind them
// (gpt_bind, generator_bind). session_open opens the weights, the tokenizer and the device. session_load
// allocates the table's memory and reads the weights. Call session_close also after a failure of either.
enum status session_open(struct session *session, const struct session_options *options) MUST_CHECK;
enum status session_load(struct session *session) MUST_CHECK;
// For generating text: adds a generator, loads the weights and binds the generator. The caller deletes the
// generator, also after a failure.
enum status session_load_generator(struct session *session, const struct generator_options *options,
                                   struct generator **generator) MUST_CHECK;
void session_close(struct session *session);

#endif
