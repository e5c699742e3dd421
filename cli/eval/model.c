// One model of `train eval`: memory is planned for the larger of data and tasks, checked, and then allocated.
// Shards are read window by window; texts are tokenized whole when they are opened.
#include "cli/eval/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/clock.h"
#include "base/file_kind.h"
#include "base/log.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "data/shard_meta.h"

// ---- the progress line, on a terminal: redrawing is bounded in time, as a batch may take a millisecond

#define REDRAW_S 0.5

static char run[64];
static double shown_s; // 0: no line

// The end of a path says most.
static void shorten(char *out, size_t size, const char *path) {
    const size_t length = strlen(path);
    if (length < size)
        snprintf(out, size, "%s", path);
    else
        snprintf(out, size, "...%s", path + length - (size - 4));
}

void eval_progress_run(const char *path, int number, int n) {
    char name[40];
    run[0] = 0;
    if (!path)
        return;
    shorten(name, sizeof name, path);
    snprintf(run, sizeof run, "%s (%d of %d)", name, number, n);
}

static void eval_progress(const char *what, size_t done, size_t total, const char *unit) {
    struct log_field fields[3] = {{.rank = 1}, {.rank = 0}, {.rank = 2}};
    const double now_s = clock_monotonic_s();
    if (!log_is_terminal() || (shown_s > 0 && now_s - shown_s < REDRAW_S))
        return;
    shown_s = now_s;
    shorten(fields[0].text, 40, what);
    snprintf(fields[1].text, sizeof fields[1].text, "%zu/%zu %s", done, total, unit);
    snprintf(fields[2].text, sizeof fields[2].text, "%s", run);
    log_live(fields, run[0] ? 3 : 2);
}

void eval_progress_end(void) {
    if (shown_s > 0)
        log_live_end();
    shown_s = 0;
}

// ---- data: token shards, and texts that are tokenized with the model's tokenizer

