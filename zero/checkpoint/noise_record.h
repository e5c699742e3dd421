// The gradient noise scale as far as a run has measured it (trainer/schedule.h), and the batch
// sizes that followed from it. A member of the manifest, "noise_scale", absent without a measurement.
#ifndef ZERO_ZERO_CHECKPOINT_NOISE_RECORD_H
#define ZERO_ZERO_CHECKPOINT_NOISE_RECORD_H

#include <cjson/cJSON.h>

#include "base/text.h"
#include "options/config.h"

struct noise_record {
    double variance, square;    // smoothed estimates of tr(Sigma) and |G|^2
    int64_t n, n_since;         // measurements; of them since the batch was last changed
    struct config_stages grown; // train.max_batch_size: batch sizes by step
};

// Appends the member, with its comma and newline. Nothing for NULL, and without a measurement.
void noise_record_print(const struct noise_record *record, struct text *out);
// Reads it. `step` is the checkpoint's. STATUS_INVALID names `source` and what is wrong.
enum status noise_record_parse(struct noise_record *record, const cJSON *manifest, int64_t step,
                               const char *source) MUST_CHECK;

#endif
