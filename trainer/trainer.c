// The training loop: steps (step.c), and between them evaluation, samples and checkpoints that are due.
#include "trainer/trainer.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "trainer/trainer_internal.h"

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

// Runs something that happens between steps, as a frame of the profile's timeline.
//   seconds   [out] how long it took; may be NULL
static enum status between_steps(struct trainer *trainer, const char *name,
                                 enum status (*act)(struct trainer *trainer), double *seconds) {
    const double began = clock_monotonic_s();
    profile_begin(trainer->profiler.profile, PROFILE_FRAME, name);
    progress_between(&trainer->progress, name, began);
    TRY(act(trainer));
    progress_between(&trainer->progress, NULL, clock_monotonic_s());
    profile_end(trainer->profiler.profile, (struct operation_cost){0});
    if (seconds)
        *seconds = clock_monotonic_s() - began;
    return STATUS_OK;
}

// True if something is to be done before the next step.
static bool is_anything_due(const struct trainer *trainer, bool last) {
    const struct config *config = trainer->config;
    return last || (trainer->val && due(config->train.eval_every, trainer->step)) ||
           (trainer->tasks.list.n > 0 && due(config->eval.every, trainer->step)) ||
           due(config->train.sample_every, trainer->step) || due(config->checkpoint.every, trainer->step) ||
           profiler_is_full(&trainer->profiler);
}

// Evaluations, a sample and a checkpoint, each if it is due. The final evaluations may be long, so they come
// after the last checkpoint.
static enum status after_step(struct trainer *trainer, bool last) {
    const struct config *config = trainer->config;
    if (!is_anything_due(trainer, last))
        return STATUS_OK;
    TRY(trainer_finish_steps(trainer, 0));
    const bool judged = last && config->checkpoint.keep_best && trainer->step > 0;
    if (trainer->val && (judged || due(config->train.eval_every, trainer->step)))
        TRY(between_steps(trainer, "evaluation", trainer_evaluate, NULL));
    if (trainer->tasks.list.n > 0 && due(config->eval.every, trainer->step) && !last)
        TRY(between_steps(trainer, "tasks", trainer_evaluate_tasks, NULL));
    if (due(config->train.sample_every, trainer->step))
        TRY(between_steps(trainer, "printed sample", trainer_sample, &trainer->pacing.sample_s));
    if (last || due(config->checkpoint.every, trainer->step))
        TRY(between_steps(trainer, "checkpoint", trainer_save, &trainer->pacing.save_s));
    if (profiler_is_full(&trainer->profiler) || last)
        TRY(trainer_profile_end(trainer));
    if (trainer->val && last) {
        progress_between(&trainer->progress, "final evaluation", clock_monotonic_s());
        TRY(trainer_evaluate_final(trainer));
    }
    if (trainer->tasks.list.n > 0 && last) {
        progress_between(&trainer->progress, "tasks", clock_monotonic_s());
        TRY(trainer_evaluate_tasks(trainer));
    }
    trainer_fail_later(trainer, trainer_check_folder(trainer));
    return last ? trainer_agree_between_steps(trainer, trainer->pending) : STATUS_OK;
}

// Saves a checkpoint before a failure ends the run, if can_save. Returns that failure; one of the save itself
// is only a warning.
static enum status save_progress(struct trainer *trainer, enum status failure) {
    struct text reason = {0};
    if (!trainer->can_save)
        return failure;
    if (trainer_finish_steps(trainer, 0) != STATUS_OK || trainer->saved_step == trainer->step)
        return failure;
    TRY(trainer_take_failure(trainer, &reason));
    log_live_end();
    progress_between(&trainer->progress, "checkpoint", clock_monotonic_s());
    if (trainer_save(trainer) != STATUS_OK)
        log_warning("the progress up to step %lld could not be saved: %s", (long long)trainer->step,
                    status_message());
    status_clear();
    if (trainer->saved_step >= 0)
        text_add(&reason, "; the checkpoint of step %lld in %s is kept", (long long)trainer->saved_step,
                 trainer->folder.checkpoints);
    failure = FAIL(failure, "%s", reason.data);
    text_free(&reason);
    return trainer_agree(trainer, failure); // all ranks return it
}

