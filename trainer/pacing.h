// The pace of a run: its learning rate and, with train.max_minutes, its length.
//
// train.max_minutes lays the schedule out over the time that is left. The length of the run is decided
// twice, at 2 % and at 20 % of the time, from the time spent so far and the measured time of a step. After
// that only the end moves, with the beginning of a decay that is not under way, whenever half of what was
// left is over. The learning rate is a function of the step and the last decision alone, which checkpoints
// record.
#ifndef ZERO_TRAINER_PACING_H
#define ZERO_TRAINER_PACING_H

#include <stdbool.h>
#include <stdint.h>

#include "options/config.h"
#include "trainer/evaluation.h"
#include "trainer/run.h"
#include "trainer/schedule.h"

// What rank 0 measured. All ranks decide by it, and alike.
struct pacing_report {
    double spent_s;                           // since the start of the run
    double step_s;                            // mean of the steps since the last decision; 0: none yet
    double eval_sequence_s, sample_s, save_s; // of the last ones; 0: none yet
    double tasks_s;                           // of the last evaluation of eval.tasks; 0: none yet
};

// Sequences of data.val in an evaluation during the run and in the final one; 0 without data.val. Of
// eval.tasks, about as many as take as long.
struct pacing_evaluations {
    int64_t sequences, final_sequences, task_sequences;
};

// True if it is time for a decision after `step` steps. Steps that have become much faster bring it forward:
// half of what was left is over when half of its steps are done, or half of its time is spent.
bool pacing_is_due(const struct pacing_decision *last, const struct config *config, int64_t step,
                   const struct pacing_report *report);
// The length of the run, in steps, that uses train.max_minutes up: with the evaluations, samples and
// checkpoints on the way and at the end. At least `step`, the steps done, and at most train.max_steps.
//   sizes   of the steps; step_s is of one like the first
int64_t pacing_total(const struct config *config, const struct batch_sizes *sizes,
                     const struct pacing_evaluations *evaluations, int64_t step,
                     const struct pacing_report *report);

// ---- a run's

struct pacing {
    struct run *run;
    const struct evaluator *evaluator;
    double began_s;        // of this start, on the monotonic clock
    double spent_before_s; // by the run before this start
    double sum_s, n_steps; // of steps since the last decision, the latter as steps like the first
    bool is_warm;          // the first step of this start, which is slower, is over
    double sample_s, save_s;
    int64_t said_total;
};

// Sets run->last_step and the warm-up. Called while the checkpoint to resume is open.
//   resumed   NULL: a new run
void pacing_resume(struct pacing *pacing, const struct checkpoint *resumed);
// Logs what the user may not expect of the schedule: a shortened warm-up, or a rate that a resumed run's new
// length changes.
void pacing_describe_schedule(const struct pacing *pacing, const struct checkpoint *resumed);
// STATUS_INVALID: train.max_minutes of a new run is shorter than a few steps. Called once the rate is
// measured.
enum status pacing_check_minutes(const struct pacing *pacing) MUST_CHECK;

// The learning rate of the next step.
double pacing_lr(const struct pacing *pacing);
// Seconds of the next step, from the measured rate.
double pacing_estimate_step_s(const struct pacing *pacing);
// Steps of the whole run after `done` steps, of step_s seconds each: for the screen. With train.max_minutes a
// guess until the first decision.
int64_t pacing_estimate_total(const struct pacing *pacing, int64_t done, double step_s);

// Takes up the time of a step of this rank.
//   step   from 0
void pacing_measure(struct pacing *pacing, int64_t step, double step_s);
// What this rank has measured so far.
struct pacing_report pacing_measured(const struct pacing *pacing);
// Decides on the length of the run if that is due, after a step. The same on all ranks: by rank 0's report.
void pacing_decide(struct pacing *pacing, const struct pacing_report *report);
// Before a checkpoint: records the time that the run has taken.
void pacing_record_spent(const struct pacing *pacing);

#endif
