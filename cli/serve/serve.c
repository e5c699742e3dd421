// ./train serve RUN_OR_CHECKPOINT: answers requests for generated text over HTTP.
//
// One thread decodes and answers; the others move the bytes of connections (cli/serve/http.c). New requests
// are handled between two decoding steps. A request for a completion asks for one or more texts
// ("choices"). Texts wait in the order of arrival and join the batch when a slot is free. A text leaves the
// batch when it ends, its client leaves, or its deadline passes. Answers are OpenAI's JSON, either complete
// or as server-sent events.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/embedded.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "base/signals.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/serve/access.h"
#include "cli/serve/http.h"
#include "cli/serve/request.h"
#include "infer/session.h"
#include "infer/text_json.h"

EMBEDDED_FILE(cli_serve_page_html);

// Maximum number of prompt tokens per decoding step, so that long prompts do not delay the other texts.
#define PROMPT_TOKENS (4 * GENERATOR_CHUNK)
#define IDLE_SECONDS  0.2 // maximum time that http_next waits for a request if there is nothing to generate
#define SEND_SECONDS  2.0 // at shutdown: maximum time to send answers that are complete

static struct session_options model = {.device = "auto", .needs_tokenizer = true};
static struct access rules = {.host = "127.0.0.1"};
static const char *model_name = NULL;
static int64_t port = 8000, slots = 32, longest = 0, max_tokens = 0, max_texts = 128, max_queue = 256;
static int64_t max_connections = 512, max_per_address = 128, max_logprobs = 5;
static uint64_t max_body = 1 << 20;
static double timeout_s = 30, deadline_s = 600, grace_s = 10;

static const struct arg flags[] = {
    {"--host", ARG_STRING, &rules.host, 0, 0, "address to listen on (127.0.0.1: this machine only)"},
    {"--port", ARG_INTEGER, &port, 0, 65535, "port to listen on; 0: any free one (8000)"},
    {"--allow-host", ARG_STRINGS, &rules.hosts, 0, 0,
     "another host name of the server; .NAME: all names that end with it"},
    {"--cors", ARG_STRINGS, &rules.origins, 0, 0, "origin whose pages may call the server; *: any"},
    {"--api-key", ARG_STRING, &rules.key, 0, 0,
     "key that requests need; set ZERO_API_KEY instead to hide it from ps"},
    {"--slots", ARG_INTEGER, &slots, 1, 1024, "texts to generate together (32)"},
    {"--context", ARG_INTEGER, &longest, 0, 1e9,
     "maximum tokens of a prompt and its text together; 0: the model's context (0)"},
    {"--max-tokens", ARG_INTEGER, &max_tokens, 0, 1e9, "limit of a request's max_tokens; 0: the context (0)"},
    {"--max-texts", ARG_INTEGER, &max_texts, 1, 1e6, "limit of a request's prompts times n (128)"},
    {"--max-logprobs", ARG_INTEGER, &max_logprobs, 0, MOST_TOP_LOGPROBS, "limit of a request's logprobs (5)"},
    {"--max-queue", ARG_INTEGER, &max_queue, 0, 1e6,
     "texts that may wait for a slot; requests for more get HTTP status 429 (256)"},
    {"--max-body", ARG_BYTES, &max_body, 1, 0x1p30,
     "largest body of a request; larger ones get HTTP status 413 (1MiB)"},
    {"--max-connections", ARG_INTEGER, &max_connections, 1, 65536, "maximum open connections (512)"},
    {"--max-per-address", ARG_INTEGER, &max_per_address, 1, 65536,
     "maximum open connections from one address (128)"},
    {"--timeout", ARG_NUMBER, &timeout_s, 0.1, 1e6,
     "seconds for a client to send a request's body, or to take the rest of its answer (30)"},
    {"--deadline", ARG_NUMBER, &deadline_s, 0.1, 1e6, "seconds after which an unfinished request ends (600)"},
    {"--grace", ARG_NUMBER, &grace_s, 0, 1e6,
     "seconds for running texts to end after Ctrl-C or SIGTERM (10)"},
    {"--name", ARG_STRING, &model_name, 0, 0, "the model's name in the API (the last part of its path)"},
    TOKENIZER_FLAG(model.tokenizer),
    WEIGHTS_FLAG(model.weights),
    DEVICE_FLAG(model.device),
    THREADS_FLAG(model.threads),
};

