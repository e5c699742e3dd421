// The output of a run: its session, metrics, progress line and profile. Only rank 0 writes.
#ifndef ZERO_TRAINER_RUN_OUTPUT_H
#define ZERO_TRAINER_RUN_OUTPUT_H

#include "trainer/output/metrics.h"
#include "trainer/output/progress.h"
#include "trainer/profile/profiler.h"
#include "trainer/run.h"
#include "trainer/runs/sessions.h"

struct run_output {
    struct run *run;
    struct session session; // this session, on rank 0; began 0: not yet
    struct metrics metrics; // on rank 0
    struct progress progress;
    struct profiler profiler;
    size_t program_bytes; // resident before the run's memory was allocated: program and libraries
};

// Records the beginning of the session.
enum status run_output_begin_session(struct run_output *output) MUST_CHECK;
// Opens the metrics. Warns of steps without a line.
enum status run_output_begin_metrics(struct run_output *output) MUST_CHECK;
// True if metrics may be written: on rank 0, and the run's folder is still its own. If it is not, the run
// fails later.
bool run_output_writes_metrics(struct run_output *output);
// Records the end of the session, if its beginning was recorded. A failure to do so is only a warning.
void run_output_end_session(struct run_output *output, enum status status);

// For run.profile; without it, these are no-ops.
// Starts profiling, before the first step.
//   region   from profiler_plan
enum status run_output_start_profile(struct run_output *output, int region) MUST_CHECK;
// Stops profiling, prints the table and writes profile.json and trace.json. Collective.
enum status run_output_end_profile(struct run_output *output) MUST_CHECK;

#endif
