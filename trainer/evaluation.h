// The evaluations between steps:
// - the loss on data.val, in nats per token and, with a tokenizer, in bits per byte
// - the figures of eval.tasks
// - samples: text that the model generates
// All use the average of the weights, if the run has one. Functions that return a status are collective.
#ifndef ZERO_TRAINER_EVALUATION_H
#define ZERO_TRAINER_EVALUATION_H

#include "infer/tasks/score.h"
#include "trainer/run_output.h"
#include "trainer/training_data.h"

// The state of eval.tasks.
struct eval_tasks {
    struct task_list list; // empty without eval.tasks
    // (list.n) each
    struct task_batches *batches;
    struct task_scores *scores;
    struct task_result *results; // of the last evaluation
    struct task_scorer scorer;
    double seconds; // length of the last evaluation; 0: none yet
};

struct evaluator {
    struct run *run;
    const struct training_data *data;
    struct run_output *output;
    struct eval_tasks tasks;
    struct run_best latest; // the last evaluation with train.eval_steps
    int64_t final_step;     // step of the final evaluation; 0: none yet
    double sequence_s;      // seconds per sequence of the last evaluation; 0: none yet
};

// Opens eval.tasks, after the data was opened. Checks that all ranks have the same files. Warns if the files
// differ from those of the resumed checkpoint.
enum status evaluator_open(struct evaluator *evaluator) MUST_CHECK;
void evaluator_free(struct evaluator *evaluator);
void evaluator_describe_tasks(const struct evaluator *evaluator); // logs the tasks

// Computes the loss on train.eval_steps of data.val, logs it and writes it to the metrics.
enum status evaluator_val(struct evaluator *evaluator) MUST_CHECK;
// The same at the end of the run, on train.eval_final_steps. STATUS_STOPPED if a signal ends it.
enum status evaluator_val_final(struct evaluator *evaluator) MUST_CHECK;
// Computes the figures of eval.tasks, logs them and writes them to the metrics. A signal ends the evaluation:
// after the last step with STATUS_STOPPED, before it without figures.
enum status evaluator_tasks(struct evaluator *evaluator) MUST_CHECK;
// Generates one sample, and writes it to the log and to samples/step-N.txt.
enum status evaluator_sample(struct evaluator *evaluator) MUST_CHECK;

// The number of sequences that each evaluation of data.val computes; 0 without data.val.
void evaluator_lengths(const struct evaluator *evaluator, int64_t *during, int64_t *final);
// The number of sequences of train.seq_len tokens that take about as long as all tasks; 0 without tasks.
int64_t evaluator_tasks_sequences(const struct evaluator *evaluator);

#endif
