// The text of a document in JSON Lines: a string member of the object on a line.
#ifndef ZERO_DATA_TEXT_JSON_LINE_H
#define ZERO_DATA_TEXT_JSON_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

// Replaces the contents of `out` by the member `field` of the line. If a name occurs twice, the last counts,
// as in Python. Zero bytes (\u0000) are kept.
//   line, n        without the line end
//   path, number   of the line, for messages
// STATUS_INVALID: the line is not UTF-8, is not a JSON object, or has no such string.
enum status json_line_read(const char *line, size_t n, const char *field, const char *path, uint64_t number,
                           struct text *out) MUST_CHECK;

#endif
