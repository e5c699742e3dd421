// All of this runs on the thread that decodes. A request is a list of texts ("choices"), which wait in the
// order of arrival. "text_offset" counts characters of the answer's text, in which a byte that is not UTF-8
// is one character.
#include "cli/serve/completions.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "infer/text_json.h"

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

static void completion_delete(struct completion *completion) {
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

static enum status keep_token(struct choice *choice, const struct text_token *token) {
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

static void add_whole(struct completion *completion, struct text *out) {
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

static void end_stream(struct completion *completion, struct text *event, int code) {
    if (!event->failed)
        exchange_write(completion->exchange, event->data, event->length);
    exchange_end_stream(completion->exchange);
    exchange_release(completion->exchange);
    metrics_count_request(completion->metrics, code);
    text_free(event);
}

static void finish_stream(struct completion *completion) {
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

static void cut_stream(struct completion *completion, const struct api_error *error) {
    struct text event = {0};
    text_add(&event, "data: ");
    add_error(&event, error);
    text_add(&event, "\n\n");
    end_stream(completion, &event, error->code);
}

// ---- requests

struct completions {
    struct completions_options options;
    struct completion *first, *last; // in the order of arrival
    int n_waiting;                   // texts
    uint64_t n_begun;
};

// ---- events of a text

static enum status take_token(void *context, const struct text_token *token) {
    struct choice *choice = context;
    struct completion *completion = choice->completion;
    struct metrics *metrics = completion->metrics;
    if (!token->of_prompt) {
        choice->n_drawn++;
        metrics->generated_tokens++;
        if (!completion->has_token)
            histogram_add(&metrics->first_token_s,
                          clock_monotonic_s() - exchange_began_s(completion->exchange));
        completion->has_token = true;
    }
    return completion->request.options.n_top >= 0 ? keep_token(choice, token) : STATUS_OK;
}

static enum status take_text(void *context, const char *bytes, size_t n_bytes) {
    struct choice *choice = context;
    text_add_bytes(&choice->text, bytes, n_bytes);
    TRY(text_status(&choice->text));
    return choice->completion->request.stream ? write_event(choice, false) : STATUS_OK;
}

static void remove_completion(struct completions *completions, struct completion *completion) {
    struct completion **at = &completions->first, *before = NULL;
    while (*at != completion) {
        before = *at;
        at = &(*at)->next;
    }
    *at = completion->next;
    if (completions->last == completion)
        completions->last = before;
    for (int i = 0; i < completion->n_choices; i++) {
        const struct choice *choice = &completion->choices[i];
        if (choice->state == CHOICE_RUNS)
            batch_remove(completions->options.batch, choice->slot);
        completions->n_waiting -= choice->state == CHOICE_WAITS;
    }
    completion_delete(completion);
}

static enum status end_text(void *context, enum text_end why) {
    struct choice *choice = context;
    struct completion *completion = choice->completion;
    choice->state = CHOICE_ENDED;
    choice->why = why;
    completion->n_ended++;
    return completion->request.stream ? write_event(choice, true) : STATUS_OK;
}

// ---- beginning

static uint64_t mix(uint64_t x) { // splitmix64, for seeds that differ in all bits
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static enum status enqueue(struct completions *completions, struct completion *completion) {
    const struct request *request = &completion->request;
    completion->n_choices = request->n_prompts * request->n;
    completion->choices = calloc((size_t)completion->n_choices, sizeof *completion->choices);
    if (!completion->choices)
        return FAIL(STATUS_FAILED, "out of memory for a request of %d texts", completion->n_choices);
    for (int i = 0; i < completion->n_choices; i++) {
        struct choice *choice = &completion->choices[i];
        choice->completion = completion;
        choice->index = i;
        choice->options = request->options;
        choice->options.first_counter = (uint64_t)i << 32;
    }
    for (int i = 0; i < request->n_prompts; i++)
        completion->n_prompt_tokens += (int64_t)request->prompts[i].tokens.n;
    completions->options.metrics->prompt_tokens += completion->n_prompt_tokens;
    completions->n_waiting += completion->n_choices;
    *(completions->last ? &completions->last->next : &completions->first) = completion;
    completions->last = completion;
    if (request->stream)
        exchange_begin_stream(completion->exchange, "text/event-stream");
    return STATUS_OK;
}

enum status completions_begin(struct completions *completions, struct exchange *exchange) {
    const struct completions_options *options = &completions->options;
    struct completion *completion = calloc(1, sizeof *completion);
    struct api_error error;
    size_t n_bytes;
    const char *body = exchange_body(exchange, &n_bytes);
    if (!completion) {
        api_refuse(&error, 503, NULL, NULL, "out of memory");
        answer_error(exchange, options->metrics, &error);
        return STATUS_OK;
    }
    bool good = request_parse(&completion->request, body, n_bytes, &options->limits, &error);
    int n_texts = good ? completion->request.n_prompts * completion->request.n : 0;
    int n_free = options->slots - batch_n_texts(options->batch);
    if (good && completions->n_waiting + n_texts > options->max_queue + n_free)
        good = api_refuse(&error, 429, "rate_limit_exceeded", NULL,
                          "%d texts wait already and %d would join them, more than %d; try again later",
                          completions->n_waiting, n_texts, options->max_queue);
    if (!good) {
        completion_delete(completion);
        answer_error(exchange, options->metrics, &error);
        return STATUS_OK;
    }
    completions->n_begun++;
    completion->exchange = exchange;
    completion->tokenizer = options->limits.tokenizer;
    completion->metrics = options->metrics;
    completion->model = options->limits.model;
    completion->created_s = (int64_t)clock_wall_s();
    completion->id = mix(options->seed ^ mix(completions->n_begun));
    if (!completion->request.has_seed)
        completion->request.options.sampling.seed = completion->id >> 11;
    return enqueue(completions, completion);
}

// ---- steps

// Moves waiting texts into free slots, in the order of arrival.
static enum status join(struct completions *completions) {
    struct batch *batch = completions->options.batch;
    for (struct completion *completion = completions->first; completion; completion = completion->next)
        for (int i = 0; i < completion->n_choices; i++) {
            struct choice *choice = &completion->choices[i];
            if (completions->n_waiting == 0 || batch_n_texts(batch) == completions->options.slots)
                return STATUS_OK;
            if (choice->state != CHOICE_WAITS)
                continue;
            const struct token_list *prompt = &completion->request.prompts[i / completion->request.n].tokens;
            TRY(batch_add(batch, prompt->ids, prompt->n, &choice->options,
                          (struct text_events){take_token, take_text, end_text, choice}, &choice->slot));
            choice->state = CHOICE_RUNS;
            completions->n_waiting--;
        }
    return STATUS_OK;
}

static void cut(struct completions *completions, struct completion *completion,
                const struct api_error *error) {
    if (completion->request.stream)
        cut_stream(completion, error);
    else
        answer_error(completion->exchange, completion->metrics, error);
    completion->exchange = NULL;
    remove_completion(completions, completion);
}

static void finish(struct completions *completions, struct completion *completion) {
    histogram_add(&completion->metrics->request_s,
                  clock_monotonic_s() - exchange_began_s(completion->exchange));
    if (completion->request.stream) {
        finish_stream(completion);
    } else {
        struct text body = {0};
        add_whole(completion, &body);
        answer_text(completion->exchange, completion->metrics, "application/json", &body);
    }
    completion->exchange = NULL;
    remove_completion(completions, completion);
}

// Answers requests that are complete, and drops those whose client left or whose time is over.
static void leave(struct completions *completions) {
    double now = clock_monotonic_s();
    for (struct completion *completion = completions->first, *next; completion; completion = next) {
        struct api_error error;
        next = completion->next;
        if (completion->n_ended == completion->n_choices) {
            finish(completions, completion);
        } else if (exchange_is_gone(completion->exchange)) {
            completions->options.metrics->disconnected++;
            remove_completion(completions, completion);
        } else if (now - exchange_began_s(completion->exchange) > completions->options.deadline_s) {
            api_refuse(&error, 504, "deadline_exceeded", NULL,
                       "the request took longer than %g seconds, the limit of this server",
                       completions->options.deadline_s);
            cut(completions, completion, &error);
        }
    }
}

enum status completions_step(struct completions *completions) {
    struct metrics *metrics = completions->options.metrics;
    leave(completions);
    TRY(join(completions));
    if (batch_n_texts(completions->options.batch) == 0)
        return STATUS_OK;
    int n_drawn;
    double began = clock_monotonic_s();
    TRY(batch_step(completions->options.batch, &n_drawn));
    histogram_add(&metrics->step_s, clock_monotonic_s() - began);
    metrics->steps++;
    leave(completions);
    return STATUS_OK;
}

int completions_n_waiting(const struct completions *completions) {
    return completions->n_waiting;
}

bool completions_are_idle(const struct completions *completions) {
    return !completions->first;
}

void completions_cut(struct completions *completions, bool only_waiting) {
    struct api_error error;
    api_refuse(&error, 503, "shutting_down", NULL, "the server is shutting down");
    for (struct completion *completion = completions->first, *next; completion; completion = next) {
        bool waits = true;
        next = completion->next;
        for (int i = 0; i < completion->n_choices; i++)
            waits &= completion->choices[i].state == CHOICE_WAITS;
        if (waits || !only_waiting)
            cut(completions, completion, &error);
    }
}

enum status completions_new(const struct completions_options *options, struct completions **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return FAIL(STATUS_FAILED, "out of memory for the requests");
    (*out)->options = *options;
    return STATUS_OK;
}

void completions_delete(struct completions *completions) {
    if (!completions)
        return;
    completions_cut(completions, false);
    free(completions);
}
