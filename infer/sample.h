// Generates texts from prompts: decodes a batch of texts at once, and streams whole UTF-8 characters in the
// order of the texts. When a context is full, generation goes on from its last half. Used by `train generate`
// and for the trainer's samples.
#ifndef ZERO_INFER_SAMPLE_H
#define ZERO_INFER_SAMPLE_H

#include <stdint.h>

#include "base/status.h"
#include "data/tokenizer.h"
#include "model/generate.h"

struct sample_request {
    const struct tokenizer *tokenizer;
    int vocab_size;               // the model's; may exceed the tokenizer's (padding ids are never drawn)
    int positions, sequences;     // the generator's; sequences: the batch, texts that are decoded together
    const char *const *prompts;   // (n_prompts); "" starts from end-of-text
    int64_t n_prompts, n_samples; // n_samples texts per prompt: text i continues prompt i / n_samples
    int64_t n_tokens;             // limit per text, without the prompt
    struct sampling sampling;
    // Text i uses the random numbers from first_counter + 2^32 i on, so it does not depend on the other
    // texts.
    uint64_t first_counter;
    // begin (may be NULL) is called when a text starts. write receives the text without its prompt, a
    // few bytes at a time, as soon as they are generated and all earlier texts are complete. n_bytes > 0; not
    // NUL-terminated.
    enum status (*begin)(void *context, int64_t text, const char *prompt);
    enum status (*write)(void *context, const char *bytes, size_t n_bytes);
    void *context;
};

// Generates all texts. Each ends after n_tokens or at end-of-text.
//   n_made  [out] tokens drawn, end-of-text included; may be NULL
enum status sample_run(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                       const struct sample_request *request, int64_t *n_made) MUST_CHECK;
// Appends to the list the tokens that a context of this prompt begins with. STATUS_INVALID if one of them is
// outside the model's vocabulary.
enum status sample_encode(const struct tokenizer *tokenizer, int vocab_size, const char *prompt,
                          struct token_list *list) MUST_CHECK;

#endif
