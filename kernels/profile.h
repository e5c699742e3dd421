// A profile: where time goes. profile_watch times each operation of a device; profile_begin and profile_end
// bracket other code. Time spans nest, on one track per host thread and one per stream. A span's own time
// excludes the spans inside it, so own times add up to the total.
// Synchronous operations are timed by the host's clock. Operations on a stream are timed by device events,
// which are read when the host waits for the stream. An unwatched device calls its own table of operations
// directly, at no extra cost.
//
// All memory is allocated before the first step. The timeline (events) is bounded and counts the events
// that did not fit. Calls, time and work per row and step (struct profile_sample) are kept for up to
// most_steps steps.
#ifndef ZERO_KERNELS_PROFILE_H
#define ZERO_KERNELS_PROFILE_H

#include <pthread.h>
#include <stdint.h>

#include "kernels/cost.h"
#include "kernels/device.h"

// OPERATION: an operation of a device. SPAN: other work. FRAME: a container, such as a unit of the model;
// its own time is in no row.
enum profile_kind { PROFILE_OPERATION, PROFILE_SPAN, PROFILE_FRAME };

// What the calling thread is working on. The numbers are defined by the caller; -1 means none.
struct profile_place {
    int phase, unit;
};

struct profile_label {
    const char *name; // a string literal or other static storage
    enum profile_kind kind;
    struct profile_place place;
    struct linear_shape shape; // of a linear layer; {0, 0} for other operations and inside a scope
    const char *scope;         // see profile_scope_begin; NULL: none
};

// One time span of the timeline.
struct profile_event {
    struct profile_label label;
    int track;
    double begin, end; // in seconds, on the clock of clock_monotonic_s
    struct operation_cost work;
};

// All time spans with the same name, phase, shape, scope and track. Frames have no rows.
struct profile_row {
    struct profile_label label; // with unit -1
    int track;
};
struct profile_sample { // one row in one step
    int64_t calls;
    double seconds; // own time
    struct operation_cost work;
};
struct profile_step {
    double begin, end;
    int64_t launches; // kernels, library products and fills issued to the step's device
};

// A host thread, or a stream of a device.
struct profile_track {
    char name[48];
    bool is_stream;
};

#define PROFILE_MOST_TRACKS  16
#define PROFILE_MOST_ROWS    256
#define PROFILE_MOST_DEPTH   16
#define PROFILE_MOST_DEVICES 4

struct profile_thread;
struct profile_lane;
struct watched;

struct profile {
    int most_events, most_steps;
    struct profile_event *events;
    int64_t n_events, n_left_out; // n_left_out: events for which there was no room
    struct profile_row rows[PROFILE_MOST_ROWS];
    int n_rows;                     // if all are used, the last also collects the spans that match none
    struct profile_sample *samples; // (PROFILE_MOST_ROWS, most_steps)
    struct profile_step *steps;
    int n_steps;                      // number of completed steps
    bool in_step;                     // true inside a step; its number is n_steps
    const struct device *step_device; // the device of the step's stream; NULL if the step has no stream
    int account;                      // the track whose own times add up to the step time
    struct profile_track tracks[PROFILE_MOST_TRACKS];
    int n_tracks;

    // Private.
    uint64_t number; // unique within the process
    pthread_mutex_t lock;
    struct profile_thread *threads; // (PROFILE_MOST_TRACKS) for tracks of threads
    struct profile_lane *lanes;     // (PROFILE_MOST_TRACKS), for tracks of streams
    struct watched *watched[PROFILE_MOST_DEVICES];
    int n_watched;
    struct event base; // recorded on the device at the start of the step
    double base_s;     // the same moment on the host's clock
};

// Bytes of memory that profile_new needs.
size_t profile_bytes(int most_events, int most_steps);
// Creates a profile. The calling thread's track is called "main".
//   memory   profile_bytes() bytes, zeroed. The caller frees it after profile_delete
struct profile *profile_new(void *memory, int most_events, int most_steps);
// Unwatches its devices first (profile_unwatch). NULL is a no-op.
void profile_delete(struct profile *profile);

// Times the device's operations, copies and waits from now on. No thread may be using the device during the
// call. `name` begins the names of its streams' tracks. profile_unwatch stops this for all devices.
enum status profile_watch(struct profile *profile, struct device *device, const char *name) MUST_CHECK;
void profile_unwatch(struct profile *profile);

// ---- time spans and steps of the calling thread

// profile_name_thread, profile_set_place, profile_begin and profile_end are no-ops when `profile` is NULL.

// Creates a track with this name for the calling thread, if it has none yet. Without this call, the thread's
// first use of the profile creates its track. The track's name is then the `name` of profile_watch if that
// use is an operation of a synchronous device, otherwise "thread N".
void profile_name_thread(struct profile *profile, const char *name);
void profile_set_place(struct profile *profile, struct profile_place place);
// Between these two calls, all operations that the calling thread issues to the stream's device are reported
// under the name `scope`. Use it for a computation that takes many operations but that users know by one
// name, such as "newton_schulz".
//   scope   a string literal
// On a GPU, the scope is timed as a single operation of `stream`. What the thread issues inside it, to any
// stream of the device, is not timed separately. Before the scope ends, `stream` must wait for work issued
// to other streams. Inside the scope, the host must not wait for `stream`. On a CPU, the operations of the
// scope are timed one by one. No-ops when the device is not watched.
enum status profile_scope_begin(struct stream *stream, const char *scope) MUST_CHECK;
enum status profile_scope_end(struct stream *stream) MUST_CHECK;
// Begin and end a time span of the calling thread. Spans must be ended in the reverse order of their
// beginning.
void profile_begin(struct profile *profile, enum profile_kind kind, const char *name);
void profile_end(struct profile *profile, struct operation_cost work);

// Begin and end a step of the calling thread. Time spans inside it are attributed to the step; those
// between steps appear in the timeline only. profile_step_end waits for all streams. A profile has at most
// most_steps steps.
//   stream   where the step's work is issued; may be NULL if no GPU is watched
enum status profile_step_begin(struct profile *profile, struct stream *stream) MUST_CHECK;
enum status profile_step_end(struct profile *profile) MUST_CHECK;

static inline const struct profile_sample *profile_sample_at(const struct profile *profile, int row,
                                                             int step) {
    return &profile->samples[(size_t)row * (size_t)profile->most_steps + (size_t)step];
}

#endif
