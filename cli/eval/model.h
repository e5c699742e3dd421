// One model of `train eval`: loaded, evaluated, and closed again.
#ifndef ZERO_CLI_EVAL_MODEL_H
#define ZERO_CLI_EVAL_MODEL_H

#include "base/file.h"
#include "infer/session.h"
#include "infer/tasks/score.h"

struct eval_options {
    struct file_list files; // of --data; none: no loss is measured
    bool end_of_text;
    const struct arg_strings *tasks; // "KIND=FILE"
    int64_t limit, batch_size, threads;
    int64_t seq_len; // of a window or request, at most the model's n_positions; 0: that
    const char *device, *tokenizer, *weights; // as in struct session_options
};

// Sums over the predicted tokens: all but the first of each file.
struct eval_totals {
    double loss;           // nats
    int64_t tokens, bytes; // bytes of the text that they encode; 0 without a tokenizer
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

// Which of several runs is being evaluated: "runs/a (1 of 3)". NULL: only one.
void eval_progress_run(const char *path, int number, int n);
// Ends the progress line, if there is one.
void eval_progress_end(void);

#endif
