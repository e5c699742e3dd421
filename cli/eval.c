// ./train eval RUN_OR_CHECKPOINT... [--data FILE] [--task KIND=FILE]
//
// Each model is planned once, with one batch size and sequence length for the data and all tasks. Before
// its memory is allocated, the memory's size is compared with what is available. Shards are read one batch
// at a time; texts are tokenized completely when they are opened.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/output.h"
#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cli/print.h"
#include "data/shard.h"
#include "data/text/documents.h"
#include "infer/session.h"
#include "infer/tasks/score.h"
#include "infer/text_loss.h"

static struct arg_strings data_patterns, task_files;
static struct session_options source = {.device = "auto"};
static int64_t batch_size = 8, seq_len = 0, limit = 0;
static struct document_options documents;
static bool as_json = false;

#define MOST_RUNS 64

static const struct arg flags[] = {
    {"--data", ARG_STRINGS, &data_patterns, 0, 0,
     "token shards or text files: a path or a glob pattern; may be given several times"},
    {"--task", ARG_STRINGS, &task_files, 0, 0,
     "hellaswag=FILE, lambada=FILE or multiple_choice=FILE, of JSON lines; may be given several times"},
    {"--limit", ARG_INTEGER, &limit, 0, 1e9, "evaluate only the first N items of each task; 0: all (0)"},
    {"--end-of-text", ARG_FLAG, &documents.end_of_text, 0, 0,
     "<|endoftext|> in a text file separates documents"},
    {"--field", ARG_STRING, &documents.field, 0, 0,
     "text files are JSON Lines, and this member of each line's object is the text (\"text\")"},
    {"--batch-size", ARG_INTEGER, &batch_size, 1, 1e6,
     "sequences of --seq-len tokens per batch; tasks put more of shorter ones into a batch (8)"},
    {"--seq-len", ARG_INTEGER, &seq_len, 0, 1 << 24,
     "tokens of the longest sequence; 0: the model's n_positions (0)"},
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object per model, each on a line"},
    TOKENIZER_FLAG(source.tokenizer),
    WEIGHTS_FLAG(source.weights),
    DEVICE_FLAG(source.device),
    THREADS_FLAG(source.threads),
};

struct eval_result {
    const char *path; // path of the model: a run, a checkpoint or another program's weights
    bool has_data;
    struct text_loss totals;             // sums over all tokens except the first of each file
    struct tokenizer_identity tokenizer; // n_ids 0: the model has no tokenizer
    struct task_result *tasks;           // (n_tasks)
    char **task_names;                   // (n_tasks)
    int n_tasks;
};

// ---- the progress line on a terminal; redrawn at most every REDRAW_S seconds, because a batch may take only
// 1 ms

#define REDRAW_S 0.5

static char run[64];   // the run that the progress line names; "": none
static double shown_s; // when the line was last redrawn (clock_monotonic_s); 0: there is no line

// Copies a path. If it is longer than `out`, replaces its start by "...", because the end identifies it best.
static void shorten(char *out, size_t size, const char *path) {
    const size_t length = strlen(path);
    if (length < size)
        snprintf(out, size, "%s", path);
    else
        snprintf(out, size, "...%s", path + length - (size - 4));
}

// Sets the run that the progress line names: "runs/a (1 of 3)".
//   path   NULL: there is only one run, and the line does not name it
static void eval_progress_run(const char *path, unsigned char number, unsigned char n) {
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

static void eval_progress_end(void) {
    if (shown_s > 0)
        log_live_end();
    shown_s = 0;
}

// ---- the files of --data: token shards, and texts, which are tokenized with the model's tokenizer

struct eval_file {
    const char *path; // owned by the list of files
    bool is_shard;
    struct shard shard;
    struct token_list text; // the tokens of a text, as ./train tokenize would write them; empty for a shard
    size_t n_tokens;        // number of tokens of the shard or the text
};
struct eval_data {
    struct eval_file *files;
    int n;
};

// Fails if the shard was tokenized with another tokenizer than the model's: its ids would mean other text,
// and the loss would be meaningless.
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
        log_info("tokenizer: %s, which made %s", path, shard->path);
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

static enum status open_text(struct eval_file *file, const struct session *session, const char *path) {
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID, "%s is text, and %s comes without a tokenizer; give --tokenizer FILE",
                    path, session->weights.path);
    TRY(documents_encode(&path, 1, &documents, session->tokenizer, true, &file->text));
    file->n_tokens = file->text.n;
    return STATUS_OK;
}

