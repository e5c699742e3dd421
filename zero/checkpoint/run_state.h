// What a checkpoint records of its run besides step, config and weights. Each is a member of the manifest,
// absent if there is nothing to record.
//   loss_scale    with loss scaling: the scale and the counts of overflows
//   data          what the run was trained on
//   history       options that resumed runs changed on purpose (checkpoint.resume_with), in order
//   best          the lowest validation loss of a saved step (checkpoint.keep_best)
//   warmup_steps  the number of warmup steps, fixed when the run began, so that extending the run does not
//                 change the warmup
//   pacing        with train.max_minutes: the time spent, and the last decision on the length of the run
//   spikes        losses and gradient norms for detecting spikes, and how often the run diverged
//   noise_scale   the gradient noise scale as measured so far, and the batch sizes chosen from it
//   average       how many updates the average of the weights includes (train.ema, schedule-free AdamW)
// Tables in run_state.c describe each field: its key, type, offset and bounds. The same tables are used to
// print, read and free a state.
#ifndef ZERO_ZERO_CHECKPOINT_RUN_STATE_H
#define ZERO_ZERO_CHECKPOINT_RUN_STATE_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "data/identity.h"
#include "options/config.h"
#include "zero/optimizer/rules/loss_scale.h"

// An order of training sequences, beginning at `step`. A run has one from step 0, and one from each step at
// which changed data was accepted (checkpoint.accept_new_data).
struct data_order {
    int64_t step;
    uint64_t n_shards, n_tokens, digest;
};

// The data of one task in eval.tasks.
#define DATA_TASK_NAME_BYTES 64
struct data_task {
    char name[DATA_TASK_NAME_BYTES]; // may be truncated
    int64_t items;                   // number of items evaluated
    uint64_t checksum;               // checksum of the task's file
};

// What a run was trained and evaluated on.
struct data_record {
    struct identity train, val; // val.n_shards 0: no validation data
    struct data_task *tasks;
    int n_tasks;
    struct data_order *orders; // (n_orders) in ascending order of steps
    int n_orders;              // 0: no data is recorded
};

// A change of an option by a resumed run.
struct run_change {
    int64_t step;            // number of steps done before the change
    char *option, *was, *is; // values as JSON text
};

// The lowest validation loss, on `sequences` evenly spaced sequences of data.val. Losses on another number of
// sequences are not comparable.
struct run_best {
    int64_t step, sequences; // sequences 0: no best loss yet
    double loss;
};

// A decision on the schedule. When `step` steps are done, the schedule is at `position` (0: just warmed up,
// 1: fully decayed). From there it moves linearly to 1 at the last of `total` steps.
struct pacing_decision {
    int64_t step, total;
    double position;
    // Seconds that the run had spent when the decision was made. 0: none was made yet, and `total` is
    // train.max_steps.
    double spent_s;
};

struct pacing_record {
    double max_minutes; // train.max_minutes at the decision; 0: no limit
    double spent_s;     // time of the whole run so far, including evaluations, samples and checkpoints
    struct pacing_decision decision; // the last decision
};

#define SPIKE_WINDOW_MOST 1000

struct spike_figures {
    double loss, norm; // both are finite
};

struct spike_record {
    struct spike_figures window[SPIKE_WINDOW_MOST]; // (n) the figures of earlier steps, oldest first
    int n;
    struct spike_figures newest; // the figures of the last step, which are not in the window yet
    int has_newest;              // 0: the last step was skipped, and is not recorded
    int64_t seen;                // steps that diverged: a spike, or a loss or norm that is not finite
    int64_t skipped;             // updates skipped because of divergence
    int64_t consecutive;         // diverged steps since the last step that did not diverge
};

struct noise_record {
    double variance, square;    // smoothed tr(Sigma) and |G|^2 (trainer/schedule.h)
    int64_t n, n_since;         // number of measurements: in all, and since the batch size last changed
    struct config_stages grown; // train.max_batch_size: the batch sizes chosen, each with its first step
};

struct average_record {
    int64_t n;         // updates in the average; 0: there is none yet
    double weight_sum; // schedule-free AdamW: sum of the updates' weights
    double lr_max;     // the largest learning rate so far
};

struct run_state {
    struct loss_scale loss_scale;
    struct data_record data;
    struct run_change *changes;
    int n_changes;
    struct run_best best;
    int64_t warmup_steps; // 0: none, or not recorded by the version that wrote the checkpoint
    struct pacing_record pacing;
    struct spike_record spikes;
    struct noise_record noise;
    struct average_record average;
};

void run_state_free(struct run_state *state);
// Appends a change to the history. Copies the strings.
void run_state_add_change(struct run_state *state, int64_t step, const char *option, const char *was,
                          const char *is);
// Moves the state: `to` takes over the memory that `from` owns. The members of `from` that own no memory
// keep their values.
void run_state_move(struct run_state *to, struct run_state *from);
// Records that the run trains on the data `train` from `step` on. Sets record->train to a copy, and adds an
// order, or replaces one that begins at `step`.
void data_record_begin_order(struct data_record *record, int64_t step, const struct identity *train);

// Appends the members to the manifest, each with its comma and newline.
void run_state_print(const struct run_state *state, struct text *out);
// Reads the members into a zeroed state.
//   step   the checkpoint's step. Later steps in members are rejected (in batch_sizes: later than step + 1)
// STATUS_INVALID: the message names `source` and what is wrong. Free the state after a failure too.
enum status run_state_parse(struct run_state *state, const cJSON *manifest, int64_t step,
                            const char *source) MUST_CHECK;

#endif
