// The body of a request for completions: refused with an error object, or within all limits.
#include <string.h>

#include "cli/serve/request.h"
#include "tests/fuzz/fuzz.h"

enum { POSITIONS = 64, MOST_TOKENS = 50, MOST_TEXTS = 9, MOST_LOGPROBS = 5 };

static void check(const struct request *request) {
    const struct text_options *options = &request->options;
    const struct sampling *sampling = &options->sampling;
    FUZZ_REQUIRE(request->n_prompts >= 1 && request->n >= 1);
    FUZZ_REQUIRE(request->n_prompts * request->n <= MOST_TEXTS);
    FUZZ_REQUIRE(options->n_tokens >= 0 && options->n_tokens <= MOST_TOKENS);
    FUZZ_REQUIRE(options->n_top >= -1 && options->n_top <= MOST_LOGPROBS);
    FUZZ_REQUIRE(sampling->temperature >= 0 && sampling->top_k >= 0);
    FUZZ_REQUIRE(sampling->top_p >= 0 && sampling->top_p <= 1 && sampling->min_p >= 0 &&
                 sampling->min_p <= 1);
    FUZZ_REQUIRE(options->repetition_penalty > 0);
    for (int i = 0; i < options->n_stops; i++)
        FUZZ_REQUIRE(options->stops[i][0]);
    for (int i = 0; i < request->n_prompts; i++) {
        const struct token_list *tokens = &request->prompts[i];
        FUZZ_REQUIRE(tokens->n >= 1 && tokens->n + (size_t)options->n_tokens <= POSITIONS);
        for (size_t t = 0; t < tokens->n; t++)
            FUZZ_REQUIRE(tokens->ids[t] >= 0 && tokens->ids[t] < 257);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *tokenizer;
    struct api_error error = {0};
    struct request request;
    if (!tokenizer)
        FUZZ_REQUIRE(tokenizer_load("bytes", &tokenizer) == STATUS_OK);
    const struct request_limits limits = {.tokenizer = tokenizer,
                                          .vocab_size = 257,
                                          .positions = POSITIONS,
                                          .max_tokens = MOST_TOKENS,
                                          .max_texts = MOST_TEXTS,
                                          .max_logprobs = MOST_LOGPROBS,
                                          .model = "model"};
    char *body = malloc(size ? size : 1); // a copy, so that a read past its end is found
    FUZZ_REQUIRE(body);
    memcpy(body, data, size);
    if (request_parse(&request, body, size, &limits, &error))
        check(&request);
    else
        FUZZ_REQUIRE((error.code == 400 || error.code == 404) && error.type && error.message[0]);
    FUZZ_REQUIRE(status_message()[0] == '\0'); // a refusal leaves no failure behind
    request_free(&request);
    free(body);
    return 0;
}
