// Recognizes two formats that this program does not read, but other programs can convert: PEFT adapters and
// DeepSpeed checkpoints.
#ifndef ZERO_INFER_FOREIGN_WEIGHTS_H
#define ZERO_INFER_FOREIGN_WEIGHTS_H

#include "base/status.h"

// Returns STATUS_INVALID if `path` is a folder or file in one of these formats; the message has the command
// that converts it. Otherwise returns STATUS_OK.
enum status foreign_weights_refuse(const char *path) MUST_CHECK;

#endif
