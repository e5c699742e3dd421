// Standard output, checked once at the end of the program: what was printed has arrived, or the program
// fails.
#ifndef ZERO_BASE_OUTPUT_H
#define ZERO_BASE_OUTPUT_H

#include <stddef.h>

#include "base/status.h"

// Flushes and closes standard output. STATUS_FAILED when anything that was printed is lost (a full disk), at
// whichever write. A pipe whose reader has gone (| head) is no error. Call it once, as the last use of
// stdout.
enum status output_close(void) MUST_CHECK;
// Flushes what was printed so far, for commands that take minutes. A reader that has gone is no error.
enum status output_flush(void) MUST_CHECK;
// Writes at once, for text that appears as it is made. STATUS_STOPPED when the reader has gone.
enum status output_write(const char *bytes, size_t n_bytes) MUST_CHECK;

#endif
