// The bytes of a text file or of standard input, unpacked while they are read if they are gzip (zlib, several
// members) or zstd (libzstd, several frames). Memory does not grow with the file.
#ifndef ZERO_DATA_TEXT_INPUT_H
#define ZERO_DATA_TEXT_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct text_input;

//   path   "-" is standard input; pipes and devices are read too
// STATUS_INVALID: the file is absent or a folder.
enum status text_input_open(const char *path, struct text_input **out) MUST_CHECK;
void text_input_close(struct text_input *input); // NULL does nothing
// Reads up to `room` bytes of text. n: [out] 0 at the end only. STATUS_INVALID: the packed data is damaged or
// ends early; the message has the file and the offset in it.
enum status text_input_read(struct text_input *input, char *out, size_t room, size_t *n) MUST_CHECK;

const char *text_input_name(const struct text_input *input);    // the path, or "standard input"
uint64_t text_input_file_bytes(const struct text_input *input); // of the file, packed, read so far
uint64_t text_input_checksum(const struct text_input *input);   // XXH3 of these bytes

#endif
