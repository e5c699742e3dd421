// Generates texts from prompts: several are decoded together and shown in order. Used by `train generate` and
// for the trainer's samples.
#ifndef ZERO_INFER_SAMPLE_H
#define ZERO_INFER_SAMPLE_H

#include "infer/batch.h"

// A prompt as text and as tokens (tokenizer_encode_prompt).
struct prompt {
    const char *bytes;
    size_t n_bytes;
    struct token_list tokens;
};

struct sample_request {
    const struct tokenizer *tokenizer;
    int vocab_size;               // the model's; may exceed the tokenizer's (padding ids are never drawn)
    int positions, sequences;     // as in the generator's options; `sequences` texts are decoded together
    const struct prompt *prompts; // (n_prompts)
    int64_t n_prompts, n_samples; // n_samples texts per prompt: text i continues prompt i / n_samples
    // The options of every text. But text i has options.first_counter + 2^32 * i as its first_counter, so
    // that its random numbers do not depend on the other texts.
    struct text_options options;
    // Callbacks, called for one text after the other. All but `write` may be NULL.
    //   begin         called when all earlier texts are complete, before the text's other callbacks
    //   write, token  called as in struct text_events, but only once all earlier texts are complete
    //   end           called when the text is complete
    enum status (*begin)(void *context, int64_t text, const struct prompt *prompt);
    enum status (*write)(void *context, const char *bytes, size_t n_bytes);
    enum status (*token)(void *context, const struct text_token *token);
    enum status (*end)(void *context, enum text_end why);
    void *context;
};

// Generates all texts. Each ends at end-of-text, at a stop string or after options.n_tokens new tokens.
//   n_made  [out] number of tokens drawn, over all texts and including end-of-text; may be NULL
enum status sample_run(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                       const struct sample_request *request, int64_t *n_made) MUST_CHECK;

#endif