// ---- counters, for /metrics in Prometheus's text format

#define HISTOGRAM_BUCKETS 14

struct histogram {
    // counts[i]: number of values above bounds[i - 1] and at most bounds[i]; the last has no upper bound.
    int64_t counts[HISTOGRAM_BUCKETS + 1];
    double sum;
};

#define MOST_CODES 16

struct metrics {
    struct {
        int code;
        int64_t n;
    } requests[MOST_CODES]; // number of answers by HTTP status
    int64_t disconnected;   // requests whose client left before the answer was complete
    int64_t prompt_tokens, generated_tokens, steps;
    struct histogram request_s, first_token_s, step_s;
};

// Upper bounds of the histograms' buckets, in seconds.
static const double bounds[HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                 0.25,  0.5,    1,     2.5,  5,     10,   60};

static void histogram_add(struct histogram *histogram, double seconds) {
    int i = 0;
    while (i < HISTOGRAM_BUCKETS && seconds > bounds[i])
        i++;
    histogram->counts[i]++;
    histogram->sum += seconds;
}

static void count_request(struct metrics *metrics, int code) {
    int i = 0;
    while (i < MOST_CODES - 1 && metrics->requests[i].n > 0 && metrics->requests[i].code != code)
        i++;
    metrics->requests[i].code = code;
    metrics->requests[i].n++;
}

