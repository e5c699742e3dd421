// The line that describes a model, for logs.
#ifndef ZERO_TRAINER_PLAN_MODEL_LINE_H
#define ZERO_TRAINER_PLAN_MODEL_LINE_H

#include "base/text.h"
#include "model/params.h"

// Appends "model: 124.4M parameters (n_layer 12, n_head 12, ...)"; of other families than GPT-2 also the
// family, key-value heads, the width of a head and of the MLP, and windows.
void model_line_print(const struct params *params, struct text *out);

#endif
