// A request that is being answered, and its answer in OpenAI's JSON: whole, or as server-sent events.
#ifndef ZERO_CLI_SERVE_ANSWER_H
#define ZERO_CLI_SERVE_ANSWER_H

#include "cli/serve/http.h"
#include "cli/serve/metrics.h"
#include "cli/serve/request.h"

enum choice_state { CHOICE_WAITS, CHOICE_RUNS, CHOICE_ENDED };

struct completion;

// One text of a request.
struct choice {
    struct completion *completion;
    int index;
    enum choice_state state;
    int slot; // in the batch, while it runs
    struct text_options options;
    struct text text;          // released so far, without the prompt
    struct text_token *tokens; // with log-probabilities; of the prompt first
    size_t n_tokens, capacity;
    int64_t n_drawn; // tokens, without end-of-text
    enum text_end why;
    // Streamed so far: bytes of the text, tokens, and characters of the answer's text.
    size_t n_streamed, n_streamed_tokens, n_characters;
    bool began; // the prompt was echoed
};

struct completion {
    struct exchange *exchange;
    const struct tokenizer *tokenizer;
    struct metrics *metrics;
    const char *model;
    struct request request;
    struct choice *choices; // (n_choices): choice i continues prompt i / n
    int n_choices, n_ended;
    int64_t n_prompt_tokens, created_s;
    uint64_t id;
    bool has_token;
    struct completion *next;
};

// Answers that are whole from the start. They are counted in the metrics, and release the exchange.
void answer_error(struct exchange *exchange, struct metrics *metrics, const struct api_error *error);
void answer_bytes(struct exchange *exchange, struct metrics *metrics, const char *type, const char *bytes,
                  size_t n_bytes);
void answer_text(struct exchange *exchange, struct metrics *metrics, const char *type,
                 struct text *body); // frees the text

// Releases the exchange too, if there is one.
void completion_delete(struct completion *completion);
enum status answer_keep_token(struct choice *choice, const struct text_token *token) MUST_CHECK;
// The answer of a request whose texts are complete.
void answer_whole(struct completion *completion, struct text *out);

// The same, piece by piece: begin; a piece whenever a choice has more text, and its end; then finish or cut,
// which release the exchange.
void answer_stream_begin(struct completion *completion);
enum status answer_stream_piece(struct choice *choice) MUST_CHECK;
enum status answer_stream_end(struct choice *choice) MUST_CHECK;
void answer_stream_finish(struct completion *completion);
void answer_stream_cut(struct completion *completion, const struct api_error *error);

#endif
