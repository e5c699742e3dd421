// Computes the model that a config describes: that of a new run, or the one in the manifest of a checkpoint.
#ifndef ZERO_ZERO_CHECKPOINT_CONFIG_MODEL_H
#define ZERO_ZERO_CHECKPOINT_CONFIG_MODEL_H

#include "model/gpt_config.h"
#include "options/config.h"

// Returns the model's sizes, with defaults filled in.
struct gpt_config config_model(const struct config *config);
// Get and set the value of the option that determines a field of struct gpt_config. Bools and enums are
// passed as numbers.
double config_field_get(const struct config *config, const struct gpt_field *field);
void config_field_set(struct config *config, const struct gpt_field *field, double value);

#endif
