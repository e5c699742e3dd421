// What people give as weights that this program does not read: recognized and named.
#ifndef ZERO_INFER_WEIGHTS_REFUSE_H
#define ZERO_INFER_WEIGHTS_REFUSE_H

#include "base/status.h"

// Always STATUS_INVALID. The message says what the path is and how to convert it, or what was expected.
enum status weights_refuse(const char *path) MUST_CHECK;

#endif
