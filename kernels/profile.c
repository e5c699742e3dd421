// Time spans of a host thread are on that thread's stack until they end. An operation on a stream is issued
// between two device events. It stays in the stream's queue until the host has waited for the second event.
// Finished spans are recorded under one lock, a few hundred times per step.
#include "kernels/profile.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/observe.h"

#define MOST_PENDING 2048 // maximum number of operations per device whose events have not been read yet
#define NONE         (-1)

struct open_span {
    struct profile_label label;
    double begin, inside; // inside: seconds in nested spans
};
struct profile_thread {
    struct profile_place place;
    const char *scope;      // NULL: no scope is open
    struct pending *scoped; // on a GPU, the operation that times the scope; NULL: not timed
    struct operation_cost scope_work;
    struct open_span stack[PROFILE_MOST_DEPTH];
    int depth;
};

// An operation on a stream between two device events, which have not been read yet.
struct pending {
    struct event begin, end;
    struct profile_label label;
    struct operation_cost work;
    int next; // index of the next entry of the stream's queue or of the free list; NONE: none
};
struct profile_lane {
    void *queue; // stream.queue, which identifies the stream
    struct watched *watched;
    int first, last; // indices of the stream's first and last pending operations; NONE: there are none
};

struct watched {
    struct profile *profile;
    struct device *device;
    char name[24];
    struct pending *pending; // (MOST_PENDING); NULL where operations are synchronous
    int free;                // index of the first entry of the free list; NONE: it is empty
};

// ---- tracks

static _Thread_local struct {
    uint64_t profile;
    int track;
} own;

static int track_new(struct profile *profile, const char *name) {
    assert(profile->n_tracks < PROFILE_MOST_TRACKS);
    struct profile_track *track = &profile->tracks[profile->n_tracks];
    snprintf(track->name, sizeof track->name, "%s", name);
    profile->threads[profile->n_tracks].place = (struct profile_place){NONE, NONE};
    return profile->n_tracks++;
}

static int own_track(struct profile *profile) {
    if (own.profile == profile->number)
        return own.track;
    char name[sizeof profile->tracks->name];
    pthread_mutex_lock(&profile->lock);
    snprintf(name, sizeof name, profile->n_tracks == 0 ? "main" : "thread %d", profile->n_tracks);
    own.profile = profile->number;
    own.track = track_new(profile, name);
    pthread_mutex_unlock(&profile->lock);
    return own.track;
}

static struct profile_thread *own_thread(struct profile *profile) {
    return &profile->threads[own_track(profile)];
}

void profile_name_thread(struct profile *profile, const char *name) {
    if (!profile || own.profile == profile->number)
        return;
    int track = own_track(profile);
    snprintf(profile->tracks[track].name, sizeof profile->tracks[track].name, "%s", name);
}

void profile_set_place(struct profile *profile, struct profile_place place) {
    if (profile)
        own_thread(profile)->place = place;
}

// ---- recording time spans

static bool same_row(const struct profile_row *row, const struct profile_label *label, int track) {
    return row->label.name == label->name && row->label.place.phase == label->place.phase &&
           row->label.scope == label->scope && row->label.shape.in == label->shape.in &&
           row->label.shape.out == label->shape.out && row->track == track;
}

static int find_row(struct profile *profile, const struct profile_label *label, int track) {
    for (int i = 0; i < profile->n_rows; i++)
        if (same_row(&profile->rows[i], label, track))
            return i;
    if (profile->n_rows == PROFILE_MOST_ROWS)
        return PROFILE_MOST_ROWS - 1;
    struct profile_row *row = &profile->rows[profile->n_rows];
    *row = (struct profile_row){.label = *label, .track = track};
    row->label.place.unit = NONE;
    return profile->n_rows++;
}

static void record(struct profile *profile, const struct profile_event *event, double seconds) {
    pthread_mutex_lock(&profile->lock);
    if (profile->n_events < profile->most_events)
        profile->events[profile->n_events++] = *event;
    else
        profile->n_left_out++;
    if (profile->in_step && event->label.kind != PROFILE_FRAME) {
        int row = find_row(profile, &event->label, event->track);
        struct profile_sample *sample =
            &profile->samples[(size_t)row * (size_t)profile->most_steps + (size_t)profile->n_steps];
        sample->calls++;
        sample->seconds += seconds;
        sample->work.flops += event->work.flops;
        sample->work.bytes += event->work.bytes;
    }
    pthread_mutex_unlock(&profile->lock);
}

