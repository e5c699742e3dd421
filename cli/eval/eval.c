// ./train eval RUN_OR_CHECKPOINT... [--data FILE] [--task KIND=FILE]
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/eval/model.h"

// ---- what it prints: cells are texts; widths are counted in characters, as there is a plus-minus sign

#define TABLE_WIDTH 100
#define GAP         "   "

static double loss_of(const struct eval_totals *totals) {
    return text_plain_nan(totals->loss / (double)totals->tokens);
}

static double bits_per_byte_of(const struct eval_totals *totals) {
    return text_plain_nan(totals->bytes > 0 ? totals->loss / log(2) / (double)totals->bytes : NAN);
}

static enum status print(struct text *text) {
    enum status status = text_status(text);
    if (status == STATUS_OK && text->data)
        fputs(text->data, stdout);
    text_free(text);
    return status == STATUS_OK ? output_flush() : status;
}

// One JSON object on one line.
static enum status eval_report_json(const struct eval_result *result) {
    const struct eval_totals *totals = &result->totals;
    struct text text = {0};
    char number[3][32];
    text_add(&text, "{\"run\": ");
    json_add_string(&text, result->path);
    if (result->has_data)
        text_add(
            &text,
            ", \"loss\": %s, \"perplexity\": %s, \"bits_per_byte\": %s, \"tokens\": %lld, \"bytes\": %lld",
            text_double(number[0], loss_of(totals)), text_double(number[1], exp(loss_of(totals))),
            text_double(number[2], bits_per_byte_of(totals)), (long long)totals->tokens,
            (long long)totals->bytes);
    for (int i = 0; i < result->n_tasks; i++) {
        text_add(&text, i ? ", " : ", \"tasks\": {");
        json_add_string(&text, result->task_names[i]);
        text_add(&text, ": ");
        task_result_add_json(&text, &result->tasks[i]);
    }
    text_add(&text, result->n_tasks > 0 ? "}}\n" : "}\n");
    return print(&text);
}

// The loss, then each task.
static enum status eval_report_lines(const struct eval_result *result) {
    const struct eval_totals *totals = &result->totals;
    struct text text = {0};
    if (result->has_data) {
        text_add(&text, "loss %.4f nats per token, perplexity %.2f", loss_of(totals), exp(loss_of(totals)));
        if (totals->bytes > 0)
            text_add(&text, ", %.4f bits per byte", bits_per_byte_of(totals));
        text_add(&text, " (%lld tokens)\n", (long long)totals->tokens);
    }
    for (int i = 0; i < result->n_tasks; i++) {
        text_add(&text, "%s: ", result->task_names[i]);
        task_result_add_line(&text, &result->tasks[i]);
        text_add(&text, "\n");
    }
    return print(&text);
}

// ---- the table

// Row 0 is the header; then loss, perplexity and bits per byte, if there is data; then the measures of the
// tasks.
static int n_rows(const struct eval_result *result) {
    int n = result->has_data ? 4 : 1;
    for (int i = 0; i < result->n_tasks; i++)
        n += result->tasks[i].n_measures;
    return n;
}

// The measure of a row below the data's. Returns its task.
static int find_measure(const struct eval_result *result, int row, const struct task_measure **measure) {
    int task = 0;
    for (row -= result->has_data ? 4 : 1; row >= result->tasks[task].n_measures; task++)
        row -= result->tasks[task].n_measures;
    *measure = &result->tasks[task].measures[row];
    return task;
}

static bool is_of_task(const struct eval_result *result, int row) {
    return row >= (result->has_data ? 4 : 1);
}

static void add_label(struct text *cell, const struct eval_result *result, int row) {
    static const char *const labels[] = {"", "loss", "perplexity", "bits per byte"};
    const struct task_measure *measure;
    if (!is_of_task(result, row)) {
        text_add(cell, "%s", labels[row]);
        return;
    }
    const int task = find_measure(result, row, &measure);
    text_add(cell, "%s %s", result->task_names[task], measure->name);
}

static void add_cell(struct text *cell, const struct eval_result *result, int row) {
    const struct task_measure *measure;
    const double loss = loss_of(&result->totals), bits_per_byte = bits_per_byte_of(&result->totals);
    if (is_of_task(result, row)) {
        (void)find_measure(result, row, &measure);
        task_measure_add(cell, measure);
    } else if (row == 0)
        text_add(cell, "%s", result->path);
    else if (row == 2)
        text_add(cell, "%.2f", exp(loss));
    else if (row == 3 && isnan(bits_per_byte))
        text_add(cell, "-");
    else
        text_add(cell, "%.4f", row == 1 ? loss : bits_per_byte);
}

