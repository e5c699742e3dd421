// The pace of a run: its learning rate and, with train.max_minutes, its length.
//
// train.max_minutes spreads the schedule over the remaining time. The length of the run is decided twice, at
// 2 % and at 20 % of the time, from the time spent so far and the measured time per step. After that only the
// last step moves, and the start of a decay that has not begun. It is decided again whenever half of the
// remaining time or steps is over. The learning rate is a function of only the step and the last decision,
// which checkpoints record.
#ifndef ZERO_TRAINER_PACING_H
#define ZERO_TRAINER_PACING_H

#include <stdbool.h>
#include <stdint.h>

#include "options/config.h"
#include "trainer/evaluation.h"
#include "trainer/run.h"
#include "trainer/schedule.h"

// Measurements of rank 0, by which all ranks decide.
struct pacing_report {
    double spent_s;                           // since the start of the run
    double step_s;                            // mean over the steps since the last decision; 0: none yet
    double eval_sequence_s, sample_s, save_s; // the latest measurements; 0: none yet
    double tasks_s;                           // the last evaluation of eval.tasks; 0: none yet
};

// The number of sequences of data.val in an evaluation during the run and in the final one; 0 without
// data.val. Tasks of eval.tasks count as the sequences that take as long.
struct pacing_evaluations {
    int64_t sequences, final_sequences, task_sequences;
};

// True if a decision is due after `step` steps. If steps become much faster, it is due earlier: half of the
// remainder is over when half of the remaining steps or half of the remaining time is over.
bool pacing_is_due(const struct pacing_decision *last, const struct config *config, int64_t step,
                   const struct pacing_report *report);
// The number of steps that uses up train.max_minutes, including evaluations, samples and checkpoints on the
// way and at the end. At least `step`, the steps done, and at most train.max_steps.
//   sizes   batch sizes of the steps; step_s is for a step of the first size
int64_t pacing_total(const struct config *config, const struct batch_sizes *sizes,
                     const struct pacing_evaluations *evaluations, int64_t step,
                     const struct pacing_report *report);

// ---- the pacing of a run

struct pacing {
    struct run *run;
    const struct evaluator *evaluator;
    double began_s;        // when this session began, on the monotonic clock
    double spent_before_s; // seconds of the run in earlier sessions
    // Of the steps since the last decision; n_steps counts them in steps of the first batch size.
    double sum_s, n_steps;
    bool is_warm; // the session's first step, which is slower, is over
    double sample_s, save_s;
    int64_t said_total;
};

// Sets run->last_step and the warm-up. Call it while the checkpoint to resume is open.
//   resumed   NULL: a new run
void pacing_resume(struct pacing *pacing, const struct checkpoint *resumed);
// Logs what may surprise the user: a shortened warm-up, or a rate that changes because the resumed run has a
// new length.
void pacing_describe_schedule(const struct pacing *pacing, const struct checkpoint *resumed);
// STATUS_INVALID: train.max_minutes of a new run is shorter than a few steps. Call it after the rate is
// measured.
enum status pacing_check_minutes(const struct pacing *pacing) MUST_CHECK;

// The learning rate of the next step.
double pacing_lr(const struct pacing *pacing);
// The expected seconds of the next step, by the measured rate.
double pacing_estimate_step_s(const struct pacing *pacing);
// The expected steps of the whole run when `done` steps are done and each takes step_s seconds, for display.
// With train.max_minutes it is a guess until the first decision.
int64_t pacing_estimate_total(const struct pacing *pacing, int64_t done, double step_s);

// Records the time of a step on this rank.
//   step   from 0
void pacing_measure(struct pacing *pacing, int64_t step, double step_s);
// This rank's measurements so far.
struct pacing_report pacing_measured(const struct pacing *pacing);
// Decides on the length of the run after a step, if that is due. All ranks use rank 0's report, so they
// agree.
void pacing_decide(struct pacing *pacing, const struct pacing_report *report);
// Records the time that the run has taken. Call it before a checkpoint is written.
void pacing_record_spent(const struct pacing *pacing);

#endif