// Returns a copy of the label, with the calling thread's current place and scope filled in.
static struct profile_label label_here(struct profile *profile, const struct profile_label *label) {
    const struct profile_thread *thread = own_thread(profile);
    struct profile_label here = *label;
    here.place = thread->place;
    if (label->kind == PROFILE_OPERATION && thread->scope) {
        here.scope = thread->scope;
        here.shape = (struct linear_shape){0, 0};
    }
    return here;
}

static void begin_span(struct profile *profile, const struct profile_label *label) {
    struct profile_thread *thread = own_thread(profile);
    assert(thread->depth < PROFILE_MOST_DEPTH);
    struct open_span *span = &thread->stack[thread->depth++];
    *span = (struct open_span){.label = label_here(profile, label)};
    span->begin = clock_monotonic_s();
}

void profile_begin(struct profile *profile, enum profile_kind kind, const char *name) {
    if (profile)
        begin_span(profile, &(struct profile_label){.name = name, .kind = kind});
}

// Returns the time at which the span ended.
static double end_span(struct profile *profile, struct operation_cost work) {
    double now = clock_monotonic_s();
    int track = own_track(profile);
    struct profile_thread *thread = &profile->threads[track];
    assert(thread->depth > 0);
    const struct open_span *span = &thread->stack[--thread->depth];
    if (thread->depth > 0)
        thread->stack[thread->depth - 1].inside += now - span->begin;
    record(profile, &(struct profile_event){span->label, track, span->begin, now, work},
           now - span->begin - span->inside);
    return now;
}

void profile_end(struct profile *profile, struct operation_cost work) {
    if (profile)
        (void)end_span(profile, work);
}

// ---- operations on streams

static struct profile_lane *lane_of(struct watched *watched, const struct stream *stream) {
    struct profile *profile = watched->profile;
    struct profile_lane *lane = NULL;
    pthread_mutex_lock(&profile->lock);
    for (int i = 0; i < profile->n_tracks && !lane; i++)
        if (profile->lanes[i].watched && profile->lanes[i].queue == stream->queue)
            lane = &profile->lanes[i];
    if (!lane) {
        char name[sizeof profile->tracks->name];
        int n = 1;
        for (int i = 0; i < profile->n_tracks; i++)
            n += profile->lanes[i].watched == watched;
        snprintf(name, sizeof name, "%s, stream %d", watched->name, n);
        lane = &profile->lanes[track_new(profile, name)];
        *lane = (struct profile_lane){stream->queue, watched, NONE, NONE};
        profile->tracks[lane - profile->lanes].is_stream = true;
    }
    pthread_mutex_unlock(&profile->lock);
    return lane;
}

// Waits for a stream's pending operations, records them, and returns their events to the free list.
static enum status drain(struct profile_lane *lane) {
    struct watched *watched = lane->watched;
    struct profile *profile = watched->profile;
    while (lane->first != NONE) {
        struct pending *pending = &watched->pending[lane->first];
        double begin, end;
        TRY(event_synchronize(&pending->end));
        TRY(event_seconds(&profile->base, &pending->begin, &begin));
        TRY(event_seconds(&profile->base, &pending->end, &end));
        record(profile,
               &(struct profile_event){pending->label, (int)(lane - profile->lanes), profile->base_s + begin,
                                       profile->base_s + end, pending->work},
               end - begin);
        pthread_mutex_lock(&profile->lock);
        int freed = lane->first;
        lane->first = pending->next;
        pending->next = watched->free;
        watched->free = freed;
        pthread_mutex_unlock(&profile->lock);
    }
    lane->last = NONE;
    return STATUS_OK;
}

static enum status drain_all(struct profile *profile) {
    for (int i = 0; i < profile->n_tracks; i++)
        if (profile->lanes[i].watched)
            TRY(drain(&profile->lanes[i]));
    return STATUS_OK;
}

static int take_free(struct watched *watched) {
    pthread_mutex_lock(&watched->profile->lock);
    int taken = watched->free;
    if (taken != NONE)
        watched->free = watched->pending[taken].next;
    pthread_mutex_unlock(&watched->profile->lock);
    return taken;
}

static void leave_out(struct profile *profile) {
    pthread_mutex_lock(&profile->lock);
    profile->n_left_out++;
    pthread_mutex_unlock(&profile->lock);
}

