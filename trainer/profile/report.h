// What a profile tells: a table for people, profile.json and trace.json for programs and Chrome's trace
// viewer (chrome://tracing, ui.perfetto.dev; its format is Google's "Trace Event Format"). README.md says how
// to read them. All ranks write their parts to the run's folder, and rank 0 makes one file of each kind of
// them.
#ifndef ZERO_TRAINER_PROFILE_REPORT_H
#define ZERO_TRAINER_PROFILE_REPORT_H

#include "base/text.h"
#include "model/params.h"
#include "trainer/profile/profiler.h"

struct profile_about {
    const struct profile *profile;
    const struct gpt_config *config;
    const char *device; // its description
    const char *compute;
    struct device_peak limits; // of this rank's device
    int rank;
    int64_t first_step;      // number of the profile's first
    double origin, shift_us; // the timeline's zero on this rank's clock, and what is added to be on rank 0's
};

// A line of the table: all rows of one operation, of one kind of linear layer, on one track. Summed over the
// steps from `first` on: the profile's second, if there is one, as the first warms up.
struct profile_line {
    char name[64]; // "linear_forward, qkv"; ", again" where backward computes forward again
    int track;
    bool counts;     // its seconds are part of the steps', which lines that count and "other" add up to
    bool is_limited; // an operation of the run's device, which the limits are of
    struct profile_sample sum;
    double least_s, median_s; // a step's
};
struct profile_summary {
    struct profile_line *lines; // those that count first, the slowest first
    int n_lines;
    int first, n_steps;
    double seconds, median_s; // of the steps together; of one
    double other;             // no line's
};
// Free with profile_summary_free, also after a failure.
enum status profile_summary_make(const struct profile_about *about, struct profile_summary *out) MUST_CHECK;
void profile_summary_free(struct profile_summary *summary);

void profile_print(const struct profile_about *about, struct text *out); // errors are the text's
void profile_add_json(const struct profile_about *about, struct text *out);
void profile_add_trace(const struct profile_about *about, struct text *out);

// Writes FOLDER/profile.json and FOLDER/trace.json; called by all ranks, and answers all alike.
enum status profile_write(const struct profile_about *about, struct comm *comm,
                          const char *folder) MUST_CHECK;

#endif
