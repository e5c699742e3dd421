// ./train eval RUN_OR_CHECKPOINT --data FILE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/commands.h"
#include "data/shard_meta.h"
#include "infer/session.h"

static const char *data_pattern = NULL, *device_name = "auto", *tokenizer_path = "";
static int64_t batch_size = 8, threads = 0;
static bool as_json = false;

static const struct arg flags[] = {
    {"--data", ARG_STRING, &data_pattern, 0, 0, "token shards: a path or a glob pattern (required)"},
    {"--batch-size", ARG_INTEGER, &batch_size, 1, 1e6,
     "sequences per batch, at most as many as the data has (8)"},
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0, "the tokenizer, where the model comes without one"},
    {"--device", ARG_STRING, &device_name, 0, 0, "auto, cpu or cuda (auto)"},
    {"--threads", ARG_INTEGER, &threads, 0, 4096,
     "CPU threads; 0: OMP_NUM_THREADS if set, otherwise one per core (0)"},
};

// Sums over the tokens of all shards.
struct totals {
    double loss; // nats
    int64_t tokens, bytes;
};

struct evaluation {
    struct session *session;
    struct gpt *gpt;
    int B, T;
    uint16_t *read;            // (B * T + 1)
    int32_t *tokens, *targets; // (B, T)
    float *losses;             // (B, T)
    struct totals totals;
};

static void count_token(struct evaluation *evaluation, int32_t target, float loss) {
    struct tokenizer *tokenizer = evaluation->session->tokenizer;
    size_t n_bytes = 0;
    evaluation->totals.loss += (double)loss;
    evaluation->totals.tokens++;
    if (tokenizer && target != tokenizer_end_of_text(tokenizer))
        (void)tokenizer_bytes(tokenizer, target, &n_bytes);
    evaluation->totals.bytes += (int64_t)n_bytes;
}

// Reads the next n + 1 tokens. The rest of the batch, past the end of the shard, is padded and not counted.
static enum status read_window(struct evaluation *evaluation, struct shard *shard, size_t start, size_t n) {
    const size_t window = (size_t)evaluation->B * (size_t)evaluation->T;
    const int vocab_size = evaluation->session->params.config.vocab_size;
    const uint16_t *read = evaluation->read;
    TRY(shard_read(shard, start, n + 1, evaluation->read));
    for (size_t i = 0; i <= n; i++)
        if (read[i] >= vocab_size)
            return FAIL(STATUS_INVALID, "%s: token %zu is %d, outside the model's vocabulary of %d",
                        shard->path, start + i, read[i], vocab_size);
    for (size_t i = 0; i < window; i++) {
        evaluation->tokens[i] = read[i < n ? i : 0];
        evaluation->targets[i] = read[i < n ? i + 1 : 0];
    }
    return STATUS_OK;
}

// Consecutive windows of T tokens, B per batch. Each position predicts the next token, so every token of the
// shard except the first is predicted once.
static enum status evaluate_shard(struct evaluation *evaluation, struct shard *shard) {
    size_t window = (size_t)evaluation->B * (size_t)evaluation->T;
    for (size_t start = 0; start + 1 < shard->n_tokens; start += window) {
        size_t n = shard->n_tokens - 1 - start < window ? shard->n_tokens - 1 - start : window;
        double sum;
        TRY(read_window(evaluation, shard, start, n));
        TRY(gpt_evaluate(evaluation->gpt, &evaluation->session->stream, &evaluation->session->hooks,
                         evaluation->tokens, evaluation->targets, &sum, evaluation->losses));
        for (size_t i = 0; i < n; i++)
            count_token(evaluation, evaluation->targets[i], evaluation->losses[i]);
    }
    return STATUS_OK;
}

// No more sequences per batch than the longest shard has: the rest would be padding.
static enum status clamp_batch(struct evaluation *evaluation, const struct file_list *files) {
    size_t longest = 1, T = (size_t)evaluation->T;
    for (int i = 0; i < files->n_paths; i++) {
        struct shard shard;
        TRY(shard_open(&shard, files->paths[i]));
        size_t n = shard.n_tokens > 0 ? (shard.n_tokens - 1 + T - 1) / T : 0;
        longest = n > longest ? n : longest;
        shard_close(&shard);
    }
    if ((size_t)evaluation->B > longest)
        evaluation->B = (int)longest;
    return STATUS_OK;
}

// Another tokenizer's ids are other text: the loss would be that of nonsense.
static enum status check_tokenizer(const struct evaluation *evaluation, const struct shard *shard) {
    const struct session *session = evaluation->session;
    char theirs[TOKENIZER_DESCRIPTION_BYTES], ours[TOKENIZER_DESCRIPTION_BYTES];
    if (!session->tokenizer)
        return STATUS_OK;
    if (!tokenizer_identity_differs(&session->identity, &shard->tokenizer))
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s was tokenized with %s, but the model's tokenizer is %s; tokenize the text with the model's "
        "tokenizer",
        shard->path, tokenizer_identity_describe(&shard->tokenizer, theirs),
        tokenizer_identity_describe(&session->identity, ours));
}

static enum status evaluate_files(struct evaluation *evaluation, const struct file_list *files) {
    for (int i = 0; i < files->n_paths; i++) {
        struct shard shard;
        TRY(shard_open(&shard, files->paths[i]));
        enum status status = check_tokenizer(evaluation, &shard);
        if (status == STATUS_OK)
            status = evaluate_shard(evaluation, &shard);
        shard_close(&shard);
        TRY(status);
    }
    if (evaluation->totals.tokens == 0)
        return FAIL(STATUS_INVALID, "%s contains no token to predict: a shard needs at least 2 tokens",
                    data_pattern);
    return STATUS_OK;
}