// Starts timing an operation of a stream. If no events are free, first waits for the stream's earlier
// operations, to reuse theirs.
//   out   [out] NULL if other streams use all events; the operation is then counted in n_left_out
static enum status begin_on_stream(struct watched *watched, struct stream *stream,
                                   const struct profile_label *label, struct pending **out) {
    struct profile_lane *lane = lane_of(watched, stream);
    int taken = take_free(watched);
    *out = NULL;
    if (taken == NONE) {
        TRY(drain(lane));
        taken = take_free(watched);
    }
    if (taken == NONE) {
        leave_out(watched->profile);
        return STATUS_OK;
    }
    struct pending *pending = &watched->pending[taken];
    pending->label = label_here(watched->profile, label);
    pending->next = NONE;
    if (lane->first == NONE)
        lane->first = taken;
    else
        watched->pending[lane->last].next = taken;
    lane->last = taken;
    *out = pending;
    return event_record(&pending->begin, stream);
}

// ---- scopes

enum status profile_scope_begin(struct stream *stream, const char *scope) {
    struct watched *watched = stream->device->watched;
    if (!watched)
        return STATUS_OK;
    struct profile_thread *thread = own_thread(watched->profile);
    thread->scope = scope;
    thread->scoped = NULL;
    thread->scope_work = (struct operation_cost){0};
    if (!watched->pending)
        return STATUS_OK;
    const struct profile_label label = {.name = scope, .kind = PROFILE_OPERATION};
    return begin_on_stream(watched, stream, &label, &thread->scoped);
}

enum status profile_scope_end(struct stream *stream) {
    if (!stream->device->watched)
        return STATUS_OK;
    struct profile_thread *thread = own_thread(stream->device->watched->profile);
    thread->scope = NULL;
    if (!thread->scoped)
        return STATUS_OK;
    thread->scoped->work = thread->scope_work;
    return event_record(&thread->scoped->end, stream);
}

// ---- calls of a watched device

static enum status watch_on_host(struct watched *watched, struct observed_call *call,
                                 const struct profile_label *label, struct operation_cost work) {
    if (call->kind == OBSERVED_WAIT) // the device is synchronous, so this does not wait
        return observe_proceed(call);
    profile_name_thread(watched->profile, watched->name);
    begin_span(watched->profile, label);
    const enum status status = observe_proceed(call);
    profile_end(watched->profile, work);
    return status;
}

static enum status watch_wait(struct watched *watched, struct observed_call *call) {
    profile_begin(watched->profile, PROFILE_SPAN, "wait for the device");
    const enum status status = observe_proceed(call);
    profile_end(watched->profile, (struct operation_cost){0});
    return status == STATUS_OK ? drain(lane_of(watched, call->stream)) : status;
}

static enum status watch_on_stream(struct watched *watched, struct observed_call *call,
                                   const struct profile_label *label, struct operation_cost work) {
    struct profile_thread *thread = own_thread(watched->profile);
    struct pending *pending = NULL;
    if (thread->scope) {
        thread->scope_work.flops += work.flops;
        thread->scope_work.bytes += work.bytes;
    } else
        TRY(begin_on_stream(watched, call->stream, label, &pending));
    const enum status status = observe_proceed(call);
    if (!pending)
        return status;
    pending->work = work;
    const enum status recorded = event_record(&pending->end, call->stream);
    return status == STATUS_OK ? recorded : status;
}

static enum status watch(void *context, struct observed_call *call) {
    struct watched *watched = context;
    struct profile_label label = {.name = "copy", .kind = PROFILE_SPAN};
    struct operation_cost work = {.bytes = 2.0 * (double)call->bytes};
    if (watched->pending && call->kind == OBSERVED_WAIT)
        return watch_wait(watched, call);
    if (call->kind == OBSERVED_OPERATION) {
        label = (struct profile_label){.name = operation_name(call->operation),
                                       .kind = PROFILE_OPERATION,
                                       .shape = operation_linear_shape(call->operation, call->args)};
        work = cost_of_operation(call->operation, call->args);
    }
    return (watched->pending ? watch_on_stream : watch_on_host)(watched, call, &label, work);
}

// ---- watching devices

static enum status open_events(struct watched *watched) {
    watched->free = NONE;
    if (!watched->device->gpu)
        return STATUS_OK;
    watched->pending = allocate(MOST_PENDING, sizeof *watched->pending);
    for (int i = MOST_PENDING - 1; i >= 0; i--) {
        struct pending *pending = &watched->pending[i];
        TRY(event_init_timed(&pending->begin, watched->device));
        TRY(event_init_timed(&pending->end, watched->device));
        pending->next = watched->free;
        watched->free = i;
    }
    if (!watched->profile->base.mark)
        return event_init_timed(&watched->profile->base, watched->device);
    return STATUS_OK;
}

