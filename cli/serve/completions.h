// The requests for completions that are not answered yet: their texts wait in a queue, join the batch when a
// sequence is free, and leave it when they end, their client leaves, or their time is over. Answers are
// OpenAI's JSON: whole, or as server-sent events.
#ifndef ZERO_CLI_SERVE_COMPLETIONS_H
#define ZERO_CLI_SERVE_COMPLETIONS_H

#include "cli/serve/http.h"
#include "cli/serve/metrics.h"
#include "cli/serve/request.h"

// Answers that are whole from the start. They are counted in the metrics, and release the exchange.
void answer_error(struct exchange *exchange, struct metrics *metrics, const struct api_error *error);
void answer_bytes(struct exchange *exchange, struct metrics *metrics, const char *type, const char *bytes,
                  size_t n_bytes);
void answer_text(struct exchange *exchange, struct metrics *metrics, const char *type,
                 struct text *body); // frees the text

struct completions_options {
    struct batch *batch;
    int slots; // of the batch
    struct request_limits limits;
    int max_queue;     // texts that wait
    double deadline_s; // for a request, from its arrival
    uint64_t seed;     // for requests without one
    struct metrics *metrics;
};

struct completions;
enum status completions_new(const struct completions_options *options, struct completions **out) MUST_CHECK;
void completions_delete(struct completions *completions); // ends all requests as completions_cut does

// Takes over the exchange of a POST to /v1/completions.
enum status completions_begin(struct completions *completions, struct exchange *exchange) MUST_CHECK;
// One decoding step, after texts have joined and left. Does nothing without texts.
enum status completions_step(struct completions *completions) MUST_CHECK;
int completions_n_waiting(const struct completions *completions); // texts
bool completions_are_idle(const struct completions *completions); // no request is open
// Ends requests with an error: those that have no text in the batch yet, or all.
void completions_cut(struct completions *completions, bool only_waiting);

#endif