static void add_header(struct text *out, const char *name, const char *type, const char *help) {
    text_add(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_histogram(struct text *out, const char *name, const char *help,
                          const struct histogram *histogram) {
    int64_t n = 0;
    char number[32];
    add_header(out, name, "histogram", help);
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        n += histogram->counts[i];
        text_add(out, "%s_bucket{le=\"%s\"} %lld\n", name, text_double(number, bounds[i]), (long long)n);
    }
    n += histogram->counts[HISTOGRAM_BUCKETS];
    text_add(out, "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %s\n%s_count %lld\n", name, (long long)n, name,
             text_double(number, histogram->sum), name, (long long)n);
}

// ---- requests for completions

enum choice_state { CHOICE_WAITS, CHOICE_RUNS, CHOICE_ENDED };

// One text of a request (a "choice" of OpenAI's API).
struct choice {
    struct completion *completion;
    int index;
    enum choice_state state;
    int slot; // index of the text's slot in the batch, in state CHOICE_RUNS
    struct text_options options;
    struct text text; // the echoed prompt and the text released so far
    // (n_tokens) The tokens of the echoed prompt, if any, and of the text; empty without log-probabilities.
    struct text_token *tokens;
    size_t n_tokens, capacity;
    int64_t n_drawn; // number of generated tokens
    enum text_end why;
    // How much has been written to the answer so far: bytes and characters of `text`, and tokens.
    // Characters are counted only if log-probabilities are requested.
    size_t n_streamed, n_characters, n_streamed_tokens;
};

// A request for a completion, until it is answered.
struct completion {
    struct server *server;
    struct exchange *exchange;
    struct request request;
    struct choice *choices; // (n_choices): choice i continues prompt i / n
    int n_choices, n_ended;
    int64_t n_prompt_tokens, created_s;
    uint64_t id;
    bool has_token; // at least one token has been generated
    struct completion *next;
};

struct server {
    struct session session;
    struct generator *generator;
    struct batch *batch;
    struct generator_options generator_options;
    struct batch_options batch_options;
    struct request_limits limits;
    struct http_server *http;
    struct metrics metrics;
    struct completion *first, *last; // list of unanswered requests, in the order of arrival
    int n_waiting;                   // texts that wait for a slot
    uint64_t n_begun;                // requests accepted so far
    // A random number. From it, the ids of requests are computed, and the seeds of requests without one.
    uint64_t seed;
    char *name;
    double started_s; // wall-clock time at which the server started, in seconds
    bool ending;      // the server is shutting down and refuses new requests
};

static void completion_delete(struct completion *completion) {
    if (completion->exchange)
        exchange_release(completion->exchange);
    for (int i = 0; i < completion->n_choices; i++) {
        text_free(&completion->choices[i].text);
        free(completion->choices[i].tokens);
    }
    free(completion->choices);
    request_free(&completion->request);
    free(completion);
}

// ---- complete answers, without streaming

static void add_error(struct text *out, const struct api_error *error) {
    text_add(out, "{\"error\": {\"message\": ");
    text_json_add_string(out, error->message, strlen(error->message)); // may quote the client's bytes
    text_add(out, ", \"type\": \"%s\", \"param\": ", error->type);
    text_add(out, error->param ? "\"%s\"" : "null", error->param);
    text_add(out, ", \"code\": ");
    text_add(out, error->name ? "\"%s\"" : "null", error->name);
    text_add(out, "}}");
}

// Answers with an error. Like answer_bytes and answer_text, counts the answer for /metrics and releases the
// exchange.
static void answer_error(struct server *server, struct exchange *exchange, const struct api_error *error) {
    struct text body = {0};
    struct api_error shown = *error;
    const char *header = NULL, *value = NULL;
    if (error->code == 401)
        header = "WWW-Authenticate", value = "Bearer";
    if (error->code == 429 || error->code == 503)
        header = "Retry-After", value = "1";
    if (error->code == 405)
        header = "Allow", value = error->param, shown.param = NULL;
    add_error(&body, &shown);
    text_add(&body, "\n");
    exchange_answer(exchange, error->code, "application/json", header, value, body.data, body.length);
    count_request(&server->metrics, error->code);
    exchange_release(exchange);
    text_free(&body);
}

static void answer_bytes(struct server *server, struct exchange *exchange, const char *type,
                         const char *bytes, size_t n_bytes) {
    exchange_answer(exchange, 200, type, NULL, NULL, bytes, n_bytes);
    count_request(&server->metrics, 200);
    exchange_release(exchange);
}

static void answer_text(struct server *server, struct exchange *exchange, const char *type,
                        struct text *body) {
    answer_bytes(server, exchange, type, body->data, body->length);
    text_free(body);
}

// ---- a choice as JSON

static void add_echo(struct choice *choice, const struct tokenizer *tokenizer,
                     const struct token_list *prompt) {
    for (size_t i = 0; i < prompt->n; i++) {
        size_t n;
        const char *bytes =
            tokenizer_shown_bytes(tokenizer, i > 0 ? prompt->ids[i - 1] : -1, prompt->ids[i], &n);
        text_add_bytes(&choice->text, bytes, n);
    }
}

// Returns the number of characters before byte `end` of the choice's text. `end` must not decrease from
// call to call. An invalid byte counts as one character, as in the JSON. Advances choice->n_streamed and
// n_characters.
static size_t count_characters(struct choice *choice, size_t end) {
    while (choice->n_streamed < end) {
        const size_t left = choice->text.length - choice->n_streamed;
        choice->n_streamed += utf8_character_bytes(choice->text.data + choice->n_streamed, left);
        choice->n_characters++;
    }
    return choice->n_characters;
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
        text_json_add_token_name(out, completion->server->session.tokenizer, token->top[i].id);
        text_add(out, ": %s, ", text_float(number, token->top[i].logprob));
        listed |= token->top[i].id == token->id;
    }
    if (listed) {
        out->length -= 2; // remove the last ", "
    } else {
        text_json_add_token_name(out, completion->server->session.tokenizer, token->id);
        text_add(out, ": %s", text_float(number, token->logprob));
    }
    text_add(out, "}");
}