static enum status open_file(struct eval_data *data, struct session *session, const char *path) {
    struct eval_file *file = &data->files[data->n++];
    file->path = path;
    const enum file_kind kind = file_kind_of_path(path);
    if (kind == FILE_KIND_TEXT || kind == FILE_KIND_TEXT_8_BIT || kind == FILE_KIND_GZIP ||
        kind == FILE_KIND_ZSTD)
        return open_text(file, session, path);
    if (kind != FILE_KIND_SHARD && kind != FILE_KIND_UNKNOWN)
        return file_kind_refuse(kind, path, "", "token shards or text");
    return open_shard(file, session, path, data->n == 1);
}

// Opens the files. If the model has no tokenizer and the first file is a shard, adopts the tokenizer that
// made this shard, if it is found: bits per byte need one. Free the data also after a failure.
// STATUS_INVALID: a file is neither shard nor text, a shard's tokenizer is not the model's, there is no
// tokenizer for a text, or the files have no token to predict.
static enum status eval_data_open(struct eval_data *data, struct session *session,
                                  const struct file_list *files) {
    bool any = files->n_paths == 0;
    *data = (struct eval_data){.files = allocate((size_t)files->n_paths, sizeof *data->files)};
    for (int i = 0; i < files->n_paths; i++) {
        TRY(open_file(data, session, files->paths[i]));
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

// Returns the number of sequences of T tokens into which the longest file is divided; the last may be
// shorter.
static size_t eval_data_longest(const struct eval_data *data, int T) {
    size_t longest = 0;
    for (int i = 0; i < data->n; i++) {
        const size_t n = data->files[i].n_tokens;
        const size_t sequences = n > 1 ? (n - 2) / (size_t)T + 1 : 0;
        longest = sequences > longest ? sequences : longest;
    }
    return longest;
}

// ---- evaluating the files

// What is needed to evaluate windows. A window is a batch of B consecutive sequences of T tokens of a file.
struct windows {
    struct session *session;
    struct gpt *gpt;
    int B, T;
    int32_t *read;                      // (B * T + 1) tokens as read from a shard
    int32_t *tokens, *targets, *starts; // (B, T) as in struct token_batch
    float *losses;                      // (B, T) the loss of each target, in nats
    struct text_loss *totals;           // sums over all windows of all files
};

// Returns the bytes of host memory that eval_data_run allocates.
static size_t eval_data_bytes(int B, int T) {
    return (size_t)B * (size_t)T * (4 * sizeof(int32_t) + sizeof(float));
}

// Reads n tokens of the file from index `start` on. The target of each is the token that follows it. If n
// is less than B * T, fills the rest of the window with zeros, which evaluate_file does not count.
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
    token_batch_find_starts(windows->tokens, windows->B, windows->T, windows->session->document_start,
                            windows->starts);
    return STATUS_OK;
}

// Evaluates a file: adds its loss and counts to windows->totals. Each position predicts the next token, so
// every token of the file except the first is predicted once.
static enum status evaluate_file(struct windows *windows, struct eval_file *file) {
    const size_t window = (size_t)windows->B * (size_t)windows->T;
    struct session *session = windows->session;
    for (size_t start = 0; start + 1 < file->n_tokens; start += window) {
        const size_t left = file->n_tokens - 1 - start, n = left < window ? left : window;
        const struct token_batch batch = {
            .tokens = windows->tokens, .targets = windows->targets, .starts = windows->starts};
        double sum;
        eval_progress(file->path, start, file->n_tokens, "tokens");
        TRY(read_window(windows, file, start, n));
        TRY(gpt_evaluate(windows->gpt, &session->stream, &session->hooks, &batch, &sum, windows->losses));
        for (size_t i = 0; i < n; i++)
            windows->totals->nats += (double)windows->losses[i];
        text_loss_count(windows->totals, session->tokenizer, windows->tokens[0], windows->targets, n);
    }
    if (file->is_shard)
        shard_release(&file->shard);
    return STATUS_OK;
}

// Evaluates all files, each in consecutive sequences of T tokens, B per batch.
//   gpt   created for B and T
static enum status eval_data_run(struct eval_data *data, struct session *session, struct gpt *gpt, int B,
                                 int T, struct text_loss *totals) {
    const size_t n = (size_t)B * (size_t)T;
    struct windows windows = {.session = session,
                              .gpt = gpt,
                              .B = B,
                              .T = T,
                              .read = allocate(n + 1, sizeof *windows.read),
                              .tokens = allocate(n, sizeof *windows.tokens),
                              .targets = allocate(n, sizeof *windows.targets),
                              .starts = allocate(n, sizeof *windows.starts),
                              .losses = allocate(n, sizeof *windows.losses),
                              .totals = totals};
    enum status status = STATUS_OK;
    *totals = (struct text_loss){0};
    for (int i = 0; i < data->n && status == STATUS_OK; i++)
        status = evaluate_file(&windows, &data->files[i]);
    free(windows.read);
    free(windows.tokens);
    free(windows.targets);
    free(windows.starts);
    free(windows.losses);
    return status;
}

// ---- one model: planning, loading and evaluating it

struct model {
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

static enum status open_inputs(struct model *model, const struct file_list *files) {
    struct session *session = &model->session;
    TRY(eval_data_open(&model->data, session, files));
    if (task_files.n == 0)
        return STATUS_OK;
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID,
                    "--task needs a tokenizer, and %s comes without one; give --tokenizer FILE",
                    session->weights.path);
    return task_list_load(&model->tasks, "--task", task_files.strings, task_files.n,
                          &(struct task_options){.tokenizer = session->tokenizer,
                                                 .vocab_size = session->params.config.vocab_size,
                                                 .seq_len = model->T,
                                                 .limit = limit});
}

static enum status choose_seq_len(struct model *model, const char *path) {
    const int n_positions = model->session.params.config.n_positions;
    if (seq_len > n_positions)
        return FAIL(STATUS_INVALID, "train eval: --seq-len is %lld, but %s has n_positions %d",
                    (long long)seq_len, path, n_positions);
    model->T = seq_len ? (int)seq_len : n_positions;
    return STATUS_OK;
}

// Sets model->B, and reduces model->T if no file or request is that long. Both are limited to what the
// longest file or task needs; more would be padding.
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
    model->B = (int)batch_size;
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
    task_batches_make(&batches, task, scorer->B, scorer->T);
    task_scores_init(&scores, task);
    enum status status = score_batches(scorer, task, &batches, &scores);
    if (status == STATUS_OK)
        *result = task_result_of(task, &scores);
    task_scores_free(&scores);
    task_batches_free(&batches);
    return status;
}

