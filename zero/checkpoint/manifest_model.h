// The object "model" of a manifest. GPT-2's has its sizes only; other families also have the rest of struct
// gpt_config.
#ifndef ZERO_ZERO_CHECKPOINT_MANIFEST_MODEL_H
#define ZERO_ZERO_CHECKPOINT_MANIFEST_MODEL_H

#include "base/json.h"
#include "base/text.h"
#include "model/params.h"

void manifest_add_model(struct text *out, const struct params *params);
enum status manifest_read_model(const cJSON *object, const char *source, struct gpt_config *model) MUST_CHECK;

#endif
