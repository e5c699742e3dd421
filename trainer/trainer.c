// The training loop. A step: forward and backward of each micro-batch, the gradient norm, the optimizer's
// update; then evaluation, samples and checkpoints that are due.
#include "trainer/trainer.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "trainer/schedule.h"
#include "trainer/signals.h"
#include "trainer/trainer_internal.h"
#include "zero/comm/sum_tree.h"

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

// What each rank sends to all others after each step.
struct step_report {
    double loss_sum, memory_peak;
    double seconds; // since the step began
    struct pacing_report pacing;
    int64_t batch_status; // the worst of the step's micro-batches
};

// Loads micro-batch k of this rank. For k == 0 all ranks agree whether it loaded, and whether any rank was
// asked to stop (STATUS_STOPPED). If a later one fails to load, *batch_status keeps the failure for the
// step's report. Until then this rank repeats the micro-batch before it, because the other ranks' collectives
// need this rank.
static enum status next_batch(struct trainer *trainer, int64_t k, enum status *batch_status,
                              const int32_t **tokens, const int32_t **targets) {
    const struct config *config = trainer->config;
    int64_t data_step = config->train.overfit_one_batch ? 0 : trainer->step;
    int64_t row = (k * trainer->comm->world + trainer->comm->rank) * config->train.micro_batch_size;
    profile_begin(trainer->profiler.profile, PROFILE_SPAN, "load data");
    enum status status = *batch_status;
    if (status == STATUS_OK)
        status = loader_batch(trainer->train, data_step, (int)row, tokens, targets);
    profile_end(trainer->profiler.profile, (struct operation_cost){0});
    if (k > 0) {
        *batch_status = status;
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        status = trainer->pending;
    if (status == STATUS_OK && signals_stop_requested())
        status = STATUS_STOPPED;
    return trainer_agree_between_steps(trainer, status);
}

// Skipped steps count neither for the schedule nor for Adam's bias correction.
static int64_t updates_so_far(const struct trainer *trainer) {
    return trainer->step - trainer->loss_scale.skipped;
}

// Accumulates the gradients of the step over its micro-batches. The weights are not changed.
//   loss_sum       [out] sum over this rank's tokens
//   batch_status   [out] not STATUS_OK if a micro-batch failed to load; then gradients and loss are
//                  meaningless
static enum status accumulate(struct trainer *trainer, double *loss_sum, enum status *batch_status) {
    const struct config *config = trainer->config;
    int64_t n_micro = config->train.gradient_accumulation_steps;
    double n_tokens = (double)(config->train.train_batch_size * config->train.seq_len);
    float scale = (float)(loss_scale_factor(&trainer->loss_scale) / n_tokens);
    struct gradients *gradients = &trainer->engine.state.gradients;
    int64_t updates = updates_so_far(trainer);
    optimizer_expect(&trainer->engine.optimizer, updates + 1, trainer_lr(trainer),
                     loss_scale_factor(&trainer->loss_scale));
    const int32_t *tokens = NULL, *targets = NULL;
    *loss_sum = 0;
    *batch_status = STATUS_OK;
    for (int64_t k = 0; k < n_micro; k++) {
        double micro_sum;
        TRY(next_batch(trainer, k, batch_status, &tokens, &targets));
        TRY(gradients_begin(gradients, &trainer->stream, k, n_micro));
        TRY(gpt_forward_backward(trainer->engine.gpt, &trainer->stream, &trainer->engine.state.hooks, tokens,
                                 targets, scale, &micro_sum));
        *loss_sum += micro_sum;
        progress_micro_batch(&trainer->progress, k + 1, clock_monotonic_s());
    }
    return gradients_finish(gradients, &trainer->stream);
}

// Gathers the reports of all ranks: the mean loss of the step (added along the tree) and the largest memory.
//   mine       this rank's report
//   first      [out] rank 0's report
//   whole      [out] true if every rank loaded all its micro-batches
static enum status gather_reports(struct trainer *trainer, const struct step_report *mine,
                                  struct step_metrics *now, struct step_report *first, bool *whole) {
    const struct config *config = trainer->config;
    struct comm *comm = trainer->comm;
    struct step_report *all = calloc((size_t)comm->world, sizeof *all);
    if (!all)
        return FAIL(STATUS_FAILED, "out of memory for the reports of %d ranks", comm->world);
    enum status status = comm_gather(comm, mine, sizeof *mine, all);
    double losses[comm->world];
    *whole = true;
    for (int rank = 0; rank < comm->world && status == STATUS_OK; rank++) {
        losses[rank] = all[rank].loss_sum;
        *whole = *whole && all[rank].batch_status == STATUS_OK;
        now->total_bytes = fmax((double)now->total_bytes, all[rank].memory_peak);
    }
    if (status == STATUS_OK)
        now->loss =
            sum_tree(losses, comm->world) / (double)(config->train.train_batch_size * config->train.seq_len);
    *first = all[0];
    free(all);
    return status;
}

// Decides whether the gradients overflowed, so that the step is skipped. Without loss scaling this is an
// error: skipping would not help.
static enum status check_overflow(struct trainer *trainer, const struct step_metrics *now, bool *overflow) {
    *overflow = !isfinite(now->loss) || !isfinite(now->grad_norm);
    if (*overflow && trainer->loss_scale.scale == 0)
        return FAIL(
            STATUS_FAILED,
            "step %lld: the loss is %g and the gradient norm %g; the run has diverged. The last checkpoint "
            "is kept; lower optimizer.lr, or resume from an earlier one with checkpoint.resume=PATH",
            (long long)now->step, now->loss, now->grad_norm);
    TRY(loss_scale_update(&trainer->loss_scale, trainer->config, trainer->step, *overflow));
    if (*overflow) {
        log_live_end();
        log_info("step %lld  gradients overflowed: step skipped; the loss scale is %g", (long long)now->step,
                 trainer->loss_scale.scale);
    }
    return STATUS_OK;
}

// Communication since `before`, with the plan's figures for a step.
static void measure_traffic(const struct trainer *trainer, const struct comm_traffic *before,
                            struct step_metrics *now) {
    const struct comm_traffic *after = &trainer->comm->traffic;
    for (int i = COMM_REDUCE_SCATTER; i <= COMM_ALL_REDUCE; i++) {
        now->comm_bytes += after->bytes[i] - before->bytes[i];
        now->comm_calls += after->calls[i] - before->calls[i];
    }
    now->comm_planned_bytes = comm_volume_bytes(&trainer->volume);
    now->comm_planned_calls = comm_volume_calls(&trainer->volume);
    double busy = after->busy_s - before->busy_s, waited = after->waited_s - before->waited_s;
    now->comm_ms = busy * 1e3;
    now->comm_hidden = busy > 0 ? fmax(0, 1 - waited / busy) : 0;
}

// The optimizer's update; skipped if the gradients overflowed.
static enum status update(struct trainer *trainer, struct step_metrics *now) {
    struct optimizer *optimizer = &trainer->engine.optimizer;
    double scale = loss_scale_factor(&trainer->loss_scale), norm;
    int64_t updates = updates_so_far(trainer);
    bool overflow;
    now->loss_scale = scale;
    now->lr = trainer_lr(trainer);
    TRY(optimizer_norm(optimizer, &trainer->stream, &norm));
    now->grad_norm = norm / scale;
    enum status status = check_overflow(trainer, now, &overflow);
    if (status != STATUS_OK) // the same on all ranks: loss and norm are equal to the bit
        return trainer_agree(trainer, status);
    now->skipped_steps = trainer->loss_scale.skipped;
    if (overflow)
        return optimizer_skip(optimizer, &trainer->stream);
    TRY(optimizer_update(optimizer, &trainer->stream, updates + 1, now->lr, now->grad_norm, scale));
    return trainer->device->synchronize(&trainer->stream);
}

// A rank failed to load a micro-batch: all ranks discard the step.
static enum status give_up_step(struct trainer *trainer, enum status batch_status) {
    struct optimizer *optimizer = &trainer->engine.optimizer;
    double norm;
    TRY(optimizer_norm(optimizer, &trainer->stream, &norm));
    TRY(optimizer_skip(optimizer, &trainer->stream));
    return trainer_agree_between_steps(trainer, batch_status);
}

// Steps of the whole run, for the screen. With train.max_minutes a guess until the first decision.
static int64_t estimate_total(const struct trainer *trainer, int64_t done, double step_s) {
    const double minutes = trainer->config->train.max_minutes;
    if (minutes == 0 || trainer->history.n_decisions > 0)
        return trainer->last_step;
    double left = fmax(0, (60 * minutes - trainer_spent_s(trainer)) / step_s);
    return left < (double)(trainer->last_step - done) ? done + (int64_t)left : trainer->last_step;
}

// Host memory that the regions took, of all kinds.
static size_t measured_on_host(const struct trainer *trainer) {
    size_t bytes = 0;
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        bytes += trainer->memory.taken[kind];
    return bytes - region_place_bytes(&trainer->memory.table, REGION_DEVICE);
}

static enum status train_step(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct step_metrics now = {.step = trainer->step + 1};
    const struct comm_traffic before = trainer->comm->traffic;
    double began = clock_monotonic_s(), loss_sum;
    struct step_report first;
    enum status batch_status;
    bool whole = false;
    progress_step_begin(&trainer->progress, began);
    TRY(profiler_step_begin(&trainer->profiler, &trainer->stream));
    TRY(accumulate(trainer, &loss_sum, &batch_status));
    const struct step_report report = {.loss_sum = loss_sum,
                                       .memory_peak = (double)metrics_peak_memory(),
                                       .seconds = clock_monotonic_s() - began,
                                       .pacing = trainer_pacing_report(trainer),
                                       .batch_status = batch_status};
    TRY(gather_reports(trainer, &report, &now, &first, &whole));
    if (!whole)
        return give_up_step(trainer, batch_status);
    profiler_set_phase(&trainer->profiler, PROFILER_UPDATE);
    TRY(update(trainer, &now));
    TRY(profiler_step_end(&trainer->profiler));
    now.speculates = trainer->engine.optimizer.speculation != NULL;
    now.stepped_ahead = trainer->engine.optimizer.stepped_ahead;
    // Reports of other ranks are from before the update, and the first update takes more memory.
    now.total_bytes = (size_t)fmax((double)now.total_bytes, (double)metrics_peak_memory());
    double seconds = clock_monotonic_s() - began;
    comm_expect_seconds(trainer->comm, seconds);

    int64_t step_tokens = config->train.train_batch_size * config->train.seq_len;
    double step_flops =
        params_flops_per_token(&trainer->params, (int)config->train.seq_len) * (double)step_tokens;
    TRY(trainer_check_rate(trainer, step_flops / first.seconds));
    trainer->step++;
    trainer->tokens += step_tokens;
    trainer_pacing_measure(trainer, seconds);
    trainer_fail_later(trainer, trainer_pace(trainer, &first.pacing));
    if (!trainer_leads(trainer))
        return STATUS_OK;
    now.total = estimate_total(trainer, now.step, seconds);
    now.tokens = trainer->tokens;
    now.tokens_per_s = (double)step_tokens / seconds;
    now.step_ms = seconds * 1e3;
    now.of_gemm = step_flops / seconds / trainer->gemm_rate;
    now.mfu = trainer->dense_peak > 0 ? step_flops / seconds / trainer->dense_peak : now.of_gemm;
    now.mfu_of_dense_peak = trainer->dense_peak > 0;
    measure_traffic(trainer, &before, &now);
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        now.planned[kind] = region_kind_bytes(&trainer->memory.table, (enum region_kind)kind);
        now.measured[kind] = trainer->memory.taken[kind];
    }
    now.total_planned_bytes =
        region_place_bytes(&trainer->memory.table, REGION_HOST) + trainer->program_bytes;
    now.model_planned_bytes = region_place_bytes(&trainer->memory.table, REGION_HOST);
    now.model_bytes = measured_on_host(trainer);
    now.threads = (trainer->host_device ? trainer->host_device : trainer->device)->n_threads;
    now.device_planned_bytes = region_place_bytes(&trainer->memory.table, REGION_DEVICE);
    if (trainer->device->place == REGION_DEVICE)
        now.device_bytes =
            trainer->memory.device_measured + comm_sums_bytes(trainer->comm->world, REGION_DEVICE);
    progress_step(&trainer->progress, &now, clock_monotonic_s());
    trainer_fail_later(trainer, metrics_step(&trainer->metrics, &now));
    return STATUS_OK;
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

// Evaluation, a sample and a checkpoint, each if it is due. The final evaluation may be long, so it comes
// after the last checkpoint.
static enum status after_step(struct trainer *trainer, bool last) {
    const struct config *config = trainer->config;
    const bool judged = last && config->checkpoint.keep_best && trainer->step > 0;
    if (trainer->val && (judged || due(config->train.eval_every, trainer->step)))
        TRY(between_steps(trainer, "evaluation", trainer_evaluate, NULL));
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
    return last ? trainer_agree_between_steps(trainer, trainer->pending) : STATUS_OK;
}

// Saves a checkpoint before a failure ends the run, if can_save. Returns that failure; one of the save itself
// is only a warning.
static enum status save_progress(struct trainer *trainer, enum status failure) {
    struct text reason = {0};
    if (!trainer->can_save || trainer->saved_step == trainer->step)
        return failure;
    text_add(&reason, "%s", status_message());
    status_clear();
    log_live_end();
    progress_between(&trainer->progress, "checkpoint", clock_monotonic_s());
    if (trainer_save(trainer) != STATUS_OK)
        log_warning("the progress up to step %lld could not be saved: %s", (long long)trainer->step,
                    status_message());
    status_clear();
    if (trainer->saved_step >= 0)
        text_add(&reason, "; the checkpoint of step %lld in %s is kept", (long long)trainer->saved_step,
                 trainer->folder.checkpoints);
    failure = FAIL(failure, "%s", reason.data ? reason.data : "the run failed");
    text_free(&reason);
    return trainer_agree(trainer, failure); // all ranks return it
}

static enum status stop(struct trainer *trainer) {
    log_live_end();
    progress_between(&trainer->progress, NULL, clock_monotonic_s());
    if (trainer->saved_step != trainer->step)
        TRY(between_steps(trainer, "checkpoint", trainer_save, NULL));
    TRY(trainer_profile_end(trainer));
    log_info("stopped after step %lld of %lld; resume with: %s", (long long)trainer->step,
             (long long)trainer->last_step, trainer->command);
    return STATUS_STOPPED;
}

// Tells the signal's handler what a stop at once would keep. Only rank 0 prints.
static void note_saved(struct trainer *trainer) {
    if (trainer_leads(trainer))
        progress_saved(&trainer->progress, trainer->saved_step, trainer->folder.checkpoints,
                       trainer->command);
}

// The fraction of the GEMM rate that whole steps reach: about the least that benchmarks/cpu.md has on CPUs;
// on GPUs, what llm.c and Megatron-LM report.
#define STEP_EFFICIENCY_CPU 0.75
#define STEP_EFFICIENCY_GPU 0.5

static double estimate_step_s(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    double tokens = (double)(config->train.train_batch_size * config->train.seq_len);
    double efficiency = trainer->device->place == REGION_DEVICE ? STEP_EFFICIENCY_GPU : STEP_EFFICIENCY_CPU;
    return params_flops_per_token(&trainer->params, (int)config->train.seq_len) * tokens /
           (efficiency * trainer->gemm_rate);
}

static enum status train_loop(struct trainer *trainer) {
    const double step_s = estimate_step_s(trainer);
    progress_start(&trainer->progress, trainer->step, estimate_total(trainer, trainer->step, step_s), step_s,
                   trainer_leads(trainer));
    note_saved(trainer);
    if (trainer->step == trainer->last_step) // no steps: evaluate and save the initial weights
        return after_step(trainer, true);
    while (trainer->step < trainer->last_step) {
        enum status status = train_step(trainer);
        if (status == STATUS_STOPPED)
            return stop(trainer);
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
    if (trainer->progress.has_last)
        metrics_log_measured(&trainer->progress.last);
    return STATUS_OK;
}

enum status trainer_run(struct config *config, const char *command, struct comm *comm) {
    struct trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer)
        return FAIL(STATUS_FAILED, "out of memory for a trainer");
    trainer->config = config;
    trainer->command = command;
    trainer->comm = comm;
    trainer->began_s = clock_monotonic_s();
    signals_catch();
    progress_init(&trainer->progress, config, comm->world);
    enum status status = run(trainer);
    log_live_end();
    progress_free(&trainer->progress);
    trainer_free(trainer);
    free(trainer);
    return status;
}
