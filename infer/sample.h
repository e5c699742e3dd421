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
    int positions, sequences;     // of the generator; sequences: texts decoded together
    const struct prompt *prompts; // (n_prompts)
    int64_t n_prompts, n_samples; // n_samples texts per prompt: text i continues prompt i / n_samples
    // Text i uses the random numbers from options.first_counter + 2^32 i on, so it does not depend on other
    // texts.
    struct text_options options;
    // Called in the order of the texts. All but `write` may be NULL.
    //   begin         when a text starts
    //   write, token  as in struct text_events, once all earlier texts are complete
    //   end           when the text is complete
    enum status (*begin)(void *context, int64_t text, const struct prompt *prompt);
    enum status (*write)(void *context, const char *bytes, size_t n_bytes);
    enum status (*token)(void *context, const struct text_token *token);
    enum status (*end)(void *context, enum text_end why);
    void *context;
};

// Generates all texts. Each ends at end-of-text, at a stop string or after options.n_tokens.
//   n_made  [out] tokens drawn, including end-of-text; may be NULL
enum status sample_run(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                       const struct sample_request *request, int64_t *n_made) MUST_CHECK;

#endif
