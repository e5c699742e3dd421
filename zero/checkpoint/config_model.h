// The model that the options of a config describe: the same for a new run and for a checkpoint.
#ifndef ZERO_ZERO_CHECKPOINT_CONFIG_MODEL_H
#define ZERO_ZERO_CHECKPOINT_CONFIG_MODEL_H

#include "model/gpt_config.h"
#include "options/config.h"

// With its defaults filled in.
struct gpt_config config_model(const struct config *config);
// The value of a field's option, as gpt_field_get counts it.
double config_field_get(const struct config *config, const struct gpt_field *field);
void config_field_set(struct config *config, const struct gpt_field *field, double value);

#endif
