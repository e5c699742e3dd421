// The contents of a run folder, read without changing it: config, sessions, metrics. If a file is absent,
// the members that come from it are empty. A run may be read before it begins, and while it runs:
// run_record_update then reads only what is new.
#ifndef ZERO_TRAINER_RUNS_RUN_RECORD_H
#define ZERO_TRAINER_RUNS_RUN_RECORD_H

#include <cjson/cJSON.h>

#include "base/text.h"
#include "trainer/runs/metrics_reader.h"
#include "trainer/runs/series.h"
#include "trainer/runs/sessions.h"

// The states of a run, with the words shown to users.
#define RUN_STATES(X)                                                                                        \
    X(RUN_WAITING, "not begun")                                                                              \
    X(RUN_RUNNING, "running")   /* a process holds the folder's lock */                                      \
    X(RUN_FINISHED, "finished") /* all steps are done */                                                     \
    X(RUN_STOPPED, "stopped")   /* by a signal; it can be resumed */                                         \
    X(RUN_FAILED, "failed")                                                                                  \
    X(RUN_STALE, "stale") /* it was killed: its end is not recorded, and no process holds the lock */
#define RUN_STATE_ENUM(constant, word) constant,
enum run_state { RUN_STATES(RUN_STATE_ENUM) N_RUN_STATES };
#undef RUN_STATE_ENUM
const char *run_state_name(enum run_state state);

// Returns the length of a path without trailing slashes.
int run_path_length(const char *path);
// True for a folder that a run wrote to: it has metrics.jsonl or sessions.jsonl.
bool run_folder_is_run(const char *path);

// The indices of the values in run_record.steps, run_record.evals and run_record.noise.
enum step_value {
    STEP_LOSS,
    STEP_GRAD_NORM,
    STEP_LR,
    STEP_TOKENS_PER_S,
    STEP_MFU,
    STEP_MS,
    STEP_LOSS_SCALE,
    STEP_COMM_SHARE, // fraction of the step's time: communication not hidden by compute
    STEP_BATCH_SIZE,
    N_STEP_VALUES
};
enum eval_value { EVAL_LOSS, EVAL_BITS, N_EVAL_VALUES };
enum noise_value { NOISE_SCALE, N_NOISE_VALUES };
_Static_assert((int)N_STEP_VALUES <= (int)SERIES_VALUES, "a series has room for all values");

enum { RECENT_STEPS = 100 };

// Figures of evaluations during training besides the validation loss: "hellaswag acc" of eval.tasks, or the
// validation loss of each source of a mixture.
enum { MOST_SCORES = 64 };
struct run_score {
    char *name;
    struct series series; // only its first value is used
};

// Evaluations on data.val.
struct run_val {
    double last_loss, last_bits; // loss and bits per byte of the last evaluation; NaN: none
    // Number of evaluations, the lowest loss among them (NaN: none), and its step. The final evaluation
    // counts only if there was no other.
    int64_t n;
    double best_loss;
    int64_t best_step;
};

struct run_session {
    int index;           // index in run_record.sessions; -1: no session is recorded
    double hours_before; // hours of training before the session
    // Wall-clock time at which the session began, in seconds; if none is recorded, when its first step began.
    double began;
    int64_t step; // steps done when the session began
};

struct run_record {
    char *path;
    cJSON *config; // NULL: none, or unreadable
    struct session *sessions;
    int n_sessions;
    enum run_state state;
    int64_t total; // expected number of steps of the whole run; 0: unknown

    struct metrics_reader reader;
    struct series steps, evals, noise;    // noise: only steps that measured the gradient noise scale
    struct run_score scores[MOST_SCORES]; // if there are more, the others are left out
    int n_scores;
    struct metrics_line last;    // the line of the last step, without its `text`; step 0: none yet
    struct text last_text;       // the text of the last step's line; length 0: none yet
    double hours;                // hours of training up to the last step, without the time between sessions
    double recent[RECENT_STEPS]; // losses of the last steps, a ring buffer
    int64_t n_steps, not_finite; // n_steps: steps read; not_finite: those whose loss is not finite
    // Sums over the steps, in seconds: of all their time, and of communication not hidden by compute.
    double step_s, exposed_comm_s;
    double tokens_sum, mfu_seconds; // sums over the steps of tokens/s x seconds and MFU x seconds
    struct run_val val;
    struct run_session current; // the session of the last step
};

// Opens the record of the run in folder `path`.
//   capacity   maximum number of points kept per series (trainer/runs/series.h)
void run_record_open(struct run_record *record, const char *path, int capacity);
// Reads what is new. STATUS_FAILED: the metrics cannot be read.
//   changed   [out] true if there are new metrics or the state has changed; may be NULL
enum status run_record_update(struct run_record *record, bool *changed) MUST_CHECK;
void run_record_close(struct run_record *record);

// Mean of the finite losses among the last RECENT_STEPS steps; NaN if there are none.
double run_record_recent_loss(const struct run_record *record);
// Mean tokens/s over all steps; NaN without steps.
double run_record_tokens_per_s(const struct run_record *record);
// Returns the expected seconds from the last step read to the end of the run, by the present session's mean
// time per step, including its evaluations; NaN if unknown.
double run_record_seconds_left(const struct run_record *record);

#endif
