// What a run keeps of its losses and gradient norms to find spikes by (trainer/spikes.h), and how
// often it diverged. A member of the manifest, "spikes", absent where there is nothing to record.
#ifndef ZERO_ZERO_CHECKPOINT_SPIKE_RECORD_H
#define ZERO_ZERO_CHECKPOINT_SPIKE_RECORD_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

#define SPIKE_WINDOW_MOST 1000

struct spike_figures {
    double loss, norm; // finite
};

struct spike_record {
    struct spike_figures window[SPIKE_WINDOW_MOST]; // of earlier steps, the oldest first
    int n;
    struct spike_figures newest; // of the last step, which is not in the window yet
    bool has_newest;             // false: that step did not count
    int64_t seen;                // steps that diverged: spikes, and figures that were not finite
    int64_t skipped;             // updates that were skipped for it
    int64_t consecutive;         // of them, since the last step that did not diverge
};

// Appends the member, with its comma and newline. Nothing for NULL, and for an empty record.
void spike_record_print(const struct spike_record *record, struct text *out);
// Reads it. `step` is the checkpoint's. STATUS_INVALID names `source` and what is wrong.
enum status spike_record_parse(struct spike_record *record, const cJSON *manifest, int64_t step,
                               const char *source) MUST_CHECK;

#endif
