// What people give as weights that this program does not read: recognized and named.
#ifndef ZERO_INFER_WEIGHTS_REFUSE_H
#define ZERO_INFER_WEIGHTS_REFUSE_H

#include <stdbool.h>

#include "base/status.h"

// Always STATUS_INVALID. The message says what the path is and how to convert it, or what was expected.
enum status weights_refuse(const char *path) MUST_CHECK;

// Whether a path that does not exist may be the name of a model on the Hugging Face Hub: "gpt2",
// "openai-community/gpt2", but no path below a folder that exists.
bool weights_is_hub_name(const char *path);

#endif
