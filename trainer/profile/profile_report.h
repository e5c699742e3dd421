// The output of a profile:
//   a table        printed in the log
//   profile.json   every figure, per rank and step
//   trace.json     the timeline, for ui.perfetto.dev (Google's "Trace Event Format")
// Each rank writes its own file into the run's folder; rank 0 joins them.
#ifndef ZERO_TRAINER_PROFILE_PROFILE_REPORT_H
#define ZERO_TRAINER_PROFILE_PROFILE_REPORT_H

#include "base/text.h"
#include "model/params.h"
#include "trainer/profile/profiler.h"

struct profile_about {
    const struct profile *profile;
    const struct gpt_config *config;
    const char *device;        // description of the device
    const char *compute;       // name of the compute type
    struct device_peak limits; // roofline of this rank's device: FLOP/s and bytes/s
    double dense_peak;         // of this rank's device, in FLOP/s; 0: not known
    int rank;
    int64_t first_step;      // number of the first profiled step
    double origin, shift_us; // start of the timeline, in s on this rank's clock; offset to rank 0's clock
};

// A line of the table: one operation, for one kind of linear layer, on one track. Sums are over the steps of
// the summary, which leaves out the first profiled step (warm-up) if there are others.
struct profile_line {
    char name[64]; // "linear_forward, qkv"; with ", recomputed" if backward repeats a forward operation
    int track;
    bool counts;     // on the main track: these lines and "other" add up to the time of the steps
    bool is_limited; // an operation of the run's device, to which the roofline applies
    struct profile_sample sum;
    double least_s, median_s; // per step
};
struct profile_summary {
    struct profile_line *lines; // `counts` first; then slowest first
    int n_lines;
    int first, n_steps;       // first: index of the first summed step; n_steps: their number
    double seconds, median_s; // sum over the steps; median step
    int64_t launches;         // sum over the steps; 0 where operations are synchronous
    double other;             // seconds that are in no line
};
// Free with profile_summary_free.
void profile_summary_make(const struct profile_about *about, struct profile_summary *out);
void profile_summary_free(struct profile_summary *summary);

// Append to `out`.
void profile_print(const struct profile_about *about, struct text *out);
void profile_add_json(const struct profile_about *about, struct text *out);
void profile_add_trace(const struct profile_about *about, struct text *out);

// Writes FOLDER/profile.json and FOLDER/trace.json. Collective: all ranks call it and get the same status.
enum status profile_write(const struct profile_about *about, struct comm *comm,
                          const char *folder) MUST_CHECK;

#endif
