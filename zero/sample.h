// Text from a model, as it is made: prompt in, tokens drawn one by one, whole UTF-8 characters out. When the
// context is full, its last half is kept and the rest forgotten. Shared by `train generate` and the trainer's
// samples.
#ifndef ZERO_ZERO_SAMPLE_H
#define ZERO_ZERO_SAMPLE_H

#include <stdint.h>

#include "base/status.h"
#include "data/tokenizer.h"
#include "model/generate.h"

struct sample_request {
    const struct tokenizer *tokenizer;
    int vocab_size;     // of the model; may be larger than the tokenizer's (padding ids are never drawn)
    int positions;      // of the generator
    const char *prompt; // "" starts from end-of-text
    int64_t n_tokens;   // at most, after the prompt
    struct sampling sampling;
    uint64_t first_counter; // of the draws: keep samples of one seed apart by 2^32
    // Gets the text piece by piece, the prompt not included. May be called with 0 bytes never. Not
    // NUL-terminated.
    enum status (*write)(void *context, const char *bytes, size_t n_bytes);
    void *context;
};

// Stops after n_tokens or at end-of-text. *n_made, if not NULL, gets the tokens drawn (end-of-text included).
enum status sample_run(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                       const struct sample_request *request, int64_t *n_made) MUST_CHECK;

#endif
