// ./train generate RUN_OR_CHECKPOINT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "cli/commands.h"
#include "cli/interactive.h"
#include "infer/prompt.h"
#include "infer/text_json.h"

static const char *prompt = NULL, *prompts_path = NULL, *device_name = "auto", *tokenizer_path = "",
                  *weights_name = NULL;
static const char *in_prefix = "", *in_suffix = "";
static int64_t n_tokens = 128, n_samples = 1, batch = 16, top_k = 0, seed = 1, threads = 0, n_logprobs = -1;
static double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
static bool interactive = false, as_json = false;
static struct arg_strings stops;

static const struct arg flags[] = {
    {"--prompt", ARG_STRING, &prompt, 0, 0, "text to continue (none: start from end-of-text)"},
    {"--tokens", ARG_INTEGER, &n_tokens, 1, 1e9, "maximum tokens per text (128)"},
    {"--prompts", ARG_STRING, &prompts_path, 0, 0,
     "a file of prompts, one per line, or .jsonl with \"prompt\"; - reads standard input"},
    {"--samples", ARG_INTEGER, &n_samples, 1, 1e6, "texts per prompt (1)"},
    {"--batch", ARG_INTEGER, &batch, 1, 1024, "number of texts to generate together (16)"},
    {"--interactive", ARG_FLAG, &interactive, 0, 0, "read lines and continue each; /help lists its commands"},
    {"--in-prefix", ARG_STRING, &in_prefix, 0, 0, "interactive: added before each line (nothing)"},
    {"--in-suffix", ARG_STRING, &in_suffix, 0, 0, "interactive: added after each line (nothing)"},
    {"--temperature", ARG_NUMBER, &temperature, 0, 1e3,
     "divides the logits; 0: always the most likely token (1)"},
    {"--top-k", ARG_INTEGER, &top_k, 0, 1e9, "sample from the k most likely tokens only; 0: from all (0)"},
    {"--top-p", ARG_NUMBER, &top_p, 0, 1,
     "sample from the most likely tokens that together reach this probability (1)"},
    {"--min-p", ARG_NUMBER, &min_p, 0, 1,
     "sample from tokens at least this times as probable as the most likely one (0)"},
    {"--repetition-penalty", ARG_NUMBER, &repetition_penalty, 0.1, 10,
     "divides positive and multiplies negative logits of tokens that occurred (1)"},
    {"--stop", ARG_STRINGS, &stops, 0, 0, "end a text before this string; may be given several times"},
    {"--seed", ARG_INTEGER, &seed, 0, 0x1p53, "random seed: the same seed gives the same text (1)"},
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object per text"},
    {"--logprobs", ARG_INTEGER, &n_logprobs, 0, MOST_TOP_LOGPROBS,
     "with --json: log-probabilities of each token and of the N most likely ones"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0, "the tokenizer, where the model comes without one"},
    {"--weights", ARG_STRING, &weights_name, 0, 0,
     "average or latest, of a checkpoint that has both (default: average)"},
    {"--device", ARG_STRING, &device_name, 0, 0, "auto, cpu or cuda (auto)"},
    {"--threads", ARG_INTEGER, &threads, 0, 4096,
     "CPU threads; 0: OMP_NUM_THREADS if set, otherwise one per core (0)"},
};

// ---- prompts: one from the command line, or a file of them

struct prompts {
    char *file;             // the text that the prompts point into; NULL for one of the command line
    struct prompt *prompts; // (n)
    char **strings;         // (n) of a jsonl file's prompts, or NULL
    int64_t n;
};

static enum status reserve(struct prompts *prompts, int64_t n) {
    prompts->prompts = calloc((size_t)n, sizeof *prompts->prompts);
    if (!prompts->prompts)
        return FAIL(STATUS_FAILED, "out of memory for %lld prompts", (long long)n);
    return STATUS_OK;
}

static enum status prompts_set_one(struct prompts *prompts, const char *text) {
    *prompts = (struct prompts){0};
    TRY(reserve(prompts, 1));
    prompts->prompts[prompts->n++] = (struct prompt){text, strlen(text)};
    return STATUS_OK;
}

