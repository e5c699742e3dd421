// What a run writes and shows: its session, metrics, progress line and profile. Only rank 0 writes.
#ifndef ZERO_TRAINER_RUN_OUTPUT_H
#define ZERO_TRAINER_RUN_OUTPUT_H

#include "trainer/output/metrics.h"
#include "trainer/output/progress.h"
#include "trainer/profile/profiler.h"
#include "trainer/run.h"
#include "trainer/runs/sessions.h"

struct run_output {
    struct run *run;
    struct session session; // of this start, on rank 0; began 0: not yet
    struct metrics metrics; // on rank 0
    struct progress progress;
    struct profiler profiler;
    size_t program_bytes; // resident before the run's memory was allocated: the program and its libraries
};

// Records that this start began.
enum status run_output_begin_session(struct run_output *output) MUST_CHECK;
// Opens the metrics. Warns of steps that have no line in them.
enum status run_output_begin_metrics(struct run_output *output) MUST_CHECK;
// Before metrics are written: true on rank 0 unless the run's folder is no longer its own; then the run fails
// later.
bool run_output_writes_metrics(struct run_output *output);
// Records how this start ended, if its beginning was recorded. A failure to do so is a warning only.
void run_output_end_session(struct run_output *output, enum status status);

// run.profile; without it, these do nothing.
// Starts profiling, before the first step.
//   region   of profiler_plan
enum status run_output_start_profile(struct run_output *output, int region) MUST_CHECK;
// Stops profiling, prints the table and writes profile.json and trace.json. Collective.
enum status run_output_end_profile(struct run_output *output) MUST_CHECK;

#endif