struct eval_file {
    const char *path; // the file list's
    bool is_shard;
    struct shard shard;
    struct token_list text; // of a text: end-of-text before each document, then its tokens
    size_t n_tokens;
};
struct eval_data {
    struct eval_file *files;
    int n;
};

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
    if (session->tokenizer)
        return STATUS_OK;
    char *path = shard_find_tokenizer(shard);
    const enum status status = path ? tokenizer_load(path, &session->tokenizer) : STATUS_OK;
    if (path && status == STATUS_OK) {
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
        tokenizer_add_separator(tokenizer, file->text.n == 0, &file->text);
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

// Opens the files. A model without a tokenizer gets that of the shards, which bits per byte need.
//   end_of_text   "<|endoftext|>" in a text separates documents
// STATUS_INVALID: a file is neither, a shard's tokenizer is not the model's, a text without a tokenizer, or
// no token to predict in all files. Free the data also after a failure.
static enum status eval_data_open(struct eval_data *data, struct session *session,
                                  const struct file_list *files, bool end_of_text) {
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

static void eval_data_free(struct eval_data *data) {
    for (int i = 0; i < data->n; i++) {
        if (data->files[i].is_shard)
            shard_close(&data->files[i].shard);
        token_list_free(&data->files[i].text);
    }
    free(data->files);
    *data = (struct eval_data){0};
}

// Sequences of T tokens in the longest file.
static size_t eval_data_longest(const struct eval_data *data, int T) {
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

// Bytes of host memory that eval_data_run takes.
static size_t eval_data_bytes(int B, int T) {
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

// Evaluates all files in consecutive windows of T tokens, B per batch, with a gpt of that size.
static enum status eval_data_run(struct eval_data *data, struct session *session, struct gpt *gpt, int B,
                                 int T, struct eval_totals *totals) {
    struct windows windows = {.session = session, .gpt = gpt, .B = B, .T = T, .totals = totals};
    *totals = (struct eval_totals){0};
    enum status status = windows_init(&windows);
    for (int i = 0; i < data->n && status == STATUS_OK; i++)
        status = evaluate_file(&windows, &data->files[i]);
    windows_free(&windows);
    return status;
}

// ---- the model

struct model {
    const struct eval_options *options;
    struct session session;
    struct eval_data data;
    struct task_list tasks;
    struct gpt *gpt;
    int B, T;
};

static enum status check_place(const struct model *model, enum region_place place, size_t more) {
    const struct session *session = &model->session;
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
        "lower --batch-size or --seq-len",
        model->B, model->T, text_bytes(needed, sizeof needed, (double)wanted),
        place == REGION_HOST ? "" : "GPU ", text_bytes(there, sizeof there, (double)available));
}

static enum status check_memory(const struct model *model) {
    TRY(check_place(model, REGION_HOST,
                    eval_data_bytes(model->B, model->T) + task_scorer_bytes(model->B, model->T)));
    return model->session.device->place == REGION_HOST ? STATUS_OK : check_place(model, REGION_DEVICE, 0);
}

static enum status open_inputs(struct model *model) {
    const struct eval_options *options = model->options;
    struct session *session = &model->session;
    TRY(eval_data_open(&model->data, session, &options->files, options->end_of_text));
    if (options->tasks->n == 0)
        return STATUS_OK;
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID,
                    "--task needs a tokenizer, and %s comes without one; give --tokenizer FILE",
                    session->weights.path);
    return task_list_load(&model->tasks, "--task", options->tasks->strings, options->tasks->n,
                          &(struct task_options){.tokenizer = session->tokenizer,
                                                 .vocab_size = session->params.config.vocab_size,
                                                 .seq_len = model->T,
                                                 .limit = options->limit});
}

static enum status choose_seq_len(struct model *model, const char *path) {
    const int n_positions = model->session.params.config.n_positions;
    const int64_t wanted = model->options->seq_len;
    if (wanted > n_positions)
        return FAIL(STATUS_INVALID, "train eval: --seq-len is %lld, but %s has n_positions %d",
                    (long long)wanted, path, n_positions);
    model->T = wanted ? (int)wanted : n_positions;
    return STATUS_OK;
}

// No more and no longer sequences per batch than there are: the rest would be padding.
static void choose_batch(struct model *model) {
    size_t length = eval_data_longest(&model->data, 1);
    for (int i = 0; i < model->tasks.n; i++) {
        const struct task *task = &model->tasks.tasks[i];
        for (int k = 0; k < task->n_requests; k++)
            if ((size_t)task->requests[k].n > length)
                length = (size_t)task->requests[k].n;
    }
    if ((size_t)model->T > length)
        model->T = (int)length;
    size_t most = eval_data_longest(&model->data, model->T);
    for (int i = 0; i < model->tasks.n; i++)
        if ((size_t)model->tasks.tasks[i].n_requests > most)
            most = (size_t)model->tasks.tasks[i].n_requests;
    model->B = (int)model->options->batch_size;
    if ((size_t)model->B > most)
        model->B = (int)most;
}

static enum status load(struct model *model) {
    struct session *session = &model->session;
    const struct gpt_options options = {.type = session->type,
                                        .B = model->B,
                                        .T = model->T,
                                        .mask_documents = session->masks_documents,
                                        .scoring = model->tasks.n > 0};
    TRY(gpt_new(&session->params, &options, session->device, &session->memory.table, &model->gpt));
    if (session->masks_documents)
        TRY(session_mask_documents(session, model->gpt));
    TRY(check_memory(model));
    TRY(session_load(session));
    return gpt_bind(model->gpt, &session->memory.table, &session->stream);
}

static enum status score_batches(struct task_scorer *scorer, const struct task *task,
                                 const struct task_batches *batches, struct task_scores *scores) {
    for (int i = 0; i < batches->n; i++) {
        eval_progress(task->name, (size_t)batches->batches[i].first, (size_t)task->n_requests, "requests");
        TRY(task_score_batch(scorer, task, batches, i, scores));
    }
    return STATUS_OK;
}

static enum status run_task(struct task_scorer *scorer, const struct task *task, struct task_result *result) {
    struct task_batches batches;
    struct task_scores scores = {0};
    enum status status = task_batches_make(&batches, task, scorer->B, scorer->T);
    if (status == STATUS_OK)
        status = task_scores_init(&scores, task);
    if (status == STATUS_OK)
        status = score_batches(scorer, task, &batches, &scores);
    if (status == STATUS_OK)
        *result = task_result_of(task, &scores);
    task_scores_free(&scores);
    task_batches_free(&batches);
    return status;
}

static enum status run_tasks(struct model *model, struct eval_result *result) {
    struct task_scorer scorer;
    const struct task_list *tasks = &model->tasks;
    result->tasks = calloc((size_t)tasks->n + 1, sizeof *result->tasks);
    result->task_names = calloc((size_t)tasks->n + 1, sizeof *result->task_names);
    if (!result->tasks || !result->task_names)
        return FAIL(STATUS_FAILED, "out of memory for the results of %d tasks", tasks->n);
    enum status status = task_scorer_init(&scorer, model->B, model->T);
    scorer.gpt = model->gpt;
    scorer.stream = &model->session.stream;
    scorer.hooks = &model->session.hooks;
    for (int i = 0; i < tasks->n && status == STATUS_OK; i++) {
        status = run_task(&scorer, &tasks->tasks[i], &result->tasks[i]);
        result->task_names[i] = tasks->tasks[i].name; // passes on
        tasks->tasks[i].name = NULL;
        result->n_tasks = i + 1;
    }
    task_scorer_free(&scorer);
    return status;
}

static enum status evaluate(struct model *model, struct eval_result *result) {
    struct session *session = &model->session;
    const struct eval_options *options = model->options;
    TRY(session_open(session, &(struct session_options){result->path, options->device, options->threads,
                                                        options->tokenizer, options->weights}));
    TRY(choose_seq_len(model, result->path));
    TRY(open_inputs(model));
    choose_batch(model);
    TRY(load(model));
    result->tokenizer = session->identity;
    result->has_data = model->data.n > 0;
    if (result->has_data)
        TRY(eval_data_run(&model->data, session, model->gpt, model->B, model->T, &result->totals));
    return run_tasks(model, result);
}

enum status eval_model(const char *path, const struct eval_options *options, struct eval_result *result) {
    struct model model = {.options = options};
    *result = (struct eval_result){.path = path};
    enum status status = evaluate(&model, result);
    eval_progress_end();
    gpt_delete(model.gpt);
    task_list_free(&model.tasks);
    eval_data_free(&model.data);
    session_close(&model.session);
    return status;
}

void eval_result_free(struct eval_result *result) {
    for (int i = 0; i < result->n_tasks; i++)
        free(result->task_names[i]);
    free(result->task_names);
    free(result->tasks);
    *result = (struct eval_result){0};
}