// Replaces the prompts, which are whole lines, by their objects' "prompt".
static enum status parse_objects(struct prompts *prompts, const char *path) {
    prompts->strings = calloc((size_t)prompts->n, sizeof *prompts->strings);
    if (!prompts->strings)
        return FAIL(STATUS_FAILED, "out of memory for %lld prompts", (long long)prompts->n);
    for (int64_t i = 0; i < prompts->n; i++) {
        struct prompt *one = &prompts->prompts[i];
        char source[512];
        const char *string;
        cJSON *object = NULL;
        snprintf(source, sizeof source, "%s, line %lld", path, (long long)i + 1);
        TRY(json_parse(one->bytes, one->n_bytes, source, &object));
        enum status status = STATUS_OK;
        if (!cJSON_IsObject(object))
            status = FAIL(STATUS_INVALID, "%s is not a JSON object; expected {\"prompt\": \"...\"}", source);
        if (status == STATUS_OK)
            status = json_get_string(object, "prompt", source, &string);
        if (status == STATUS_OK && !(prompts->strings[i] = strdup(string)))
            status = FAIL(STATUS_FAILED, "out of memory for the prompts of %s", path);
        cJSON_Delete(object);
        TRY(status);
        *one = (struct prompt){prompts->strings[i], strlen(prompts->strings[i])};
    }
    return STATUS_OK;
}

// Reads a file with one prompt per line, or, where its name ends in .jsonl, a JSON object per line with the
// string "prompt". "-" reads lines from standard input. STATUS_INVALID: it cannot be read, holds no prompt,
// or a line is not as expected; the message names the line.
static enum status prompts_read(struct prompts *prompts, const char *path) {
    size_t bytes = 0, length = strlen(path);
    int64_t n = 0;
    *prompts = (struct prompts){0};
    TRY(file_read_stream(strcmp(path, "-") == 0 ? "/dev/stdin" : path, SIZE_MAX / 2, &prompts->file, &bytes));
    for (size_t i = 0; i < bytes; i++)
        n += prompts->file[i] == '\n' || i + 1 == bytes;
    if (n == 0)
        return FAIL(STATUS_INVALID, "%s contains no prompt, expected one per line", path);
    TRY(reserve(prompts, n));
    for (const char *line = prompts->file; prompts->n < n;) {
        const char *end = memchr(line, '\n', (size_t)(prompts->file + bytes - line));
        size_t line_bytes = end ? (size_t)(end - line) : (size_t)(prompts->file + bytes - line);
        prompts->prompts[prompts->n++] = (struct prompt){line, line_bytes};
        line += line_bytes + 1;
    }
    bool jsonl = length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
    return jsonl ? parse_objects(prompts, path) : STATUS_OK;
}

static void prompts_free(struct prompts *prompts) {
    for (int64_t i = 0; prompts->strings && i < prompts->n; i++)
        free(prompts->strings[i]);
    free(prompts->strings);
    free(prompts->prompts);
    free(prompts->file);
    *prompts = (struct prompts){0};
}

// ---- plain output

static enum status write_out(void *context, const char *bytes, size_t n_bytes) {
    (void)context;
    return output_write(bytes, n_bytes);
}

static enum status begin_text(void *context, int64_t text, const struct prompt *of_prompt) {
    (void)context;
    if (text > 0)
        printf("\n---\n");
    fwrite(of_prompt->bytes, 1, of_prompt->n_bytes, stdout);
    return STATUS_OK;
}

// ---- JSON

// A text's object is printed when the text is complete.
struct json_text {
    const struct tokenizer *tokenizer;
    const struct prompt *prompt;
    int64_t index;
    struct text text;
    struct text_token *tokens;
    size_t n_tokens, capacity;
};

static enum status begin_json(void *context, int64_t text, const struct prompt *of_prompt) {
    struct json_text *json = context;
    json->index = text;
    json->prompt = of_prompt;
    json->text.length = json->n_tokens = 0;
    return STATUS_OK;
}

static enum status add_json_text(void *context, const char *bytes, size_t n_bytes) {
    struct json_text *json = context;
    text_add_bytes(&json->text, bytes, n_bytes);
    return text_status(&json->text);
}

static enum status add_json_token(void *context, const struct text_token *token) {
    struct json_text *json = context;
    if (json->n_tokens == json->capacity) {
        size_t capacity = json->capacity ? 2 * json->capacity : 64;
        struct text_token *tokens = realloc(json->tokens, capacity * sizeof *tokens);
        if (!tokens)
            return FAIL(STATUS_FAILED, "out of memory for %zu tokens", capacity);
        json->tokens = tokens;
        json->capacity = capacity;
    }
    json->tokens[json->n_tokens++] = *token;
    return STATUS_OK;
}

