// Opens the weights that a new run starts from, model.init_from.
#ifndef ZERO_TRAINER_INITIAL_WEIGHTS_H
#define ZERO_TRAINER_INITIAL_WEIGHTS_H

#include "infer/weights.h"
#include "options/config.h"

// As weights_open; what is wrong with the path is reported with the option and the config.
enum status initial_weights_open(struct weights *weights, const struct config *config) MUST_CHECK;
// Reads only the sizes of the model.
enum status initial_weights_sizes(const struct config *config, struct gpt_config *sizes) MUST_CHECK;

#endif
