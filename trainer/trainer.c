// The training loop: steps, and between them the evaluations, samples and checkpoints that are due.
#include "trainer/trainer.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "trainer/auditing.h"
#include "trainer/checkpoints.h"
#include "trainer/setup.h"

// ---- between steps

static enum status evaluate(struct trainer *trainer) {
    return evaluator_val(&trainer->evaluator);
}

static enum status evaluate_tasks(struct trainer *trainer) {
    return evaluator_tasks(&trainer->evaluator);
}

static enum status sample(struct trainer *trainer) {
    return evaluator_sample(&trainer->evaluator);
}

static enum status audit(struct trainer *trainer) {
    return audit_state(trainer->run.audit);
}

// The ledger's entry comes first: if the run is killed between the two, its steps are repeated and compared.
static enum status save(struct trainer *trainer) {
    TRY(audit(trainer));
    pacing_record_spent(&trainer->pacing);
    return checkpoints_save(&trainer->run, trainer->data.tokenizer, &trainer->evaluator.latest);
}

// Runs `act` between two steps. The progress line and the profile's timeline show it under `name`.
//   seconds   [out] how long `act` took; may be NULL
static enum status between_steps(struct trainer *trainer, const char *name,
                                 enum status (*act)(struct trainer *trainer), double *seconds) {
    struct run_output *output = &trainer->output;
    const double began = clock_monotonic_s();
    profile_begin(output->profiler.profile, PROFILE_FRAME, name);
    progress_between(&output->progress, name, began);
    TRY(act(trainer));
    progress_between(&output->progress, NULL, clock_monotonic_s());
    profile_end(output->profiler.profile, (struct operation_cost){0});
    if (seconds)
        *seconds = clock_monotonic_s() - began;
    return STATUS_OK;
}

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

// Runs what is due after a step: evaluations, a sample, a checkpoint, the end of the profile. After the last
// step, the final evaluations of data.val and eval.tasks come after the checkpoint, because they may be long.
static enum status after_step(struct trainer *trainer) {
    struct run *run = &trainer->run;
    struct run_output *output = &trainer->output;
    const struct config *config = run->config;
    const int64_t step = run->step;
    const bool last = step == run->last_step, has_val = trainer->data.val,
               has_tasks = trainer->evaluator.tasks.list.n > 0,
               evaluates = has_val && due(config->train.eval_every, step),
               evaluates_tasks = has_tasks && due(config->eval.every, step),
               samples = due(config->train.sample_every, step), audits = audit_is_due(run->audit, step),
               saves = audit_repeats(run->audit) ? last && audit_saves(run->audit)
                                                 : last || due(config->checkpoint.every, step),
               profiled = profiler_is_full(&output->profiler);
    if (!(last || evaluates || evaluates_tasks || samples || audits || saves || profiled))
        return STATUS_OK;
    TRY(steps_finish(&trainer->steps, 0));
    // With keep_best, the last step is always evaluated: the loss decides whether its checkpoint is the best.
    if (evaluates || (has_val && last && config->checkpoint.keep_best && step > 0))
        TRY(between_steps(trainer, "evaluation", evaluate, NULL));
    if (evaluates_tasks && !last)
        TRY(between_steps(trainer, "tasks", evaluate_tasks, NULL));
    if (samples)
        TRY(between_steps(trainer, "printed sample", sample, &trainer->pacing.sample_s));
    if (audits)
        TRY(between_steps(trainer, "audit", audit, NULL));
    if (saves)
        TRY(between_steps(trainer, "checkpoint", save, &trainer->pacing.save_s));
    if (profiled || last)
        TRY(run_output_end_profile(output));
    if (has_val && last) {
        progress_between(&output->progress, "final evaluation", clock_monotonic_s());
        TRY(evaluator_val_final(&trainer->evaluator));
    }
    if (has_tasks && last) {
        progress_between(&output->progress, "tasks", clock_monotonic_s());
        TRY(evaluator_tasks(&trainer->evaluator));
    }
    run_fail_later(run, run_check_folder(run));
    return last ? run_agree_between_steps(run, run->pending) : STATUS_OK;
}

// ---- the end of a run before its last step

// Called when a step failed. Saves a checkpoint, if run->can_save. Returns `failure`, whose message then
// names the last checkpoint. If the run's folder is lost, returns that failure instead. Any other failure to
// save is only a warning.
static enum status save_progress(struct trainer *trainer, enum status failure) {
    struct run *run = &trainer->run;
    struct text reason = {0};
    if (!run->can_save || audit_repeats(run->audit))
        return failure;
    if (steps_finish(&trainer->steps, 0) != STATUS_OK || run->saved_step == run->step)
        return failure;
    TRY(checkpoints_take_failure(run, &reason));
    log_live_end();
    progress_between(&trainer->output.progress, "checkpoint", clock_monotonic_s());
    if (save(trainer) != STATUS_OK)
        log_warning("the progress up to step %lld could not be saved: %s", (long long)run->step,
                    status_message());
    status_clear();
    if (run->saved_step >= 0)
        text_add(&reason, "; the checkpoint of step %lld in %s is kept", (long long)run->saved_step,
                 run->folder.checkpoints);
    failure = FAIL(failure, "%s", reason.data);
    text_free(&reason);
    return run_agree(run, failure); // every rank returns the same failure
}

