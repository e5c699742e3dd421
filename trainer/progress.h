// The progress line of a run: updated in place on a terminal; elsewhere a line every run.log_every steps.
#ifndef ZERO_TRAINER_PROGRESS_H
#define ZERO_TRAINER_PROGRESS_H

#include "configs/config.h"
#include "trainer/metrics.h"

void progress_step(const struct config *config, const struct step_metrics *step);

#endif
