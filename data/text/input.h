// The bytes of a text file or of standard input. gzip (zlib, several members) and zstd (libzstd, several
// frames) are decompressed while reading. Memory does not grow with the file. All commands that take text
// read it with these functions, so that one place decides what is text.
#ifndef ZERO_DATA_TEXT_INPUT_H
#define ZERO_DATA_TEXT_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct text_input;

//   path   "-" is standard input; pipes and devices are read too
// STATUS_INVALID: the file is absent, is a folder, or does not start as text (after decompression). The
// message says what it is and how to convert it.
enum status text_input_open(const char *path, struct text_input **out) MUST_CHECK;
void text_input_close(struct text_input *input); // NULL does nothing
// Reads up to `room` bytes of text. Skips a UTF-8 byte-order mark at its start.
//   n   [out] 0 only at the end
// STATUS_INVALID: the compressed data is damaged or truncated; the message has the file and the offset.
enum status text_input_read(struct text_input *input, char *out, size_t room, size_t *n) MUST_CHECK;
// Appends all of a file's text. STATUS_INVALID also for UTF-16. Warns of bytes that are not UTF-8.
enum status text_input_read_all(const char *path, struct text *out) MUST_CHECK;

bool text_input_is_packed(const struct text_input *input);
size_t text_input_mark_bytes(const struct text_input *input);   // bytes of the skipped byte-order mark
const char *text_input_name(const struct text_input *input);    // the path, or "standard input"
uint64_t text_input_file_bytes(const struct text_input *input); // bytes read of the file as stored
uint64_t text_input_checksum(const struct text_input *input);   // XXH3 of those bytes

#endif
