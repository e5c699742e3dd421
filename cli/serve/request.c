// Every member of a request is checked, and unknown ones are refused, so that nothing that a client asks
// for is silently ignored.
#include "cli/serve/request.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"

#define DEFAULT_TOKENS 16
#define LONGEST_STOP   256 // bytes

struct parse {
    struct request *request;
    const struct request_limits *limits;
    struct api_error *error;
};

// Refuses the request with the message that a failed function has recorded with FAIL (base/status.h).
static bool refuse_recorded(struct parse *parse, const char *param) {
    api_refuse(parse->error, 400, NULL, param, "%s", status_message());
    status_clear();
    return false;
}

// ---- parsing the members of a request

enum member_kind { INTEGER, LONG, NUMBER, SWITCH, UNSUPPORTED, OTHER };

struct member {
    const char *name;
    enum member_kind kind;
    size_t offset;    // offset of the value in struct request; by `kind` an int, int64_t, double or bool
    double low, high; // INTEGER, LONG, NUMBER: the smallest and the largest value
    size_t limit;     // if not 0: offset in struct request_limits of an int that replaces `high`
    bool (*take)(struct parse *parse, const cJSON *item); // OTHER: parses the value
    int type; // UNSUPPORTED: the cJSON type whose zero or empty value is accepted
};

static bool take_number(struct parse *parse, const struct member *member, const cJSON *item) {
    const bool whole = member->kind != NUMBER;
    const double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    const double high =
        member->limit ? *(const int *)((const char *)parse->limits + member->limit) : member->high;
    if (!(value >= member->low && value <= high) || (whole && value != floor(value)))
        return api_refuse(parse->error, 400, NULL, member->name, "%s: expected %s from %.15g to %.15g",
                          member->name, whole ? "an integer" : "a number", member->low, high);
    char *out = (char *)parse->request + member->offset;
    if (member->kind == INTEGER)
        *(int *)(void *)out = (int)value;
    else if (member->kind == LONG)
        *(int64_t *)(void *)out = (int64_t)value;
    else
        *(double *)(void *)out = value;
    return true;
}

static bool take_switch(struct parse *parse, const char *name, const cJSON *item, bool *out) {
    if (!cJSON_IsBool(item))
        return api_refuse(parse->error, 400, NULL, name, "%s: expected true or false", name);
    *out = cJSON_IsTrue(item);
    return true;
}

// Parses a member of OpenAI's API that this server does not support. Accepts only 0, "" or {}, as
// member->type says, because these ask for nothing.
static bool take_nothing(struct parse *parse, const struct member *member, const cJSON *item) {
    const bool empty = item->valuedouble == 0 && !item->child && !(item->valuestring && item->valuestring[0]);
    if (item->type == member->type && empty)
        return true;
    return api_refuse(parse->error, 400, "unsupported_parameter", member->name, "%s is not supported%s",
                      member->name, member->type == cJSON_Number ? "; use repetition_penalty" : "");
}

static bool take_model(struct parse *parse, const cJSON *item) {
    if (!cJSON_IsString(item))
        return api_refuse(parse->error, 400, NULL, "model", "model: expected a string");
    if (strcmp(item->valuestring, parse->limits->model) != 0)
        return api_refuse(parse->error, 404, "model_not_found", "model",
                          "there is no model \"%.100s\" here; this server has \"%.200s\"", item->valuestring,
                          parse->limits->model);
    return true;
}

