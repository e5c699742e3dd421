// ./train generate RUN_OR_CHECKPOINT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "cli/commands.h"
#include "infer/sample.h"
#include "infer/session.h"

static const char *prompt = NULL, *prompts_path = NULL, *device_name = "auto", *tokenizer_path = "";
static int64_t n_tokens = 128, n_samples = 1, batch = 16, top_k = 0, seed = 1, threads = 0;
static double temperature = 1, top_p = 1;

static const struct arg flags[] = {
    {"--prompt", ARG_STRING, &prompt, 0, 0, "text to continue (none: start from end-of-text)"},
    {"--tokens", ARG_INTEGER, &n_tokens, 1, 1e9, "maximum tokens per text (128)"},
    {"--prompts", ARG_STRING, &prompts_path, 0, 0, "a file of prompts, one per line; - reads standard input"},
    {"--samples", ARG_INTEGER, &n_samples, 1, 1e6, "texts per prompt (1)"},
    {"--batch", ARG_INTEGER, &batch, 1, 1024, "number of texts to generate together (16)"},
    {"--temperature", ARG_NUMBER, &temperature, 0, 1e3,
     "divides the logits; 0: always the most likely token (1)"},
    {"--top-k", ARG_INTEGER, &top_k, 0, 1e9, "sample from the k most likely tokens only; 0: from all (0)"},
    {"--top-p", ARG_NUMBER, &top_p, 0, 1,
     "sample from the most likely tokens that together reach this probability (1)"},
    {"--seed", ARG_INTEGER, &seed, 0, 0x1p53, "random seed: the same seed gives the same text (1)"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0, "the tokenizer, where the model comes without one"},
    {"--device", ARG_STRING, &device_name, 0, 0, "auto, cpu or cuda (auto)"},
    {"--threads", ARG_INTEGER, &threads, 0, 4096,
     "CPU threads; 0: OMP_NUM_THREADS if set, otherwise one per core (0)"},
};

static enum status write_out(void *context, const char *bytes, size_t n_bytes) {
    (void)context;
    return output_write(bytes, n_bytes);
}

static enum status begin_text(void *context, int64_t text, const char *of_prompt) {
    (void)context;
    printf("%s%s", text > 0 ? "\n---\n" : "", of_prompt);
    return STATUS_OK;
}

// ---- prompts

struct prompts {
    char *file; // the file's text, its lines NUL-terminated
    const char **lines;
    int64_t n;
    int longest; // in tokens
};

static void prompts_free(struct prompts *prompts) {
    free(prompts->file);
    free(prompts->lines);
}

static enum status read_prompts(struct prompts *prompts) {
    size_t bytes = 0;
    if (prompts_path)
        TRY(file_read_stream(strcmp(prompts_path, "-") == 0 ? "/dev/stdin" : prompts_path, SIZE_MAX / 2,
                             &prompts->file, &bytes));
    for (size_t i = 0; i < bytes; i++)
        prompts->n += prompts->file[i] == '\n' || i + 1 == bytes;
    if (prompts_path && prompts->n == 0)
        return FAIL(STATUS_INVALID, "%s contains no prompt, expected one per line", prompts_path);
    prompts->lines = calloc((size_t)prompts->n + 1, sizeof *prompts->lines);
    if (!prompts->lines)
        return FAIL(STATUS_FAILED, "out of memory for %lld prompts", (long long)prompts->n);
    char *line = prompts->file;
    for (int64_t i = 0; i < prompts->n; i++) {
        char *end = memchr(line, '\n', (size_t)(prompts->file + bytes - line));
        end = end ? end : prompts->file + bytes; // file_read_stream leaves room for a NUL there
        prompts->lines[i] = line;
        *end = '\0';
        line = end + 1;
    }
    if (!prompts_path)
        prompts->lines[prompts->n++] = prompt ? prompt : "";
    return STATUS_OK;
}

static enum status measure_prompts(struct prompts *prompts, const struct session *session) {
    for (int64_t i = 0; i < prompts->n; i++) {
        struct token_list list = {0};
        enum status status =
            sample_encode(session->tokenizer, session->params.config.vocab_size, prompts->lines[i], &list);
        if (status == STATUS_OK && list.n > (size_t)prompts->longest)
            prompts->longest = (int)list.n;
        token_list_free(&list);
        TRY(status);
    }
    return STATUS_OK;
}