// Tokens that a stop string covers whole are not part of the text.
static enum status end_json(void *context, enum text_end why) {
    struct json_text *json = context;
    struct text line = {0};
    text_add(&line, "{\"index\": %lld, \"prompt\": ", (long long)json->index);
    text_json_add_string(&line, json->prompt->bytes, json->prompt->n_bytes);
    text_add(&line, ", \"text\": ");
    text_json_add_string(&line, json->text.data, json->text.length);
    text_add(&line, ", \"finish_reason\": \"%s\"", text_end_name(why));
    if (n_logprobs >= 0) {
        text_add(&line, ", \"tokens\": [");
        for (size_t i = 0; i < json->n_tokens && json->tokens[i].offset < json->text.length; i++) {
            text_add(&line, "%s", i ? ", " : "");
            text_json_add_token(&line, json->tokenizer, &json->tokens[i]);
        }
        text_add(&line, "]");
    }
    text_add(&line, "}\n");
    enum status status = text_status(&line);
    if (status == STATUS_OK)
        status = output_write(line.data, line.length);
    text_free(&line);
    return status;
}

// ---- generation

// The longest prompt, in tokens.
static enum status measure_prompts(const struct prompts *prompts, const struct session *session,
                                   int *longest) {
    *longest = 0;
    for (int64_t i = 0; i < prompts->n; i++) {
        struct token_list list = {0};
        enum status status =
            prompt_encode(session->tokenizer, session->params.config.vocab_size, &prompts->prompts[i], &list);
        if (status == STATUS_OK && list.n > (size_t)*longest)
            *longest = (int)list.n;
        token_list_free(&list);
        TRY(status);
    }
    return STATUS_OK;
}

// Generation goes on from the last half of a full context (infer/batch.h), so that there is room for new
// tokens.
static void warn_of_long_prompts(const struct session *session, int64_t n_prompts, int longest) {
    const int positions = session->params.config.n_positions;
    if (longest > positions)
        log_warning(
            "the %sprompt has %d tokens, more than the model's context of %d: it is cut to its last %d, "
            "half of the context, to leave room for new tokens",
            n_prompts > 1 ? "longest " : "", longest, positions, positions > 1 ? positions / 2 : 1);
}

static struct sample_request make_request(const struct session *session,
                                          const struct generator_options *options) {
    return (struct sample_request){.tokenizer = session->tokenizer,
                                   .vocab_size = session->params.config.vocab_size,
                                   .positions = options->positions,
                                   .sequences = options->sequences,
                                   .n_samples = n_samples,
                                   .options = {.sampling = {.temperature = temperature,
                                                            .top_k = (int)top_k,
                                                            .top_p = top_p,
                                                            .min_p = min_p,
                                                            .seed = (uint64_t)seed},
                                               .repetition_penalty = repetition_penalty,
                                               .n_tokens = n_tokens,
                                               .n_top = (int)n_logprobs,
                                               .stops = stops.strings,
                                               .n_stops = stops.n}};
}

static enum status write_samples(struct session *session, struct generator *generator,
                                 const struct generator_options *options, const struct prompts *prompts) {
    struct sample_request request = make_request(session, options);
    struct json_text json = {.tokenizer = session->tokenizer};
    double began = clock_monotonic_s();
    int64_t made = 0;
    request.prompts = prompts->prompts;
    request.n_prompts = prompts->n;
    request.begin = as_json ? begin_json : begin_text;
    request.write = as_json ? add_json_text : write_out;
    request.token = as_json && n_logprobs >= 0 ? add_json_token : NULL;
    request.end = as_json ? end_json : NULL;
    request.context = &json;
    enum status status = sample_run(generator, &session->stream, &session->hooks, &request, &made);
    text_free(&json.text);
    free(json.tokens);
    TRY(status);
    if (!as_json)
        printf("\n");
    if (log_is_terminal())
        log_info("%.1f tokens/s", (double)made / (clock_monotonic_s() - began));
    return STATUS_OK;
}

static enum status run_session(struct session *session, struct generator *generator,
                               const struct generator_options *options, const struct prompts *prompts) {
    if (!interactive)
        return write_samples(session, generator, options, prompts);
    return interactive_run(&(struct interactive_options){.session = session,
                                                         .generator = generator,
                                                         .request = make_request(session, options),
                                                         .in_prefix = in_prefix,
                                                         .in_suffix = in_suffix});
}