// Appends the value of "logprobs" for the tokens [first, end): an object of lists with one element per token.
static void add_logprobs(struct text *out, struct choice *choice, size_t first, size_t end) {
    const struct completion *completion = choice->completion;
    char number[32];
    text_add(out, "{\"tokens\": [");
    for (size_t i = first; i < end; i++) {
        text_add(out, "%s", i > first ? ", " : "");
        text_json_add_token_name(out, completion->server->session.tokenizer, choice->tokens[i].id);
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
    for (size_t i = first; i < end; i++)
        text_add(out, "%s%zu", i > first ? ", " : "", count_characters(choice, choice->tokens[i].offset));
    text_add(out, "]}");
    count_characters(choice, choice->text.length);
}

// Appends the choice as JSON, with the text that has not been written yet and the tokens that begin in it.
//   ended   the text is complete: also give the finish reason
static void add_choice(struct text *out, struct choice *choice, bool ended) {
    const size_t n = choice->text.length - choice->n_streamed;
    size_t end = choice->n_streamed_tokens;
    while (end < choice->n_tokens && text_token_is_shown(&choice->tokens[end], choice->text.length))
        end++;
    text_add(out, "{\"index\": %d, \"text\": ", choice->index);
    text_json_add_string(out, n > 0 ? choice->text.data + choice->n_streamed : "", n);
    text_add(out, ", \"logprobs\": ");
    if (choice->options.n_top >= 0)
        add_logprobs(out, choice, choice->n_streamed_tokens, end);
    else
        text_add(out, "null");
    choice->n_streamed = choice->text.length;
    choice->n_streamed_tokens = end;
    text_add(out, ", \"finish_reason\": ");
    text_add(out, ended ? "\"%s\"}" : "null}", text_end_name(choice->why));
}

// ---- a complete answer as JSON

static void add_head(struct text *out, const struct completion *completion) {
    text_add(out,
             "{\"id\": \"cmpl-%016llx\", \"object\": \"text_completion\", \"created\": %lld, \"model\": ",
             (unsigned long long)completion->id, (long long)completion->created_s);
    json_add_string(out, completion->server->name);
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

// ---- streamed answers

static void write_event(struct choice *choice, bool ended) {
    struct text event = {0};
    text_add(&event, "data: ");
    add_head(&event, choice->completion);
    add_choice(&event, choice, ended);
    text_add(&event, "]}\n\n");
    exchange_write(choice->completion->exchange, event.data, event.length);
    text_free(&event);
}

static void end_stream(struct completion *completion, struct text *event, int code) {
    exchange_write(completion->exchange, event->data, event->length);
    exchange_end_stream(completion->exchange);
    exchange_release(completion->exchange);
    count_request(&completion->server->metrics, code);
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

// ---- callbacks of a text in the batch

static enum status take_token(void *context, const struct text_token *token) {
    struct choice *choice = context;
    struct completion *completion = choice->completion;
    struct metrics *metrics = &completion->server->metrics;
    if (!token->of_prompt) {
        choice->n_drawn++;
        metrics->generated_tokens++;
        if (!completion->has_token)
            histogram_add(&metrics->first_token_s, clock_monotonic_s() - completion->exchange->began_s);
        completion->has_token = true;
    }
    if (completion->request.options.n_top >= 0) {
        RESERVE(choice->tokens, choice->n_tokens + 1, choice->capacity);
        choice->tokens[choice->n_tokens++] = *token;
    }
    return STATUS_OK;
}

static enum status take_text(void *context, const char *bytes, size_t n_bytes) {
    struct choice *choice = context;
    text_add_bytes(&choice->text, bytes, n_bytes);
    if (choice->completion->request.stream)
        write_event(choice, false);
    return STATUS_OK;
}

static void remove_completion(struct server *server, struct completion *completion) {
    struct completion **at = &server->first, *before = NULL;
    while (*at != completion) {
        before = *at;
        at = &(*at)->next;
    }
    *at = completion->next;
    if (server->last == completion)
        server->last = before;
    for (int i = 0; i < completion->n_choices; i++) {
        const struct choice *choice = &completion->choices[i];
        if (choice->state == CHOICE_RUNS)
            batch_remove(server->batch, choice->slot);
        server->n_waiting -= choice->state == CHOICE_WAITS;
    }
    completion_delete(completion);
}

static enum status end_text(void *context, enum text_end why) {
    struct choice *choice = context;
    struct completion *completion = choice->completion;
    choice->state = CHOICE_ENDED;
    choice->why = why;
    completion->n_ended++;
    if (completion->request.stream)
        write_event(choice, true);
    return STATUS_OK;
}

// ---- accepting requests

// The hash function splitmix64: the results for two inputs differ in about half of their bits, even if the
// inputs are similar.
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void enqueue(struct server *server, struct completion *completion) {
    const struct request *request = &completion->request;
    completion->n_choices = request->n_prompts * request->n;
    completion->choices = allocate((size_t)completion->n_choices, sizeof *completion->choices);
    for (int i = 0; i < completion->n_choices; i++) {
        struct choice *choice = &completion->choices[i];
        choice->completion = completion;
        choice->index = i;
        choice->options = request->options;
        choice->options.first_counter = (uint64_t)i << 32;
        if (request->echo)
            add_echo(choice, server->session.tokenizer, &request->prompts[i / request->n]);
    }
    for (int i = 0; i < request->n_prompts; i++)
        completion->n_prompt_tokens += (int64_t)request->prompts[i].n;
    server->metrics.prompt_tokens += completion->n_prompt_tokens;
    server->n_waiting += completion->n_choices;
    *(server->last ? &server->last->next : &server->first) = completion;
    server->last = completion;
    if (request->stream)
        exchange_begin_stream(completion->exchange, "text/event-stream");
}

static void post_completions(struct server *server, struct exchange *exchange) {
    struct completion *completion = allocate(1, sizeof *completion);
    struct request *request = &completion->request;
    struct api_error error;
    bool good = server->ending ? api_refuse(&error, 503, "shutting_down", NULL, "the server is shutting down")
                               : request_parse(request, exchange->body.data ? exchange->body.data : "",
                                               exchange->body.length, &server->limits, &error);
    const int n_texts = request->n_prompts * request->n, n_free = (int)slots - batch_n_texts(server->batch);
    if (good && server->n_waiting + n_texts > max_queue + n_free)
        good = api_refuse(
            &error, 429, "rate_limit_exceeded", NULL,
            "%d texts are waiting and this request has %d, but at most %d may wait; try again later",
            server->n_waiting, n_texts, (int)max_queue);
    if (!good) {
        completion_delete(completion);
        answer_error(server, exchange, &error);
        return;
    }
    server->n_begun++;
    completion->server = server;
    completion->exchange = exchange;
    completion->created_s = (int64_t)clock_wall_s();
    completion->id = mix(server->seed ^ mix(server->n_begun));
    if (!request->has_seed)
        request->options.sampling.seed = completion->id >> 11;
    enqueue(server, completion);
}

// ---- decoding steps

// Moves waiting texts into free slots of the batch, in the order of arrival.
static void join(struct server *server) {
    struct batch *batch = server->batch;
    for (struct completion *completion = server->first; completion; completion = completion->next)
        for (int i = 0; i < completion->n_choices; i++) {
            struct choice *choice = &completion->choices[i];
            if (server->n_waiting == 0 || batch_n_texts(batch) == slots)
                return;
            if (choice->state != CHOICE_WAITS)
                continue;
            const struct token_list *prompt = &completion->request.prompts[i / completion->request.n];
            choice->slot = batch_add(batch, prompt->ids, prompt->n, &choice->options,
                                     (struct text_events){take_token, take_text, end_text, choice});
            choice->state = CHOICE_RUNS;
            server->n_waiting--;
        }
}

static void cut(struct server *server, struct completion *completion, const struct api_error *error) {
    if (completion->request.stream)
        cut_stream(completion, error);
    else
        answer_error(server, completion->exchange, error);
    completion->exchange = NULL;
    remove_completion(server, completion);
}

static void finish(struct server *server, struct completion *completion) {
    histogram_add(&server->metrics.request_s, clock_monotonic_s() - completion->exchange->began_s);
    if (completion->request.stream) {
        finish_stream(completion);
    } else {
        struct text body = {0};
        add_whole(completion, &body);
        answer_text(server, completion->exchange, "application/json", &body);
    }
    completion->exchange = NULL;
    remove_completion(server, completion);
}

// Answers requests whose texts have all ended. Removes requests whose client has left. Answers those past the
// deadline with an error.
static void leave(struct server *server) {
    double now = clock_monotonic_s();
    for (struct completion *completion = server->first, *next; completion; completion = next) {
        struct api_error error;
        next = completion->next;
        if (completion->n_ended == completion->n_choices) {
            finish(server, completion);
        } else if (exchange_is_gone(completion->exchange)) {
            server->metrics.disconnected++;
            remove_completion(server, completion);
        } else if (now - completion->exchange->began_s > deadline_s) {
            api_refuse(&error, 504, "deadline_exceeded", NULL,
                       "the request took longer than %g seconds, the limit of this server", deadline_s);
            cut(server, completion, &error);
        }
    }
}

// Answers and removes the requests that have ended, and moves waiting texts into the batch. Then does one
// decoding step, if the batch has texts, and answers those that it has ended.
static enum status step(struct server *server) {
    struct metrics *metrics = &server->metrics;
    leave(server);
    join(server);
    if (batch_n_texts(server->batch) == 0)
        return STATUS_OK;
    int n_drawn;
    double began = clock_monotonic_s();
    TRY(batch_step(server->batch, &n_drawn));
    histogram_add(&metrics->step_s, clock_monotonic_s() - began);
    metrics->steps++;
    leave(server);
    return STATUS_OK;
}

// Answers requests with the error that the server is shutting down.
//   only_waiting   only requests of which no text has begun; false: all
static void cut_completions(struct server *server, bool only_waiting) {
    struct api_error error;
    api_refuse(&error, 503, "shutting_down", NULL, "the server is shutting down");
    for (struct completion *completion = server->first, *next; completion; completion = next) {
        bool waits = true;
        next = completion->next;
        for (int i = 0; i < completion->n_choices; i++)
            waits &= completion->choices[i].state == CHOICE_WAITS;
        if (waits || !only_waiting)
            cut(server, completion, &error);
    }
}

// ---- the answers of each path

static void print_model(const struct server *server, struct text *out) {
    text_add(out, "{\"id\": ");
    json_add_string(out, server->name);
    text_add(out,
             ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"zero.c\", \"max_model_len\": %d}",
             (long long)server->started_s, server->limits.positions);
}

static void get_models(struct server *server, struct exchange *exchange) {
    struct text body = {0};
    text_add(&body, "{\"object\": \"list\", \"data\": [");
    print_model(server, &body);
    text_add(&body, "]}\n");
    answer_text(server, exchange, "application/json", &body);
}

static void get_health(struct server *server, struct exchange *exchange) {
    static const char body[] = "{\"status\": \"ok\"}\n";
    answer_bytes(server, exchange, "application/json", body, sizeof body - 1);
}

// Returns the bytes of the process's resident memory; 0 if the system does not report it.
static double resident_bytes(void) {
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return 0;
    if (fscanf(file, "%*s %lld", &pages) != 1)
        pages = 0;
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void get_metrics(struct server *server, struct exchange *exchange) {
    const struct metrics *metrics = &server->metrics;
    const double positions = (double)server->generator_options.positions * (double)slots;
    const struct {
        const char *name, *type, *help;
        double value;
    } values[] = {
        {"zero_disconnected_total", "counter", "Clients that left before their answer was complete.",
         (double)metrics->disconnected},
        {"zero_prompt_tokens_total", "counter", "Tokens of prompts.", (double)metrics->prompt_tokens},
        {"zero_generated_tokens_total", "counter", "Tokens generated.", (double)metrics->generated_tokens},
        {"zero_steps_total", "counter", "Decoding steps.", (double)metrics->steps},
        {"zero_texts_running", "gauge", "Texts that are being generated.", batch_n_texts(server->batch)},
        {"zero_texts_waiting", "gauge", "Texts that wait for a slot.", server->n_waiting},
        {"zero_slots", "gauge", "Texts that can be generated together.", (double)slots},
        {"zero_connections", "gauge", "Open connections.", http_n_connections(server->http)},
        {"zero_cache_positions_used", "gauge", "Positions of the key-value cache in use.",
         (double)batch_n_cached(server->batch)},
        {"zero_cache_positions", "gauge", "Positions of the key-value cache.", positions},
        {"process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes()},
    };
    struct text body = {0};
    char number[32];
    add_header(&body, "zero_requests_total", "counter", "Answered requests, by HTTP status.");
    for (int i = 0; i < MOST_CODES; i++)
        if (metrics->requests[i].n > 0)
            text_add(&body, "zero_requests_total{code=\"%d\"} %lld\n", metrics->requests[i].code,
                     (long long)metrics->requests[i].n);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        add_header(&body, values[i].name, values[i].type, values[i].help);
        text_add(&body, "%s %s\n", values[i].name, text_double(number, values[i].value));
    }
    add_histogram(&body, "zero_request_seconds", "Seconds from a request for a completion to its end.",
                  &metrics->request_s);
    add_histogram(&body, "zero_first_token_seconds",
                  "Seconds from a request for a completion to its first token.", &metrics->first_token_s);
    add_histogram(&body, "zero_step_seconds", "Seconds of a decoding step.", &metrics->step_s);
    answer_text(server, exchange, "text/plain; version=0.0.4", &body);
}

static void get_page(struct server *server, struct exchange *exchange) {
    answer_bytes(server, exchange, "text/html; charset=utf-8", embedded_cli_serve_page_html,
                 embedded_cli_serve_page_html_bytes);
}

static const struct route {
    const char *path, *method;
    void (*answer)(struct server *server, struct exchange *exchange);
} routes[] = {
    {"/v1/completions", "POST", post_completions},
    {"/v1/models", "GET", get_models},
    {"/health", "GET", get_health},
    {"/metrics", "GET", get_metrics},
    {"/", "GET", get_page},
};

static void get_model(struct server *server, struct exchange *exchange, const char *name) {
    struct text body = {0};
    struct api_error error;
    if (strcmp(name, server->name) != 0) {
        api_refuse(&error, 404, "model_not_found", NULL, "there is no model \"%.100s\" here", name);
        return answer_error(server, exchange, &error);
    }
    print_model(server, &body);
    text_add(&body, "\n");
    answer_text(server, exchange, "application/json", &body);
}

static void answer(struct server *server, struct exchange *exchange) {
    const char *path = exchange->path, *method = exchange->method;
    static const char models[] = "/v1/models/";
    struct api_error error;
    bool gets = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (exchange->error.code)
        return answer_error(server, exchange, &exchange->error);
    if (strcmp(method, "OPTIONS") == 0) // CORS preflight: http.c adds the headers that permit the request
        return answer_bytes(server, exchange, "text/plain", "", 0);
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, path) != 0)
            continue;
        if (strcmp(routes[i].method, method) == 0 || (gets && strcmp(routes[i].method, "GET") == 0))
            return routes[i].answer(server, exchange);
        api_refuse(&error, 405, "method_not_allowed", routes[i].method, "%s does not take %.20s, only %s",
                   path, method, routes[i].method);
        return answer_error(server, exchange, &error);
    }
    if (gets && strncmp(path, models, sizeof models - 1) == 0)
        return get_model(server, exchange, path + sizeof models - 1);
    api_refuse(&error, 404, "not_found", NULL,
               "there is no %.200s here; expected /v1/completions, /v1/models, /health, /metrics or /", path);
    answer_error(server, exchange, &error);
}

// ---- the server's loop

static void answer_arrived(struct server *server, double seconds) {
    struct exchange *exchange = http_next(server->http, seconds);
    for (; exchange; exchange = http_next(server->http, 0))
        answer(server, exchange);
}

// Lets requests with running texts finish within the grace period; refuses all others.
static enum status end_gracefully(struct server *server) {
    double until = clock_monotonic_s() + grace_s;
    http_quiesce(server->http);
    server->ending = true;
    cut_completions(server, true);
    while (server->first && clock_monotonic_s() < until) {
        answer_arrived(server, 0);
        TRY(step(server));
    }
    return STATUS_OK;
}

static enum status serve(struct server *server) {
    while (!signals_stop_requested()) {
        answer_arrived(server, server->first ? 0 : IDLE_SECONDS);
        TRY(step(server));
    }
    log_info("stopping: running texts have %g seconds to end", grace_s);
    return end_gracefully(server);
}

// ---- starting the server

// Returns the maximum bytes of host memory of all requests: their bodies, and for each unfinished text its
// tokens and their streamed events.
static size_t request_bytes(const struct server *server) {
    size_t per_token = 256 + 64 * (size_t)max_logprobs + 2 * sizeof(struct text_token);
    return (size_t)max_connections * (size_t)max_body +
           (size_t)(max_queue + slots) * (size_t)server->limits.max_tokens * per_token;
}

static void report_memory(const struct server *server) {
    char weights[32], cache[32], rest[32], requests[32];
    const struct region_table *table = &server->session.memory.table;
    const struct gpt_config *config = &server->session.params.config;
    const struct generator_options *options = &server->generator_options;
    size_t cache_bytes = (size_t)options->sequences * (size_t)options->positions * gpt_cache_width(config) *
                         (size_t)config->n_layer * dtype_size(options->type);
    size_t model_bytes = region_kind_bytes(table, REGION_PARAMS);
    size_t rest_bytes =
        region_total_bytes(table) + batch_bytes(&server->batch_options) - model_bytes - cache_bytes;
    log_info("memory: %s model, %s cache (%d texts of %d tokens), %s buffers; requests at most %s",
             text_bytes(weights, sizeof weights, (double)model_bytes),
             text_bytes(cache, sizeof cache, (double)cache_bytes), options->sequences, options->positions,
             text_bytes(rest, sizeof rest, (double)rest_bytes),
             text_bytes(requests, sizeof requests, (double)request_bytes(server)));
}

static void name_model(struct server *server) {
    const char *path = model.path;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    server->name = model_name ? copy_string(model_name) : copy_bytes(path + begin, n - begin);
}

static enum status load_model(struct server *server) {
    struct session *session = &server->session;
    TRY(session_open(session, &model));
    int n_positions = session->params.config.n_positions;
    if (longest > n_positions)
        return FAIL(STATUS_INVALID, "train serve: --context is %lld, but the model has only %d positions",
                    (long long)longest, n_positions);
    server->generator_options = (struct generator_options){.type = session->type,
                                                           .positions = longest ? (int)longest : n_positions,
                                                           .sequences = (int)slots,
                                                           .mask_documents = session->masks_documents};
    TRY(session_load_generator(session, &server->generator_options, &server->generator));
    server->batch_options = (struct batch_options){.generator = server->generator,
                                                   .stream = &session->stream,
                                                   .hooks = &session->hooks,
                                                   .tokenizer = session->tokenizer,
                                                   .vocab_size = session->params.config.vocab_size,
                                                   .positions = server->generator_options.positions,
                                                   .sequences = (int)slots,
                                                   .step_rows = batch_step_rows(session->device, (int)slots),
                                                   .prompt_tokens = PROMPT_TOKENS,
                                                   .host_logits = true};
    server->batch = batch_new(&server->batch_options);
    return STATUS_OK;
}

static enum status prepare_requests(struct server *server) {
    int positions = server->generator_options.positions;
    if (getrandom(&server->seed, sizeof server->seed, 0) != (ssize_t)sizeof server->seed)
        return FAIL(STATUS_FAILED, "cannot get random numbers from the system");
    server->limits = (struct request_limits){
        .tokenizer = server->session.tokenizer,
        .vocab_size = server->session.params.config.vocab_size,
        .positions = positions,
        .max_tokens = max_tokens > 0 && max_tokens < positions ? (int)max_tokens : positions,
        .max_texts = (int)max_texts,
        .max_logprobs = (int)max_logprobs,
        .model = server->name};
    return STATUS_OK;
}

static enum status start(struct server *server) {
    server->started_s = clock_wall_s();
    name_model(server);
    TRY(access_init(&rules));
    TRY(load_model(server));
    if (signals_stop_requested()) // while the model was loaded, before the server listens
        return STATUS_STOPPED;
    TRY(prepare_requests(server));
    TRY(http_start(&(struct http_options){.host = rules.host,
                                          .port = (int)port,
                                          .max_connections = (int)max_connections,
                                          .max_per_address = (int)max_per_address,
                                          .max_body = max_body,
                                          .timeout_s = timeout_s,
                                          .admit = access_admit,
                                          .context = &rules},
                   &server->http));
    report_memory(server);
    if (!rules.key && !access_is_local(http_address(server->http)))
        log_warning("other machines can use the model without a key: set ZERO_API_KEY or --api-key");
    const char *host = rules.host, *bracket = strchr(host, ':') ? "[" : "";
    printf("serving %s on http://%s%s%s:%d (Ctrl-C ends)\n", server->name, bracket, host,
           bracket[0] ? "]" : "", http_port(server->http));
    return output_flush();
}

static enum status run_serve(int n_args, char **args) {
    int n_paths;
    struct server server = {0};
    TRY(args_parse("serve", flags, sizeof flags / sizeof *flags, n_args, args, &model.path, 1, &n_paths));
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train serve: expected a run or checkpoint; see: train help serve");
    signals_catch();
    enum status status = start(&server);
    if (status == STATUS_OK)
        status = serve(&server);
    cut_completions(&server, false);
    if (server.http)
        http_stop(server.http, status == STATUS_OK ? SEND_SECONDS : 0);
    batch_delete(server.batch);
    generator_delete(server.generator);
    session_close(&server.session);
    free(server.name);
    return status;
}

const struct command command_serve = {
    .name = "serve",
    .synopsis = "RUN_OR_CHECKPOINT [--port N] [--host ADDRESS] [--slots N]",
    .summary = "answer requests for generated text over HTTP",
    .details =
        "Takes OpenAI's POST /v1/completions, and GET /v1/models, /health, /metrics (for Prometheus) and\n"
        "/, a page to try the model. Requests are decoded together. They join and leave between steps, and\n"
        "do not change each other's texts. By default, only this machine can connect. With another --host,\n"
        "set a key, and put a proxy in front that encrypts. Ctrl-C or SIGTERM gives running texts the time\n"
        "--grace to end; a second one ends the server at once.",
    .examples = "Answer completion requests from this machine, at http://localhost:8000.\n"
                "./train serve runs/quickstart --port 8000\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_serve,
};