static enum status run_tasks(struct model *model, struct eval_result *result) {
    struct task_scorer scorer;
    const struct task_list *tasks = &model->tasks;
    result->tasks = allocate((size_t)tasks->n, sizeof *result->tasks);
    result->task_names = allocate((size_t)tasks->n, sizeof *result->task_names);
    enum status status = STATUS_OK;
    task_scorer_init(&scorer, model->B, model->T, model->session.document_start);
    scorer.gpt = model->gpt;
    scorer.stream = &model->session.stream;
    scorer.hooks = &model->session.hooks;
    for (int i = 0; i < tasks->n && status == STATUS_OK; i++) {
        status = run_task(&scorer, &tasks->tasks[i], &result->tasks[i]);
        result->task_names[i] = tasks->tasks[i].name; // ownership moves to the result
        tasks->tasks[i].name = NULL;
        result->n_tasks = i + 1;
    }
    task_scorer_free(&scorer);
    return status;
}

static enum status evaluate(struct model *model, const struct file_list *files, struct eval_result *result) {
    struct session *session = &model->session;
    TRY(session_open(session, &source));
    TRY(choose_seq_len(model, result->path));
    TRY(open_inputs(model, files));
    choose_batch(model);
    TRY(load(model));
    result->tokenizer = session->identity;
    result->has_data = model->data.n > 0;
    if (result->has_data)
        TRY(eval_data_run(&model->data, session, model->gpt, model->B, model->T, &result->totals));
    return run_tasks(model, result);
}

// Evaluates one model. Free the result also after a failure.
static enum status eval_model(const char *path, const struct file_list *files, struct eval_result *result) {
    struct model model = {0};
    *result = (struct eval_result){.path = path};
    source.path = path;
    enum status status = evaluate(&model, files, result);
    eval_progress_end();
    gpt_delete(model.gpt);
    task_list_free(&model.tasks);
    eval_data_free(&model.data);
    session_close(&model.session);
    return status;
}