static size_t width_of(const struct text *cell) {
    size_t n = 0;
    for (size_t i = 0; i < cell->length; i++)
        n += ((unsigned char)cell->data[i] & 0xc0) != 0x80;
    return n;
}

typedef void cell_writer(struct text *cell, const struct eval_result *result, int row);

static size_t column_width(const struct eval_result *result, cell_writer *write) {
    size_t widest = 0;
    for (int row = 0; row < n_rows(result); row++) {
        struct text cell = {0};
        write(&cell, result, row);
        widest = width_of(&cell) > widest ? width_of(&cell) : widest;
        text_free(&cell);
    }
    return widest;
}

static void add_padded(struct text *out, const struct eval_result *result, int row, cell_writer *write,
                       size_t width) {
    struct text cell = {0};
    write(&cell, result, row);
    const size_t used = width_of(&cell);
    text_add(out, "%s%*s", cell.data ? cell.data : "", used < width ? (int)(width - used) : 0, "");
    out->failed = out->failed || cell.failed;
    text_free(&cell);
}

static void add_table(struct text *out, const struct eval_result *results, int n, size_t label_width) {
    for (int row = 0; row < n_rows(results); row++) {
        add_padded(out, results, row, add_label, label_width);
        for (int i = 0; i < n; i++) {
            text_add(out, GAP);
            add_padded(out, &results[i], row, add_cell, i < n - 1 ? column_width(&results[i], add_cell) : 0);
        }
        text_add(out, "\n");
    }
}

static bool tokenizers_differ(const struct eval_result *results, int n) {
    for (int i = 1; i < n; i++)
        if (results[i].has_data && tokenizer_identity_differs(&results[0].tokenizer, &results[i].tokenizer))
            return true;
    return false;
}

// A row per figure and a column per model; as many tables as it takes to stay within a width of 100.
static enum status eval_report_table(const struct eval_result *results, int n) {
    struct text text = {0};
    const size_t label_width = n > 0 ? column_width(results, add_label) : 0;
    for (int first = 0; first < n;) {
        size_t width = label_width + strlen(GAP) + column_width(&results[first], add_cell);
        int end = first + 1;
        for (; end < n; end++) {
            width += strlen(GAP) + column_width(&results[end], add_cell);
            if (width > TABLE_WIDTH)
                break;
        }
        text_add(&text, first > 0 ? "\n" : "");
        add_table(&text, results + first, end - first, label_width);
        first = end;
    }
    TRY(print(&text));
    if (tokenizers_differ(results, n))
        log_info("the runs have different tokenizers: loss and perplexity are per token and cannot be "
                 "compared; bits per byte can");
    return STATUS_OK;
}

// ---- the command

static struct arg_strings data_patterns, tasks;
static const char *device_name = "auto", *tokenizer_path = "", *weights_name = NULL;
static int64_t batch_size = 8, seq_len = 0, threads = 0, limit = 0;
static bool as_json = false, end_of_text = false;

#define MOST_RUNS 64

static const struct arg flags[] = {
    {"--data", ARG_STRINGS, &data_patterns, 0, 0,
     "token shards or text files: a path or a glob pattern; may be given several times"},
    {"--task", ARG_STRINGS, &tasks, 0, 0,
     "hellaswag=FILE, lambada=FILE or multiple_choice=FILE, of JSON lines; may be given several times"},
    {"--limit", ARG_INTEGER, &limit, 0, 1e9, "the first N items of each task; 0: all (0)"},
    {"--end-of-text", ARG_FLAG, &end_of_text, 0, 0, "<|endoftext|> in a text file separates documents"},
    {"--batch-size", ARG_INTEGER, &batch_size, 1, 1e6,
     "sequences of --seq-len tokens per batch; of shorter ones as many as have the same tokens (8)"},
    {"--seq-len", ARG_INTEGER, &seq_len, 0, 1 << 24,
     "the longest context, in tokens; 0: the model's n_positions (0)"},
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object per model, each on a line"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0, "the tokenizer, where the model comes without one"},
    {"--weights", ARG_STRING, &weights_name, 0, 0,
     "average or latest, of a checkpoint that has both (default: average)"},
    {"--device", ARG_STRING, &device_name, 0, 0, "auto, cpu or cuda (auto)"},
    {"--threads", ARG_INTEGER, &threads, 0, 4096,
     "CPU threads; 0: OMP_NUM_THREADS if set, otherwise one per core (0)"},
};

