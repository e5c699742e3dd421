// Reads the bytes of a text file or of standard input. Decompresses gzip (with zlib) and zstd (with
// libzstd) while reading; a file may consist of several gzip members or zstd frames. Memory use does not
// grow with the file. All commands that read text use these functions, so that the same files count as text
// everywhere.
#ifndef ZERO_DATA_TEXT_INPUT_H
#define ZERO_DATA_TEXT_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct text_input;

// Opens a file, which may be a pipe or a device.
//   path   "-": standard input
// STATUS_INVALID: the file is absent, is a folder, or does not start as text (after decompression). The
// message says what it is and how to convert it.
enum status text_input_open(const char *path, struct text_input **out) MUST_CHECK;
void text_input_close(struct text_input *input); // NULL does nothing
// Reads up to `room` bytes of text. Skips a UTF-8 byte-order mark at the start of the text.
//   n   [out] number of bytes read; 0 only at the end of the text
// STATUS_INVALID: the compressed data is damaged or truncated; the message has the file and the offset.
enum status text_input_read(struct text_input *input, char *out, size_t room, size_t *n) MUST_CHECK;
// Appends a file's whole text to `out`. Warns if it is not UTF-8. STATUS_INVALID: for the reasons of
// text_input_open and text_input_read, or because the text is UTF-16.
enum status text_input_read_all(const char *path, struct text *out) MUST_CHECK;

bool text_input_is_packed(const struct text_input *input);      // compressed with gzip or zstd
size_t text_input_mark_bytes(const struct text_input *input);   // bytes of the skipped mark; 0: none
const char *text_input_name(const struct text_input *input);    // the path, or "standard input"
uint64_t text_input_file_bytes(const struct text_input *input); // stored bytes of the file read so far
uint64_t text_input_checksum(const struct text_input *input);   // XXH3 of these stored bytes

#endif
