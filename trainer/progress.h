// What a person sees of a run: one live line on a terminal, plain lines elsewhere.
#ifndef ZERO_TRAINER_PROGRESS_H
#define ZERO_TRAINER_PROGRESS_H

#include "configs/config.h"
#include "trainer/metrics.h"

void progress_step(const struct config *config, const struct step_metrics *step);

#endif
