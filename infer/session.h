// A trained model, loaded for commands that do not train: its weights on a device, and its tokenizer.
#ifndef ZERO_INFER_SESSION_H
#define ZERO_INFER_SESSION_H

#include "data/tokenizer/tokenizer.h"
#include "infer/weights.h"
#include "kernels/region_memory.h"
#include "model/generate.h"
#include "model/unsharded.h"

struct session {
    struct weights weights; // where the weights are read from; session_load closes it
    struct params params;
    struct device *device;
    struct stream stream;
    enum dtype type; // compute dtype: a checkpoint's own; fp32 for another program's weights
    struct region_memory memory;
    struct tokenizer *tokenizer;        // NULL: none is given, and the weights have none
    struct tokenizer_identity identity; // identity of `tokenizer`; n_ids is 0 without one
    // True if the model was trained with data.mask_documents. The caller passes this value on as the member
    // mask_documents of gpt_options or generator_options.
    bool masks_documents;
    int32_t document_start; // id of the token that begins a document; -1 without masks_documents
    struct unsharded unsharded;
    struct unit_hooks hooks; // hooks of `unsharded`
    char *span;              // the parameters of all units, one unit after another, in `type`
    int span_region;         // index of the region of `span` in memory.table
};

struct session_options {
    const char *path;   // a run, a checkpoint or another program's weights (infer/weights.h)
    const char *device; // auto, cpu or cuda, as in the option `device`
    int64_t threads;    // CPU threads, as in the option run.threads; 0: the default
    // Path of a tokenizer; "" or NULL: the weights' own. If the weights have a different one, session_open
    // fails with STATUS_INVALID.
    const char *tokenizer;
    const char *weights;  // "average", "latest" or NULL, as in weights_choose
    bool needs_tokenizer; // session_open fails with STATUS_INVALID if there is no tokenizer
};

// Usage: session_open; add regions to session->memory.table (gpt_new, generator_new); session_load; bind them
// (gpt_bind, generator_bind). session_open opens the weights, the tokenizer and the device. session_load
// allocates the table's memory and reads the weights. Call session_close also after a failure of either.
enum status session_open(struct session *session, const struct session_options *options) MUST_CHECK;
enum status session_load(struct session *session) MUST_CHECK;
// Does all that is needed for generating text after session_open: adds a generator's regions, calls
// session_load, and binds the generator. The caller deletes the generator, also after a failure.
enum status session_load_generator(struct session *session, const struct generator_options *options,
                                   struct generator **generator) MUST_CHECK;
void session_close(struct session *session);

#endif