enum status profile_watch(struct profile *profile, struct device *device, const char *name) {
    assert(profile->n_watched < PROFILE_MOST_DEVICES && !device->watched);
    struct watched *watched = allocate(1, sizeof *watched);
    *watched = (struct watched){.profile = profile, .device = device};
    snprintf(watched->name, sizeof watched->name, "%s", name);
    profile->watched[profile->n_watched++] = watched;
    device->watched = watched;
    TRY(open_events(watched));
    observe_begin(device, watch, watched);
    return STATUS_OK;
}

static void watched_delete(struct watched *watched) {
    observe_end(watched->device, watch);
    watched->device->watched = NULL;
    for (int i = 0; watched->pending && i < MOST_PENDING; i++) {
        event_free(&watched->pending[i].begin);
        event_free(&watched->pending[i].end);
    }
    free(watched->pending);
    free(watched);
}

void profile_unwatch(struct profile *profile) {
    event_free(&profile->base);
    for (int i = 0; i < PROFILE_MOST_TRACKS; i++)
        profile->lanes[i].watched = NULL;
    for (int i = 0; i < profile->n_watched; i++)
        watched_delete(profile->watched[i]);
    profile->n_watched = 0;
}

// ---- steps

static int64_t launches_of_step(const struct profile *profile) {
    return profile->step_device ? (int64_t)device_launches(profile->step_device) : 0;
}

enum status profile_step_begin(struct profile *profile, struct stream *stream) {
    assert(profile->n_steps < profile->most_steps && !profile->in_step);
    profile->account = own_track(profile);
    if (profile->base.mark) {
        struct watched *watched = stream->device->watched;
        TRY(drain_all(profile));
        TRY(event_record(&profile->base, stream));
        TRY(event_synchronize(&profile->base));
        profile->account = (int)(lane_of(watched, stream) - profile->lanes);
        profile->base_s = clock_monotonic_s();
    }
    pthread_mutex_lock(&profile->lock);
    profile->in_step = true;
    pthread_mutex_unlock(&profile->lock);
    profile->step_device = stream ? stream->device : NULL;
    profile->steps[profile->n_steps].launches = -launches_of_step(profile);
    profile_begin(profile, PROFILE_FRAME, "step");
    profile->steps[profile->n_steps].begin = profile->threads[own_track(profile)].stack[0].begin;
    return STATUS_OK;
}

enum status profile_step_end(struct profile *profile) {
    TRY(drain_all(profile));
    double now = end_span(profile, (struct operation_cost){0});
    pthread_mutex_lock(&profile->lock);
    profile->steps[profile->n_steps].launches += launches_of_step(profile);
    profile->steps[profile->n_steps++].end = now;
    profile->in_step = false;
    pthread_mutex_unlock(&profile->lock);
    return STATUS_OK;
}

// ---- creation and deletion

size_t profile_bytes(int most_events, int most_steps) {
    return (size_t)most_events * sizeof(struct profile_event) +
           (size_t)most_steps *
               (PROFILE_MOST_ROWS * sizeof(struct profile_sample) + sizeof(struct profile_step));
}

struct profile *profile_new(void *memory, int most_events, int most_steps) {
    static atomic_uint_fast64_t n_profiles;
    struct profile *profile = allocate(1, sizeof *profile);
    *profile = (struct profile){.number = atomic_fetch_add(&n_profiles, 1) + 1,
                                .most_events = most_events,
                                .most_steps = most_steps,
                                .threads = allocate(PROFILE_MOST_TRACKS, sizeof *profile->threads),
                                .lanes = allocate(PROFILE_MOST_TRACKS, sizeof *profile->lanes),
                                .events = memory};
    profile->samples = (struct profile_sample *)(profile->events + most_events);
    profile->steps =
        (struct profile_step *)(profile->samples + (size_t)PROFILE_MOST_ROWS * (size_t)most_steps);
    pthread_mutex_init(&profile->lock, NULL);
    (void)own_track(profile);
    return profile;
}

void profile_delete(struct profile *profile) {
    if (!profile)
        return;
    profile_unwatch(profile);
    pthread_mutex_destroy(&profile->lock);
    free(profile->threads);
    free(profile->lanes);
    free(profile);
}
