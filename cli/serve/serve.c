// ./train serve RUN_OR_CHECKPOINT
//
// One thread decodes and answers; another moves the bytes of the connections (cli/serve/http.c). Between two
// steps of the batch, requests that have arrived are looked at.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/embedded.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "cli/commands.h"
#include "cli/serve/completions.h"
#include "infer/session.h"
#include "trainer/signals.h"

EMBEDDED_FILE(cli_serve_page_html);

// Tokens of prompts that one step processes, so that long ones do not keep the other texts waiting.
#define PROMPT_TOKENS (4 * GENERATOR_CHUNK)
#define IDLE_SECONDS  0.2
#define SEND_SECONDS  2.0 // at the end, for answers that are complete

static const char *host = "127.0.0.1", *device_name = "auto", *tokenizer_path = "", *weights_name = NULL,
                  *model_name = NULL;
static int64_t port = 8000, slots = 32, context = 0, max_tokens = 0, max_texts = 128, max_queue = 256;
static int64_t max_connections = 512, max_logprobs = 5, threads = 0;
static uint64_t max_body = 1 << 20;
static double timeout_s = 30, deadline_s = 600, grace_s = 10;

static const struct arg flags[] = {
    {"--host", ARG_STRING, &host, 0, 0, "address to listen on (127.0.0.1: this machine only)"},
    {"--port", ARG_INTEGER, &port, 0, 65535, "port to listen on; 0: any free one (8000)"},
    {"--slots", ARG_INTEGER, &slots, 1, 1024, "texts to generate together (32)"},
    {"--context", ARG_INTEGER, &context, 0, 1e9,
     "longest prompt and text together, in tokens; 0: the model's (0)"},
    {"--max-tokens", ARG_INTEGER, &max_tokens, 0, 1e9, "limit of max_tokens; 0: the context (0)"},
    {"--max-texts", ARG_INTEGER, &max_texts, 1, 1e6, "limit of a request's prompts times n (128)"},
    {"--max-logprobs", ARG_INTEGER, &max_logprobs, 0, MOST_TOP_LOGPROBS, "limit of logprobs (5)"},
    {"--max-queue", ARG_INTEGER, &max_queue, 0, 1e6, "texts that may wait; beyond that: 429 (256)"},
    {"--max-body", ARG_BYTES, &max_body, 1, 0x1p30, "largest request; beyond that: 413 (1MiB)"},
    {"--max-connections", ARG_INTEGER, &max_connections, 1, 65536, "open connections (512)"},
    {"--timeout", ARG_NUMBER, &timeout_s, 0.1, 1e6,
     "seconds for a client to send a request, or to take the end of its answer (30)"},
    {"--deadline", ARG_NUMBER, &deadline_s, 0.1, 1e6, "seconds for a request from its arrival (600)"},
    {"--grace", ARG_NUMBER, &grace_s, 0, 1e6,
     "seconds for running texts to end after Ctrl-C or SIGTERM (10)"},
    {"--name", ARG_STRING, &model_name, 0, 0, "the model's name in the API (the last part of its path)"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0, "the tokenizer, where the model comes without one"},
    {"--weights", ARG_STRING, &weights_name, 0, 0,
     "average or latest, of a checkpoint that has both (default: average)"},
    {"--device", ARG_STRING, &device_name, 0, 0, "auto, cpu or cuda (auto)"},
    {"--threads", ARG_INTEGER, &threads, 0, 4096,
     "CPU threads; 0: OMP_NUM_THREADS if set, otherwise one per core (0)"},
};

struct server {
    struct session session;
    struct generator *generator;
    struct batch *batch;
    struct generator_options generator_options;
    struct batch_options batch_options;
    struct request_limits limits;
    struct completions *completions;
    struct http_server *http;
    struct metrics metrics;
    char *name;
    double started_s;
    bool ending;
};

// ---- routes

static void print_model(const struct server *server, struct text *out) {
    text_add(out, "{\"id\": ");
    json_add_string(out, server->name);
    text_add(out,
             ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"zero.c\", \"max_model_len\": %d}",
             (long long)server->started_s, server->limits.positions);
}

static enum status get_models(struct server *server, struct exchange *exchange) {
    struct text body = {0};
    text_add(&body, "{\"object\": \"list\", \"data\": [");
    print_model(server, &body);
    text_add(&body, "]}\n");
    answer_text(exchange, &server->metrics, "application/json", &body);
    return STATUS_OK;
}

static enum status get_health(struct server *server, struct exchange *exchange) {
    static const char body[] = "{\"status\": \"ok\"}\n";
    answer_bytes(exchange, &server->metrics, "application/json", body, sizeof body - 1);
    return STATUS_OK;
}

