// UTF-8: validity, display on terminals, and NFC, the composed normalization form (Unicode Standard Annex
// 15), which some tokenizers require.
#ifndef ZERO_BASE_UTF8_H
#define ZERO_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

// The length of the longest prefix that is valid UTF-8; n if all of it is. An incomplete last character is
// not valid.
size_t utf8_valid_bytes(const char *text, size_t n);

// The length in bytes of the first character; 1 if it is not valid UTF-8. n must be above 0.
size_t utf8_character_bytes(const char *text, size_t n);

// Appends untrusted text in a form that is safe to print: a terminal must not run escape sequences from a
// file. Replaces invalid UTF-8, control characters except tabs and newlines, line separators, and characters
// that change the text direction.
//   instead   the replacement; NULL: \xNN for each byte
void utf8_add_visible(struct text *out, const char *bytes, size_t n, const char *instead);

// A fast test. False: the text is in NFC. True: it may not be, so it needs utf8_normalize.
bool utf8_may_normalize(const char *text, size_t n);
// Sets `out` to the text in NFC. Invalid UTF-8 is copied unchanged, and characters on its two sides do not
// compose. Only the places that may change are processed.
enum status utf8_normalize(const char *text, size_t n, struct text *out) MUST_CHECK;

#endif
