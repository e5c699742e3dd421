// Checks the body of a POST to /v1/completions and tokenizes its prompts. The body's members are those of
// OpenAI's API (https://platform.openai.com/docs/api-reference, "Completions").
#ifndef ZERO_CLI_SERVE_REQUEST_H
#define ZERO_CLI_SERVE_REQUEST_H

#include "cli/serve/http.h"
#include "infer/batch.h"

// What requests may ask for.
struct request_limits {
    const struct tokenizer *tokenizer;
    int vocab_size, positions;
    int max_tokens;    // maximum new tokens per text
    int max_texts;     // maximum texts per request: number of prompts times n
    int max_logprobs;  // maximum `logprobs`; at most MOST_TOP_LOGPROBS
    const char *model; // the only name that "model" may have
};

#define MOST_STOPS 16

struct request {
    struct token_list *prompts;  // (n_prompts)
    int n_prompts;               // number of prompts
    int n, best_of;              // n: texts per prompt; best_of: equal to n, or 0 if it is not given
    struct text_options options; // the same for every text
    char *stops[MOST_STOPS];
    bool has_seed, echo, stream, include_usage;
};

// Parses the body of a request. Returns false if it is refused, with the reason in `error`. Call request_free
// in both cases.
bool request_parse(struct request *request, const char *body, size_t n_bytes,
                   const struct request_limits *limits, struct api_error *error);
void request_free(struct request *request);

#endif
