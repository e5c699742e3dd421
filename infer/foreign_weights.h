// Weights in forms that other programs can make a model of, and this one does not read: PEFT's adapters and
// DeepSpeed's checkpoints.
#ifndef ZERO_INFER_FOREIGN_WEIGHTS_H
#define ZERO_INFER_FOREIGN_WEIGHTS_H

#include "base/status.h"

// STATUS_INVALID, with the command that makes a model of it, if `path` is a folder of such a form, or a file
// of one; else STATUS_OK.
enum status foreign_weights_refuse(const char *path) MUST_CHECK;

#endif
