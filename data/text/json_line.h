// Reads a document from a line of JSON Lines. The line is a JSON object; a string member of it is the text.
#ifndef ZERO_DATA_TEXT_JSON_LINE_H
#define ZERO_DATA_TEXT_JSON_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

// Replaces the contents of `out` by the string member `field` of the line's object. If this name occurs
// twice, the last one counts, as in Python. Zero bytes (\u0000) are kept.
//   line, n        the line, without its line end, and its length in bytes
//   path, number   file and number of the line, for messages
// STATUS_INVALID: the line is not UTF-8, is not a JSON object, or has no string of this name.
enum status json_line_read(const char *line, size_t n, const char *field, const char *path, uint64_t number,
                           struct text *out) MUST_CHECK;

#endif
