// Internal to configs/: the rules between options of the model, and the options whose default depends on the
// family.
#ifndef ZERO_OPTIONS_MODEL_RULES_H
#define ZERO_OPTIONS_MODEL_RULES_H

#include "options/config.h"

// Sets the options that are not given and whose default depends on model.family.
void model_rules_take_defaults(struct config *config);

// Each fails with the values that conflict and what to change.
enum status model_rules_heads(const struct config *config) MUST_CHECK;
enum status model_rules_rotation(const struct config *config) MUST_CHECK;
// Options that the family does not have.
enum status model_rules_rope_scaling(const struct config *config) MUST_CHECK;
enum status model_rules_family(const struct config *config) MUST_CHECK;
enum status model_rules_activation(const struct config *config) MUST_CHECK;
enum status model_rules_window(const struct config *c) MUST_CHECK;
enum status model_rules_value_embeddings(const struct config *config) MUST_CHECK;

#endif
