// Shards are read window by window; texts are tokenized whole when they are opened.
#include "cli/eval/data.h"

#include <stdlib.h>

#include "base/log.h"
#include "cli/eval/progress.h"
#include "data/corpus.h"
#include "data/file_kind.h"
#include "data/shard_meta.h"

// ---- opening

// Another tokenizer's ids are other text: the loss would be that of nonsense.
static enum status check_tokenizer(const struct session *session, const struct shard *shard) {
    char theirs[TOKENIZER_DESCRIPTION_BYTES], ours[TOKENIZER_DESCRIPTION_BYTES];
    if (!session->tokenizer)
        return STATUS_OK;
    if (!tokenizer_identity_differs(&session->identity, &shard->tokenizer))
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s was tokenized with %s, but the model's tokenizer is %s; tokenize the text with the model's "
        "tokenizer, or give the text itself",
        shard->path, tokenizer_identity_describe(&shard->tokenizer, theirs),
        tokenizer_identity_describe(&session->identity, ours));
}

static enum status adopt_tokenizer(struct session *session, const struct shard *shard) {
    char *path;
    if (session->tokenizer)
        return STATUS_OK;
    enum status status = shard_find_tokenizer(shard, &path);
    if (path)
        status = tokenizer_load(path, &session->tokenizer);
    if (session->tokenizer) {
        session->identity = tokenizer_identify(session->tokenizer, path);
        log_info("tokenizer: %s, that of %s", path, shard->path);
    } else if (status == STATUS_OK)
        log_info("bits per byte need a tokenizer, and neither the model nor %s comes with one; give "
                 "--tokenizer FILE",
                 shard->path);
    free(path);
    return status;
}

static enum status open_shard(struct eval_file *file, struct session *session, const char *path, bool first) {
    file->is_shard = true;
    TRY(shard_open(&file->shard, path));
    file->n_tokens = file->shard.n_tokens;
    if (first)
        TRY(adopt_tokenizer(session, &file->shard));
    TRY(check_tokenizer(session, &file->shard));
    shard_release(&file->shard);
    return STATUS_OK;
}

static enum status encode(struct eval_file *file, const struct tokenizer *tokenizer,
                          const struct corpus_text *text, bool end_of_text) {
    const char *at = text->text, *document;
    for (size_t n; corpus_next_document(&at, text->text + text->bytes, end_of_text, &document, &n);) {
        TRY(tokenizer_add_separator(tokenizer, file->text.n == 0, &file->text));
        TRY(tokenizer_encode(tokenizer, document, n, &file->text));
    }
    file->n_tokens = file->text.n;
    return STATUS_OK;
}

static enum status open_text(struct eval_file *file, const struct session *session, const char *path,
                             bool end_of_text) {
    struct corpus corpus;
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID, "%s is text, and %s comes without a tokenizer; give --tokenizer FILE",
                    path, session->weights.path);
    enum status status = corpus_read(&corpus, &path, 1, 0, end_of_text);
    if (status == STATUS_OK) {
        corpus_warn(&corpus, end_of_text, "encoded");
        status = encode(file, session->tokenizer, &corpus.texts[0], end_of_text);
    }
    corpus_free(&corpus);
    return status;
}

static enum status open_file(struct eval_data *data, struct session *session, const char *path,
                             bool end_of_text) {
    struct eval_file *file = &data->files[data->n++];
    file->path = path;
    const enum file_kind kind = file_kind_of_path(path);
    if (kind == FILE_KIND_TEXT || kind == FILE_KIND_TEXT_8_BIT)
        return open_text(file, session, path, end_of_text);
    if (kind != FILE_KIND_SHARD && kind != FILE_KIND_UNKNOWN)
        return file_kind_refuse(kind, path, "", "token shards or text");
    return open_shard(file, session, path, data->n == 1);
}

enum status eval_data_open(struct eval_data *data, struct session *session, const struct file_list *files,
                           bool end_of_text) {
    bool any = files->n_paths == 0;
    *data = (struct eval_data){.files = calloc((size_t)files->n_paths + 1, sizeof *data->files)};
    if (!data->files)
        return FAIL(STATUS_FAILED, "out of memory for %d files", files->n_paths);
    for (int i = 0; i < files->n_paths; i++) {
        TRY(open_file(data, session, files->paths[i], end_of_text));
        any = any || data->files[i].n_tokens > 1;
    }
    return any ? STATUS_OK
               : FAIL(STATUS_INVALID, "%s contains no token to predict: at least 2 tokens are needed",
                      files->paths[0]);
}