// A cache for the longest possible text, and no more sequences than there are texts.
static struct generator_options choose_options(const struct session *session, int64_t n_prompts,
                                               int longest) {
    int64_t most = longest + n_tokens, n_texts = n_prompts * n_samples;
    int n_positions = session->params.config.n_positions;
    if (interactive)
        return (struct generator_options){session->type, n_positions, 1, session->masks_documents};
    return (struct generator_options){.type = session->type,
                                      .positions = most < n_positions ? (int)most : n_positions,
                                      .sequences = (int)(n_texts < batch ? n_texts : batch),
                                      .mask_documents = session->masks_documents};
}

static enum status generate(struct session *session, struct prompts *prompts, const char *path) {
    struct generator *generator = NULL;
    int longest;
    TRY(session_open(session,
                     &(struct session_options){path, device_name, threads, tokenizer_path, weights_name}));
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID, "%s has no tokenizer; give one with --tokenizer FILE", path);
    TRY(measure_prompts(prompts, session, &longest));
    warn_of_long_prompts(session, prompts->n, longest);
    const struct generator_options options = choose_options(session, prompts->n, longest);
    enum status status =
        generator_new(&session->params, &options, session->device, &session->memory.table, &generator);
    if (status == STATUS_OK)
        status = session_load(session);
    if (status == STATUS_OK)
        status = generator_bind(generator, &session->memory.table, &session->stream);
    if (status == STATUS_OK && session->masks_documents)
        generator_set_end_of_text(generator, tokenizer_document_start(session->tokenizer));
    if (status == STATUS_OK)
        status = run_session(session, generator, &options, prompts);
    generator_delete(generator);
    return status;
}

// Flags that contradict each other.
static enum status check_flags(void) {
    if (prompt && prompts_path)
        return FAIL(STATUS_INVALID, "train generate: --prompt and --prompts cannot be combined");
    if (interactive && (prompt || prompts_path || as_json || n_samples > 1))
        return FAIL(STATUS_INVALID, "train generate: --interactive reads its prompts line by line; leave out "
                                    "--prompt, --prompts, --samples and --json");
    if (!interactive && (in_prefix[0] || in_suffix[0]))
        return FAIL(STATUS_INVALID, "train generate: --in-prefix and --in-suffix need --interactive");
    if (n_logprobs >= 0 && !as_json)
        return FAIL(STATUS_INVALID, "train generate: --logprobs needs --json");
    for (int i = 0; i < stops.n; i++)
        if (!stops.strings[i][0])
            return FAIL(STATUS_INVALID, "train generate: --stop is empty, expected a string");
    return STATUS_OK;
}

static enum status run_generate(int n_args, char **args) {
    const char *path;
    int n_paths;
    struct session session = {0};
    TRY(args_parse("generate", flags, sizeof flags / sizeof *flags, n_args, args, &path, 1, &n_paths));
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train generate: expected a run or checkpoint; see: train help generate");
    TRY(check_flags());
    struct prompts prompts = {0};
    if (interactive)
        interactive_prepare();
    enum status status =
        prompts_path ? prompts_read(&prompts, prompts_path) : prompts_set_one(&prompts, prompt ? prompt : "");
    if (status == STATUS_OK)
        status = generate(&session, &prompts, path);
    session_close(&session);
    prompts_free(&prompts);
    return status;
}

const struct command command_generate = {
    .name = "generate",
    .synopsis =
        "RUN_OR_CHECKPOINT [--prompt TEXT | --prompts FILE | --interactive] [--tokens N] [--samples N] "
        "[--temperature X] [--top-k K] [--top-p P] [--min-p P] [--stop TEXT] [--seed S] [--json]",
    .summary = "generate text with a trained model",
    .details =
        "Texts are printed in order, prompt by prompt, separated by a line of ---. --batch texts are "
        "generated\n"
        "together: each step reads the weights once for all of them. Random numbers depend only on the seed\n"
        "and the number of the text. On the CPU, texts do not depend on --batch; on a GPU, rounding may\n"
        "differ with the batch and occasionally change a token.\n"
        "Filters work in this order: repetition penalty, temperature, top-k, top-p, min-p. "
        "Log-probabilities\n"
        "are the model's, before all of them.",
    .examples = "Continue a text.\n"
                "./train generate runs/quickstart --prompt 'In the beginning' --tokens 200\n"
                "The most likely continuation of each line of a file, as JSON.\n"
                "./train generate runs/quickstart --prompts lines.txt --temperature 0 --json\n"
                "Try one prompt after the other.\n"
                "./train generate runs/quickstart --interactive\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_generate,
};
