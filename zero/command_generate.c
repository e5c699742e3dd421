// ./train generate RUN_OR_CHECKPOINT
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "zero/commands.h"
#include "zero/sample.h"
#include "zero/session.h"

static const char *prompt = "", *device_name = "auto", *tokenizer_path = "";
static int64_t n_tokens = 128, n_samples = 1, top_k = 0, seed = 1, threads = 0;
static double temperature = 1, top_p = 1;

static const struct arg flags[] = {
    {"--prompt", ARG_STRING, &prompt, 0, 0, "text to go on from (none: start anew)"},
    {"--tokens", ARG_INTEGER, &n_tokens, 1, 1e9, "at most this many tokens (128)"},
    {"--samples", ARG_INTEGER, &n_samples, 1, 1e6, "texts to write (1)"},
    {"--temperature", ARG_NUMBER, &temperature, 0, 1e3,
     "0: always the likeliest token; 1: as the model says (1)"},
    {"--top-k", ARG_INTEGER, &top_k, 0, 1e9, "draw from the k likeliest only; 0: from all (0)"},
    {"--top-p", ARG_NUMBER, &top_p, 0, 1, "draw from the likeliest that reach this probability (1)"},
    {"--seed", ARG_INTEGER, &seed, 0, 0x1p53, "of the draws: the same seed gives the same text (1)"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0, "instead of the checkpoint's own"},
    {"--device", ARG_STRING, &device_name, 0, 0, "auto, cpu or cuda (auto)"},
    {"--threads", ARG_INTEGER, &threads, 0, 4096, "CPU threads; 0: one a core (0)"},
};

static enum status write_out(void *context, const char *bytes, size_t n_bytes) {
    (void)context;
    if (fwrite(bytes, 1, n_bytes, stdout) != n_bytes || fflush(stdout) != 0)
        return FAIL(STATUS_STOPPED, "the reader of standard output has gone");
    return STATUS_OK;
}

static enum status write_samples(struct session *session, struct generator *generator) {
    struct sample_request request = {
        .tokenizer = session->tokenizer,
        .vocab_size = session->params.config.vocab_size,
        .positions = session->params.config.n_positions,
        .prompt = prompt,
        .n_tokens = n_tokens,
        .sampling = {.temperature = temperature, .top_k = (int)top_k, .top_p = top_p, .seed = (uint64_t)seed},
        .write = write_out};
    double began = clock_monotonic_s();
    int64_t made = 0;
    for (int64_t i = 0; i < n_samples; i++) {
        int64_t one;
        request.first_counter = (uint64_t)i << 32;
        printf("%s%s", i > 0 ? "\n---\n" : "", prompt);
        generator_reset(generator);
        TRY(sample_run(generator, &session->stream, &session->hooks, &request, &one));
        made += one;
    }
    printf("\n");
    if (log_is_terminal())
        log_info("%.1f tokens/s", (double)made / (clock_monotonic_s() - began));
    return STATUS_OK;
}

static enum status generate(struct session *session, const char *path) {
    struct generator *generator = NULL;
    TRY(session_open(session, &(struct session_options){path, device_name, threads, tokenizer_path}));
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID, "%s names no tokenizer; give one with --tokenizer FILE", path);
    enum status status = generator_new(&session->params, session->type, session->params.config.n_positions,
                                       session->device, &session->memory.table, &generator);
    if (status == STATUS_OK)
        status = session_load(session);
    if (status == STATUS_OK) {
        generator_bind(generator, &session->memory.table, &session->stream);
        status = write_samples(session, generator);
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
        return FAIL(STATUS_INVALID, "train generate: name a run or a checkpoint; see: train help generate");
    enum status status = generate(&session, path);
    session_close(&session);
    return status;
}

const struct command command_generate = {
    .name = "generate",
    .synopsis =
        "RUN_OR_CHECKPOINT [--prompt TEXT] [--tokens N] [--temperature X] [--top-k K] [--top-p P] [--seed S]",
    .summary = "write text with a trained model",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_generate,
};
