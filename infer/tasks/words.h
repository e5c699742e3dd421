// Text as lm-evaluation-harness treats it, whose figures ours are compared with: Python's string methods on
// UTF-8, and the harness's preprocessing of HellaSwag. Relies on utf8proc for Unicode.
#ifndef ZERO_INFER_TASKS_WORDS_H
#define ZERO_INFER_TASKS_WORDS_H

#include <stddef.h>

#include "base/text.h"

// The text must be valid UTF-8 in all of these.

// Characters (code points) of n bytes.
size_t words_characters(const char *text, size_t n);
// Bytes that are left of n without the white space at the end (str.rstrip).
size_t words_without_space_at_end(const char *text, size_t n);
// Appends the text with its first character in title case and the others in lower case (str.capitalize; where
// Unicode turns one character into several, the text keeps the one that stands for them).
void words_add_capitalized(struct text *out, const char *text);
// Appends the text as the harness cleans HellaSwag's, whose WikiHow half has leftovers of markup: without
// white space at both ends; " [title]" becomes ". "; other brackets go, with what is in them (not across
// lines); two blanks become one, once.
void words_add_hellaswag(struct text *out, const char *text);

#endif
