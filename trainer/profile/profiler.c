// Wraps the model's hooks to find out which unit is in use. kernels/profile.c does the timing.
#include "trainer/profile/profiler.h"

#include <assert.h>

#define NOWHERE ((struct profile_place){-1, -1})

const char *profiler_phase_name(int phase) {
#define PROFILER_TEXT(constant, name) name,
    static const char *const names[N_PROFILER_PHASES] = {PROFILER_PHASES(PROFILER_TEXT)};
#undef PROFILER_TEXT
    return phase < 0 ? "" : names[phase];
}

static int events_of(int world) {
    return PROFILER_EVENTS / world > PROFILER_LEAST ? PROFILER_EVENTS / world : PROFILER_LEAST;
}

enum status profiler_plan(int world, struct region_table *table, int *region) {
    return region_add(table, REGION_DATA, REGION_HOST, DTYPE_U8,
                      profile_bytes(events_of(world), PROFILER_STEPS), region, "profile");
}

// ---- the hooks

// Returns the phase of work in a unit. With tied weights, lm_head uses the unit of the embeddings, which is
// then acquired while the last unit is.
static int phase_of(const struct profiler *profiler, int unit, enum gpt_pass pass) {
    if (!profiler->profile->in_step)
        return -1;
    bool lm_head = unit == profiler->last_unit || profiler->depth > 0;
    return lm_head ? PROFILER_LM_HEAD : pass == GPT_FORWARD ? PROFILER_FORWARD : PROFILER_BACKWARD;
}

static void enter(struct profiler *profiler, struct profile_place place) {
    assert(profiler->depth < PROFILER_MOST_NESTED);
    profiler->places[profiler->depth++] = place;
    profile_set_place(profiler->profile, place);
    profile_begin(profiler->profile, PROFILE_FRAME, "unit");
}

static void leave(struct profiler *profiler) {
    profile_end(profiler->profile, (struct operation_cost){0});
    profiler->depth--;
    profile_set_place(profiler->profile,
                      profiler->depth > 0 ? profiler->places[profiler->depth - 1] : NOWHERE);
}

static enum status begin(void *context, enum trace_kind kind) {
    const struct unit_hooks *model = &((struct profiler *)context)->model;
    return model->begin(model->context, kind);
}

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    struct profiler *profiler = context;
    enter(profiler, (struct profile_place){phase_of(profiler, unit, pass), unit});
    profile_begin(profiler->profile, PROFILE_SPAN, "acquire parameters");
    enum status status = profiler->model.params_acquire(profiler->model.context, stream, unit, pass, view);
    profile_end(profiler->profile, (struct operation_cost){0});
    return status;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    struct profiler *profiler = context;
    profile_begin(profiler->profile, PROFILE_SPAN, "release parameters");
    enum status status = profiler->model.params_release(profiler->model.context, stream, unit, pass);
    profile_end(profiler->profile, (struct operation_cost){0});
    leave(profiler);
    return status;
}

static enum status ready(void *context, struct stream *stream, int unit) {
    struct profiler *profiler = context;
    profile_begin(profiler->profile, PROFILE_SPAN, "gradients ready");
    enum status status = profiler->model.grads_ready(profiler->model.context, stream, unit);
    profile_end(profiler->profile, (struct operation_cost){0});
    return status;
}

// ---- start and stop

enum status profiler_start(struct profiler *profiler, const struct profiler_request *request) {
    bool on_device = request->device->place == REGION_DEVICE;
    struct profile *profile = profile_new(request->memory, events_of(request->comm->world), PROFILER_STEPS);
    *profiler = (struct profiler){.profile = profile,
                                  .comm = request->comm,
                                  .model = *request->hooks,
                                  .hooks = request->hooks,
                                  .last_unit = request->last_unit,
                                  .first_step = request->step};
    TRY(profile_watch(profile, request->device, on_device ? "GPU" : "CPU"));
    TRY(profile_watch(profile, request->comm_device, on_device ? "GPU, communication" : "communication"));
    if (request->host_device)
        TRY(profile_watch(profile, request->host_device, "host"));
    *request->hooks = (struct unit_hooks){.context = profiler,
                                          .begin = request->hooks->begin ? begin : NULL,
                                          .params_acquire = acquire,
                                          .params_release = release,
                                          .grads_ready = ready};
    request->comm->profile = profile;
    return STATUS_OK;
}

static void unhook(struct profiler *profiler) {
    if (!profiler->hooks)
        return;
    *profiler->hooks = profiler->model;
    profiler->comm->profile = NULL;
    profiler->hooks = NULL;
}

enum status profiler_stop(struct profiler *profiler) {
    if (!profiler->profile)
        return STATUS_OK;
    // Until this wait ends, the communication thread may use comm_device.
    TRY(comm_wait(profiler->comm, NULL, COMM_WORK_ALL));
    unhook(profiler);
    profile_unwatch(profiler->profile);
    return STATUS_OK;
}

void profiler_free(struct profiler *profiler) {
    if (!profiler->profile)
        return;
    unhook(profiler);
    profile_delete(profiler->profile);
    *profiler = (struct profiler){0};
}

// ---- steps

enum status profiler_step_begin(struct profiler *profiler, struct stream *stream) {
    if (!profiler->profile)
        return STATUS_OK;
    profile_set_place(profiler->profile, NOWHERE);
    return profile_step_begin(profiler->profile, stream);
}

enum status profiler_step_end(struct profiler *profiler) {
    if (!profiler->profile)
        return STATUS_OK;
    profile_set_place(profiler->profile, NOWHERE);
    // Wait here, because otherwise the wait would count as time of the next step.
    TRY(comm_wait(profiler->comm, NULL, COMM_WORK_ALL));
    return profile_step_end(profiler->profile);
}

void profiler_set_phase(struct profiler *profiler, int phase) {
    profile_set_place(profiler->profile, (struct profile_place){phase, -1});
}

bool profiler_is_full(const struct profiler *profiler) {
    return profiler->profile && profiler->profile->n_steps == PROFILER_STEPS;
}