// One model after the other, so that memory is that of one. What was measured before a failure is printed.
static enum status evaluate(const char *const *paths, int n_paths, const struct eval_options *options,
                            struct eval_result *results) {
    enum status status = STATUS_OK;
    int n = 0;
    for (int i = 0; i < n_paths && status == STATUS_OK; i++) {
        eval_progress_run(n_paths > 1 ? paths[i] : NULL, i + 1, n_paths);
        status = eval_model(paths[i], options, &results[i]);
        n += status == STATUS_OK;
        if (status == STATUS_OK && as_json)
            status = eval_report_json(&results[i]);
        else if (status == STATUS_OK && n_paths == 1)
            status = eval_report_lines(&results[i]);
    }
    if (n_paths > 1 && !as_json && n > 0) {
        const enum status reported = eval_report_table(results, n);
        status = status == STATUS_OK ? reported : status;
    }
    return status;
}

static enum status run_eval(int n_args, char **args) {
    const char *paths[MOST_RUNS];
    int n_paths;
    TRY(args_parse("eval", flags, sizeof flags / sizeof *flags, n_args, args, paths, MOST_RUNS, &n_paths));
    if (n_paths == 0 || (data_patterns.n == 0 && tasks.n == 0))
        return FAIL(STATUS_INVALID, "train eval: expected a run or checkpoint, and --data FILE or --task "
                                    "KIND=FILE; see: train help eval");
    if (limit > 0 && tasks.n == 0)
        return FAIL(STATUS_INVALID, "train eval: --limit is of tasks, and no --task is given; leave it out");
    if (end_of_text && data_patterns.n == 0)
        return FAIL(STATUS_INVALID,
                    "train eval: --end-of-text is of texts, and no --data is given; leave it out");
    struct eval_options options = {.end_of_text = end_of_text,
                                   .tasks = &tasks,
                                   .limit = limit,
                                   .batch_size = batch_size,
                                   .seq_len = seq_len,
                                   .threads = threads,
                                   .device = device_name,
                                   .tokenizer = tokenizer_path,
                                   .weights = weights_name};
    struct eval_result *results = calloc((size_t)n_paths, sizeof *results);
    enum status status = results ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for %d results", n_paths);
    for (int i = 0; i < data_patterns.n && status == STATUS_OK; i++)
        status = file_glob(&options.files, data_patterns.strings[i]);
    for (int i = 0; i < tasks.n && status == STATUS_OK; i++) {
        enum task_kind kind;
        const char *path;
        status = task_parse("--task", tasks.strings[i], &kind, &path);
    }
    if (status == STATUS_OK)
        status = evaluate(paths, n_paths, &options, results);
    for (int i = 0; i < n_paths && results; i++)
        eval_result_free(&results[i]);
    free(results);
    file_list_free(&options.files);
    return status;
}

const struct command command_eval = {
    .name = "eval",
    .synopsis = "RUN_OR_CHECKPOINT... [--data FILE] [--task KIND=FILE]",
    .summary = "measure loss, perplexity, bits per byte, and accuracy on tasks",
    .details = "With several models, prints a table. Texts are tokenized with each model's tokenizer.\n"
               "Evaluates all of the data, in windows of --seq-len tokens. The validation of training "
               "leaves out what\n"
               "remains of it after windows of train.seq_len tokens, so its loss may differ a little.\n"
               "Tasks are measured as lm-evaluation-harness does, without examples: HellaSwag as published; "
               "LAMBADA,\n"
               "lines of {\"text\": TEXT}; and any multiple choice, lines of {\"context\": TEXT, "
               "\"choices\": [TEXT, "
               "...],\n\"label\": INDEX}. See docs/evaluation.md.",
    .examples = "Bits per byte of a text.\n"
                "./train eval runs/quickstart --data book.txt\n"
                "Compare two models on HellaSwag.\n"
                "./train eval runs/a runs/b --task hellaswag=hellaswag_val.jsonl\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_eval,
};