// ---- generation

// Generation goes on from the last half of a full context (infer/sample.h), so that there is room for new
// tokens.
static void warn_of_long_prompts(const struct session *session, const struct prompts *prompts) {
    const int positions = session->params.config.n_positions;
    if (prompts->longest > positions)
        log_warning(
            "the %sprompt has %d tokens, more than the model's context of %d: it is cut to its last %d, "
            "half of the context, to leave room for new tokens",
            prompts->n > 1 ? "longest " : "", prompts->longest, positions, positions > 1 ? positions / 2 : 1);
}

static enum status write_samples(struct session *session, struct generator *generator,
                                 const struct generator_options *options, const struct prompts *prompts) {
    const struct sample_request request = {
        .tokenizer = session->tokenizer,
        .vocab_size = session->params.config.vocab_size,
        .positions = options->positions,
        .sequences = options->sequences,
        .prompts = prompts->lines,
        .n_prompts = prompts->n,
        .n_samples = n_samples,
        .n_tokens = n_tokens,
        .sampling = {.temperature = temperature, .top_k = (int)top_k, .top_p = top_p, .seed = (uint64_t)seed},
        .begin = begin_text,
        .write = write_out};
    double began = clock_monotonic_s();
    int64_t made = 0;
    TRY(sample_run(generator, &session->stream, &session->hooks, &request, &made));
    printf("\n");
    if (log_is_terminal())
        log_info("%.1f tokens/s", (double)made / (clock_monotonic_s() - began));
    return STATUS_OK;
}

// A cache for the longest possible text, and no more sequences than there are texts.
static struct generator_options choose_options(const struct session *session, const struct prompts *prompts) {
    int64_t most = prompts->longest + n_tokens, n_texts = prompts->n * n_samples;
    int n_positions = session->params.config.n_positions;
    return (struct generator_options){.type = session->type,
                                      .positions = most < n_positions ? (int)most : n_positions,
                                      .sequences = (int)(n_texts < batch ? n_texts : batch)};
}

static enum status generate(struct session *session, struct prompts *prompts, const char *path) {
    struct generator *generator = NULL;
    TRY(session_open(session, &(struct session_options){path, device_name, threads, tokenizer_path}));
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID, "%s has no tokenizer; give one with --tokenizer FILE", path);
    TRY(measure_prompts(prompts, session));
    warn_of_long_prompts(session, prompts);
    const struct generator_options options = choose_options(session, prompts);
    enum status status =
        generator_new(&session->params, &options, session->device, &session->memory.table, &generator);
    if (status == STATUS_OK)
        status = session_load(session);
    if (status == STATUS_OK) {
        generator_bind(generator, &session->memory.table, &session->stream);
        status = write_samples(session, generator, &options, prompts);
    }
    generator_delete(generator);
    return status;
}

static enum status run_generate(int n_args, char **args) {
    const char *path;
    int n_paths;
    struct session session = {0};
    TRY(args_parse("generate", flags, sizeof flags / sizeof *flags, n_args, args, &path, 1, &n_paths));
    if (n_paths == 0)
        return FAIL(STATUS_INVALID, "train generate: expected a run or checkpoint; see: train help generate");
    if (prompt && prompts_path)
        return FAIL(STATUS_INVALID, "train generate: --prompt and --prompts cannot be combined");
    struct prompts prompts = {0};
    enum status status = read_prompts(&prompts);
    if (status == STATUS_OK)
        status = generate(&session, &prompts, path);
    session_close(&session);
    prompts_free(&prompts);
    return status;
}

const struct command command_generate = {
    .name = "generate",
    .synopsis =
        "RUN_OR_CHECKPOINT [--prompt TEXT | --prompts FILE] [--tokens N] [--samples N] [--temperature X] "
        "[--top-k K] [--top-p P] [--seed S]",
    .summary = "generate text with a trained model",
    .details =
        "Texts are printed in order, prompt by prompt, separated by a line of ---. --batch texts are "
        "generated\n"
        "together: each step reads the weights once for all of them. Random numbers depend only on the seed\n"
        "and the number of the text. On the CPU, texts do not depend on --batch up to 32; with larger\n"
        "batches, and on a GPU, rounding may differ with the batch and occasionally change a token.",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_generate,
};
