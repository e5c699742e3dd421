// What a run folder holds, read without touching it: config, sessions, metrics. Files that are absent leave
// their part empty. Works for a run that has not begun, that is under way (run_record_update reads what is
// new).
#ifndef ZERO_TRAINER_RUNS_RUN_RECORD_H
#define ZERO_TRAINER_RUNS_RUN_RECORD_H

#include <cjson/cJSON.h>

#include "base/text.h"
#include "trainer/runs/metrics_reader.h"
#include "trainer/runs/series.h"
#include "trainer/runs/sessions.h"

// With the words for users.
#define RUN_STATES(X)                                                                                        \
    X(RUN_WAITING, "not begun")                                                                              \
    X(RUN_RUNNING, "running")   /* a process holds the folder's lock */                                      \
    X(RUN_FINISHED, "finished") /* all steps are done */                                                     \
    X(RUN_STOPPED, "stopped")   /* by a signal; to be resumed */                                             \
    X(RUN_FAILED, "failed")                                                                                  \
    X(RUN_STALE, "stale") /* its process is gone and did not record an end: it was killed */
#define RUN_STATE_ENUM(constant, word) constant,
enum run_state { RUN_STATES(RUN_STATE_ENUM) N_RUN_STATES };
#undef RUN_STATE_ENUM
const char *run_state_name(enum run_state state);

// Characters of a path without slashes at its end.
int run_path_length(const char *path);
// True for a folder that a run wrote to: it has metrics.jsonl or sessions.jsonl.
bool run_folder_is_run(const char *path);

// What the values of a series are. run_record.steps has the first group, run_record.evals the second,
// run_record.noise the third.
enum step_value {
    STEP_LOSS,
    STEP_GRAD_NORM,
    STEP_LR,
    STEP_TOKENS_PER_S,
    STEP_MFU,
    STEP_MS,
    STEP_LOSS_SCALE,
    STEP_COMM_SHARE, // of the step's time: communication that compute did not hide
    STEP_BATCH_SIZE,
    N_STEP_VALUES
};
enum eval_value { EVAL_LOSS, EVAL_BITS, N_EVAL_VALUES };
enum noise_value { NOISE_SCALE, N_NOISE_VALUES };
_Static_assert((int)N_STEP_VALUES <= (int)SERIES_VALUES, "a series has room for all values");

enum { RECENT_STEPS = 100 };

// What evaluations in training measure besides the validation loss: "hellaswag acc" of eval.tasks, or the
// validation loss of each source of a mixture.
enum { MOST_SCORES = 64 };
struct run_score {
    char *name;
    struct series series; // its first value
};

// Evaluations on data.val.
struct run_val {
    double best_loss, last_loss, last_bits; // NaN: none. best_loss: without the final one
    int64_t best_step, n;
};

struct run_session {
    int index;           // -1: none is recorded
    double hours_before; // of training
    double began;        // the time then, and the steps that were done
    int64_t step;
};

struct run_record {
    char *path;
    cJSON *config; // NULL: none that can be read
    struct session *sessions;
    int n_sessions;
    enum run_state state;
    int64_t total; // steps of the whole run, as far as known; 0: unknown

    struct metrics_reader reader;
    struct series steps, evals, noise;    // noise: of the steps that measured the gradient noise scale
    struct run_score scores[MOST_SCORES]; // those beyond are left out
    int n_scores;
    struct metrics_line last;       // of a step; its text is NULL. step 0: none yet
    struct text last_text;          // which is this; length 0: none yet
    double hours;                   // of training until then, without the time between sessions
    double recent[RECENT_STEPS];    // losses of the last steps, a ring
    int64_t n_steps, not_finite;    // lines read; those whose loss is not finite
    double step_s, exposed_comm_s;  // sums over the steps
    double tokens_sum, mfu_seconds; // sums of tokens/s and of MFU, each times the step's seconds
    struct run_val val;
    struct run_session current; // that the last step belongs to
};

// capacity: points that are kept of a run (trainer/runs/series.h)
void run_record_open(struct run_record *record, const char *path, int capacity);
// Reads what is new. A file of metrics that cannot be read is STATUS_FAILED.
//   changed   [out] false if there is nothing new, the state included; may be NULL
enum status run_record_update(struct run_record *record, bool *changed) MUST_CHECK;
void run_record_close(struct run_record *record);

// Mean loss of the last RECENT_STEPS steps, as far as they are finite; NaN without any.
double run_record_recent_loss(const struct run_record *record);
// Mean over all steps; NaN without any.
double run_record_tokens_per_s(const struct run_record *record);
// Seconds until the run's last step at the mean rate of the last session, evaluations and all; NaN: unknown.
double run_record_seconds_left(const struct run_record *record);

#endif
