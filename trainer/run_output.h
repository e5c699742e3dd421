// The output of a run: its session, metrics, progress line and profile. Only rank 0 writes, except that every
// rank writes a file with its part of the profile.
#ifndef ZERO_TRAINER_RUN_OUTPUT_H
#define ZERO_TRAINER_RUN_OUTPUT_H

#include "trainer/output/metrics.h"
#include "trainer/output/progress.h"
#include "trainer/profile/profiler.h"
#include "trainer/run.h"
#include "trainer/runs/sessions.h"

struct run_output {
    struct run *run;
    struct session session; // on rank 0: the record of this session; not recorded yet if began is 0
    struct metrics metrics; // open on rank 0 only
    struct progress progress;
    struct profiler profiler;
    size_t program_bytes; // planned host memory of the process besides model memory
};

// Records the beginning of the session in sessions.jsonl. Called on rank 0.
enum status run_output_begin_session(struct run_output *output) MUST_CHECK;
// On rank 0, opens the metrics. Warns if metrics.jsonl lacks lines of steps that are done.
enum status run_output_begin_metrics(struct run_output *output) MUST_CHECK;
// True if this rank is to write metrics: it is rank 0, and the run's folder was not removed or replaced. If
// it was, the run fails later (run_fail_later).
bool run_output_writes_metrics(struct run_output *output);
// Records the end of the session, if its beginning was recorded. If that fails, only warns.
void run_output_end_session(struct run_output *output, enum status status);

// The next two functions are for run.profile; without it, they are no-ops.
// Starts profiling, before the first step.
//   region   index of the region for the profiler's memory, from profiler_plan
enum status run_output_start_profile(struct run_output *output, int region) MUST_CHECK;
// Stops profiling, prints the table and writes profile.json and trace.json. Collective.
enum status run_output_end_profile(struct run_output *output) MUST_CHECK;

#endif
