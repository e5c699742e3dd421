// run.profile: a profiler for the first steps of a run. It times the operations of the run's devices and the
// communication between ranks (kernels/profile.h). It learns their unit and phase from the model's hooks. The
// results are a table, profile.json and trace.json (trainer/profile/profile_report.h).
#ifndef ZERO_TRAINER_PROFILE_PROFILER_H
#define ZERO_TRAINER_PROFILE_PROFILER_H

#include "base/region.h"
#include "kernels/profile.h"
#include "model/gpt.h"
#include "zero/comm/comm.h"

// The phase of a step that a time span belongs to. Time spans outside the model's passes and the update have
// none.
#define PROFILER_PHASES(X)                                                                                   \
    X(PROFILER_FORWARD, "forward")          /* embeddings and blocks */                                      \
    X(PROFILER_LM_HEAD, "lm_head and loss") /* final norm, lm_head and losses, forward and backward */       \
    X(PROFILER_BACKWARD, "backward")        /* blocks and embeddings, with what is recomputed */             \
    X(PROFILER_UPDATE, "update")            /* gradient norm and optimizer */
#define PROFILER_ENUM(constant, name) constant,
enum profiler_phase { PROFILER_PHASES(PROFILER_ENUM) N_PROFILER_PHASES };
#undef PROFILER_ENUM
const char *profiler_phase_name(int phase); // "" for none (-1)

#define PROFILER_STEPS       50    // steps to profile, from the first after start or resume
#define PROFILER_EVENTS      65536 // capacity of the timeline, for all ranks together
#define PROFILER_LEAST       4096  // minimum capacity of the timeline per rank
#define PROFILER_MOST_NESTED 4     // maximum number of units that are acquired at the same time

struct profiler {
    struct profile *profile; // NULL: off, and then all functions below do nothing
    struct comm *comm;
    struct unit_hooks model;                           // copy of the model's hooks, which are wrapped
    struct unit_hooks *hooks;                          // address of the model's hooks; NULL: not wrapped
    int last_unit;                                     // number of the model's last unit, the final norm
    struct profile_place places[PROFILER_MOST_NESTED]; // places of the acquired units, a stack
    int depth;                                         // number of acquired units
    int64_t first_step;                                // number of the first profiled step
};

// Adds a region for the profiler's memory to the table, on the host.
//   region   [out] index of the region
enum status profiler_plan(int world, struct region_table *table, int *region) MUST_CHECK;

struct profiler_request {
    void *memory; // memory of the region from profiler_plan
    struct comm *comm;
    struct device *device, *comm_device, *host_device; // host_device may be NULL
    struct unit_hooks *hooks;                          // wrapped until profiler_stop
    int last_unit;
    int64_t step; // number of the next step, from 1
};
// Starts profiling. No operation or communication may be in flight.
enum status profiler_start(struct profiler *profiler, const struct profiler_request *request) MUST_CHECK;
// Stops profiling and restores hooks, devices and communicator. profiler->profile stays readable.
enum status profiler_stop(struct profiler *profiler) MUST_CHECK;
void profiler_free(struct profiler *profiler); // call it before devices and communicator are closed

// Called around each step. profiler_set_phase sets the phase of work outside any unit (-1: none). All three
// are no-ops if the profiler is off.
enum status profiler_step_begin(struct profiler *profiler, struct stream *stream) MUST_CHECK;
enum status profiler_step_end(struct profiler *profiler) MUST_CHECK;
void profiler_set_phase(struct profiler *profiler, int phase);
// True once PROFILER_STEPS steps were profiled.
bool profiler_is_full(const struct profiler *profiler);

#endif
