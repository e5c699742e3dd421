// Scores the requests of a task with a model, in batches of sequences of similar length, and computes the
// task's figures from the scores.
#ifndef ZERO_INFER_TASKS_SCORE_H
#define ZERO_INFER_TASKS_SCORE_H

#include "infer/tasks/task.h"
#include "model/gpt.h"

// Requests sorted by length and divided into batches. The same on every rank: it depends only on the task, B
// and T.
struct task_batch {
    struct gpt_shape shape; // the smallest shape that fits the batch's requests
    int first, n;           // its requests: order[first ..]
};
struct task_batches {
    int *order; // (n_requests) longest first
    struct task_batch *batches;
    int n;
};
// Divides a task's requests into batches.
//   B, T   as in the gpt; T is at least the length of the longest request, or seq_len of the options
void task_batches_make(struct task_batches *batches, const struct task *task, int B, int T);
void task_batches_free(struct task_batches *batches);

// The model's scores of each request. Doubles, so that ranks that scored some requests each can add their
// arrays.
struct task_scores {
    double *log_probabilities; // (n_requests) of each continuation, in nats
    double *greedy;            // (n_requests) LAMBADA: 1 if each token is the most likely one; otherwise 0
};
void task_scores_init(struct task_scores *scores, const struct task *task); // all 0
void task_scores_free(struct task_scores *scores);

// Host memory for scoring one batch.
struct task_scorer {
    struct gpt *gpt; // created with gpt_options.scoring
    struct stream *stream;
    const struct unit_hooks *hooks;
    int B, T;                           // the gpt's
    int32_t document_start;             // the token that begins a document; -1: each request is one
    int32_t *tokens, *targets, *starts; // (B, T)
    float *losses;                      // (B, T)
    int *rows;                          // (B, T)
    int32_t *predictions;               // (B, T)
};
// The caller sets gpt, stream and hooks.
void task_scorer_init(struct task_scorer *scorer, int B, int T, int32_t document_start);
void task_scorer_free(struct task_scorer *scorer);
size_t task_scorer_bytes(int B, int T); // host memory of a scorer
// Scores the requests of one batch.
//   scores   NULL: only runs the pass, because the other ranks of stage 3 need this rank
enum status task_score_batch(struct task_scorer *scorer, const struct task *task,
                             const struct task_batches *batches, int batch,
                             struct task_scores *scores) MUST_CHECK;

// The figures of a task.
//   acc          multiple choice: fraction of items whose right choice has the largest log-probability.
//                LAMBADA: fraction of items whose last word greedy generation predicts
//   acc_norm     as acc, with log-probabilities divided by the choice's length (task_request.length)
//   perplexity   LAMBADA: exp(- mean log-probability of the last words)
// Errors are standard errors of the mean over items. The perplexity's is that of its logarithm, times the
// perplexity. NaN with one item.
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
