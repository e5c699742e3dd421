// Continuous batching: texts join and leave between decoding steps, each as one sequence of a shared
// generator. A step draws a token for every text whose prompt has been processed. The caller receives whole
// UTF-8 characters, and never a stop string: bytes that may become part of one are held back. When the
// cache has no room for a text's next tokens, generation continues from the text's last positions / 2
// tokens.
//
// Determinism: on the CPU, a text does not depend on the other texts in the batch, bit for bit. On a GPU,
// rounding may differ with the number of texts in a step (model/generate.h), and occasionally change a
// token.
#ifndef ZERO_INFER_BATCH_H
#define ZERO_INFER_BATCH_H

#include "data/tokenizer/tokenizer.h"
#include "infer/logprobs.h"
#include "model/generate.h"

enum text_end { TEXT_END_OF_TEXT, TEXT_STOP_STRING, TEXT_LENGTH };

// A token of a text, reported when it is added. An end-of-text that ends the text is reported too.
struct text_token {
    int32_t id;
    bool of_prompt; // a token of the prompt; these are reported only with text_options.prompt_logprobs
    // The token adds n_bytes bytes to the text, from byte `offset` on. If prompt tokens are reported, the
    // text begins with the prompt.
    size_t offset, n_bytes;
    // False: `logprob` and `top` are not set, because the token is the first of a prompt, or because no
    // log-probabilities are requested.
    bool has_logprobs;
    float logprob; // natural logarithm of the token's probability
    int n_top;
    struct token_logprob top[MOST_TOP_LOGPROBS]; // (n_top) the most likely tokens, most likely first
};

struct text_options {
    struct sampling sampling;
    // Penalty for tokens that occur in the prompt or the text (penalize_repetition), applied to the logits
    // before the temperature. 1: none
    double repetition_penalty;
    int64_t n_tokens; // maximum number of new tokens
    // -1: report no log-probabilities. 0 or more: report that of each new token, and those of the n_top
    // tokens that are most likely at its position.
    int n_top;
    bool prompt_logprobs; // also report the prompt's tokens, which must fit into the context
    // (n_stops) Strings that end the text. A control token also ends it, if its name is one of them.
    const char *const *stops;
    int n_stops;
    uint64_t first_counter; // new token i (from 0) is drawn with the seed's random number first_counter + i
};

// Callbacks for one text, called by batch_step. If one returns another status than STATUS_OK, batch_step
// stops and returns it.
struct text_events {
    // Called for each token. May be NULL.
    enum status (*token)(void *context, const struct text_token *token);
    // Receives the next bytes of the text: n_bytes > 0, not NUL-terminated. A token's bytes may be passed
    // later than the token, or never, if they belong to a stop string.
    enum status (*write)(void *context, const char *bytes, size_t n_bytes);
    // Called last, when the text has ended. Its slot is free already.
    enum status (*end)(void *context, enum text_end why);
    void *context;
};

// True if the token begins within the first text_bytes bytes of its text; a token without bytes may also be
// at their end. For a complete text of this length, false means that a stop string covers the whole token.
bool text_token_is_shown(const struct text_token *token, size_t text_bytes);

struct batch_options {
    struct generator *generator; // already bound (generator_bind)
    struct stream *stream;
    const struct unit_hooks *hooks;
    const struct tokenizer *tokenizer;
    int vocab_size;           // the model's; ids beyond the tokenizer's are never drawn
    int positions, sequences; // as in the generator's options
    // Maximum number of texts that one pass of the model decodes; a step does as many passes as needed. Set
    // it to batch_step_rows.
    int step_rows;
    // Maximum number of prompt tokens per step, over all texts; a multiple of GENERATOR_CHUNK. 0: no limit
    int prompt_tokens;
    bool host_logits; // required if any text asks for log-probabilities or a repetition penalty
};

struct batch;
struct batch *batch_new(const struct batch_options *options);
void batch_delete(struct batch *batch);
// Returns the bytes of host memory that batch_new allocates for logits.
size_t batch_bytes(const struct batch_options *options);

// Returns the value for batch_options.step_rows: `sequences`, but at most 32 on a CPU. Up to 32 rows, each
// row of a pass is bit for bit the same for any number of rows.
int batch_step_rows(const struct device *device, int sequences);

// Adds a text to a free slot; the caller ensures that there is one. Returns the slot's index.
//   prompt    (n > 0) copied
//   options   must live, with all that it points to, until the text ends
int batch_add(struct batch *batch, const int32_t *prompt, size_t n, const struct text_options *options,
              struct text_events events);
// Drops a text without calling its events.
void batch_remove(struct batch *batch, int slot);
int batch_n_texts(const struct batch *batch);
size_t batch_n_cached(const struct batch *batch); // key-value cache positions in use, summed over the texts
// Runs one step for all texts.
//   n_drawn  [out] number of tokens drawn, over all texts and including end-of-text
enum status batch_step(struct batch *batch, int *n_drawn) MUST_CHECK;

#endif
