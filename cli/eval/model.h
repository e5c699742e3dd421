// One model of `train eval`: loaded, evaluated, and closed again.
#ifndef ZERO_CLI_EVAL_MODEL_H
#define ZERO_CLI_EVAL_MODEL_H

#include "cli/eval/data.h"
#include "infer/tasks/score.h"

struct eval_options {
    struct file_list files; // of --data; none: no loss is measured
    bool end_of_text;
    const struct arg_strings *tasks; // "KIND=FILE"
    int64_t limit, batch_size, threads;
    int64_t seq_len; // of a window or request, at most the model's n_positions; 0: that
    const char *device, *tokenizer, *weights; // as in struct session_options
};

struct eval_result {
    const char *path; // of the run
    bool has_data;
    struct eval_totals totals;
    struct tokenizer_identity tokenizer; // n_ids 0: none
    struct task_result *tasks;           // (n_tasks)
    char **task_names;                   // (n_tasks)
    int n_tasks;
};

// Free the result also after a failure.
enum status eval_model(const char *path, const struct eval_options *options,
                       struct eval_result *result) MUST_CHECK;
void eval_result_free(struct eval_result *result);

#endif
