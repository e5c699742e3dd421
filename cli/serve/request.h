// Checks the body of a POST to /v1/completions and tokenizes its prompts. Members are OpenAI's
// (https://platform.openai.com/docs/api-reference, "Completions").
#ifndef ZERO_CLI_SERVE_REQUEST_H
#define ZERO_CLI_SERVE_REQUEST_H

#include "cli/serve/http.h"
#include "infer/batch.h"

// Limits of what requests may ask for.
struct request_limits {
    const struct tokenizer *tokenizer;
    int vocab_size, positions;
    int max_tokens;   // per text
    int max_texts;    // prompts x n
    int max_logprobs; // at most MOST_TOP_LOGPROBS
    const char *model;
};

#define MOST_STOPS 16

struct request {
    struct token_list *prompts;  // (n_prompts)
    int n_prompts, n, best_of;   // n texts per prompt; best_of: n, or 0 if not given
    struct text_options options; // the same for every text
    char *stops[MOST_STOPS];
    bool has_seed, echo, stream, include_usage;
};

// Returns false if the request is refused. Call request_free in both cases.
bool request_parse(struct request *request, const char *body, size_t n_bytes,
                   const struct request_limits *limits, struct api_error *error);
void request_free(struct request *request);

#endif
