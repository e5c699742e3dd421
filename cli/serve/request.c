// Every member is checked, and unknown ones are refused: what a client asks for is done or named.
#include "cli/serve/request.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "infer/prompt.h"

#define DEFAULT_TOKENS 16
#define LONGEST_STOP   256 // bytes

struct parse {
    struct request *request;
    const struct request_limits *limits;
    struct api_error *error;
    const char *name; // of the member
    bool has_max_tokens;
    int best_of;
};

bool api_refuse(struct api_error *error, int code, const char *name, const char *param, const char *format,
                ...) {
    va_list arguments;
    *error = (struct api_error){.code = code,
                                .type = code == 429  ? "rate_limit_error"
                                        : code < 500 ? "invalid_request_error"
                                                     : "server_error",
                                .name = name,
                                .param = param};
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return false;
}

// A failure that functions of other folders recorded.
static bool refuse_recorded(struct parse *parse, const char *param) {
    api_refuse(parse->error, 400, NULL, param, "%s", status_message());
    status_clear();
    return false;
}

// ---- values

static bool get_number(struct parse *parse, const cJSON *item, double minimum, double maximum, bool whole,
                       double *out) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= minimum && item->valuedouble <= maximum) ||
        (whole && item->valuedouble != floor(item->valuedouble)))
        return api_refuse(parse->error, 400, NULL, parse->name, "%s: expected %s from %.15g to %.15g",
                          parse->name, whole ? "an integer" : "a number", minimum, maximum);
    *out = item->valuedouble;
    return true;
}

static bool get_integer(struct parse *parse, const cJSON *item, double minimum, double maximum, int *out) {
    double value = 0;
    if (!get_number(parse, item, minimum, maximum, true, &value))
        return false;
    *out = (int)value;
    return true;
}

static bool get_bool(struct parse *parse, const cJSON *item, bool *out) {
    if (!cJSON_IsBool(item))
        return api_refuse(parse->error, 400, NULL, parse->name, "%s: expected true or false", parse->name);
    *out = cJSON_IsTrue(item);
    return true;
}

// ---- members

static bool take_model(struct parse *parse, const cJSON *item) {
    if (!cJSON_IsString(item))
        return api_refuse(parse->error, 400, NULL, "model", "model: expected a string");
    if (strcmp(item->valuestring, parse->limits->model) != 0)
        return api_refuse(parse->error, 404, "model_not_found", "model",
                          "there is no model \"%.100s\" here; this server has \"%.200s\"", item->valuestring,
                          parse->limits->model);
    return true;
}

static bool take_max_tokens(struct parse *parse, const cJSON *item) {
    int n;
    if (!get_integer(parse, item, 0, parse->limits->max_tokens, &n))
        return false;
    parse->request->options.n_tokens = n;
    parse->has_max_tokens = true;
    return true;
}

static bool take_temperature(struct parse *parse, const cJSON *item) {
    return get_number(parse, item, 0, 1e3, false, &parse->request->options.sampling.temperature);
}

static bool take_top_p(struct parse *parse, const cJSON *item) {
    return get_number(parse, item, 0, 1, false, &parse->request->options.sampling.top_p);
}

static bool take_min_p(struct parse *parse, const cJSON *item) {
    return get_number(parse, item, 0, 1, false, &parse->request->options.sampling.min_p);
}

static bool take_top_k(struct parse *parse, const cJSON *item) {
    return get_integer(parse, item, 0, 1e9, &parse->request->options.sampling.top_k);
}

static bool take_repetition_penalty(struct parse *parse, const cJSON *item) {
    return get_number(parse, item, 0.1, 10, false, &parse->request->options.repetition_penalty);
}

static bool take_seed(struct parse *parse, const cJSON *item) {
    double seed = 0;
    if (!get_number(parse, item, -0x1p53, 0x1p53, true, &seed))
        return false;
    parse->request->options.sampling.seed = (uint64_t)(int64_t)seed;
    parse->request->has_seed = true;
    return true;
}

static bool take_n(struct parse *parse, const cJSON *item) {
    return get_integer(parse, item, 1, parse->limits->max_texts, &parse->request->n);
}

static bool take_best_of(struct parse *parse, const cJSON *item) {
    return get_integer(parse, item, 1, parse->limits->max_texts, &parse->best_of);
}

static bool take_logprobs(struct parse *parse, const cJSON *item) {
    return get_integer(parse, item, 0, parse->limits->max_logprobs, &parse->request->options.n_top);
}

static bool take_echo(struct parse *parse, const cJSON *item) {
    return get_bool(parse, item, &parse->request->echo);
}

static bool take_stream(struct parse *parse, const cJSON *item) {
    return get_bool(parse, item, &parse->request->stream);
}

