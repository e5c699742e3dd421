// The weights with which updates enter the average of the weights: train.ema, and schedule-free AdamW, where
// they are the squares of the largest learning rate so far (arXiv 2405.15682). A function of the config and
// the record before the update, so that a resumed run repeats it.
#ifndef ZERO_TRAINER_SCHEDULE_AVERAGING_H
#define ZERO_TRAINER_SCHEDULE_AVERAGING_H

#include "configs/config.h"
#include "zero/checkpoint/average_record.h"

// The weight with which an update enters the average (zero/stages/averaging.h); 0: there is none.
//   lr       of the update
//   record   [in, out] before and after the update
float averaging_next(const struct config *config, double lr, struct average_record *record);
// The record of a run that goes on from a checkpoint, whose config may not have averaged.
//   has_average   the checkpoint holds the average itself
struct average_record averaging_resumed(const struct config *config, const struct average_record *record,
                                        bool has_average);

#endif