static void report(const struct totals *totals) {
    double loss = totals->loss / (double)totals->tokens;
    double bits_per_byte = totals->bytes > 0 ? totals->loss / log(2) / (double)totals->bytes : NAN;
    char number[3][32];
    if (as_json) {
        printf(
            "{\"loss\": %s, \"perplexity\": %s, \"bits_per_byte\": %s, \"tokens\": %lld, \"bytes\": %lld}\n",
            text_double(number[0], loss), text_double(number[1], exp(loss)),
            text_double(number[2], bits_per_byte), (long long)totals->tokens, (long long)totals->bytes);
        return;
    }
    printf("loss %.4f nats per token, perplexity %.2f", loss, exp(loss));
    if (totals->bytes > 0)
        printf(", %.4f bits per byte", bits_per_byte);
    printf(" (%lld tokens)\n", (long long)totals->tokens);
}

static enum status check_place(const struct evaluation *evaluation, enum region_place place, size_t more) {
    const struct session *session = evaluation->session;
    size_t wanted = region_memory_bytes(&session->memory, place) + more, available;
    char needed[32], there[32];
    if (place == REGION_HOST)
        available = memory_available_bytes();
    else
        TRY(device_memory_available(session->device, &available));
    if (wanted <= available)
        return STATUS_OK;
    return FAIL(
        STATUS_FAILED,
        "train eval: a batch of %d sequences of %d tokens needs %s of %smemory, but %s are available; "
        "lower --batch-size",
        evaluation->B, evaluation->T, text_bytes(needed, sizeof needed, (double)wanted),
        place == REGION_HOST ? "" : "GPU ", text_bytes(there, sizeof there, (double)available));
}

static enum status check_memory(const struct evaluation *evaluation) {
    size_t per_token = sizeof *evaluation->read + sizeof *evaluation->tokens + sizeof *evaluation->targets +
                       sizeof *evaluation->losses;
    TRY(check_place(evaluation, REGION_HOST, (size_t)evaluation->B * (size_t)evaluation->T * per_token));
    return evaluation->session->device->place == REGION_HOST ? STATUS_OK
                                                             : check_place(evaluation, REGION_DEVICE, 0);
}

static enum status evaluate(struct evaluation *evaluation, const struct file_list *files) {
    struct session *session = evaluation->session;
    TRY(clamp_batch(evaluation, files));
    size_t window = (size_t)evaluation->B * (size_t)evaluation->T;
    const struct gpt_options options = {.type = session->type, .B = evaluation->B, .T = evaluation->T};
    TRY(gpt_new(&session->params, &options, session->device, &session->memory.table, &evaluation->gpt));
    TRY(check_memory(evaluation));
    evaluation->read = malloc((window + 1) * sizeof *evaluation->read);
    evaluation->tokens = malloc(window * sizeof *evaluation->tokens);
    evaluation->targets = malloc(window * sizeof *evaluation->targets);
    evaluation->losses = malloc(window * sizeof *evaluation->losses);
    if (!evaluation->read || !evaluation->tokens || !evaluation->targets || !evaluation->losses)
        return FAIL(STATUS_FAILED, "out of memory for batches of %zu tokens", window);
    TRY(session_load(session));
    TRY(gpt_bind(evaluation->gpt, &session->memory.table, &session->stream));
    TRY(evaluate_files(evaluation, files));
    report(&evaluation->totals);
    return STATUS_OK;
}

// A model without a tokenizer is evaluated with that of the shards, which bits per byte need.
static enum status adopt_tokenizer(struct session *session, const struct file_list *files) {
    struct shard shard;
    char *path;
    if (session->tokenizer)
        return STATUS_OK;
    TRY(shard_open(&shard, files->paths[0]));
    enum status status = shard_find_tokenizer(&shard, &path);
    if (path)
        status = tokenizer_load(path, &session->tokenizer);
    if (session->tokenizer) {
        session->identity = tokenizer_identify(session->tokenizer, path);
        log_info("tokenizer: %s, that of %s", path, shard.path);
    } else if (status == STATUS_OK)
        log_info("bits per byte need a tokenizer, and neither the model nor %s comes with one; give "
                 "--tokenizer FILE",
                 shard.path);
    free(path);
    shard_close(&shard);
    return status;
}

static enum status run_eval(int n_args, char **args) {
    const char *path;
    int n_paths;
    struct session session = {0};
    struct file_list files = {0};
    TRY(args_parse("eval", flags, sizeof flags / sizeof *flags, n_args, args, &path, 1, &n_paths));
    if (n_paths == 0 || !data_pattern)
        return FAIL(STATUS_INVALID,
                    "train eval: expected a run or checkpoint, and --data FILE; see: train help eval");
    enum status status = file_glob(&files, data_pattern);
    if (status == STATUS_OK)
        status =
            session_open(&session, &(struct session_options){path, device_name, threads, tokenizer_path});
    if (status == STATUS_OK)
        status = adopt_tokenizer(&session, &files);
    struct evaluation evaluation = {
        .session = &session, .B = (int)batch_size, .T = session.params.config.n_positions};
    if (status == STATUS_OK)
        status = evaluate(&evaluation, &files);
    gpt_delete(evaluation.gpt);
    free(evaluation.read);
    free(evaluation.tokens);
    free(evaluation.targets);
    free(evaluation.losses);
    session_close(&session);
    file_list_free(&files);
    return status;
}

const struct command command_eval = {
    .name = "eval",
    .synopsis = "RUN_OR_CHECKPOINT --data FILE",
    .summary = "measure loss, perplexity and bits per byte on token shards",
    .details = "Evaluates all of the data, in windows of n_positions tokens. The validation of training "
               "leaves out what\n"
               "remains of it after windows of train.seq_len tokens, so its loss may differ a little.",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_eval,
};
