// ./train eval RUN_OR_CHECKPOINT... [--data FILE] [--task KIND=FILE]
#include <stdlib.h>

#include "base/args.h"
#include "cli/commands.h"
#include "cli/eval/progress.h"
#include "cli/eval/report.h"

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