void eval_data_free(struct eval_data *data) {
    for (int i = 0; i < data->n; i++) {
        if (data->files[i].is_shard)
            shard_close(&data->files[i].shard);
        token_list_free(&data->files[i].text);
    }
    free(data->files);
    *data = (struct eval_data){0};
}

size_t eval_data_longest(const struct eval_data *data, int T) {
    size_t longest = 0;
    for (int i = 0; i < data->n; i++) {
        const size_t n = data->files[i].n_tokens;
        const size_t sequences = n > 1 ? (n - 2) / (size_t)T + 1 : 0;
        longest = sequences > longest ? sequences : longest;
    }
    return longest;
}

// ---- evaluating

struct windows {
    struct session *session;
    struct gpt *gpt;
    int B, T;
    int32_t *read;             // (B * T + 1) of a shard
    int32_t *tokens, *targets; // (B, T)
    float *losses;             // (B, T)
    struct eval_totals *totals;
};

size_t eval_data_bytes(int B, int T) {
    return (size_t)B * (size_t)T * (3 * sizeof(int32_t) + sizeof(float));
}

static enum status windows_init(struct windows *windows) {
    const size_t n = (size_t)windows->B * (size_t)windows->T;
    windows->read = malloc((n + 1) * sizeof *windows->read);
    windows->tokens = malloc(n * sizeof *windows->tokens);
    windows->targets = malloc(n * sizeof *windows->targets);
    windows->losses = malloc(n * sizeof *windows->losses);
    return windows->read && windows->tokens && windows->targets && windows->losses
               ? STATUS_OK
               : FAIL(STATUS_FAILED, "out of memory for batches of %zu tokens", n);
}

static void windows_free(struct windows *windows) {
    free(windows->read);
    free(windows->tokens);
    free(windows->targets);
    free(windows->losses);
}

static void count_token(struct windows *windows, int32_t target, float loss) {
    struct tokenizer *tokenizer = windows->session->tokenizer;
    windows->totals->loss += (double)loss;
    windows->totals->tokens++;
    if (tokenizer)
        windows->totals->bytes += (int64_t)tokenizer_text_bytes(tokenizer, target);
}

// Reads the next n + 1 tokens. The rest of the batch, past the end of the file, is padded and not counted.
static enum status read_window(struct windows *windows, struct eval_file *file, size_t start, size_t n) {
    const size_t window = (size_t)windows->B * (size_t)windows->T;
    const int vocab_size = windows->session->params.config.vocab_size;
    if (file->is_shard)
        TRY(shard_read(&file->shard, start, n + 1, windows->read));
    for (size_t i = 0; i <= n; i++) {
        const int32_t id = file->is_shard ? windows->read[i] : file->text.ids[start + i];
        if ((uint32_t)id >= (uint32_t)vocab_size)
            return FAIL(STATUS_INVALID, "%s: token %zu is %u, outside the model's vocabulary of %d",
                        file->path, start + i, (unsigned)id, vocab_size);
        if (i < n)
            windows->tokens[i] = id;
        if (i > 0)
            windows->targets[i - 1] = id;
    }
    for (size_t i = n; i < window; i++)
        windows->tokens[i] = windows->targets[i] = 0;
    return STATUS_OK;
}

// Each position predicts the next token, so every token of the file except the first is predicted once.
static enum status evaluate_file(struct windows *windows, struct eval_file *file) {
    const size_t window = (size_t)windows->B * (size_t)windows->T;
    struct session *session = windows->session;
    for (size_t start = 0; start + 1 < file->n_tokens; start += window) {
        const size_t left = file->n_tokens - 1 - start, n = left < window ? left : window;
        double sum;
        eval_progress(file->path, start, file->n_tokens, "tokens");
        TRY(read_window(windows, file, start, n));
        TRY(gpt_evaluate(windows->gpt, &session->stream, &session->hooks, windows->tokens, windows->targets,
                         &sum, windows->losses));
        for (size_t i = 0; i < n; i++)
            count_token(windows, windows->targets[i], windows->losses[i]);
    }
    if (file->is_shard)
        shard_release(&file->shard);
    return STATUS_OK;
}

enum status eval_data_run(struct eval_data *data, struct session *session, struct gpt *gpt, int B, int T,
                          struct eval_totals *totals) {
    struct windows windows = {.session = session, .gpt = gpt, .B = B, .T = T, .totals = totals};
    *totals = (struct eval_totals){0};
    enum status status = windows_init(&windows);
    for (int i = 0; i < data->n && status == STATUS_OK; i++)
        status = evaluate_file(&windows, &data->files[i]);
    windows_free(&windows);
    return status;
}
