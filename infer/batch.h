// Continuous batching: texts join and leave between decoding steps, each as one sequence of a shared
// generator. A step draws a token for every text whose prompt is processed. Text is released in whole
// characters, and never includes part of a stop string. When a context is full, generation continues from its
// last half.
//
// Determinism: a text depends only on its prompt and options. On the CPU its bits do not depend on the other
// texts; on a GPU rounding may differ with the number of texts in a step (model/generate.h).
#ifndef ZERO_INFER_BATCH_H
#define ZERO_INFER_BATCH_H

#include "data/tokenizer/tokenizer.h"
#include "infer/logprobs.h"
#include "model/generate.h"

enum text_end { TEXT_END_OF_TEXT, TEXT_STOP_STRING, TEXT_LENGTH };

// A token of a text, reported when it is added. An end-of-text that ends the text is reported too.
struct text_token {
    int32_t id;
    bool of_prompt;         // a prompt token; only with prompt_logprobs
    size_t offset, n_bytes; // its bytes in the text; with prompt_logprobs the prompt counts as text
    bool has_logprobs;      // false for a prompt's first token, and when none were asked for
    float logprob;
    int n_top;
    struct token_logprob top[MOST_TOP_LOGPROBS];
};

struct text_options {
    struct sampling sampling;
    double repetition_penalty; // over prompt and text (infer/logprobs.h), before the temperature; 1: none
    int64_t n_tokens;          // limit, without the prompt
    int n_top;                 // log-probabilities of this many most likely ids; -1: none
    bool prompt_logprobs;      // also for the prompt's tokens, which must fit the context
    const char *const *stops;  // (n_stops) strings, or control tokens by name, that end the text
    int n_stops;
    uint64_t first_counter; // token i uses the random number first_counter + i
};

// Callbacks during batch_step. A status other than STATUS_OK ends the step, which returns it.
struct text_events {
    enum status (*token)(void *context, const struct text_token *token); // each token; may be NULL
    // Released bytes of the text: n_bytes > 0, not NUL-terminated. A token's bytes may come later than the
    // token. They never come if a stop string covers them.
    enum status (*write)(void *context, const char *bytes, size_t n_bytes);
    enum status (*end)(void *context, enum text_end why); // last call for the text; its slot is free
    void *context;
};

// True if the token is part of a text of this length. False if a stop string covers the whole token.
bool text_token_is_shown(const struct text_token *token, size_t text_bytes);

struct batch_options {
    struct generator *generator; // bound
    struct stream *stream;
    const struct unit_hooks *hooks;
    const struct tokenizer *tokenizer;
    int vocab_size;           // the model's; ids beyond the tokenizer's are never drawn
    int positions, sequences; // of the generator
    // Rows of one decoding step: at most as many as get the same bits on the device, whatever their number.
    int step_rows;
    int prompt_tokens; // prompt tokens per step, for all texts, in whole GENERATOR_CHUNKs; 0: no limit
    bool host_logits;  // texts may ask for log-probabilities or a repetition penalty
};

struct batch;
struct batch *batch_new(const struct batch_options *options);
void batch_delete(struct batch *batch);
size_t batch_bytes(const struct batch_options *options); // host memory for logits

// Returns step_rows for a device: 32 on a CPU, otherwise `sequences`.
int batch_step_rows(const struct device *device, int sequences);

// Adds a text to a free slot; the caller ensures that one exists. Returns the slot.
//   prompt    (n > 0) copied
//   options   must live, with all that it points to, until the text ends
int batch_add(struct batch *batch, const int32_t *prompt, size_t n, const struct text_options *options,
              struct text_events events);
// Drops a text without calling its events.
void batch_remove(struct batch *batch, int slot);
int batch_n_texts(const struct batch *batch);
size_t batch_n_cached(const struct batch *batch); // cache positions in use by all texts
// Runs one step for all texts.
//   n_drawn  [out] tokens drawn, including end-of-text
enum status batch_step(struct batch *batch, int *n_drawn) MUST_CHECK;

#endif
