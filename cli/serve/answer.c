// "text_offset" counts characters of the answer's text, in which a byte that is not UTF-8 is one character.
#include "cli/serve/answer.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "infer/text_json.h"

void completion_delete(struct completion *completion) {
    if (completion->exchange)
        exchange_release(completion->exchange);
    for (int i = 0; completion->choices && i < completion->n_choices; i++) {
        text_free(&completion->choices[i].text);
        free(completion->choices[i].tokens);
    }
    free(completion->choices);
    request_free(&completion->request);
    free(completion);
}

enum status answer_keep_token(struct choice *choice, const struct text_token *token) {
    if (choice->n_tokens == choice->capacity) {
        size_t capacity = choice->capacity ? 2 * choice->capacity : 16;
        struct text_token *tokens = realloc(choice->tokens, capacity * sizeof *tokens);
        if (!tokens)
            return FAIL(STATUS_FAILED, "out of memory for %zu tokens of an answer", capacity);
        choice->tokens = tokens;
        choice->capacity = capacity;
    }
    choice->tokens[choice->n_tokens++] = *token;
    return STATUS_OK;
}

// ---- answers that are whole from the start

static void add_error(struct text *out, const struct api_error *error) {
    text_add(out, "{\"error\": {\"message\": ");
    text_json_add_string(out, error->message, strlen(error->message)); // it may quote the client's bytes
    text_add(out, ", \"type\": \"%s\", \"param\": ", error->type);
    text_add(out, error->param ? "\"%s\"" : "null", error->param);
    text_add(out, ", \"code\": ");
    text_add(out, error->name ? "\"%s\"" : "null", error->name);
    text_add(out, "}}");
}

void answer_error(struct exchange *exchange, struct metrics *metrics, const struct api_error *error) {
    struct text body = {0};
    const char *header = error->code == 429 || error->code == 503 ? "Retry-After"
                         : error->code == 405                     ? "Allow"
                                                                  : NULL;
    const char *value = error->code == 405 ? error->param : "1";
    struct api_error shown = *error;
    if (error->code == 405)
        shown.param = NULL;
    add_error(&body, &shown);
    text_add(&body, "\n");
    exchange_answer(exchange, error->code, "application/json", header, value, body.data ? body.data : "",
                    body.length);
    metrics_count_request(metrics, error->code);
    exchange_release(exchange);
    text_free(&body);
}

void answer_bytes(struct exchange *exchange, struct metrics *metrics, const char *type, const char *bytes,
                  size_t n_bytes) {
    exchange_answer(exchange, 200, type, NULL, NULL, bytes, n_bytes);
    metrics_count_request(metrics, 200);
    exchange_release(exchange);
}

void answer_text(struct exchange *exchange, struct metrics *metrics, const char *type, struct text *body) {
    struct api_error error;
    if (body->failed) {
        api_refuse(&error, 503, NULL, NULL, "out of memory");
        answer_error(exchange, metrics, &error);
    } else {
        answer_bytes(exchange, metrics, type, body->data ? body->data : "", body->length);
    }
    text_free(body);
}

// ---- a choice

static void add_echo(struct text *out, const struct choice *choice) {
    const struct completion *completion = choice->completion;
    const struct request_prompt *prompt = &completion->request.prompts[choice->index / completion->request.n];
    if (!prompt->empty)
        tokenizer_add_text(completion->tokenizer, prompt->tokens.ids, prompt->tokens.n, out);
}

static size_t count_characters(const char *bytes, size_t n) {
    size_t characters = 0;
    for (size_t i = 0; i < n; i++)
        characters += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return characters;
}

static void add_top(struct text *out, const struct completion *completion, const struct text_token *token) {
    char number[32];
    bool listed = false;
    if (!token->has_logprobs) {
        text_add(out, "null");
        return;
    }
    text_add(out, "{");
    for (int i = 0; i < token->n_top; i++) {
        text_json_add_token_name(out, completion->tokenizer, token->top[i].id);
        text_add(out, ": %s, ", text_float(number, token->top[i].logprob));
        listed |= token->top[i].id == token->id;
    }
    if (listed) {
        out->length -= 2; // the last comma
    } else {
        text_json_add_token_name(out, completion->tokenizer, token->id);
        text_add(out, ": %s", text_float(number, token->logprob));
    }
    text_add(out, "}");
}

