// Validity of UTF-8.
#ifndef ZERO_DATA_UTF8_H
#define ZERO_DATA_UTF8_H

#include <stddef.h>

// The number of bytes before the first one that is not valid UTF-8; n when all are. A character that is cut
// at the end is not valid.
size_t utf8_valid_bytes(const char *text, size_t n);

#endif
