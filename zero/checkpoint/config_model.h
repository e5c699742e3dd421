// The model that a config describes. A new run and a checkpoint use the same code.
#ifndef ZERO_ZERO_CHECKPOINT_CONFIG_MODEL_H
#define ZERO_ZERO_CHECKPOINT_CONFIG_MODEL_H

#include "model/gpt_config.h"
#include "options/config.h"

// Returns the model's sizes, with defaults filled in.
struct gpt_config config_model(const struct config *config);
// Returns the value of a field's option, as gpt_field_get numbers it.
double config_field_get(const struct config *config, const struct gpt_field *field);
void config_field_set(struct config *config, const struct gpt_field *field, double value);

#endif
