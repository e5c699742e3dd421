// UTF-8: validity, and Unicode's normalization form C (composed; Unicode Standard Annex 15), for tokenizers
// that ask for it.
#ifndef ZERO_BASE_UTF8_H
#define ZERO_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

// The number of bytes before the first one that is not valid UTF-8; n when all are. A character that is cut
// at the end is not valid.
size_t utf8_valid_bytes(const char *text, size_t n);

// The bytes of the first character of n > 0; 1 where it is not valid UTF-8.
size_t utf8_character_bytes(const char *text, size_t n);

// Appends text of files that anything may have written, so that a terminal takes no orders from it: control
// characters but tabs and newlines (C0, DEL, C1), and bytes that are not valid UTF-8, become `instead`, or
// \xNN for each of their bytes where that is NULL.
void utf8_add_visible(struct text *out, const char *bytes, size_t n, const char *instead);

// Whether the text may not be in form C. Most text is answered at the speed of memory; false is certain.
bool utf8_may_normalize(const char *text, size_t n);
// Sets `out` to the text in form C. Bytes that are not valid UTF-8 stay as they are, and nothing composes
// over them. Only the places that may change are worked on.
enum status utf8_normalize(const char *text, size_t n, struct text *out) MUST_CHECK;

#endif