// The tokens [first, end) as the lists of "logprobs".
static void add_logprobs(struct text *out, struct choice *choice, size_t first, size_t end) {
    const struct completion *completion = choice->completion;
    char number[32];
    text_add(out, "{\"tokens\": [");
    for (size_t i = first; i < end; i++) {
        text_add(out, "%s", i > first ? ", " : "");
        text_json_add_token_name(out, completion->tokenizer, choice->tokens[i].id);
    }
    text_add(out, "], \"token_logprobs\": [");
    for (size_t i = first; i < end; i++)
        text_add(out, "%s%s", i > first ? ", " : "",
                 choice->tokens[i].has_logprobs ? text_float(number, choice->tokens[i].logprob) : "null");
    text_add(out, "], \"top_logprobs\": [");
    for (size_t i = first; i < end; i++) {
        text_add(out, "%s", i > first ? ", " : "");
        add_top(out, completion, &choice->tokens[i]);
    }
    text_add(out, "], \"text_offset\": [");
    for (size_t i = first; i < end; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(completion->tokenizer, choice->tokens[i].id, &n);
        text_add(out, "%s%zu", i > first ? ", " : "", choice->n_characters);
        choice->n_characters += count_characters(bytes, n);
    }
    text_add(out, "]}");
}

// What the choice has beyond what was streamed: text, tokens that begin in it, and with `ended` its end.
static void add_choice(struct text *out, struct choice *choice, bool ended) {
    const struct request *request = &choice->completion->request;
    struct text text = {0};
    size_t end = choice->n_streamed_tokens;
    if (request->echo && !choice->began)
        add_echo(&text, choice);
    choice->began = true;
    if (choice->text.length > choice->n_streamed)
        text_add_bytes(&text, choice->text.data + choice->n_streamed,
                       choice->text.length - choice->n_streamed);
    choice->n_streamed = choice->text.length;
    while (end < choice->n_tokens &&
           (choice->tokens[end].of_prompt || choice->tokens[end].offset < choice->text.length))
        end++;
    text_add(out, "{\"index\": %d, \"text\": ", choice->index);
    text_json_add_string(out, text.data, text.length);
    text_add(out, ", \"logprobs\": ");
    if (request->options.n_top >= 0)
        add_logprobs(out, choice, choice->n_streamed_tokens, end);
    else
        text_add(out, "null");
    choice->n_streamed_tokens = end;
    text_add(out, ", \"finish_reason\": ");
    text_add(out, ended ? "\"%s\"}" : "null}", text_end_name(choice->why));
    out->failed |= text.failed;
    text_free(&text);
}

// ---- the whole

static void add_head(struct text *out, const struct completion *completion) {
    text_add(out,
             "{\"id\": \"cmpl-%016llx\", \"object\": \"text_completion\", \"created\": %lld, \"model\": ",
             (unsigned long long)completion->id, (long long)completion->created_s);
    json_add_string(out, completion->model);
    text_add(out, ", \"choices\": [");
}

static void add_usage(struct text *out, const struct completion *completion) {
    int64_t n_drawn = 0;
    for (int i = 0; i < completion->n_choices; i++)
        n_drawn += completion->choices[i].n_drawn;
    text_add(out, "{\"prompt_tokens\": %lld, \"completion_tokens\": %lld, \"total_tokens\": %lld}",
             (long long)completion->n_prompt_tokens, (long long)n_drawn,
             (long long)(completion->n_prompt_tokens + n_drawn));
}

void answer_whole(struct completion *completion, struct text *out) {
    add_head(out, completion);
    for (int i = 0; i < completion->n_choices; i++) {
        text_add(out, "%s", i ? ", " : "");
        add_choice(out, &completion->choices[i], true);
    }
    text_add(out, "], \"usage\": ");
    add_usage(out, completion);
    text_add(out, "}\n");
}

// ---- as events

void answer_stream_begin(struct completion *completion) {
    exchange_begin_stream(completion->exchange, "text/event-stream");
}

static enum status write_event(struct choice *choice, bool ended) {
    struct text event = {0};
    text_add(&event, "data: ");
    add_head(&event, choice->completion);
    add_choice(&event, choice, ended);
    text_add(&event, "]}\n\n");
    enum status status = text_status(&event);
    if (status == STATUS_OK)
        exchange_write(choice->completion->exchange, event.data, event.length);
    text_free(&event);
    return status;
}

enum status answer_stream_piece(struct choice *choice) {
    return write_event(choice, false);
}

enum status answer_stream_end(struct choice *choice) {
    return write_event(choice, true);
}

static void end_stream(struct completion *completion, struct text *event, int code) {
    if (!event->failed)
        exchange_write(completion->exchange, event->data, event->length);
    exchange_end_stream(completion->exchange);
    exchange_release(completion->exchange);
    metrics_count_request(completion->metrics, code);
    text_free(event);
}

void answer_stream_finish(struct completion *completion) {
    struct text event = {0};
    if (completion->request.include_usage) {
        text_add(&event, "data: ");
        add_head(&event, completion);
        text_add(&event, "], \"usage\": ");
        add_usage(&event, completion);
        text_add(&event, "}\n\n");
    }
    text_add(&event, "data: [DONE]\n\n");
    end_stream(completion, &event, 200);
}

void answer_stream_cut(struct completion *completion, const struct api_error *error) {
    struct text event = {0};
    text_add(&event, "data: ");
    add_error(&event, error);
    text_add(&event, "\n\n");
    end_stream(completion, &event, error->code);
}