static enum status get_metrics(struct server *server, struct exchange *exchange) {
    struct text body = {0};
    size_t positions =
        (size_t)server->generator_options.positions * (size_t)server->generator_options.sequences;
    metrics_print(&server->metrics,
                  &(struct metrics_now){.texts_running = batch_n_texts(server->batch),
                                        .texts_waiting = completions_n_waiting(server->completions),
                                        .slots = server->generator_options.sequences,
                                        .connections = http_n_connections(server->http),
                                        .cache_used = batch_n_cached(server->batch),
                                        .cache_positions = positions},
                  &body);
    answer_text(exchange, &server->metrics, "text/plain; version=0.0.4", &body);
    return STATUS_OK;
}

static enum status get_page(struct server *server, struct exchange *exchange) {
    answer_bytes(exchange, &server->metrics, "text/html; charset=utf-8", embedded_cli_serve_page_html,
                 embedded_cli_serve_page_html_bytes);
    return STATUS_OK;
}

static enum status post_completions(struct server *server, struct exchange *exchange) {
    struct api_error error;
    if (!server->ending)
        return completions_begin(server->completions, exchange);
    api_refuse(&error, 503, "shutting_down", NULL, "the server is shutting down");
    answer_error(exchange, &server->metrics, &error);
    return STATUS_OK;
}

static const struct route {
    const char *path, *method;
    enum status (*answer)(struct server *server, struct exchange *exchange);
} routes[] = {
    {"/v1/completions", "POST", post_completions},
    {"/v1/models", "GET", get_models},
    {"/health", "GET", get_health},
    {"/metrics", "GET", get_metrics},
    {"/", "GET", get_page},
};

static enum status get_model(struct server *server, struct exchange *exchange, const char *name) {
    struct text body = {0};
    struct api_error error;
    if (strcmp(name, server->name) != 0) {
        api_refuse(&error, 404, "model_not_found", NULL, "there is no model \"%.100s\" here", name);
        answer_error(exchange, &server->metrics, &error);
        return STATUS_OK;
    }
    print_model(server, &body);
    text_add(&body, "\n");
    answer_text(exchange, &server->metrics, "application/json", &body);
    return STATUS_OK;
}

static enum status answer(struct server *server, struct exchange *exchange) {
    const char *path = exchange_path(exchange), *method = exchange_method(exchange);
    static const char models[] = "/v1/models/";
    struct api_error error;
    bool gets = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, path) != 0)
            continue;
        if (strcmp(routes[i].method, method) == 0 || (gets && strcmp(routes[i].method, "GET") == 0))
            return routes[i].answer(server, exchange);
        api_refuse(&error, 405, "method_not_allowed", routes[i].method, "%s does not take %.20s, only %s",
                   path, method, routes[i].method);
        answer_error(exchange, &server->metrics, &error);
        return STATUS_OK;
    }
    if (gets && strncmp(path, models, sizeof models - 1) == 0)
        return get_model(server, exchange, path + sizeof models - 1);
    api_refuse(&error, 404, "not_found", NULL,
               "there is no %.200s here; expected /v1/completions, /v1/models, /health, /metrics or /", path);
    answer_error(exchange, &server->metrics, &error);
    return STATUS_OK;
}

// ---- the loop

static enum status answer_arrived(struct server *server, double seconds) {
    struct exchange *exchange = http_next(server->http, seconds);
    for (; exchange; exchange = http_next(server->http, 0))
        TRY(answer(server, exchange));
    return STATUS_OK;
}

// Texts that run may end in the grace period; everything else is refused.
static enum status end_gracefully(struct server *server) {
    double until = clock_monotonic_s() + grace_s;
    http_quiesce(server->http);
    server->ending = true;
    completions_cut(server->completions, true);
    while (!completions_are_idle(server->completions) && clock_monotonic_s() < until) {
        TRY(answer_arrived(server, 0));
        TRY(completions_step(server->completions));
    }
    completions_cut(server->completions, false);
    return STATUS_OK;
}

static enum status serve(struct server *server) {
    while (!signals_stop_requested()) {
        bool idle = completions_are_idle(server->completions);
        TRY(answer_arrived(server, idle ? IDLE_SECONDS : 0));
        TRY(completions_step(server->completions));
    }
    log_info("stopping: texts that run have %g seconds to end", grace_s);
    return end_gracefully(server);
}

// ---- starting

// What requests can hold at most: bodies, and of each text in flight its tokens and their events.
static size_t request_bytes(const struct server *server) {
    size_t per_token = 256 + 64 * (size_t)max_logprobs + 2 * sizeof(struct text_token);
    return (size_t)max_connections * (size_t)max_body +
           (size_t)(max_queue + slots) * (size_t)server->limits.max_tokens * per_token;
}

