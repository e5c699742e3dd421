// Where time goes: a device that is watched tells a profile when each of its operations began and ended, and
// other code brackets what else takes time. Spans nest, a thread each; a span's own time is its length less
// that of the spans inside it, so that own times add up to the whole. Operations that happen at once are
// timed by the host's clock; those of a device with streams by its events, which are read when the stream is
// waited for. A device that nobody watches has its own table of operations, and its calls cost nothing more.
//
// All memory is taken before the first step. The timeline (events) is bounded, and counts what had no more
// room; figures by row and step (samples) are kept for most_steps steps.
#ifndef ZERO_KERNELS_PROFILE_H
#define ZERO_KERNELS_PROFILE_H

#include <pthread.h>
#include <stdint.h>

#include "kernels/cost.h"
#include "kernels/device.h"

// OPERATION: of a device. SPAN: something else that takes time. FRAME: what holds others, such as a unit of
// the model; its own time is nobody's.
enum profile_kind { PROFILE_OPERATION, PROFILE_SPAN, PROFILE_FRAME };

// What the calling thread works on; numbers are the caller's, -1 for none.
struct profile_place {
    int phase, unit;
};

struct profile_label {
    const char *name; // lives as long as the program
    enum profile_kind kind;
    struct profile_place place;
    struct linear_shape shape; // of linear layers
};

// One span of the timeline.
struct profile_event {
    struct profile_label label;
    int track;
    double begin, end; // clock_monotonic_s
    struct operation_cost work;
};

// All spans of the same name, phase, shape and track. Frames have no rows.
struct profile_row {
    struct profile_label label; // its unit is -1
    int track;
};
struct profile_sample {
    int64_t calls;
    double seconds; // own time
    struct operation_cost work;
};
struct profile_step {
    double begin, end;
};

// A thread of the host, or a stream of a device.
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
    int64_t n_events, n_left_out; // of events beyond the timeline's room
    struct profile_row rows[PROFILE_MOST_ROWS];
    int n_rows;                     // the last row, once all are taken, stands for all others too
    struct profile_sample *samples; // (PROFILE_MOST_ROWS, most_steps)
    struct profile_step *steps;
    int n_steps;  // finished
    bool in_step; // a step is under way: n_steps is its number
    int account;  // the track whose own times a step is made of
    struct profile_track tracks[PROFILE_MOST_TRACKS];
    int n_tracks;

    // Inside.
    uint64_t number; // tells profiles of one process apart
    pthread_mutex_t lock;
    struct profile_thread *threads; // (PROFILE_MOST_TRACKS), of the tracks that are threads
    struct profile_lane *lanes;     // (PROFILE_MOST_TRACKS), of those that are streams
    struct watched *watched[PROFILE_MOST_DEVICES];
    int n_watched;
    struct event base; // where the step began on the device, and when that was
    double base_s;
};

// Bytes of memory that profile_new works in.
size_t profile_bytes(int most_events, int most_steps);
// memory: zeroed, profile_bytes of it, and the caller's. The calling thread's track is "main".
enum status profile_new(void *memory, int most_events, int most_steps, struct profile **out) MUST_CHECK;
// Leaves its devices first (profile_unwatch). NULL does nothing.
void profile_delete(struct profile *profile);

// Times the device's operations, copies and waits from now on; no thread may be using it meanwhile. Its
// streams' tracks are called by `name`. profile_unwatch makes all devices what they were.
enum status profile_watch(struct profile *profile, struct device *device, const char *name) MUST_CHECK;
void profile_unwatch(struct profile *profile);

// ---- for the thread that calls. With a profile that is NULL none of them does anything.

// For a thread that has no track yet. One that has none when it does something watched is called by the
// device.
void profile_name_thread(struct profile *profile, const char *name);
void profile_set_place(struct profile *profile, struct profile_place place);
// Spans end in the opposite order of their beginning.
void profile_begin(struct profile *profile, enum profile_kind kind, const char *name);
void profile_end(struct profile *profile, struct operation_cost work);

// A step of the calling thread, whose work goes to this stream. Its spans are counted to the step; between
// steps there is only the timeline. All streams' work has happened at its end. Not more than most_steps.
enum status profile_step_begin(struct profile *profile, struct stream *stream) MUST_CHECK;
enum status profile_step_end(struct profile *profile) MUST_CHECK;

static inline const struct profile_sample *profile_sample_at(const struct profile *profile, int row,
                                                             int step) {
    return &profile->samples[(size_t)row * (size_t)profile->most_steps + (size_t)step];
}

#endif
