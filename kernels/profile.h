// A profile: where time goes. profile_watch times each operation of a device; profile_begin and profile_end
// bracket other code. Time spans nest, on one track per host thread and one per stream. A span's own time
// excludes the spans inside it, so own times add up to the total.
// Synchronous operations are timed by the host's clock. Operations on a stream are timed by device events,
// which are read when the host waits for the stream. An unwatched device calls its own table of operations
// directly, at no extra cost.
//
// All memory is allocated before the first step. The timeline (events) is bounded and counts the events that
// did not fit. Figures per row and step (samples) are kept for most_steps steps.
#ifndef ZERO_KERNELS_PROFILE_H
#define ZERO_KERNELS_PROFILE_H

#include <pthread.h>
#include <stdint.h>

#include "kernels/cost.h"
#include "kernels/device.h"

// OPERATION: an operation of a device. SPAN: other work. FRAME: a container, such as a unit of the model; its
// own time is attributed to nothing.
enum profile_kind { PROFILE_OPERATION, PROFILE_SPAN, PROFILE_FRAME };

// What the calling thread is working on. The numbers are defined by the caller; -1 means none.
struct profile_place {
    int phase, unit;
};

struct profile_label {
    const char *name; // a string literal or other static storage
    enum profile_kind kind;
    struct profile_place place;
    struct linear_shape shape; // of a linear layer; none inside a scope
    const char *scope;         // see profile_scope_begin; NULL: none
};

// One time span of the timeline.
struct profile_event {
    struct profile_label label;
    int track;
    double begin, end; // clock_monotonic_s
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
    int64_t launches; // on the device of the step's stream: kernels, library products, fills
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
    int64_t n_events, n_left_out; // n_left_out: events that did not fit
    struct profile_row rows[PROFILE_MOST_ROWS];
    int n_rows;                     // when all rows are used, the last one collects all further spans
    struct profile_sample *samples; // (PROFILE_MOST_ROWS, most_steps)
    struct profile_step *steps;
    int n_steps;                      // completed
    bool in_step;                     // inside a step, whose number is n_steps
    const struct device *step_device; // of the step's stream; NULL without one
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
    struct event base; // start of the step on the device; base_s: the same moment on the host's clock
    double base_s;
};

// Bytes of memory that profile_new needs.
size_t profile_bytes(int most_events, int most_steps);
// memory: zeroed, profile_bytes() large; it stays the caller's. The calling thread's track is called "main".
struct profile *profile_new(void *memory, int most_events, int most_steps);
// Unwatches its devices first (profile_unwatch). NULL is a no-op.
void profile_delete(struct profile *profile);

// Times the device's operations, copies and waits from now on. No thread may be using the device during the
// call. `name` is the name of its streams' tracks. profile_unwatch restores all devices.
enum status profile_watch(struct profile *profile, struct device *device, const char *name) MUST_CHECK;
void profile_unwatch(struct profile *profile);

// ---- for the calling thread

// All are no-ops when `profile` is NULL.

// Names the track of a thread that has none yet. A thread without a track that uses a watched device gets one
// named after the device.
void profile_name_thread(struct profile *profile, const char *name);
void profile_set_place(struct profile *profile, struct profile_place place);
// Between these two calls, the device's operations are reported under the name `scope`: one thing to the
// user, however many operations it takes, such as "newton_schulz".
//   scope   a string literal
// On a GPU, the scope is timed as a single operation of `stream`. Whatever the thread issues meanwhile, to
// this and other streams of the device, is not timed. It must be finished where the scope ends, and nothing
// may wait for the stream. Elsewhere, operations are timed one by one. No-ops when the device is not watched.
enum status profile_scope_begin(struct stream *stream, const char *scope) MUST_CHECK;
enum status profile_scope_end(struct stream *stream) MUST_CHECK;
// Spans must be ended in the reverse order of their beginning.
void profile_begin(struct profile *profile, enum profile_kind kind, const char *name);
void profile_end(struct profile *profile, struct operation_cost work);

// A step of the calling thread, whose work goes to `stream` (NULL: no device). Time spans inside it are
// attributed to the step; those between steps appear in the timeline only. profile_step_end waits for all
// streams. At most most_steps steps.
enum status profile_step_begin(struct profile *profile, struct stream *stream) MUST_CHECK;
enum status profile_step_end(struct profile *profile) MUST_CHECK;

static inline const struct profile_sample *profile_sample_at(const struct profile *profile, int row,
                                                             int step) {
    return &profile->samples[(size_t)row * (size_t)profile->most_steps + (size_t)step];
}

#endif