static bool take_stream_options(struct parse *parse, const cJSON *item) {
    if (!cJSON_IsObject(item))
        return api_refuse(parse->error, 400, NULL, "stream_options", "stream_options: expected an object");
    const cJSON *option;
    cJSON_ArrayForEach(option, item) {
        if (strcmp(option->string, "include_usage") != 0)
            return api_refuse(parse->error, 400, NULL, "stream_options",
                              "stream_options: unknown member \"%.100s\", expected include_usage",
                              option->string);
        if (!take_switch(parse, "stream_options", option, &parse->request->include_usage))
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
        return api_refuse(parse->error, 400, NULL, "stop", "stop: expected at most %d strings", MOST_STOPS);
    parse->request->stops[options->n_stops++] = copy_string(item->valuestring);
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

// ---- parsing the member "prompt"

static bool add_ids(struct parse *parse, const cJSON *array, struct token_list *prompt) {
    const cJSON *id;
    cJSON_ArrayForEach(id, array) {
        if (!cJSON_IsNumber(id) || id->valuedouble != floor(id->valuedouble) || id->valuedouble < 0 ||
            id->valuedouble >= parse->limits->vocab_size ||
            id->valuedouble >= tokenizer_n_ids(parse->limits->tokenizer))
            return api_refuse(parse->error, 400, NULL, "prompt",
                              "prompt: token ids are integers below %d, the size of the vocabulary",
                              tokenizer_n_ids(parse->limits->tokenizer));
        token_list_add(prompt, (int32_t)id->valuedouble);
    }
    return true;
}

static bool add_prompt(struct parse *parse, const cJSON *item, struct token_list *prompt) {
    const struct request_limits *limits = parse->limits;
    if (cJSON_IsArray(item))
        return add_ids(parse, item, prompt);
    if (!cJSON_IsString(item))
        return api_refuse(
            parse->error, 400, NULL, "prompt",
            "prompt: expected a string, an array of strings, an array of token ids, or an array "
            "of such arrays");
    return tokenizer_encode_prompt(limits->tokenizer, item->valuestring, strlen(item->valuestring),
                                   limits->vocab_size, prompt) == STATUS_OK ||
           refuse_recorded(parse, "prompt");
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
                          "prompt: %d prompts, expected at most %d per request", n, parse->limits->max_texts);
    request->prompts = allocate((size_t)n, sizeof *request->prompts);
    request->n_prompts = n;
    if (!several)
        return add_prompt(parse, item, &request->prompts[0]);
    const cJSON *prompt;
    cJSON_ArrayForEach(prompt, item) if (!add_prompt(parse, prompt, &request->prompts[i++])) return false;
    return true;
}

// ---- parsing the whole request

#define IN(member)    offsetof(struct request, member)
#define LIMIT(member) offsetof(struct request_limits, member)
static const struct member members[] = {
    {"model", OTHER, .take = take_model},
    {"prompt", OTHER, .take = take_prompt},
    {"max_tokens", LONG, IN(options.n_tokens), .low = 0, .limit = LIMIT(max_tokens)},
    {"temperature", NUMBER, IN(options.sampling.temperature), .low = 0, .high = 1e3},
    {"top_p", NUMBER, IN(options.sampling.top_p), .low = 0, .high = 1},
    {"top_k", INTEGER, IN(options.sampling.top_k), .low = 0, .high = 1e9},
    {"min_p", NUMBER, IN(options.sampling.min_p), .low = 0, .high = 1},
    {"repetition_penalty", NUMBER, IN(options.repetition_penalty), .low = 0.1, .high = 10},
    {"seed", LONG, IN(options.sampling.seed), .low = -0x1p53, .high = 0x1p53},
    {"n", INTEGER, IN(n), .low = 1, .limit = LIMIT(max_texts)},
    {"best_of", INTEGER, IN(best_of), .low = 1, .limit = LIMIT(max_texts)},
    {"logprobs", INTEGER, IN(options.n_top), .low = 0, .limit = LIMIT(max_logprobs)},
    {"echo", SWITCH, .offset = IN(echo)},
    {"stop", OTHER, .take = take_stop},
    {"stream", SWITCH, .offset = IN(stream)},
    {"stream_options", OTHER, .take = take_stream_options},
    {"user", OTHER, .take = take_user},
    {"presence_penalty", .kind = UNSUPPORTED, .type = cJSON_Number},
    {"frequency_penalty", .kind = UNSUPPORTED, .type = cJSON_Number},
    {"logit_bias", .kind = UNSUPPORTED, .type = cJSON_Object},
    {"suffix", .kind = UNSUPPORTED, .type = cJSON_String},
};
enum { N_MEMBERS = sizeof members / sizeof *members };

static bool take(struct parse *parse, const struct member *member, const cJSON *item) {
    switch (member->kind) {
    case SWITCH:
        return take_switch(parse, member->name, item, (bool *)((char *)parse->request + member->offset));
    case UNSUPPORTED:
        return take_nothing(parse, member, item);
    case OTHER:
        return member->take(parse, item);
    default:
        return take_number(parse, member, item);
    }
}

static bool take_members(struct parse *parse, const cJSON *root) {
    const cJSON *item;
    cJSON_ArrayForEach(item, root) {
        const struct member *member = NULL;
        for (int i = 0; i < N_MEMBERS && !member; i++)
            member = strcmp(members[i].name, item->string) == 0 ? &members[i] : NULL;
        if (!member)
            return api_refuse(parse->error, 400, "unknown_parameter", NULL, "unknown member \"%.100s\"",
                              item->string);
        if (!cJSON_IsNull(item) && !take(parse, member, item))
            return false;
    }
    return true;
}

// Checks the rules that involve several members, and the numbers of texts and tokens. Sets the members
// whose values depend on other members.
static bool check(struct parse *parse) {
    struct request *request = parse->request;
    const struct request_limits *limits = parse->limits;
    if (!request->prompts)
        return api_refuse(parse->error, 400, NULL, "prompt", "prompt is missing");
    if (request->best_of > 0 && request->best_of != request->n)
        return api_refuse(parse->error, 400, "unsupported_parameter", "best_of",
                          "best_of other than n is not supported");
    if (request->include_usage && !request->stream)
        return api_refuse(parse->error, 400, NULL, "stream_options", "stream_options needs stream");
    if ((int64_t)request->n_prompts * request->n > limits->max_texts)
        return api_refuse(parse->error, 400, NULL, "n",
                          "%d prompts x n = %d are more than %d texts per request", request->n_prompts,
                          request->n, limits->max_texts);
    size_t longest = 0;
    for (int i = 0; i < request->n_prompts; i++) {
        size_t n = request->prompts[i].n;
        if (n == 0)
            return api_refuse(parse->error, 400, NULL, "prompt", "prompt: expected at least one token id");
        longest = n > longest ? n : longest;
    }
    size_t positions = (size_t)limits->positions;
    if (request->options.n_tokens < 0) { // no max_tokens: take the default, or the context's rest if less
        size_t most = (size_t)(limits->max_tokens < DEFAULT_TOKENS ? limits->max_tokens : DEFAULT_TOKENS);
        size_t room = longest < positions ? positions - longest : most;
        request->options.n_tokens = (int64_t)(room < most ? room : most);
    }
    size_t n_tokens = (size_t)request->options.n_tokens;
    if (longest + n_tokens > positions)
        return api_refuse(parse->error, 400, "context_length_exceeded", "prompt",
                          "the prompt's %zu tokens and max_tokens = %zu are more than the model's context of "
                          "%zu tokens",
                          longest, n_tokens, positions);
    request->options.prompt_logprobs = request->echo && request->options.n_top >= 0;
    return true;
}

bool request_parse(struct request *request, const char *body, size_t n_bytes,
                   const struct request_limits *limits, struct api_error *error) {
    struct parse parse = {.request = request, .limits = limits, .error = error};
    cJSON *root;
    *request = (struct request){.n = 1,
                                .options = {.sampling = {.temperature = 1, .top_p = 1},
                                            .repetition_penalty = 1,
                                            .n_tokens = -1,
                                            .n_top = -1}};
    if (json_parse(body, n_bytes, "request", &root) != STATUS_OK)
        return refuse_recorded(&parse, NULL);
    bool good = cJSON_IsObject(root) ? take_members(&parse, root) && check(&parse)
                                     : api_refuse(error, 400, NULL, NULL, "the request is not a JSON object");
    request->has_seed = cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(root, "seed"));
    cJSON_Delete(root);
    request->options.stops = (const char *const *)request->stops;
    return good;
}

void request_free(struct request *request) {
    for (int i = 0; i < request->n_prompts; i++)
        token_list_free(&request->prompts[i]);
    free(request->prompts);
    for (int i = 0; i < request->options.n_stops; i++)
        free(request->stops[i]);
    *request = (struct request){0};
}
