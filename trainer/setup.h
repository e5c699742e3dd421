// A trainer: a run with the modules that work on it. Also its setup, from a config to a trainer that is ready
// for its first step.
#ifndef ZERO_TRAINER_SETUP_H
#define ZERO_TRAINER_SETUP_H

#include "trainer/auditing.h"
#include "trainer/evaluation.h"
#include "trainer/pacing.h"
#include "trainer/run_output.h"
#include "trainer/steps.h"
#include "trainer/training_data.h"

struct trainer {
    const char *command; // the command line that resumes the run, for messages
    struct run run;
    struct training_data data;
    struct run_output output;
    struct evaluator evaluator;
    struct pacing pacing;
    struct steps steps;
};

// Takes the arguments of trainer_run and trainer_repeat; `task` may be NULL. Free with trainer_delete.
struct trainer *trainer_new(struct config *config, const char *command, struct comm *comm,
                            const struct audit_task *task);
// Does everything before the first step. Collective.
//   complete   [out] true if the resumed run has done all its steps. Setup then ends early: it opens neither
//              devices nor data
enum status trainer_setup(struct trainer *trainer, bool *complete) MUST_CHECK;
void trainer_delete(struct trainer *trainer);

#endif
