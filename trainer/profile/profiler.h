// run.profile: where the time of a run's first steps goes. It watches the run's devices and the communication
// between ranks (kernels/profile.h), and knows from the model's hooks which unit is worked on, and how. What
// it saw becomes a table, profile.json and trace.json (trainer/profile/report.h).
#ifndef ZERO_TRAINER_PROFILE_PROFILER_H
#define ZERO_TRAINER_PROFILE_PROFILER_H

#include "base/region.h"
#include "kernels/profile.h"
#include "model/gpt.h"
#include "zero/comm/comm.h"

// What a span was for. Spans outside of the model's passes and of the update have none.
#define PROFILER_PHASES(X)                                                                                   \
    X(PROFILER_FORWARD, "forward")   /* embeddings and blocks */                                             \
    X(PROFILER_HEAD, "head")         /* final norm, classifier and losses, forward and backward */           \
    X(PROFILER_BACKWARD, "backward") /* blocks and embeddings, with what is computed again */                \
    X(PROFILER_UPDATE, "update")     /* norm and optimizer */
#define PROFILER_ENUM(constant, name) constant,
enum profiler_phase { PROFILER_PHASES(PROFILER_ENUM) N_PROFILER_PHASES };
#undef PROFILER_ENUM
const char *profiler_phase_name(int phase); // "" for none

#define PROFILER_STEPS       50    // the first of a run, or of what is left of it
#define PROFILER_EVENTS      65536 // of a timeline, all ranks together
#define PROFILER_LEAST       4096  // of a rank's
#define PROFILER_MOST_NESTED 4

struct profiler {
    struct profile *profile; // NULL: off, and then all functions below do nothing
    struct comm *comm;
    struct unit_hooks model, *hooks; // the run's own, and where they stand
    int last_unit;
    struct profile_place places[PROFILER_MOST_NESTED]; // of the units in use
    int depth;
    int64_t first_step; // number of the first that is profiled
};

// Adds the memory that it needs, as one region on the host.
enum status profiler_plan(int world, struct region_table *table, int *region) MUST_CHECK;

struct profiler_request {
    void *memory; // of the region
    struct comm *comm;
    struct device *device, *comm_device, *host_device; // host_device may be NULL
    struct unit_hooks *hooks;                          // replaced until profiler_stop
    int last_unit;
    int64_t step; // the next
};
// Watches from now on; nothing may be under way.
enum status profiler_start(struct profiler *profiler, const struct profiler_request *request) MUST_CHECK;
// Stops watching: everything is as before profiler_start, and what was seen is still there.
enum status profiler_stop(struct profiler *profiler) MUST_CHECK;
void profiler_free(struct profiler *profiler); // before what it watches is closed

// Around a step. Between them, profiler_phase says what follows that no unit is for (-1: nothing special).
enum status profiler_step_begin(struct profiler *profiler, struct stream *stream) MUST_CHECK;
enum status profiler_step_end(struct profiler *profiler) MUST_CHECK;
void profiler_phase(struct profiler *profiler, int phase);
// Whether all the steps were seen that it is for, or there is room for.
bool profiler_is_full(const struct profiler *profiler);

#endif