static void report_memory(const struct server *server) {
    char model[32], cache[32], rest[32], requests[32];
    const struct region_table *table = &server->session.memory.table;
    const struct gpt_config *config = &server->session.params.config;
    const struct generator_options *options = &server->generator_options;
    size_t cache_bytes = (size_t)options->sequences * (size_t)options->positions * 2 *
                         (size_t)config->n_embd * (size_t)config->n_layer * dtype_size(options->type);
    size_t model_bytes = region_kind_bytes(table, REGION_PARAMS);
    size_t rest_bytes =
        region_total_bytes(table) + batch_bytes(&server->batch_options) - model_bytes - cache_bytes;
    log_info("memory: %s model, %s cache (%d texts of %d tokens), %s buffers; requests at most %s",
             text_bytes(model, sizeof model, (double)model_bytes),
             text_bytes(cache, sizeof cache, (double)cache_bytes), options->sequences, options->positions,
             text_bytes(rest, sizeof rest, (double)rest_bytes),
             text_bytes(requests, sizeof requests, (double)request_bytes(server)));
}

static enum status name_model(struct server *server, const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    server->name = model_name ? strdup(model_name) : strndup(path + begin, n - begin);
    if (!server->name)
        return FAIL(STATUS_FAILED, "out of memory for the model's name");
    return STATUS_OK;
}

static enum status load_model(struct server *server, const char *path) {
    struct session *session = &server->session;
    TRY(session_open(session,
                     &(struct session_options){path, device_name, threads, tokenizer_path, weights_name}));
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID, "%s has no tokenizer; give one with --tokenizer FILE", path);
    int n_positions = session->params.config.n_positions;
    if (context > n_positions)
        return FAIL(STATUS_INVALID, "train serve: --context is %lld, the model has %d positions",
                    (long long)context, n_positions);
    server->generator_options = (struct generator_options){.type = session->type,
                                                           .positions = context ? (int)context : n_positions,
                                                           .sequences = (int)slots,
                                                           .mask_documents = session->masks_documents};
    TRY(generator_new(&session->params, &server->generator_options, session->device, &session->memory.table,
                      &server->generator));
    TRY(session_load(session));
    TRY(generator_bind(server->generator, &session->memory.table, &session->stream));
    if (session->masks_documents)
        generator_set_end_of_text(server->generator, tokenizer_document_start(session->tokenizer));
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
    return batch_new(&server->batch_options, &server->batch);
}

static enum status prepare_requests(struct server *server) {
    int positions = server->generator_options.positions;
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        return FAIL(STATUS_FAILED, "the system gives no random numbers");
    server->limits = (struct request_limits){
        .tokenizer = server->session.tokenizer,
        .vocab_size = server->session.params.config.vocab_size,
        .positions = positions,
        .max_tokens = max_tokens > 0 && max_tokens < positions ? (int)max_tokens : positions,
        .max_texts = (int)max_texts,
        .max_logprobs = (int)max_logprobs,
        .model = server->name};
    return completions_new(&(struct completions_options){.batch = server->batch,
                                                         .slots = (int)slots,
                                                         .limits = server->limits,
                                                         .max_queue = (int)max_queue,
                                                         .deadline_s = deadline_s,
                                                         .seed = seed,
                                                         .metrics = &server->metrics},
                           &server->completions);
}

static enum status start(struct server *server, const char *path) {
    static char too_large[128];
    snprintf(too_large, sizeof too_large,
             "{\"error\": {\"message\": \"the request is larger than %llu bytes\", \"type\": "
             "\"invalid_request_error\", \"param\": null, \"code\": null}}\n",
             (unsigned long long)max_body);
    server->started_s = clock_wall_s();
    TRY(name_model(server, path));
    TRY(load_model(server, path));
    TRY(prepare_requests(server));
    TRY(http_start(&(struct http_options){.host = host,
                                          .port = (int)port,
                                          .max_connections = (int)max_connections,
                                          .max_body = max_body,
                                          .timeout_s = timeout_s,
                                          .too_large = too_large,
                                          .too_large_type = "application/json"},
                   &server->http));
    report_memory(server);
    const char *bracket = strchr(host, ':') ? "[" : "";
    printf("serving %s on http://%s%s%s:%d (Ctrl-C ends)\n", server->name, bracket, host,
           bracket[0] ? "]" : "", http_port(server->http));
    return output_flush();
}

static enum status run_serve(int n_args, char **args) {
    const char *path;
    int n_paths;
    struct server server = {0};
    TRY(args_parse("serve", flags, sizeof flags / sizeof *flags, n_args, args, &path, 1, &n_paths));
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train serve: expected a run or checkpoint; see: train help serve");
    signals_catch();
    enum status status = start(&server, path);
    if (status == STATUS_OK)
        status = serve(&server);
    completions_delete(server.completions);
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
        "Takes OpenAI's POST /v1/completions, and GET /v1/models, /health, /metrics (for Prometheus) and /, "
        "a\n"
        "page to try the model. Requests are decoded together, join and leave between steps, and do not\n"
        "change each other's texts. There is no encryption and no login: only this machine is served unless\n"
        "--host says otherwise. Ctrl-C or SIGTERM ends; a second one ends at once.",
    .examples = "Answer completions on this machine, at http://localhost:8000.\n"
                "./train serve runs/quickstart --port 8000\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_serve,
};
