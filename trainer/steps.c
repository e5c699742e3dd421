// One step of training, issued and finished. To issue a step: forward and backward of each micro-batch, the
// gradient norm, the optimizer's update. To finish it: wait until the device is done, and report it.
//
// Where the device decides on the update, and the run goes on in one way only, after an update that is done,
// the host issues a step before it finishes the one before, so that the device never waits for the host. A
// step that is issued in vain, because the one before it ends the run, changes no weights.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "kernels/update.h"
#include "trainer/schedule.h"
#include "trainer/trainer_internal.h"
#include "zero/comm/sum_tree.h"
#include "zero/stages/gradients.h"
#include "zero/stages/noise_probe.h"

// What each rank sends to all others after each step.
struct step_report {
    double loss_sum, memory_peak; // loss_sum: where the host decides
    double seconds; // since the step began; where the device decides, of the step finished last, 0: none yet
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
    profile_begin(trainer->profiler.profile, PROFILE_SPAN, "load data");
    enum status status = *batch_status;
    if (status == STATUS_OK)
        status = loader_batch(trainer->train, data_step, (int)trainer_first_row(trainer, k), tokens, targets);
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

// ---- plans

// A fault for tests of train.on_spike: the environment variable ZERO_INJECT_GRADIENTS multiplies the
// gradients of chosen steps, "STEP:FACTOR,STEP:FACTOR", where FACTOR may be nan or inf.
static float injection_factor(int64_t at) {
    const char *list = getenv("ZERO_INJECT_GRADIENTS");
    while (list && *list) {
        char *end;
        const long long step = strtoll(list, &end, 10);
        if (*end != ':')
            return 1;
        const float factor = strtof(end + 1, &end);
        if (step == at)
            return factor;
        list = *end == ',' ? end + 1 : end;
        if (!strchr("0123456789", *list))
            return 1;
    }
    return 1;
}

// Plans the next step. If the one before is not finished, as if its update were done.
static void plan_step(struct trainer *trainer, struct trainer_step *step) {
    const bool is_ahead = trainer->n_finished < trainer->n_issued;
    const double n_tokens = trainer_step_tokens(trainer, step->batch_size);
    const int64_t updates = trainer->step - trainer_skipped(trainer);
    struct update_plan *plan = &step->plan;
    step->limits = spikes_limits(trainer->config, &trainer->run.spikes, is_ahead);
    step->average = is_ahead ? trainer->steps[(step->slot + 1) % STEP_SLOTS].average : trainer->run.average;
    *plan = optimizer_plan(&trainer->engine.optimizer, updates + 1, trainer_lr(trainer),
                           loss_scale_factor(&trainer->run.loss_scale), n_tokens);
    plan->is_ahead = is_ahead;
    plan->loss_factor *= injection_factor(trainer->step + 1);
    plan->average_weight = averaging_next(trainer->config, plan->lr, &step->average);
    if (trainer->config->train.on_spike != CONFIG_ON_SPIKE_WARN) {
        plan->most_loss_sum = step->limits.loss * n_tokens;
        plan->most_norm = step->limits.norm;
    }
}

bool trainer_may_be_ahead(const struct trainer *trainer) {
    return trainer->device->place == REGION_DEVICE && !trainer->profiler.profile &&
           optimizer_decides_on_device(&trainer->engine.optimizer) && trainer->run.loss_scale.scale == 0 &&
           trainer->config->train.on_spike != CONFIG_ON_SPIKE_SKIP;
}

// ---- the gradient noise scale, and the batch size that follows from it

void trainer_take_batches(struct trainer *trainer) {
    trainer->batches = batch_sizes_of(trainer->config);
    if (trainer->run.noise.grown.n > 0)
        trainer->batches.stages = trainer->run.noise.grown;
}

// Whether the step after so many is measured.
static bool measures_noise(const struct trainer *trainer, int64_t batch_size) {
    const struct config *config = trainer->config;
    return config->train.noise_scale_every > 0 &&
           (trainer->step + 1) % config->train.noise_scale_every == 0 &&
           batch_size > config->train.micro_batch_size;
}

// The step after this one may be issued already, wherever the decision is made: the one after that is the
// first.
static void grow(struct trainer *trainer, const struct trainer_step *step) {
    struct config_stages *grown = &trainer->run.noise.grown;
    const int64_t batch = step->batch_size;
    if (grown->n == CONFIG_SCHEDULE_MOST ||
        batch != batch_sizes_at(&trainer->batches, step->now.step + 1) || // it has grown since
        !noise_wants_more(&trainer->run.noise, batch, trainer->config->train.max_batch_size))
        return;
    grown->stages[grown->n++] = (struct config_stage){step->now.step + 1, 2 * batch};
    trainer->run.noise.n_since = 0;
    trainer_take_batches(trainer);
    log_live_end();
    log_info("step %lld: the gradient noise scale is %.4g sequences; from step %lld on, the batch has %lld",
             (long long)step->now.step, noise_scale(&trainer->run.noise), (long long)step->now.step + 2,
             (long long)(2 * batch));
}

// Once a measured step has ended and its update was not skipped: takes up the measurement, and decides on the
// batch size of the steps after the next one. The same on all ranks.
static void note_noise(struct trainer *trainer, struct trainer_step *step) {
    const double n_small = (double)trainer->config->train.micro_batch_size,
                 n_large = (double)step->batch_size,
                 to_mean = (double)step->plan.loss_factor * n_small * (double)trainer->config->train.seq_len;
    noise_record_add(&trainer->run.noise, step->small_square / (to_mean * to_mean), n_small,
                     step->now.grad_norm * step->now.grad_norm, n_large);
    step->now.measures_noise = true;
    step->now.noise_scale = noise_scale(&trainer->run.noise);
    if (!isnan(step->now.noise_scale)) {
        log_live_end();
        log_info("step %lld: gradient noise scale %.4g sequences, batch %lld", (long long)step->now.step,
                 step->now.noise_scale, (long long)step->batch_size);
    }
    grow(trainer, step);
}

// ---- gradients

static enum status begin_update(struct trainer *trainer, const struct trainer_step *step) {
    struct optimizer *optimizer = &trainer->engine.optimizer;
    if (optimizer_decides_on_device(optimizer))
        return optimizer_begin(optimizer, &trainer->stream, step->slot, &step->plan);
    optimizer->average_weight = step->plan.average_weight;
    return STATUS_OK;
}

// Micro-batch k of n_micro.
struct micro_batch {
    struct trainer *trainer;
    const struct trainer_step *step;
    const struct unit_hooks *hooks;
    int64_t k, n_micro;
};

// Forward and backward of the micro-batch that was loaded, and the reductions that end with it.
static enum status train_micro_batch(void *context) {
    const struct micro_batch *micro = context;
    struct trainer *trainer = micro->trainer;
    struct engine *engine = &trainer->engine;
    struct gradients *gradients = &engine->state.gradients;
    const bool device_decides = optimizer_decides_on_device(&engine->optimizer);
    const struct gpt_loss loss = {.scale = micro->step->plan.loss_factor,
                                  .scale_from =
                                      device_decides ? optimizer_loss_factor(&engine->optimizer) : NULL,
                                  .sum = optimizer_loss_sum(&engine->optimizer),
                                  .accumulate = micro->k > 0};
    TRY(gradients_begin(gradients, &trainer->stream, micro->k, micro->n_micro));
    TRY(gpt_train(engine->gpt, &trainer->stream, micro->hooks, &loss));
    return micro->k == micro->n_micro - 1 ? gradients_finish(gradients, &trainer->stream) : STATUS_OK;
}

// The same, not as a graph, with the sum of the gradients' squares: its mean over the ranks.
static enum status measure_micro_batch(struct micro_batch *micro, double *square) {
    struct trainer *trainer = micro->trainer;
    const struct comm *comm = trainer->comm;
    struct noise_probe probe = {.params = &trainer->params,
                                .optimizer = &trainer->engine.state.stage.groups,
                                .hooks = micro->hooks,
                                .sums = trainer->engine.noise_sums};
    const struct unit_hooks hooks = noise_probe_hooks(&probe);
    double mine, all[comm->world];
    micro->hooks = &hooks;
    TRY(train_micro_batch(micro));
    TRY(noise_probe_finish(&probe, &trainer->stream, &mine));
    TRY(comm_gather(trainer->comm, &mine, sizeof mine, all));
    *square = sum_tree(all, comm->world) / comm->world;
    return STATUS_OK;
}

// Accumulates the gradients of the step over its micro-batches. The weights are not changed.
//   batch_status   [out] not STATUS_OK if a micro-batch failed to load; then gradients and loss are
//                  meaningless
static enum status accumulate(struct trainer *trainer, struct trainer_step *step, enum status *batch_status) {
    const int64_t n_micro = trainer_micro_batches(trainer, step->batch_size);
    const int32_t *tokens = NULL, *targets = NULL;
    *batch_status = STATUS_OK;
    for (int64_t k = 0; k < n_micro; k++) {
        struct micro_batch micro = {trainer, step, &trainer->engine.state.hooks, k, n_micro};
        const int kind = (k == 0) + 2 * (k == n_micro - 1);
        TRY(next_batch(trainer, k, batch_status, &tokens, &targets));
        if (k == 0)
            TRY(begin_update(trainer, step));
        TRY(gpt_load(trainer->engine.gpt, &trainer->stream, tokens, targets,
                     trainer_first_token(trainer, trainer->tokens, k)));
        if (k == 0 && measures_noise(trainer, step->batch_size))
            TRY(measure_micro_batch(&micro, &step->small_square));
        else
            TRY(trainer_graph_run(trainer, &trainer->graphs.micro_batches[kind], train_micro_batch, &micro));
        progress_micro_batch(&trainer->progress, k + 1, clock_monotonic_s());
    }
    return STATUS_OK;
}

// ---- reports

// Gathers the reports of all ranks: the sum of their losses (added along the tree) and the largest memory.
//   mine       this rank's report
//   loss_sum   [out]
//   first      [out] rank 0's report
//   whole      [out] true if every rank loaded all its micro-batches
static enum status gather_reports(struct trainer *trainer, const struct step_report *mine, double *loss_sum,
                                  struct step_metrics *now, struct step_report *first, bool *whole) {
    struct comm *comm = trainer->comm;
    struct step_report *all = allocate((size_t)comm->world, sizeof *all);
    enum status status = comm_gather(comm, mine, sizeof *mine, all);
    double losses[comm->world];
    *whole = true;
    for (int rank = 0; rank < comm->world && status == STATUS_OK; rank++) {
        losses[rank] = all[rank].loss_sum;
        *whole = *whole && all[rank].batch_status == STATUS_OK;
        now->total_bytes = fmax((double)now->total_bytes, all[rank].memory_peak);
    }
    if (status == STATUS_OK)
        *loss_sum = sum_tree(losses, comm->world);
    *first = all[0];
    free(all);
    return status;
}

// Communication since `before`, with the plan's figures for a step.
static void measure_traffic(const struct trainer *trainer, const struct comm_traffic *before,
                            struct step_metrics *now) {
    const struct comm_traffic *after = &trainer->comm->traffic;
    for (int i = COMM_REDUCE_SCATTER; i <= COMM_EXCHANGE; i++) {
        now->comm_bytes += after->bytes[i] - before->bytes[i];
        now->comm_calls += after->calls[i] - before->calls[i];
    }
    now->comm_planned_bytes = comm_volume_bytes(&trainer->volume);
    now->comm_planned_calls = comm_volume_calls(&trainer->volume);
    const double host = after->host_s - before->host_s, busy = after->busy_s - before->busy_s + host,
                 waited = after->waited_s - before->waited_s + host;
    now->comm_ms = busy * 1e3;
    now->comm_hidden = busy > 0 ? fmax(0, 1 - waited / busy) : 0;
}

// Host memory that the regions took, of all kinds.
static size_t measured_on_host(const struct trainer *trainer) {
    size_t bytes = 0;
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        bytes += trainer->memory.taken[kind];
    return bytes - region_place_bytes(&trainer->memory.table, REGION_DEVICE);
}

// ---- the update

// Where the host decides.
static enum status update(struct trainer *trainer, struct trainer_step *step, double loss_sum) {
    struct optimizer *optimizer = &trainer->engine.optimizer;
    const struct update_plan *plan = &step->plan;
    double norm;
    TRY(optimizer_norm(optimizer, &trainer->stream, &norm));
    norm /= plan->loss_scale;
    step->is_decided = true;
    step->result = (struct update_result){.loss_sum = loss_sum, .norm = norm};
    if (!isfinite(loss_sum) || !isfinite(norm))
        step->result.skipped = UPDATE_NOT_FINITE;
    else if (update_is_spike(plan, loss_sum, norm))
        step->result.skipped = UPDATE_SPIKE;
    if (step->result.skipped)
        return optimizer_skip(optimizer, &trainer->stream);
    TRY(optimizer_update(optimizer, &trainer->stream, plan->step, plan->lr, norm, plan->loss_scale));
    return trainer->device->synchronize(&trainer->stream);
}

static enum status decide_and_update(void *context) {
    struct trainer *trainer = context;
    return optimizer_decide(&trainer->engine.optimizer, &trainer->stream);
}

static enum status issue_update(struct trainer *trainer, struct trainer_step *step, double loss_sum) {
    struct optimizer *optimizer = &trainer->engine.optimizer;
    profiler_set_phase(&trainer->profiler, PROFILER_UPDATE);
    if (optimizer_decides_on_device(optimizer)) {
        TRY(trainer_graph_run(trainer, &trainer->graphs.update, decide_and_update, trainer));
        TRY(optimizer_send(optimizer, &trainer->stream, step->slot));
        if (trainer->profiler.profile)
            TRY(trainer->device->synchronize(&trainer->stream));
    } else {
        TRY(update(trainer, step, loss_sum));
    }
    return profiler_step_end(&trainer->profiler);
}

// A rank failed to load a micro-batch: all ranks discard the step.
static enum status give_up_step(struct trainer *trainer, enum status batch_status) {
    struct optimizer *optimizer = &trainer->engine.optimizer;
    double norm;
    if (!optimizer_decides_on_device(optimizer))
        TRY(optimizer_norm(optimizer, &trainer->stream, &norm)); // offload copies while it adds the squares
    TRY(optimizer_skip(optimizer, &trainer->stream));
    return trainer_agree_between_steps(trainer, batch_status);
}

// Before a step that may have another batch size than the one before.
static void take_batch_size(struct trainer *trainer, int64_t batch_size) {
    const int64_t n_micro = trainer_micro_batches(trainer, batch_size);
    if (n_micro != trainer->volume_steps)
        comm_volume_make(&trainer->engine, n_micro, &trainer->volume);
    trainer->volume_steps = n_micro;
    progress_micro_batches(&trainer->progress, n_micro);
}

// Measures the GEMM rate again if a step exceeded it, on a device that is idle then.
static enum status check_rate(struct trainer *trainer, double achieved) {
    if (achieved <= trainer->gemm_rate)
        return STATUS_OK;
    TRY(trainer->device->synchronize(&trainer->stream));
    return trainer_check_rate(trainer, achieved);
}

enum status trainer_issue_step(struct trainer *trainer) {
    TRY(trainer_show_average(trainer, false));
    const int slot = (int)(trainer->n_issued % STEP_SLOTS);
    struct trainer_step *step = &trainer->steps[slot];
    *step = (struct trainer_step){.now = {.step = trainer->step + 1},
                                  .batch_size = batch_sizes_at(&trainer->batches, trainer->step),
                                  .small_square = -1,
                                  .slot = slot,
                                  .began_s = clock_monotonic_s()};
    const struct comm_traffic before = trainer->comm->traffic;
    const bool device_decides = optimizer_decides_on_device(&trainer->engine.optimizer);
    struct step_report first;
    enum status batch_status;
    double loss_sum = 0;
    bool whole = false;
    plan_step(trainer, step);
    take_batch_size(trainer, step->batch_size);
    progress_step_begin(&trainer->progress, step->began_s);
    TRY(profiler_step_begin(&trainer->profiler, &trainer->stream));
    TRY(accumulate(trainer, step, &batch_status));
    if (!device_decides)
        TRY(optimizer_losses(&trainer->engine.optimizer, &trainer->stream, &loss_sum));
    const struct step_report report = {.loss_sum = loss_sum,
                                       .memory_peak = (double)metrics_peak_memory(),
                                       .seconds = device_decides ? trainer->finished_step_s
                                                                 : clock_monotonic_s() - step->began_s,
                                       .pacing = trainer_pacing_report(trainer),
                                       .batch_status = batch_status};
    TRY(gather_reports(trainer, &report, &loss_sum, &step->now, &first, &whole));
    if (!whole)
        return give_up_step(trainer, batch_status);
    TRY(issue_update(trainer, step, loss_sum));
    measure_traffic(trainer, &before, &step->now);
    trainer->n_issued++;
    trainer->step++;
    trainer->tokens += step->batch_size * trainer->config->train.seq_len;
    step->now.tokens = trainer->tokens;
    TRY(check_rate(trainer,
                   first.seconds > 0 ? trainer_step_flops(trainer, step->batch_size) / first.seconds : 0));
    // By what rank 0 knew before the update, so that the decision does not depend on how far ahead the host
    // is.
    trainer_pace(trainer, &first.pacing);
    return STATUS_OK;
}

// ---- the end of a step

// With train.on_spike=warn, spikes are updates like others, and part of the window.
static bool is_spike(const struct trainer_step *step) {
    const struct spike_limits *limits = &step->limits;
    return step->result.skipped == UPDATE_SPIKE ||
           (step->result.skipped == UPDATE_DONE &&
            ((limits->loss > 0 && step->now.loss > limits->loss) ||
             (limits->norm > 0 && step->now.grad_norm > limits->norm)));
}

static enum status settle_spikes(struct trainer *trainer, struct trainer_step *step, bool overflow) {
    struct spike_record *spikes = &trainer->run.spikes;
    const bool diverged = !overflow && (step->result.skipped || is_spike(step));
    const struct spike_figures figures = {step->now.loss, step->now.grad_norm};
    spikes_add(trainer->config, spikes, step->result.skipped ? NULL : &figures);
    if (diverged)
        TRY(trainer_diverged(trainer, step));
    else if (!overflow)
        spikes->consecutive = 0;
    step->now.spikes = spikes->seen;
    return STATUS_OK;
}

// Takes over how the step ended. Without loss scaling, figures that are not finite are no overflow.
static enum status settle(struct trainer *trainer, struct trainer_step *step) {
    const struct config *config = trainer->config;
    struct step_metrics *now = &step->now;
    const bool overflow = step->result.skipped == UPDATE_NOT_FINITE && trainer->run.loss_scale.scale > 0;
    const int64_t spikes_before = trainer->run.spikes.seen;
    now->loss = step->result.loss_sum / trainer_step_tokens(trainer, step->batch_size);
    now->grad_norm = step->result.norm;
    now->loss_scale = step->plan.loss_scale;
    now->lr = step->plan.lr;
    if (!step->result.skipped)
        trainer->run.average = step->average;
    TRY(settle_spikes(trainer, step, overflow));
    TRY(loss_scale_update(&trainer->run.loss_scale, config, now->step - 1, overflow));
    // A spike's gradients say nothing about the noise of others, and would stay in the average for long.
    if (step->small_square >= 0 && !step->result.skipped && trainer->run.spikes.seen == spikes_before)
        note_noise(trainer, step);
    now->skipped_steps = trainer_skipped(trainer);
    if (overflow) {
        log_live_end();
        log_info("step %lld  gradients overflowed: step skipped; the loss scale is %g", (long long)now->step,
                 trainer->run.loss_scale.scale);
    }
    return STATUS_OK;
}

// The figures of memory in the metrics.
static void measure_memory(const struct trainer *trainer, struct step_metrics *now) {
    const struct region_table *table = &trainer->memory.table;
    // Reports of other ranks are from before the update, and the first update takes more memory.
    now->total_bytes = (size_t)fmax((double)now->total_bytes, (double)metrics_peak_memory());
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        now->planned[kind] = region_kind_bytes(table, (enum region_kind)kind);
        now->measured[kind] = trainer->memory.taken[kind];
    }
    now->total_planned_bytes = region_place_bytes(table, REGION_HOST) + trainer->program_bytes;
    now->model_planned_bytes = region_place_bytes(table, REGION_HOST);
    now->model_bytes = measured_on_host(trainer);
    now->threads = (trainer->host_device ? trainer->host_device : trainer->device)->n_threads;
    now->device_planned_bytes = region_place_bytes(table, REGION_DEVICE);
    if (trainer->device->place == REGION_DEVICE)
        now->device_bytes = trainer->memory.device_measured + trainer_device_sums_bytes(trainer);
}