static bool take_stream_options(struct parse *parse, const cJSON *item) {
    if (!cJSON_IsObject(item))
        return api_refuse(parse->error, 400, NULL, parse->name, "stream_options: expected an object");
    const cJSON *option;
    cJSON_ArrayForEach(option, item) {
        if (strcmp(option->string, "include_usage") != 0)
            return api_refuse(parse->error, 400, NULL, parse->name,
                              "stream_options: unknown member \"%.100s\", expected include_usage",
                              option->string);
        if (!get_bool(parse, option, &parse->request->include_usage))
            return false;
    }
    return true;
}

static bool add_stop(struct parse *parse, const cJSON *item) {
    struct text_options *options = &parse->request->options;
    if (!cJSON_IsString(item) || !item->valuestring[0] || strlen(item->valuestring) > LONGEST_STOP)
        return api_refuse(parse->error, 400, NULL, "stop",
                          "stop: expected a string of 1 to %d bytes, or an array of them", LONGEST_STOP);
    if (options->n_stops == MOST_STOPS)
        return api_refuse(parse->error, 400, NULL, "stop", "stop: more than %d strings", MOST_STOPS);
    char *copy = strdup(item->valuestring);
    if (!copy)
        return api_refuse(parse->error, 503, NULL, NULL, "out of memory");
    parse->request->stops[options->n_stops++] = copy;
    return true;
}

static bool take_stop(struct parse *parse, const cJSON *item) {
    const cJSON *stop;
    if (!cJSON_IsArray(item))
        return add_stop(parse, item);
    cJSON_ArrayForEach(stop, item) if (!add_stop(parse, stop)) return false;
    return true;
}

static bool take_user(struct parse *parse, const cJSON *item) {
    (void)parse, (void)item;
    return true;
}

// What OpenAI has and this server has not: only values that ask for nothing.
static bool take_zero(struct parse *parse, const cJSON *item) {
    if (cJSON_IsNumber(item) && item->valuedouble == 0)
        return true;
    return api_refuse(parse->error, 400, "unsupported_parameter", parse->name,
                      "%s is not supported; repetition_penalty is", parse->name);
}

static bool take_no_bias(struct parse *parse, const cJSON *item) {
    if (cJSON_IsObject(item) && !item->child)
        return true;
    return api_refuse(parse->error, 400, "unsupported_parameter", parse->name, "logit_bias is not supported");
}

static bool take_no_suffix(struct parse *parse, const cJSON *item) {
    if (cJSON_IsString(item) && !item->valuestring[0])
        return true;
    return api_refuse(parse->error, 400, "unsupported_parameter", parse->name, "suffix is not supported");
}

// ---- prompts

static bool add_ids(struct parse *parse, const cJSON *array, struct request_prompt *prompt) {
    const cJSON *id;
    cJSON_ArrayForEach(id, array) {
        if (!cJSON_IsNumber(id) || id->valuedouble != floor(id->valuedouble) || id->valuedouble < 0 ||
            id->valuedouble >= parse->limits->vocab_size ||
            id->valuedouble >= tokenizer_n_ids(parse->limits->tokenizer))
            return api_refuse(parse->error, 400, NULL, "prompt",
                              "prompt: token ids are integers below %d, the size of the vocabulary",
                              tokenizer_n_ids(parse->limits->tokenizer));
        if (token_list_add(&prompt->tokens, (int32_t)id->valuedouble) != STATUS_OK)
            return refuse_recorded(parse, "prompt");
    }
    return true;
}

static bool add_prompt(struct parse *parse, const cJSON *item, struct request_prompt *prompt) {
    const struct request_limits *limits = parse->limits;
    if (cJSON_IsArray(item))
        return add_ids(parse, item, prompt);
    if (!cJSON_IsString(item))
        return api_refuse(
            parse->error, 400, NULL, "prompt",
            "prompt: expected a string, an array of strings, an array of token ids, or an array "
            "of such arrays");
    const struct prompt text = {item->valuestring, strlen(item->valuestring)};
    prompt->empty = text.n_bytes == 0;
    if (prompt_encode(limits->tokenizer, limits->vocab_size, &text, &prompt->tokens) != STATUS_OK)
        return refuse_recorded(parse, "prompt");
    return true;
}

static bool take_prompt(struct parse *parse, const cJSON *item) {
    struct request *request = parse->request;
    const cJSON *first = cJSON_IsArray(item) ? item->child : NULL;
    bool several = first && (cJSON_IsString(first) || cJSON_IsArray(first));
    int n = several ? cJSON_GetArraySize(item) : 1, i = 0;
    if (cJSON_IsArray(item) && !first)
        return api_refuse(parse->error, 400, NULL, "prompt", "prompt: the array is empty");
    if (n > parse->limits->max_texts)
        return api_refuse(parse->error, 400, NULL, "prompt",
                          "prompt: %d prompts, at most %d in a request allowed", n, parse->limits->max_texts);
    request->prompts = calloc((size_t)n, sizeof *request->prompts);
    if (!request->prompts)
        return api_refuse(parse->error, 503, NULL, NULL, "out of memory");
    request->n_prompts = n;
    if (!several)
        return add_prompt(parse, item, &request->prompts[0]);
    const cJSON *prompt;
    cJSON_ArrayForEach(prompt, item) if (!add_prompt(parse, prompt, &request->prompts[i++])) return false;
    return true;
}