static enum status stop(struct trainer *trainer) {
    TRY(trainer_finish_steps(trainer, 0));
    log_live_end();
    progress_between(&trainer->progress, NULL, clock_monotonic_s());
    if (trainer->saved_step != trainer->step)
        TRY(between_steps(trainer, "checkpoint", trainer_save, NULL));
    TRY(trainer_profile_end(trainer));
    trainer_log_spikes(trainer);
    char total[32];
    log_info("stopped after step %lld%s; resume with: %s", (long long)trainer->step,
             trainer_of_total(trainer, total, sizeof total), trainer->command);
    return STATUS_STOPPED;
}

// Tells the signal's handler what a stop at once would keep. Only rank 0 prints.
static void note_saved(struct trainer *trainer) {
    if (trainer_leads(trainer))
        progress_saved(&trainer->progress, trainer->saved_step, trainer->folder.checkpoints,
                       trainer->command);
}

static enum status train_loop(struct trainer *trainer) {
    const double step_s = trainer_estimate_step_s(trainer);
    progress_start(&trainer->progress, trainer->step, trainer_estimate_total(trainer, trainer->step, step_s),
                   step_s, trainer_leads(trainer));
    note_saved(trainer);
    if (trainer->step == trainer->last_step) // no steps: evaluate and save the initial weights
        return after_step(trainer, true);
    while (trainer->step < trainer->last_step) {
        enum status status = trainer_issue_step(trainer);
        if (status == STATUS_STOPPED)
            status = stop(trainer);
        if (status == STATUS_STOPPED)
            return status;
        if (status == STATUS_OK)
            status = trainer_finish_steps(trainer, trainer_may_be_ahead(trainer) ? 1 : 0);
        if (status == STATUS_OK)
            status = after_step(trainer, trainer->step == trainer->last_step);
        if (status != STATUS_OK)
            return save_progress(trainer, status);
        note_saved(trainer);
    }
    return STATUS_OK;
}

static enum status run(struct trainer *trainer) {
    bool complete;
    TRY(trainer_setup(trainer, &complete));
    if (complete) {
        const struct config *config = trainer->config;
        const bool by_time = config->train.max_minutes > 0 && trainer->step < config->train.max_steps;
        log_info("the run in %s is complete: %lld of %lld steps; raise %s to continue it, or choose another "
                 "run.dir",
                 trainer->folder.path, (long long)trainer->step, (long long)trainer->last_step,
                 by_time ? "train.max_minutes" : "train.max_steps");
        return STATUS_OK;
    }
    double began = clock_monotonic_s();
    int64_t first = trainer->step;
    TRY(train_loop(trainer));
    log_live_end();
    char duration[32];
    log_info("done: %lld step%s in %s; the run is in %s", (long long)(trainer->step - first),
             trainer->step - first == 1 ? "" : "s",
             text_duration(duration, sizeof duration, clock_monotonic_s() - began), trainer->folder.path);
    trainer_log_drawn(trainer);
    trainer_log_spikes(trainer);
    if (trainer->progress.has_last)
        metrics_log_measured(&trainer->progress.last, trainer->comm->world);
    return STATUS_OK;
}

// All ranks exit with the number of one signal, whichever of them it came to.
static enum status agree_on_signal(struct comm *comm) {
    int32_t number = signals_number(), *all = allocate((size_t)comm->world, sizeof *all);
    enum status status = comm_gather(comm, &number, sizeof number, all);
    for (int rank = comm->world - 1; rank >= 0; rank--)
        number = all[rank] ? all[rank] : number;
    signals_agree_on(number);
    free(all);
    return status == STATUS_OK ? STATUS_STOPPED : status;
}

enum status trainer_run(struct config *config, const char *command, struct comm *comm) {
    struct trainer *trainer = allocate(1, sizeof *trainer);
    trainer->config = config;
    trainer->command = command;
    trainer->comm = comm;
    trainer->began_s = clock_monotonic_s();
    signals_catch();
    progress_init(&trainer->progress, config, comm->world);
    enum status status = run(trainer);
    if (status == STATUS_STOPPED)
        status = agree_on_signal(comm);
    log_live_end();
    trainer_end_session(trainer, status);
    progress_free(&trainer->progress);
    trainer_free(trainer);
    free(trainer);
    return status;
}
