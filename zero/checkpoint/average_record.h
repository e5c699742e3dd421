// How many updates the average of the weights holds (train.ema, schedule-free AdamW), and their weights in it
// (trainer/schedule.h). A member of the manifest, "average", absent while the run has no average.
#ifndef ZERO_ZERO_CHECKPOINT_AVERAGE_RECORD_H
#define ZERO_ZERO_CHECKPOINT_AVERAGE_RECORD_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct average_record {
    int64_t n;         // updates in the average; 0: there is none yet
    double weight_sum; // schedule-free AdamW: of their weights
    double lr_max;     // the largest learning rate so far
};

// Appends the member, with its comma and newline. Nothing for NULL, and without an average.
void average_record_print(const struct average_record *record, struct text *out);
// Reads it. `step` is the checkpoint's. STATUS_INVALID names `source` and what is wrong.
enum status average_record_parse(struct average_record *record, const cJSON *manifest, int64_t step,
                                 const char *source) MUST_CHECK;

#endif
