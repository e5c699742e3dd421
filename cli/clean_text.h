// Text of files that anything may have written, for a terminal or a page.
#ifndef ZERO_CLI_CLEAN_TEXT_H
#define ZERO_CLI_CLEAN_TEXT_H

#include "base/text.h"

// Appends the bytes as UTF-8: U+FFFD for each that is not, and for control characters but tabs and newlines.
// Escape sequences therefore never reach a terminal.
void clean_text_add(struct text *out, const char *bytes, size_t n);
// The same as a JSON string.
void clean_text_add_json(struct text *out, const char *bytes, size_t n);

#endif
