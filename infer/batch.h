// Continuous batching: texts join and leave between decoding steps, each in a sequence of one generator. A
// step draws a token for every text whose prompt is processed. Text is released in whole characters, and
// never part of a stop string. When a context is full, generation goes on from its last half.
//
// Determinism: a text depends on its prompt and options only. On the CPU that holds to the bit, whatever the
// other texts are; on a GPU rounding may differ with the number of texts in a step (model/generate.h).
#ifndef ZERO_INFER_BATCH_H
#define ZERO_INFER_BATCH_H

#include "data/tokenizer/tokenizer.h"
#include "infer/logprobs.h"
#include "model/generate.h"

enum text_end { TEXT_END_OF_TEXT, TEXT_STOP_STRING, TEXT_LENGTH };

// A token of a text, as it is added. The end-of-text that ends one is a token like others.
struct text_token {
    int32_t id;
    bool of_prompt;         // only with prompt_logprobs
    size_t offset, n_bytes; // what it shows of the text, which with prompt_logprobs begins with the prompt
    bool has_logprobs;      // false for a prompt's first token, and when none were asked for
    float logprob;
    int n_top;
    struct token_logprob top[MOST_TOP_LOGPROBS];
};

struct text_options {
    struct sampling sampling;
    double repetition_penalty; // over prompt and text (infer/logprobs.h), before the temperature; 1: none
    int64_t n_tokens;          // limit, without the prompt
    int n_top;                 // log-probabilities of this many ids of the model; -1: no log-probabilities
    bool prompt_logprobs;      // also of the prompt's tokens, which must fit the context
    const char *const *stops;  // (n_stops) strings, or control tokens by name, that end the text
    int n_stops;
    uint64_t first_counter; // token i uses the random number first_counter + i
};

// Called during batch_step. A status other than STATUS_OK ends the step with it.
struct text_events {
    enum status (*token)(void *context, const struct text_token *token); // each token; may be NULL
    // Released bytes of the text: n_bytes > 0, not NUL-terminated. All bytes of a token may come later than
    // the token, or never, when a stop string covers them.
    enum status (*write)(void *context, const char *bytes, size_t n_bytes);
    enum status (*end)(void *context, enum text_end why); // the text's last call; its slot is free
    void *context;
};

// Whether the token is part of a text of this length: not one that a stop string covers whole.
bool text_token_is_shown(const struct text_token *token, size_t text_bytes);

struct batch_options {
    struct generator *generator; // bound
    struct stream *stream;
    const struct unit_hooks *hooks;
    const struct tokenizer *tokenizer;
    int vocab_size;           // the model's; ids beyond the tokenizer's are never drawn
    int positions, sequences; // the generator's
    // Rows of one decoding step: at most the number up to which the device gives every row the same bits.
    int step_rows;
    int prompt_tokens; // of all prompts in a step, in whole GENERATOR_CHUNKs; 0: no limit
    bool host_logits;  // texts may ask for log-probabilities or a repetition penalty
};

struct batch;
struct batch *batch_new(const struct batch_options *options);
void batch_delete(struct batch *batch);
size_t batch_bytes(const struct batch_options *options); // host memory for logits

// Step rows for a device: 32 on a CPU, otherwise `sequences`.
int batch_step_rows(const struct device *device, int sequences);

// Adds a text in a free slot, of which there must be one. The prompt (n > 0) is copied; `options` and what it
// points to must live until the end of the text. Returns the slot.
int batch_add(struct batch *batch, const int32_t *prompt, size_t n, const struct text_options *options,
              struct text_events events);
// Drops a text, without a call of its events.
void batch_remove(struct batch *batch, int slot);
int batch_n_texts(const struct batch *batch);
size_t batch_n_cached(const struct batch *batch); // positions that the texts hold in the cache
// One step of all texts.
//   n_drawn  [out] tokens drawn, end-of-text included
enum status batch_step(struct batch *batch, int *n_drawn) MUST_CHECK;

#endif