static void eval_result_free(struct eval_result *result) {
    for (int i = 0; i < result->n_tasks; i++)
        free(result->task_names[i]);
    free(result->task_names);
    free(result->tasks);
    *result = (struct eval_result){0};
}

// ---- printing the results

#define TABLE_WIDTH 100

// Prints a result as one JSON object on one line.
static void eval_report_json(const struct eval_result *result) {
    const struct text_loss *totals = &result->totals;
    struct text text = {0};
    char number[3][32];
    text_add(&text, "{\"run\": ");
    json_add_string(&text, result->path);
    if (result->has_data)
        text_add(
            &text,
            ", \"loss\": %s, \"perplexity\": %s, \"bits_per_byte\": %s, \"tokens\": %lld, \"bytes\": %lld",
            text_double(number[0], text_loss_mean(totals)),
            text_double(number[1], exp(text_loss_mean(totals))),
            text_double(number[2], text_loss_bits_per_byte(totals)), (long long)totals->tokens,
            (long long)totals->bytes);
    for (int i = 0; i < result->n_tasks; i++) {
        text_add(&text, i ? ", " : ", \"tasks\": {");
        json_add_string(&text, result->task_names[i]);
        text_add(&text, ": ");
        task_result_add_json(&text, &result->tasks[i]);
    }
    text_add(&text, result->n_tasks > 0 ? "}}\n" : "}\n");
    output_text(&text);
}

// Prints the loss, then one line per task.
static void eval_report_lines(const struct eval_result *result) {
    const struct text_loss *totals = &result->totals;
    struct text text = {0};
    if (result->has_data) {
        text_add(&text, "loss %.4f nats per token, perplexity %.2f", text_loss_mean(totals),
                 exp(text_loss_mean(totals)));
        if (totals->bytes > 0)
            text_add(&text, ", %.4f bits per byte", text_loss_bits_per_byte(totals));
        text_add(&text, " (%lld tokens)\n", (long long)totals->tokens);
    }
    for (int i = 0; i < result->n_tasks; i++) {
        text_add(&text, "%s: ", result->task_names[i]);
        task_result_add_line(&text, &result->tasks[i]);
        text_add(&text, "\n");
    }
    output_text(&text);
}

// ---- the table of several models

// Returns the number of rows of the table: the header; if there is data, loss, perplexity and bits per byte;
// then the measures of the tasks.
static int n_rows(const struct eval_result *result) {
    int n = result->has_data ? 4 : 1;
    for (int i = 0; i < result->n_tasks; i++)
        n += result->tasks[i].n_measures;
    return n;
}

static void fill_labels(const struct table *table, const struct eval_result *result) {
    static const char *const labels[] = {"", "loss", "perplexity", "bits per byte"};
    struct text *cell = table->cells;
    for (int row = 0; row < (result->has_data ? 4 : 1); row++, cell += table->columns)
        text_add(cell, "%s", labels[row]);
    for (int i = 0; i < result->n_tasks; i++)
        for (int k = 0; k < result->tasks[i].n_measures; k++, cell += table->columns)
            text_add(cell, "%s %s", result->task_names[i], result->tasks[i].measures[k].name);
}

static void fill_column(const struct table *table, int column, const struct eval_result *result) {
    struct text *cell = table->cells + column;
    const double loss = text_loss_mean(&result->totals),
                 bits_per_byte = text_loss_bits_per_byte(&result->totals);
    text_add(cell, "%s", result->path);
    if (result->has_data) {
        text_add(cell += table->columns, "%.4f", loss);
        text_add(cell += table->columns, "%.2f", exp(loss));
        text_add(cell += table->columns, isnan(bits_per_byte) ? "-" : "%.4f", bits_per_byte);
    }
    for (int i = 0; i < result->n_tasks; i++)
        for (int k = 0; k < result->tasks[i].n_measures; k++)
            task_measure_add(cell += table->columns, &result->tasks[i].measures[k]);
}

static bool tokenizers_differ(const struct eval_result *results, int n) {
    for (int i = 1; i < n; i++)
        if (results[i].has_data && tokenizer_identity_differs(&results[0].tokenizer, &results[i].tokenizer))
            return true;
    return false;
}