// Ends the run because of a signal. Saves a checkpoint of the step reached, unless it has been saved already.
static enum status stop(struct trainer *trainer) {
    struct run *run = &trainer->run;
    TRY(steps_finish(&trainer->steps, 0));
    log_live_end();
    progress_between(&trainer->output.progress, NULL, clock_monotonic_s());
    if (run->saved_step != run->step && !audit_repeats(run->audit))
        TRY(between_steps(trainer, "checkpoint", save, NULL));
    TRY(run_output_end_profile(&trainer->output));
    spikes_log(&run->state.spikes);
    audit_log_head(run->audit);
    char total[32];
    log_info("stopped after step %lld%s; resume with: %s", (long long)run->step,
             run_of_total(run, total, sizeof total), trainer->command);
    return STATUS_STOPPED;
}

// ---- running the remaining steps

// Updates the message that a second signal prints before it ends the process at once. The message names the
// last checkpoint. Only rank 0 has one.
static void note_saved(struct trainer *trainer) {
    const struct run *run = &trainer->run;
    if (run_leads(run))
        progress_saved(&trainer->output.progress, run->saved_step, run->folder.checkpoints, trainer->command);
}

static void log_complete(const struct run *run) {
    const struct config *config = run->config;
    const bool by_time = config->train.max_minutes > 0 && run->step < config->train.max_steps;
    log_info("the run in %s is complete: %lld of %lld steps; raise %s to continue it, or choose another "
             "run.dir",
             run->folder.path, (long long)run->step, (long long)run->last_step,
             by_time ? "train.max_minutes" : "train.max_steps");
}

static void log_done(const struct trainer *trainer, int64_t n_steps, double seconds) {
    const struct run *run = &trainer->run;
    char duration[32];
    log_live_end();
    log_info("done: %lld step%s in %s; the run is in %s", (long long)n_steps, n_steps == 1 ? "" : "s",
             text_duration(duration, sizeof duration, seconds), run->folder.path);
    training_data_log_drawn(&trainer->data);
    spikes_log(&run->state.spikes);
    audit_log_head(run->audit);
    if (trainer->output.progress.has_last)
        metrics_log_measured(&trainer->output.progress.last, run->comm->world);
}

// Runs the remaining steps.
static enum status train(struct trainer *trainer) {
    const struct run *run = &trainer->run;
    const double began = clock_monotonic_s(), step_s = pacing_estimate_step_s(&trainer->pacing);
    const int64_t first = run->step;
    progress_start(&trainer->output.progress, run->step,
                   pacing_estimate_total(&trainer->pacing, run->step, step_s), step_s, run_leads(run));
    note_saved(trainer);
    if (run->step == run->last_step) // there are no steps: evaluate and save the initial weights
        TRY(after_step(trainer));
    while (run->step < run->last_step) {
        enum status status = steps_issue(&trainer->steps);
        if (status == STATUS_STOPPED)
            status = stop(trainer);
        else if (status == STATUS_OK)
            status = steps_finish(&trainer->steps, steps_may_be_ahead(&trainer->steps) ? 1 : 0);
        if (status == STATUS_OK)
            status = after_step(trainer);
        if (status != STATUS_OK)
            return status == STATUS_STOPPED ? status : save_progress(trainer, status);
        note_saved(trainer);
    }
    log_done(trainer, run->step - first, clock_monotonic_s() - began);
    return STATUS_OK;
}

// Makes all ranks exit as if they had received the same signal: that of the lowest rank that received one.
// Returns STATUS_STOPPED, or the failure to exchange the signals.
static enum status agree_on_signal(struct comm *comm) {
    int32_t number = signals_number(), *all = allocate((size_t)comm->world, sizeof *all);
    enum status status = comm_gather(comm, &number, sizeof number, all);
    for (int rank = comm->world - 1; rank >= 0; rank--)
        number = all[rank] ? all[rank] : number;
    signals_agree_on(number);
    free(all);
    return status == STATUS_OK ? STATUS_STOPPED : status;
}

enum status trainer_repeat(struct config *config, const char *command, struct comm *comm,
                           const struct audit_task *task) {
    bool complete = false;
    signals_catch();
    struct trainer *trainer = trainer_new(config, command, comm, task);
    enum status status = trainer_setup(trainer, &complete);
    if (status == STATUS_OK && complete)
        log_complete(&trainer->run);
    else if (status == STATUS_OK)
        status = train(trainer);
    if (status == STATUS_OK && task && trainer->run.step < task->until)
        status =
            FAIL(STATUS_FAILED,
                 "step %lld differs: the run, as it was configured, ends before it, but its ledger goes on",
                 (long long)trainer->run.step + 1);
    if (status == STATUS_STOPPED)
        status = agree_on_signal(comm);
    log_live_end();
    run_output_end_session(&trainer->output, status);
    trainer_delete(trainer);
    return status;
}

enum status trainer_run(struct config *config, const char *command, struct comm *comm) {
    return trainer_repeat(config, command, comm, NULL);
}
