// Standard output with error checking: a program that could not write all its output exits with a failure.
// Print text from models and files with these functions: on a terminal they replace control characters
// (utf8_add_visible). Files and pipes get all bytes unchanged.
#ifndef ZERO_BASE_OUTPUT_H
#define ZERO_BASE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/status.h"
#include "base/text.h"

// Flushes and closes standard output. Call it once, as the last use of stdout. STATUS_FAILED when any earlier
// write or this flush failed (disk full). A closed pipe (| head) is not an error.
enum status output_close(void) MUST_CHECK;
// Flushes what was printed so far, for commands that take minutes. A closed pipe is not an error.
enum status output_flush(void) MUST_CHECK;
// Writes and flushes, for text that is streamed as it is generated. STATUS_STOPPED: the pipe was
// closed by its reader.
enum status output_write(const char *bytes, size_t n_bytes) MUST_CHECK;
// Prints a text and frees it.
void output_text(struct text *text);
// Prints formatted text, as printf does.
void output_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Writes to any stream. Returns false if the write failed.
bool output_to(FILE *stream, const char *bytes, size_t n_bytes);

#endif
