// train.max_minutes: lays the schedule out over the time that is left. The length of the run is decided
// twice, at 2 % and at 20 % of the time, from the time spent so far and the measured time of a step. After
// that only the end moves, with the beginning of a decay that is not under way, whenever half of what was
// left is over. The learning rate is a function of the step and the last decision alone, which checkpoints
// record.
#ifndef ZERO_TRAINER_PACING_H
#define ZERO_TRAINER_PACING_H

#include <stdbool.h>
#include <stdint.h>

#include "options/config.h"
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

#endif