// ---- the request

static const struct member {
    const char *name;
    bool (*take)(struct parse *parse, const cJSON *item);
} members[] = {
    {"model", take_model},
    {"prompt", take_prompt},
    {"max_tokens", take_max_tokens},
    {"temperature", take_temperature},
    {"top_p", take_top_p},
    {"top_k", take_top_k},
    {"min_p", take_min_p},
    {"repetition_penalty", take_repetition_penalty},
    {"seed", take_seed},
    {"n", take_n},
    {"best_of", take_best_of},
    {"logprobs", take_logprobs},
    {"echo", take_echo},
    {"stop", take_stop},
    {"stream", take_stream},
    {"stream_options", take_stream_options},
    {"user", take_user},
    {"presence_penalty", take_zero},
    {"frequency_penalty", take_zero},
    {"logit_bias", take_no_bias},
    {"suffix", take_no_suffix},
};
enum { N_MEMBERS = sizeof members / sizeof *members };

static bool take_members(struct parse *parse, const cJSON *root) {
    const cJSON *item;
    cJSON_ArrayForEach(item, root) {
        const struct member *member = NULL;
        for (int i = 0; i < N_MEMBERS && !member; i++)
            member = strcmp(members[i].name, item->string) == 0 ? &members[i] : NULL;
        if (!member)
            return api_refuse(parse->error, 400, "unknown_parameter", NULL, "unknown member \"%.100s\"",
                              item->string);
        parse->name = member->name;
        if (!cJSON_IsNull(item) && !member->take(parse, item))
            return false;
    }
    return true;
}

// Rules across members, and the lengths.
static bool check(struct parse *parse) {
    struct request *request = parse->request;
    const struct request_limits *limits = parse->limits;
    if (!request->prompts)
        return api_refuse(parse->error, 400, NULL, "prompt", "prompt is missing");
    if (parse->best_of > 0 && parse->best_of != request->n)
        return api_refuse(parse->error, 400, "unsupported_parameter", "best_of",
                          "best_of other than n is not supported");
    if (request->include_usage && !request->stream)
        return api_refuse(parse->error, 400, NULL, "stream_options", "stream_options needs stream");
    if ((int64_t)request->n_prompts * request->n > limits->max_texts)
        return api_refuse(parse->error, 400, NULL, "n", "%d prompts with n = %d: at most %d texts allowed",
                          request->n_prompts, request->n, limits->max_texts);
    size_t longest = 0;
    for (int i = 0; i < request->n_prompts; i++) {
        size_t n = request->prompts[i].tokens.n;
        if (n == 0)
            return api_refuse(parse->error, 400, NULL, "prompt", "prompt: no token ids");
        longest = n > longest ? n : longest;
    }
    size_t positions = (size_t)limits->positions, n_tokens = (size_t)request->options.n_tokens;
    if (!parse->has_max_tokens && longest < positions && n_tokens > positions - longest)
        request->options.n_tokens = (int64_t)(n_tokens = positions - longest);
    if (longest + n_tokens > positions)
        return api_refuse(parse->error, 400, "context_length_exceeded", "prompt",
                          "%zu tokens of the prompt and %zu of max_tokens are more than the model's context "
                          "of %zu tokens",
                          longest, n_tokens, positions);
    request->options.prompt_logprobs = request->echo && request->options.n_top >= 0;
    return true;
}

bool request_parse(struct request *request, const char *body, size_t n_bytes,
                   const struct request_limits *limits, struct api_error *error) {
    struct parse parse = {.request = request, .limits = limits, .error = error};
    int most = limits->max_tokens;
    cJSON *root;
    *request = (struct request){.n = 1,
                                .options = {.sampling = {.temperature = 1, .top_p = 1},
                                            .repetition_penalty = 1,
                                            .n_tokens = DEFAULT_TOKENS < most ? DEFAULT_TOKENS : most,
                                            .n_top = -1}};
    if (json_parse(body, n_bytes, "request", &root) != STATUS_OK)
        return refuse_recorded(&parse, NULL);
    bool good = cJSON_IsObject(root) ? take_members(&parse, root) && check(&parse)
                                     : api_refuse(error, 400, NULL, NULL, "the request is not a JSON object");
    cJSON_Delete(root);
    request->options.stops = (const char *const *)request->stops;
    return good;
}

void request_free(struct request *request) {
    for (int i = 0; i < request->n_prompts; i++)
        token_list_free(&request->prompts[i].tokens);
    free(request->prompts);
    for (int i = 0; i < request->options.n_stops; i++)
        free(request->stops[i]);
    *request = (struct request){0};
}
