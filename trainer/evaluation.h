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
    // Arrays of list.n elements, one per task.
    struct task_batches *batches;
    struct task_scores *scores;
    struct task_result *results; // results of the last evaluation
    struct task_scorer scorer;
    double seconds; // duration of the last evaluation of all tasks; 0: none yet
};

struct evaluator {
    struct run *run;
    const struct training_data *data;
    struct run_output *output;
    struct eval_tasks tasks;
    struct run_best latest; // result of the last evaluation on train.eval_steps batches
    int64_t final_step;     // step of the final evaluation; 0: none yet
    double sequence_s;      // seconds per sequence of the last evaluation; 0: none yet
};

// Opens eval.tasks. Call it after the data is opened. Checks that all ranks have the same files. Warns if the
// files differ from those that the resumed checkpoint records.
enum status evaluator_open(struct evaluator *evaluator) MUST_CHECK;
void evaluator_free(struct evaluator *evaluator);
void evaluator_describe_tasks(const struct evaluator *evaluator); // logs the tasks

// Computes the loss on train.eval_steps batches of data.val, logs it and writes it to the metrics.
enum status evaluator_val(struct evaluator *evaluator) MUST_CHECK;
// Computes the final loss, on train.eval_final_steps batches of data.val, logs it and writes it to the
// metrics. Does nothing if evaluator_val has already evaluated as many sequences at this step.
// STATUS_STOPPED: a signal ended the evaluation.
enum status evaluator_val_final(struct evaluator *evaluator) MUST_CHECK;
// Computes the figures of eval.tasks, logs them and writes them to the metrics. A signal ends the evaluation
// early. After the last step the status is then STATUS_STOPPED; before it, STATUS_OK: the next step handles
// the signal and stops.
enum status evaluator_tasks(struct evaluator *evaluator) MUST_CHECK;
// Generates one sample, and writes it to the log and to samples/step-N.txt.
enum status evaluator_sample(struct evaluator *evaluator) MUST_CHECK;

// Sets the numbers of sequences that an evaluation of data.val computes; 0 without data.val.
//   during   [out] in an evaluation during the run
//   final    [out] in the final one. Sequences count twice if there is an average of the weights, because the
//            latest weights are evaluated too
void evaluator_lengths(const struct evaluator *evaluator, int64_t *during, int64_t *final);
// The number of sequences of train.seq_len tokens that take about as long as all tasks; 0 without tasks.
int64_t evaluator_tasks_sequences(const struct evaluator *evaluator);

#endif
