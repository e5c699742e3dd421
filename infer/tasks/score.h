// Scores the requests of a task with a model, in batches of sequences of similar length, and computes the
// task's figures from the scores.
#ifndef ZERO_INFER_TASKS_SCORE_H
#define ZERO_INFER_TASKS_SCORE_H

#include "infer/tasks/task.h"
#include "model/gpt.h"

// Requests by length, cut into batches. The same on every rank of a run: it depends on the task, B and T
// only.
struct task_batch {
    struct gpt_shape shape; // the shortest that holds the batch's requests
    int first, n;           // its requests: order[first ..]
};
struct task_batches {
    int *order; // (n_requests) longest first
    struct task_batch *batches;
    int n;
};
//   B, T   those of the gpt; T is at least what the longest request has, or seq_len of the options
void task_batches_make(struct task_batches *batches, const struct task *task, int B, int T);
void task_batches_free(struct task_batches *batches);

// What the model says of each request. Doubles, so that ranks which scored some each can add their arrays up.
struct task_scores {
    double *log_probabilities; // (n_requests) of the continuation, in nats
    double *greedy; // (n_requests) 1: each of its tokens is the most likely one. LAMBADA only; else 0
};
void task_scores_init(struct task_scores *scores, const struct task *task); // all 0
void task_scores_free(struct task_scores *scores);

// Host memory for one batch.
struct task_scorer {
    struct gpt *gpt; // with gpt_options.scoring
    struct stream *stream;
    const struct unit_hooks *hooks;
    int B, T;                  // the gpt's
    int32_t *tokens, *targets; // (B, T)
    float *losses;             // (B, T)
    int *rows;                 // (B, T)
    int32_t *predictions;      // (B, T)
};
void task_scorer_init(struct task_scorer *scorer, int B, int T); // gpt, stream, hooks: the caller's
void task_scorer_free(struct task_scorer *scorer);
size_t task_scorer_bytes(int B, int T); // that it takes
// Scores the requests of one batch.
//   scores   NULL: only makes the pass, in which the other ranks of stage 3 need this one
enum status task_score_batch(struct task_scorer *scorer, const struct task *task,
                             const struct task_batches *batches, int batch,
                             struct task_scores *scores) MUST_CHECK;

// The figures of a task.
//   acc          multiple choice: items whose right choice has the largest log-probability. LAMBADA: items
//   whose
//                last word is what greedy generation gives
//   acc_norm     the same with log-probabilities divided by the choice's length (task_request.length)
//   perplexity   LAMBADA: exp(- mean log-probability of the last words)
// Errors are standard errors of the mean over items; that of the perplexity is the one of its logarithm times
// the perplexity. NaN with one item.
#define TASK_MOST_MEASURES 2
struct task_measure {
    const char *name;
    double value, error;
    bool is_share; // of 1, for which more is better
};
struct task_result {
    struct task_measure measures[TASK_MOST_MEASURES];
    int n_measures, n_items;
};
struct task_result task_result_of(const struct task *task, const struct task_scores *scores);
// Appends a measure for people: "0.2500 ± 0.0433".
void task_measure_add(struct text *out, const struct task_measure *measure);
// Appends the result as a JSON object: {"acc": 0.25, "acc_stderr": 0.0433, ..., "items": 100}.
void task_result_add_json(struct text *out, const struct task_result *result);
// Appends it for people: "acc 0.2500 ± 0.0433, acc_norm 0.2700 ± 0.0446 (100 items)".
void task_result_add_line(struct text *out, const struct task_result *result);

#endif
