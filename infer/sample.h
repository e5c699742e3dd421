// Text from a model, as it is made: prompts in, tokens drawn one by one for a batch of texts at once, whole
// UTF-8 characters out, in the order of the texts. When a context is full, its last half is kept and the rest
// forgotten. Shared by `train generate` and the trainer's samples.
#ifndef ZERO_INFER_SAMPLE_H
#define ZERO_INFER_SAMPLE_H

#include <stdint.h>

#include "base/status.h"
#include "data/tokenizer.h"
#include "model/generate.h"

struct sample_request {
    const struct tokenizer *tokenizer;
    int vocab_size; // of the model; may be larger than the tokenizer's (padding ids are never drawn)
    int positions, sequences;     // of the generator; sequences: texts that are made side by side
    const char *const *prompts;   // (n_prompts); "" starts from end-of-text
    int64_t n_prompts, n_samples; // n_samples texts of each prompt, one prompt after the other
    int64_t n_tokens;             // at most, after the prompt
    struct sampling sampling;
    // Text i draws with the counters from first_counter + 2^32 i on: its draws depend on nothing else.
    uint64_t first_counter;
    // A text begins (may be NULL); then its pieces, the prompt not included, as soon as they are made and all
    // earlier texts are complete. Never with 0 bytes. Not NUL-terminated.
    enum status (*begin)(void *context, int64_t text, const char *prompt);
    enum status (*write)(void *context, const char *bytes, size_t n_bytes);
    void *context;
};

// Each text ends after n_tokens or at end-of-text. *n_made, if not NULL, gets the tokens drawn (end-of-text
// included).
enum status sample_run(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                       const struct sample_request *request, int64_t *n_made) MUST_CHECK;
// Checks a prompt, and gives the tokens that a context begins with (added to the list).
enum status sample_encode(const struct tokenizer *tokenizer, int vocab_size, const char *prompt,
                          struct token_list *list) MUST_CHECK;

#endif