// The tokens that the steps up to now took of each source of a mixture.
static void count_sources(struct trainer *trainer, struct step_metrics *now) {
    const int n = loader_sources(trainer->train)->n;
    for (int i = 0; i < n; i++)
        trainer->source_tokens[i] =
            (int64_t)loader_n_drawn(trainer->train, i, now->step) * trainer->config->train.seq_len;
    now->source_tokens = trainer->source_tokens;
    now->n_sources = n > 1 && !trainer->config->train.overfit_one_batch ? n : 0;
}

static enum status finish_step(struct trainer *trainer) {
    struct trainer_step *step = &trainer->steps[trainer->n_finished % STEP_SLOTS];
    struct step_metrics *now = &step->now;
    if (!step->is_decided) // a failure here is this device's own: the other ranks cannot agree on it, but are
                           // told
        TRY(optimizer_receive(&trainer->engine.optimizer, step->slot, &step->result, &step->device_s));
    enum status status = settle(trainer, step);
    if (status != STATUS_OK) // the same on all ranks: loss and norm are equal to the bit
        return trainer_agree(trainer, status);
    trainer->n_finished++;
    // Steps that were done before the host looked are finished at once: each took what the device took.
    const double finished_s = clock_monotonic_s(),
                 seconds = fmax(finished_s - fmax(step->began_s, trainer->finished_s), step->device_s);
    trainer->finished_s = finished_s;
    trainer->finished_step_s = seconds;
    comm_expect_seconds(trainer->comm, seconds);
    trainer_pacing_measure(trainer, now->step - 1, seconds);
    if (!trainer_leads(trainer))
        return STATUS_OK;
    measure_memory(trainer, now);
    count_sources(trainer, now);
    now->total = trainer_estimate_total(trainer, now->step, seconds);
    now->steps_left = batch_sizes_work(&trainer->batches, now->step, now->total, now->step - 1);
    now->batch_size = step->batch_size;
    now->tokens_per_s = trainer_step_tokens(trainer, step->batch_size) / seconds;
    now->step_ms = seconds * 1e3;
    const double rate = trainer_step_flops(trainer, step->batch_size) / seconds;
    now->of_gemm = rate / fmax(trainer->gemm_rate, rate);
    now->mfu = trainer->dense_peak > 0 ? rate / trainer->dense_peak : now->of_gemm;
    now->mfu_of_dense_peak = trainer->dense_peak > 0;
    progress_step(&trainer->progress, now, clock_monotonic_s());
    if (trainer_writes_metrics(trainer))
        trainer_fail_later(trainer, metrics_step(&trainer->metrics, now));
    return STATUS_OK;
}

enum status trainer_finish_steps(struct trainer *trainer, int left) {
    while (trainer->n_issued - trainer->n_finished > left)
        TRY(finish_step(trainer));
    return STATUS_OK;
}
