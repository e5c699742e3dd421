// Text processing as in lm-evaluation-harness, so that results are comparable: some of Python's string
// methods, on UTF-8, and the harness's preprocessing of HellaSwag. Uses utf8proc for Unicode.
#ifndef ZERO_INFER_TASKS_WORDS_H
#define ZERO_INFER_TASKS_WORDS_H

#include <stddef.h>

#include "base/text.h"

// The text passed to these functions must be valid UTF-8.

// Returns the number of characters (code points) in n bytes.
size_t words_characters(const char *text, size_t n);
// Returns the length of the text without white space at its end (str.rstrip).
size_t words_without_space_at_end(const char *text, size_t n);
// Appends the text with its first character in title case and the others in lower case (str.capitalize).
// Unlike Python, never maps one character to several.
void words_add_capitalized(struct text *out, const char *text);
// Appends the text, cleaned of markup that is left over in HellaSwag's WikiHow items, as the harness does:
// - removes white space at both ends
// - replaces " [title]" by ". "
// - removes other brackets [...] with their contents, within a line
// - replaces each pair of spaces by one space
void words_add_hellaswag(struct text *out, const char *text);

#endif
