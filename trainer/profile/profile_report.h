// The output of a profile:
//   a table        printed in the log
//   profile.json   all figures of each step of each rank
//   trace.json     the timeline, for ui.perfetto.dev (Google's "Trace Event Format")
// Every rank writes its part of each JSON file to a file of its own in the run's folder; rank 0 joins these.
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
    struct device_peak limits; // measured limits of this rank's device: FLOP/s and bytes/s (roofline)
    double dense_peak;         // dense peak of this rank's device, in FLOP/s; 0: not known
    int rank;
    int64_t first_step; // number of the first profiled step
    double origin;      // start of the timeline, in seconds on this rank's clock
    double shift_us;    // this rank's origin minus rank 0's, in microseconds
};

// A line of the table: one operation on one track; for linear layers, one line per kind of layer. Sums are
// over the steps of the summary, which leaves out the first profiled step (warm-up) if there are others.
struct profile_line {
    char name[64]; // "linear_forward, qkv"; with ", recomputed" if backward repeats a forward operation
    int track;
    bool counts;     // true on the main track: its lines and "other" add up to the time of the steps
    bool is_limited; // true: an operation of the run's device, to which profile_about.limits apply
    struct profile_sample sum;
    double least_s, median_s; // least and median seconds per step
};
struct profile_summary {
    // Lines with `counts` first, then those of each other track; on each track, the slowest first.
    struct profile_line *lines;
    int n_lines;
    int first, n_steps;       // first: index of the first summed step; n_steps: their number
    double seconds, median_s; // seconds of all summed steps together, and of the median step
    int64_t launches;         // kernels and library calls launched in the summed steps; 0 on CPUs
    double other;             // seconds of the summed steps that are in no line with `counts`
};
// Free with profile_summary_free.
void profile_summary_make(const struct profile_about *about, struct profile_summary *out);
void profile_summary_free(struct profile_summary *summary);

// Append the table, this rank's element of profile.json, and its events of trace.json to `out`.
void profile_print(const struct profile_about *about, struct text *out);
void profile_add_json(const struct profile_about *about, struct text *out);
void profile_add_trace(const struct profile_about *about, struct text *out);

// Writes FOLDER/profile.json and FOLDER/trace.json. Collective: all ranks call it and get the same status.
enum status profile_write(const struct profile_about *about, struct comm *comm,
                          const char *folder) MUST_CHECK;

#endif
