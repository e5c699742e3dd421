// Scores the requests of a task with a model, in batches of requests of similar length. From the scores,
// computes the task's figures, such as accuracy.
#ifndef ZERO_INFER_TASKS_SCORE_H
#define ZERO_INFER_TASKS_SCORE_H

#include "infer/tasks/task.h"
#include "model/gpt.h"

// Requests sorted by length and divided into batches. All ranks make the same batches, because these depend
// only on the task, B and T.
struct task_batch {
    struct gpt_shape shape; // the smallest shape that fits the batch's requests
    int first, n;           // its requests: task_batches.order[first .. first + n)
};
struct task_batches {
    int *order;                 // (n_requests) indices of the task's requests, longest request first
    struct task_batch *batches; // (n)
    int n;
};
// Divides a task's requests into batches.
//   B, T   as in the gpt_options of the gpt that scores them. Each request has at most T + 1 tokens
void task_batches_make(struct task_batches *batches, const struct task *task, int B, int T);
void task_batches_free(struct task_batches *batches);

// The model's scores of each request. Both arrays are doubles and are 0 for requests that this rank did not
// score, so that the sum over all ranks has all scores.
struct task_scores {
    double *log_probabilities; // (n_requests) log-probability of the continuation, in nats
    // (n_requests) 1 if the task is LAMBADA and each token of the continuation is the most likely one, else 0
    double *greedy;
};
void task_scores_init(struct task_scores *scores, const struct task *task); // sets all scores to 0
void task_scores_free(struct task_scores *scores);

// The model, and host memory for scoring one batch. task_scorer_init allocates the arrays; then the caller
// sets gpt, stream and hooks.
struct task_scorer {
    struct gpt *gpt; // created with gpt_options.scoring
    struct stream *stream;
    const struct unit_hooks *hooks;
    int B, T;                           // as in the gpt's options
    int32_t document_start;             // token that begins a document; -1: each request is one document
    int32_t *tokens, *targets, *starts; // (B, T) as in struct token_batch
    float *losses;                      // (B, T) the loss of each target, in nats
    int *rows;                          // (up to B * T) positions b * T + t whose next token is predicted
    int32_t *predictions;               // (up to B * T) the most likely next token of each of `rows`
};
void task_scorer_init(struct task_scorer *scorer, int B, int T, int32_t document_start);
void task_scorer_free(struct task_scorer *scorer);
size_t task_scorer_bytes(int B, int T); // bytes of host memory that a scorer allocates
// Scores the requests of one batch.
//   scores   [out] the requests' scores. NULL: only run the pass, so that in stage 3 the other ranks can
//            gather this rank's shards
enum status task_score_batch(struct task_scorer *scorer, const struct task *task,
                             const struct task_batches *batches, int batch,
                             struct task_scores *scores) MUST_CHECK;

// The figures of a task.
//   acc          multiple choice: fraction of items whose right choice has the largest log-probability.
//                LAMBADA: fraction of items whose last word greedy generation predicts
//   acc_norm     as acc, with log-probabilities divided by the choice's length (task_request.length)
//   perplexity   LAMBADA: exp(- mean log-probability of the last words)
// Errors are standard errors of the mean over items; NaN with one item. The perplexity's error is the error
// of its logarithm, times the perplexity.
#define TASK_MOST_MEASURES 2
struct task_measure {
    const char *name;
    double value, error;
    bool is_share; // a fraction from 0 to 1; higher is better
};
struct task_result {
    struct task_measure measures[TASK_MOST_MEASURES];
    int n_measures, n_items;
};
struct task_result task_result_of(const struct task *task, const struct task_scores *scores);
// Appends a measure as text: "0.2500 ± 0.0433".
void task_measure_add(struct text *out, const struct task_measure *measure);
// Appends the result as a JSON object: {"acc": 0.25, "acc_stderr": 0.0433, ..., "items": 100}.
void task_result_add_json(struct text *out, const struct task_result *result);
// Appends the result as text: "acc 0.2500 ± 0.0433, acc_norm 0.2700 ± 0.0446 (100 items)".
void task_result_add_line(struct text *out, const struct task_result *result);

#endif
