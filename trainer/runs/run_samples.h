// The samples of a run: RUN/samples/step-N.txt, text that the model generated after N steps.
#ifndef ZERO_TRAINER_RUNS_RUN_SAMPLES_H
#define ZERO_TRAINER_RUNS_RUN_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// Lists their steps in ascending order; none for a folder that is absent or cannot be listed. Free *steps
// with free(). STATUS_FAILED: out of memory.
enum status run_samples_list(const char *run, int64_t **steps, int *n) MUST_CHECK;
// Reads the first `most` bytes of one, without a character that is cut at the end; NULL if it cannot be read.
// Nothing makes the bytes valid UTF-8. Free it with free().
char *run_samples_read(const char *run, int64_t step, size_t most, size_t *length);

#endif
