// The pace of a run: its learning rate and, with train.max_minutes, its length.
//
// With train.max_minutes, the schedule is spread over the given time. The number of steps of the run is
// decided several times, from the time spent so far and the measured time per step:
// - at 2 % and at 20 % of train.max_minutes
// - then whenever half of the time, or half of the steps, that remained at the last decision is over
// A decision moves the last step and with it the rest of the schedule. The learning rate depends only on the
// step, the warm-up and the last decision. Checkpoints record these, so a resumed run repeats the rates.
#ifndef ZERO_TRAINER_PACING_H
#define ZERO_TRAINER_PACING_H

#include <stdbool.h>
#include <stdint.h>

#include "options/config.h"
#include "trainer/evaluation.h"
#include "trainer/run.h"
#include "trainer/schedule.h"

// One rank's measurements. All ranks decide by those of rank 0.
struct pacing_report {
    double spent_s; // seconds of the run so far, over all sessions
    // Mean seconds per step since the last decision, for steps of the first batch size; 0: unknown.
    double step_s;
    double eval_sequence_s; // seconds per sequence of the last evaluation of data.val; 0: none yet
    double sample_s;        // seconds that the last sample took; 0: none yet
    double save_s;          // seconds that the last checkpoint took; 0: none yet
    double tasks_s;         // seconds that the last evaluation of eval.tasks took; 0: none yet
};

// The lengths of evaluations, in sequences.
struct pacing_evaluations {
    int64_t sequences;       // of data.val, in each evaluation during the run
    int64_t final_sequences; // of data.val, in the final evaluation
    int64_t task_sequences;  // number of sequences that take about as long as eval.tasks
};

// True if a decision is due after `step` steps, as listed above. Not only the time counts but also the number
// of steps, so that a decision is due earlier if steps become much faster.
bool pacing_is_due(const struct pacing_decision *last, const struct config *config, int64_t step,
                   const struct pacing_report *report);
// Returns the total number of steps with which the run takes train.max_minutes, including its evaluations,
// samples and checkpoints. The result is at least `step` and at most train.max_steps.
//   sizes   the batch size of each step
//   step    number of steps done
int64_t pacing_total(const struct config *config, const struct batch_sizes *sizes,
                     const struct pacing_evaluations *evaluations, int64_t step,
                     const struct pacing_report *report);

// ---- the pacing of a run

struct pacing {
    struct run *run;
    const struct evaluator *evaluator;
    double began_s;        // when this session began, on the monotonic clock
    double spent_before_s; // seconds of the run in earlier sessions
    // Over the steps since the last decision: the sum of their seconds, and their number. In the number, a
    // step counts as its batch size divided by the run's first batch size.
    double sum_s, n_steps;
    bool is_warm;            // true after the session's first step, which is slower and not measured
    double sample_s, save_s; // as in struct pacing_report
    int64_t said_total;      // the total number of steps that was logged last; 0: none yet
};

// Sets run->last_step and the number of warm-up steps.
//   resumed   the checkpoint to resume, still open; NULL: a new run
void pacing_resume(struct pacing *pacing, const struct checkpoint *resumed);
// Logs what may surprise the user: a shortened warm-up, or a learning rate that changes because the resumed
// run has a new length.
void pacing_describe_schedule(const struct pacing *pacing, const struct checkpoint *resumed);
// Checks that a new run has time for a few steps within train.max_minutes. STATUS_INVALID: there is too
// little time. Call it after the GEMM rate is measured.
enum status pacing_check_minutes(const struct pacing *pacing) MUST_CHECK;

// The learning rate of the next step.
double pacing_lr(const struct pacing *pacing);
// The expected seconds of the next step, from the measured GEMM rate.
double pacing_estimate_step_s(const struct pacing *pacing);
// Returns the expected total number of steps of the run, for display. With train.max_minutes, until the first
// decision, it is estimated from `done`, the steps done, and step_s, the seconds per step.
int64_t pacing_estimate_total(const struct pacing *pacing, int64_t done, double step_s);

// Records the seconds that step `step` (from 0) took on this rank.
void pacing_measure(struct pacing *pacing, int64_t step, double step_s);
// This rank's measurements so far.
struct pacing_report pacing_measured(const struct pacing *pacing);
// After a step, decides on the length of the run, if a decision is due. With a ledger (trainer/auditing.h),
// repeats the decisions that it has.
//   report   rank 0's report on all ranks, so that they decide alike
void pacing_decide(struct pacing *pacing, const struct pacing_report *report);
// Records the time that the run has taken, for a checkpoint. Call it before one is written.
void pacing_record_spent(const struct pacing *pacing);

#endif