// Prints one row per figure and one column per model, in several tables if one would be wider than 100
// characters.
static void eval_report_table(const struct eval_result *results, int n) {
    struct table table = {
        .rows = n_rows(results), .columns = n + 1, .n_left = n + 1, .gap = "   ", .width = TABLE_WIDTH};
    table.cells = allocate((size_t)table.rows * (size_t)table.columns, sizeof *table.cells);
    fill_labels(&table, results);
    for (int i = 0; i < n; i++)
        fill_column(&table, i + 1, &results[i]);
    table_print(&table);
    if (tokenizers_differ(results, n))
        log_info("the runs have different tokenizers: loss and perplexity are per token and cannot be "
                 "compared; bits per byte can");
}

// ---- the command

// Evaluates one model after the other, so that only one is in memory. Stops at the first failure, but
// prints the results so far.
static enum status evaluate_all(const char *const *paths, int n_paths, const struct file_list *files,
                                struct eval_result *results) {
    enum status status = STATUS_OK;
    int n = 0;
    for (int i = 0; i < n_paths && status == STATUS_OK; i++) {
        eval_progress_run(n_paths > 1 ? paths[i] : NULL, (unsigned char)(i + 1), (unsigned char)n_paths);
        status = eval_model(paths[i], files, &results[i]);
        n += status == STATUS_OK;
        if (status == STATUS_OK && as_json)
            eval_report_json(&results[i]);
        else if (status == STATUS_OK && n_paths == 1)
            eval_report_lines(&results[i]);
        if (status == STATUS_OK)
            status = output_flush(); // evaluating the next model may take minutes
    }
    if (n_paths > 1 && !as_json && n > 0)
        eval_report_table(results, n);
    return status;
}

static enum status run_eval(int n_args, char **args) {
    const char *paths[MOST_RUNS];
    int n_paths;
    TRY(args_parse("eval", flags, sizeof flags / sizeof *flags, n_args, args, paths, MOST_RUNS, &n_paths));
    if (n_paths == 0 || (data_patterns.n == 0 && task_files.n == 0))
        return FAIL(STATUS_INVALID, "train eval: expected a run or checkpoint, and --data FILE or --task "
                                    "KIND=FILE; see: train help eval");
    if (limit > 0 && task_files.n == 0)
        return FAIL(STATUS_INVALID,
                    "train eval: --limit applies to tasks, but no --task is given; leave it out");
    if ((documents.end_of_text || documents.field) && data_patterns.n == 0)
        return FAIL(STATUS_INVALID, "train eval: --%s applies to texts, but no --data is given; leave it out",
                    documents.end_of_text ? "end-of-text" : "field");
    struct file_list files = {0};
    struct eval_result *results = allocate((size_t)n_paths, sizeof *results);
    enum status status = STATUS_OK;
    for (int i = 0; i < data_patterns.n && status == STATUS_OK; i++)
        status = file_glob(&files, data_patterns.strings[i]);
    for (int i = 0; i < task_files.n && status == STATUS_OK; i++) {
        enum task_kind kind;
        const char *path;
        status = task_parse("--task", task_files.strings[i], &kind, &path);
    }
    if (status == STATUS_OK)
        status = evaluate_all(paths, n_paths, &files, results);
    for (int i = 0; i < n_paths; i++)
        eval_result_free(&results[i]);
    free(results);
    file_list_free(&files);
    return status;
}

const struct command command_eval = {
    .name = "eval",
    .synopsis = "RUN_OR_CHECKPOINT... [--data FILE] [--task KIND=FILE]",
    .summary = "measure loss, perplexity, bits per byte, and accuracy on tasks",
    .details =
        "With several models, prints a table. Texts are tokenized with each model's tokenizer.\n"
        "Evaluates all of the data, in windows of --seq-len tokens. Validation in training leaves out the\n"
        "last tokens, which do not fill a window of train.seq_len, so its loss may differ a little.\n"
        "Tasks are measured zero-shot, as by lm-evaluation-harness: HellaSwag as published; LAMBADA, lines\n"
        "of {\"text\": TEXT}; multiple choice, lines of {\"context\": TEXT, \"choices\": [TEXT, ...],\n"
        "\"label\": INDEX}. See docs/evaluation.md.",
    .examples = "Bits per byte of a text.\n"
                "./train eval runs/quickstart --data book.txt\n"
                "Compare two models on HellaSwag.\n"
                "./train eval runs/a runs/b --task hellaswag=hellaswag_val.jsonl\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_eval,
};
