// Issuing a step: forward and backward of each micro-batch, the gradient norm, the optimizer's update.
// Finishing it: waiting until the device is done, and reporting the step.
#include "trainer/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "kernels/update.h"
#include "trainer/auditing.h"
#include "trainer/machine.h"
#include "zero/comm/sum_tree.h"
#include "zero/optimizer/noise_probe.h"
#include "zero/stages/gradients.h"

// The report that each rank sends to all others in each step, before the update.
struct step_report {
    double memory_peak; // the largest resident set so far, in bytes
    // Seconds since the step began. If the device decides on the update, the duration of the step that was
    // finished last instead; 0: none yet.
    double seconds;
    struct pacing_report pacing;
    int64_t batch_status; // enum status: the first failure to load a micro-batch of the step
    double losses[];      // (S) sum of losses of each logical rank that this rank computes; 0 if the device
                          // decides on the update
};

// Returns the step of the loader whose sequences the next step of the run trains on.
static int64_t data_step(const struct run *run) {
    return run->config->train.overfit_one_batch ? 0 : run->step;
}

// Loads micro-batch i of this rank. For i == 0 all ranks agree whether it was loaded, and whether any rank
// was asked to stop (STATUS_STOPPED). If a later micro-batch cannot be loaded, *batch_status keeps the
// failure for the step's report. This rank then repeats the previous micro-batch, because the other ranks'
// collectives need it.
static enum status next_batch(struct steps *steps, int64_t i, const struct logical_micro_batch *at,
                              enum status *batch_status, struct token_batch *batch) {
    struct run *run = steps->run;
    profile_begin(steps->output->profiler.profile, PROFILE_SPAN, "load data");
    enum status status = *batch_status;
    if (status == STATUS_OK)
        status = loader_batch(steps->data->train, data_step(run), (int)run_first_row(run, at), batch);
    if (status == STATUS_OK)
        audit_batch(run->audit, run_first_row(run, at), batch);
    profile_end(steps->output->profiler.profile, (struct operation_cost){0});
    if (i > 0) {
        *batch_status = status;
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        status = run->pending;
    if (status == STATUS_OK && signals_stop_requested())
        status = STATUS_STOPPED;
    return run_agree_between_steps(run, status);
}

// ---- CUDA graphs of a step: one launch by the host instead of hundreds

// Returns why a step of this run cannot be captured; NULL: it can.
static const char *obstacle(const struct steps *steps) {
    const struct run *run = steps->run;
    const struct config *config = run->config;
    if (run->comm->world > 1)
        return "several ranks communicate within a step";
    if (logical_per_rank(&run->engine.state.stage.logical) > 1)
        return "the rank computes several logical ranks, whose micro-batches differ";
    if (!optimizer_decides_on_device(&run->engine.optimizer))
        return "the host updates the weights (offload_optimizer)";
    if (config->top.offload_activations == CONFIG_OFFLOAD_CPU)
        return "offload_activations copies between steps";
    if (config->run.debug_sync)
        return "run.debug_sync waits for each operation";
    return NULL;
}

void steps_begin(struct steps *steps) {
    struct run *run = steps->run;
    steps->source_tokens =
        allocate((size_t)loader_sources(steps->data->train)->n, sizeof *steps->source_tokens);
    if (!run->config->top.cuda_graphs || !device_has_graphs(run->machine.device))
        return;
    const char *why_not = obstacle(steps);
    steps->graphs.is_on = !why_not;
    if (why_not && run_leads(run))
        log_info("cuda_graphs: not used, as %s", why_not);
}

static void free_graphs(struct steps *steps) {
    struct step_graphs *graphs = &steps->graphs;
    for (int kind = 0; kind < N_MICRO_BATCH_KINDS; kind++)
        graph_free(&graphs->micro_batches[kind].graph);
    graph_free(&graphs->update.graph);
}

// Captures `work` as a graph and launches the graph. Capturing does not run the work: if it fails, `work` is
// run directly.
static enum status capture(struct steps *steps, struct step_graph *graph, enum status (*work)(void *context),
                           void *context) {
    struct stream *stream = &steps->run->machine.stream;
    TRY(graph_begin(stream));
    const enum status issued = work(context), captured = graph_end(stream, &graph->graph);
    if (issued == STATUS_OK && captured == STATUS_OK)
        return graph_launch(&graph->graph, stream);
    log_live_end();
    log_warning("cuda_graphs: not used, as a step cannot be captured: %s", status_message());
    status_clear();
    free_graphs(steps);
    steps->graphs.is_on = false;
    return work(context);
}

// Runs `work`, which issues operations to the stream. Uses its graph if graphs are on and no profile is
// recorded. The first run is direct, because libraries load kernels and initialize then; the second is
// captured. `work` must do the same each time, and change no host state that outlasts the step.
static enum status run_graph(struct steps *steps, struct step_graph *graph,
                             enum status (*work)(void *context), void *context) {
    if (!steps->graphs.is_on || steps->output->profiler.profile)
        return work(context);
    if (graph->graph.work)
        return graph_launch(&graph->graph, &steps->run->machine.stream);
    if (graph->is_warm)
        return capture(steps, graph, work, context);
    graph->is_warm = true;
    return work(context);
}

// ---- the plan of a step

// Sets step->weighted_targets, by which the step's loss is divided. Collective if targets have weights.
static enum status weigh_step(struct steps *steps, struct issued_step *step) {
    struct run *run = steps->run;
    struct loader *train = steps->data->train;
    step->weighted_targets = run_step_tokens(run, step->batch_size);
    if (!loader_is_weighted(train))
        return STATUS_OK;
    TRY(run_agree_between_steps(run, loader_sum_weights(train, data_step(run), &step->weighted_targets)));
    TRY(comm_sum(run->comm, &step->weighted_targets, 1));
    if (step->weighted_targets == 0)
        step->weighted_targets = 1; // any divisor will do: all losses and gradients are 0
    return STATUS_OK;
}

// Plans the next step. If the previous step is not finished, assumes that its update is not skipped.
static void plan_step(struct steps *steps, struct issued_step *step) {
    struct run *run = steps->run;
    const bool is_ahead = steps->n_finished < steps->n_issued;
    const int64_t updates = run->step - run_skipped(run);
    struct update_plan *plan = &step->plan;
    step->limits = spikes_limits(run->config, &run->state.spikes, is_ahead);
    step->average = is_ahead ? steps->issued[(step->slot + 1) % STEP_SLOTS].average : run->state.average;
    *plan = optimizer_plan(&run->engine.optimizer, updates + 1, pacing_lr(steps->pacing),
                           loss_scale_factor(&run->state.loss_scale), step->weighted_targets);
    plan->is_ahead = is_ahead;
    plan->average_weight = averaging_next(run->config, plan->lr, &step->average);
    if (run->config->train.on_spike != CONFIG_ON_SPIKE_WARN) {
        plan->most_loss_sum = step->limits.loss * step->weighted_targets;
        plan->most_norm = step->limits.norm;
    }
}

bool steps_may_be_ahead(const struct steps *steps) {
    const struct run *run = steps->run;
    return run->machine.device->place == REGION_DEVICE && !steps->output->profiler.profile &&
           optimizer_decides_on_device(&run->engine.optimizer) && run->state.loss_scale.scale == 0 &&
           run->config->train.on_spike != CONFIG_ON_SPIKE_SKIP;
}

// ---- the gradient noise scale, and the batch size that follows from it

// Whether the noise scale is measured in the next step.
static bool measures_noise(const struct steps *steps, int64_t batch_size) {
    const struct config *config = steps->run->config;
    return config->train.noise_scale_every > 0 &&
           (steps->run->step + 1) % config->train.noise_scale_every == 0 &&
           batch_size > config->train.micro_batch_size;
}

// Doubles the batch if the noise scale is large enough. The new size begins with the step after the next one,
// because the next step may have been issued already.
static void grow(struct steps *steps, const struct issued_step *step) {
    struct run *run = steps->run;
    struct config_stages *grown = &run->state.noise.grown;
    const int64_t batch = step->batch_size;
    if (grown->n == CONFIG_SCHEDULE_MOST ||
        batch != batch_sizes_at(&run->batches, step->now.step + 1) || // that step has another size already
        !noise_wants_more(&run->state.noise, batch, run->config->train.max_batch_size))
        return;
    grown->stages[grown->n++] = (struct config_stage){step->now.step + 1, 2 * batch};
    run->state.noise.n_since = 0;
    run_take_batches(run);
    log_live_end();
    log_info("step %lld: the gradient noise scale is %.4g sequences; from step %lld on, the batch has %lld "
             "sequences",
             (long long)step->now.step, noise_scale(&run->state.noise), (long long)step->now.step + 2,
             (long long)(2 * batch));
}

// Adds the measurement of a finished step whose update was not skipped, and decides on the batch size of the
// steps after the next one. The result is the same on all ranks.
static void note_noise(struct steps *steps, struct issued_step *step) {
    struct run *run = steps->run;
    const double n_small = (double)run->config->train.micro_batch_size, n_large = (double)step->batch_size,
                 to_mean = (double)step->plan.loss_factor * n_small * (step->weighted_targets / n_large);
    noise_record_add(&run->state.noise, step->small_square / (to_mean * to_mean), n_small,
                     step->now.grad_norm * step->now.grad_norm, n_large);
    step->now.measures_noise = true;
    step->now.noise_scale = noise_scale(&run->state.noise);
    if (!isnan(step->now.noise_scale)) {
        log_live_end();
        log_info("step %lld: gradient noise scale %.4g sequences, batch %lld", (long long)step->now.step,
                 step->now.noise_scale, (long long)step->batch_size);
    }
    grow(steps, step);
}

// ---- accumulating the gradients

// Returns the factor of step `at` in the environment variable ZERO_INJECT_GRADIENTS, which is a list
// "STEP:FACTOR,STEP:FACTOR"; 1 for steps that are not in the list.
static float injected_factor(int64_t at) {
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

// Injects a fault, for tests of train.on_spike: multiplies the gradients of chosen steps by a factor that the
// update does not divide by.
static void inject_gradients(struct issued_step *step) {
    step->plan.loss_factor *= injected_factor(step->now.step);
}

static enum status begin_update(struct steps *steps, const struct issued_step *step) {
    struct optimizer *optimizer = &steps->run->engine.optimizer;
    return optimizer_decides_on_device(optimizer)
               ? step_control_begin(&optimizer->control, &steps->run->machine.stream, step->slot, &step->plan)
               : STATUS_OK;
}

// Micro-batch i (from 0) of a step in which this rank has n_micro micro-batches.
struct micro_batch {
    struct steps *steps;
    const struct issued_step *step;
    const struct unit_hooks *hooks;
    int64_t i, n_micro;
    struct logical_micro_batch at;
};

// Runs forward and backward of the loaded micro-batch. After the last one of the step, finishes the
// reductions of the gradients.
static enum status train_micro_batch(void *context) {
    const struct micro_batch *micro = context;
    struct run *run = micro->steps->run;
    struct engine *engine = &run->engine;
    struct gradients *gradients = &engine->state.gradients;
    const bool device_decides = optimizer_decides_on_device(&engine->optimizer);
    const struct gpt_loss loss = {
        .scale = micro->step->plan.loss_factor,
        .scale_from = device_decides ? step_control_loss_factor(&engine->optimizer.control) : NULL,
        .sum = step_control_loss_sum(&engine->optimizer.control, micro->at.j),
        .accumulate = micro->at.k > 0};
    TRY(gradients_begin(gradients, &run->machine.stream, micro->i, micro->n_micro));
    TRY(gpt_train(engine->gpt, &run->machine.stream, micro->hooks, &loss));
    return micro->i == micro->n_micro - 1 ? gradients_finish(gradients, &run->machine.stream) : STATUS_OK;
}

// Runs train_micro_batch, without a CUDA graph, and measures its gradients for the noise scale.
//   square   [out] sum of squares of the gradients of this micro-batch
static enum status measure_micro_batch(struct micro_batch *micro, double *square) {
    struct run *run = micro->steps->run;
    struct noise_probe probe = {
        .params = &run->params, .hooks = micro->hooks, .sums = run->engine.noise_sums};
    const struct unit_hooks hooks = noise_probe_hooks(&probe);
    micro->hooks = &hooks;
    TRY(train_micro_batch(micro));
    return noise_probe_finish(&probe, &run->machine.stream, square);
}

// Accumulates the gradients of the step over its micro-batches. The weights are not changed.
//   batch_status   [out] not STATUS_OK if a micro-batch failed to load; then gradients and loss are
//                  meaningless
static enum status accumulate(struct steps *steps, struct issued_step *step, enum status *batch_status) {
    struct run *run = steps->run;
    const struct logical *logical = &run->engine.state.stage.logical;
    const int64_t n_micro = run_micro_batches(run, step->batch_size);
    const bool measures = measures_noise(steps, step->batch_size);
    double squares[logical_per_rank(logical)];
    struct token_batch batch = {0};
    *batch_status = STATUS_OK;
    inject_gradients(step);
    for (int64_t i = 0; i < n_micro; i++) {
        struct micro_batch micro = {steps, step,    &run->engine.state.hooks,
                                    i,     n_micro, run_micro_batch(run, i, n_micro)};
        const int kind = (i == 0) + 2 * (i == n_micro - 1);
        TRY(next_batch(steps, i, &micro.at, batch_status, &batch));
        if (i == 0)
            TRY(begin_update(steps, step));
        TRY(gpt_load(run->engine.gpt, &run->machine.stream, &batch,
                     run_first_token(run, run->tokens, &micro.at)));
        if (micro.at.k == 0 && measures)
            TRY(measure_micro_batch(&micro, &squares[micro.at.j]));
        else
            TRY(run_graph(steps, &steps->graphs.micro_batches[kind], train_micro_batch, &micro));
        progress_micro_batch(&steps->output->progress, i + 1, clock_monotonic_s());
    }
    if (measures)
        TRY(run_sum_logical(run, squares, 1, &step->small_square));
    step->small_square /= measures ? logical->n : 1;
    return STATUS_OK;
}

// ---- exchanging reports, and measuring communication and memory

// The reports of all ranks, gathered before a step's update.
struct reports {
    double loss_sum;             // the sum of the losses of all logical ranks
    double seconds;              // rank 0's step_report.seconds
    struct pacing_report pacing; // rank 0's
    bool whole;                  // every rank loaded all its micro-batches
};

// Sends this rank's report to all ranks, and gathers theirs. Raises now->memory.total to the largest
// memory_peak.
//   mine   this rank's report, but for the losses
static enum status gather_reports(struct steps *steps, const struct step_report *mine,
                                  struct step_metrics *now, struct reports *out) {
    struct run *run = steps->run;
    const struct step_control *control = &run->engine.optimizer.control;
    const struct logical *logical = &run->engine.state.stage.logical;
    const int world = run->comm->world, n_losses = logical_per_rank(logical);
    const size_t bytes = sizeof *mine + (size_t)n_losses * sizeof *mine->losses;
    char *all = allocate((size_t)world + 1, bytes);
    struct step_report *sent = (struct step_report *)(all + (size_t)world * bytes);
    double losses[logical->n];
    *sent = *mine;
    if (!optimizer_decides_on_device(&run->engine.optimizer))
        memcpy(sent->losses, control->losses, (size_t)n_losses * sizeof *sent->losses);
    enum status status = comm_gather(run->comm, sent, bytes, all);
    out->whole = true;
    for (int rank = 0; rank < world && status == STATUS_OK; rank++) {
        const struct step_report *report = (const struct step_report *)(all + (size_t)rank * bytes);
        for (int j = 0; j < n_losses; j++)
            losses[j * world + rank] = report->losses[j];
        out->whole = out->whole && report->batch_status == STATUS_OK;
        now->memory.total = fmax((double)now->memory.total, report->memory_peak);
    }
    if (status == STATUS_OK)
        out->loss_sum = sum_tree(losses, logical->n);
    out->seconds = ((const struct step_report *)all)->seconds;
    out->pacing = ((const struct step_report *)all)->pacing;
    free(all);
    return status;
}

// Sets the step's communication: as measured since `before`, and as planned.
static void measure_traffic(const struct steps *steps, const struct comm_traffic *before,
                            struct step_metrics *now) {
    const struct comm_traffic *after = &steps->run->comm->traffic;
    for (int i = COMM_REDUCE_SCATTER; i <= COMM_EXCHANGE; i++) {
        now->comm.bytes += after->bytes[i] - before->bytes[i];
        now->comm.calls += after->calls[i] - before->calls[i];
    }
    now->comm.planned_bytes = comm_volume_bytes(&steps->volume);
    now->comm.planned_calls = comm_volume_calls(&steps->volume);
    const double host = after->host_s - before->host_s, busy = after->busy_s - before->busy_s + host,
                 waited = after->waited_s - before->waited_s + host;
    now->comm.ms = busy * 1e3;
    now->comm.hidden = busy > 0 ? fmax(0, 1 - waited / busy) : 0;
}

// Returns the measured bytes of model memory on the host.
static size_t measured_on_host(const struct steps *steps) {
    size_t bytes = 0;
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        bytes += steps->run->memory.taken[kind];
    return bytes - region_place_bytes(&steps->run->memory.table, REGION_DEVICE);
}

// ---- the update

// Decides on the host whether the update happens, and if so updates the weights.
static enum status update(struct steps *steps, struct issued_step *step, double loss_sum) {
    struct run *run = steps->run;
    struct optimizer *optimizer = &run->engine.optimizer;
    const struct update_plan *plan = &step->plan;
    double norm;
    TRY(optimizer_norm(optimizer, &run->machine.stream, &norm));
    step->is_decided = true;
    step->result = update_result_of(plan, run->config->train.gradient_clipping, loss_sum, norm);
    if (step->result.skipped)
        return optimizer_skip(optimizer, &run->machine.stream);
    TRY(optimizer_update(optimizer, &run->machine.stream, plan, &step->result));
    return run->machine.device->synchronize(&run->machine.stream);
}

static enum status decide_and_update(void *context) {
    struct steps *steps = context;
    return optimizer_decide(&steps->run->engine.optimizer, &steps->run->machine.stream);
}

static enum status issue_update(struct steps *steps, struct issued_step *step, double loss_sum) {
    struct run *run = steps->run;
    struct optimizer *optimizer = &run->engine.optimizer;
    profiler_set_phase(&steps->output->profiler, PROFILER_UPDATE);
    if (optimizer_decides_on_device(optimizer)) {
        TRY(run_graph(steps, &steps->graphs.update, decide_and_update, steps));
        TRY(step_control_send(&optimizer->control, &run->machine.stream, step->slot));
        if (steps->output->profiler.profile)
            TRY(run->machine.device->synchronize(&run->machine.stream));
    } else {
        TRY(update(steps, step, loss_sum));
    }
    return profiler_step_end(&steps->output->profiler);
}

// Gives up a step because a rank failed to load a micro-batch: all ranks discard it.
static enum status give_up_step(struct steps *steps, enum status batch_status) {
    struct run *run = steps->run;
    struct optimizer *optimizer = &run->engine.optimizer;
    double norm;
    if (!optimizer_decides_on_device(optimizer))
        TRY(optimizer_norm(optimizer, &run->machine.stream, &norm)); // waits for offloaded gradients
    TRY(optimizer_skip(optimizer, &run->machine.stream));
    return run_agree_between_steps(run, batch_status);
}

// Sets the planned communication and the progress line's number of micro-batches for the batch size of the
// step that begins.
static void take_batch_size(struct steps *steps, int64_t batch_size) {
    const int64_t n_micro = run_micro_batches(steps->run, batch_size);
    if (n_micro != steps->volume_micro_batches)
        steps->volume = engine_volume(&steps->run->engine, n_micro);
    steps->volume_micro_batches = n_micro;
    progress_micro_batches(&steps->output->progress, n_micro);
}

// Measures the GEMM rate again if a step exceeded it, once the device is idle.
//   achieved   FLOP/s of that step, over all ranks
static enum status check_rate(struct steps *steps, double achieved) {
    struct run *run = steps->run;
    if (achieved <= run->machine.gemm_rate)
        return STATUS_OK;
    TRY(run->machine.device->synchronize(&run->machine.stream));
    return machine_check_rate(run, achieved);
}

enum status steps_issue(struct steps *steps) {
    struct run *run = steps->run;
    TRY(run_show_average(run, false));
    const int slot = (int)(steps->n_issued % STEP_SLOTS);
    struct issued_step *step = &steps->issued[slot];
    *step = (struct issued_step){.now = {.step = run->step + 1},
                                 .batch_size = batch_sizes_at(&run->batches, run->step),
                                 .small_square = -1,
                                 .slot = slot,
                                 .began_s = clock_monotonic_s()};
    const struct comm_traffic before = run->comm->traffic;
    const bool device_decides = optimizer_decides_on_device(&run->engine.optimizer);
    struct reports reports = {0};
    enum status batch_status;
    TRY(weigh_step(steps, step));
    plan_step(steps, step);
    take_batch_size(steps, step->batch_size);
    progress_step_begin(&steps->output->progress, step->began_s);
    TRY(profiler_step_begin(&steps->output->profiler, &run->machine.stream));
    TRY(accumulate(steps, step, &batch_status));
    if (!device_decides)
        TRY(step_control_losses(&run->engine.optimizer.control, &run->machine.stream));
    const struct step_report report = {.memory_peak = (double)metrics_peak_memory(),
                                       .seconds = device_decides ? steps->finished_step_s
                                                                 : clock_monotonic_s() - step->began_s,
                                       .pacing = pacing_measured(steps->pacing),
                                       .batch_status = batch_status};
    TRY(gather_reports(steps, &report, &step->now, &reports));
    if (!reports.whole)
        return give_up_step(steps, batch_status);
    TRY(audit_data(run->audit, &step->data));
    TRY(issue_update(steps, step, reports.loss_sum));
    measure_traffic(steps, &before, &step->now);
    steps->n_issued++;
    run->step++;
    run->tokens += step->batch_size * run->config->train.seq_len;
    step->now.tokens = run->tokens;
    TRY(check_rate(steps, reports.seconds > 0 ? run_step_flops(run, step->batch_size) / reports.seconds : 0));
    // The decision uses rank 0's measurements from before the update, so that it does not depend on whether
    // the host is ahead.
    pacing_decide(steps->pacing, &reports.pacing);
    return STATUS_OK;
}

// ---- the end of a step

// Whether the step is a spike. With train.on_spike=warn a spike is not skipped: it updates the weights, and
// its loss and norm enter the window of later limits.
static bool is_spike(const struct issued_step *step) {
    const struct spike_limits *limits = &step->limits;
    return step->result.skipped == UPDATE_SPIKE ||
           (step->result.skipped == UPDATE_DONE &&
            ((limits->loss > 0 && step->now.loss > limits->loss) ||
             (limits->norm > 0 && step->now.grad_norm > limits->norm)));
}

static enum status settle_spikes(struct steps *steps, struct issued_step *step, bool overflow) {
    struct run *run = steps->run;
    struct spike_record *spikes = &run->state.spikes;
    const bool diverged = !overflow && (step->result.skipped || is_spike(step));
    const struct spike_figures figures = {step->now.loss, step->now.grad_norm};
    spikes_add(run->config, spikes, step->result.skipped ? NULL : &figures);
    if (diverged)
        TRY(spikes_handle(
            run, steps->data,
            &(struct diverged_step){.step = step->now.step,
                                    .batch_size = step->batch_size,
                                    .tokens_before =
                                        step->now.tokens - (int64_t)run_step_tokens(run, step->batch_size),
                                    .loss = step->now.loss,
                                    .grad_norm = step->now.grad_norm,
                                    .loss_factor = step->plan.loss_factor,
                                    .limits = step->limits}));
    else if (!overflow)
        spikes->consecutive = 0;
    step->now.spikes = spikes->seen;
    return STATUS_OK;
}

// Updates the run's state with the result of the step: average, spikes, loss scale and noise scale. If the
// loss or the norm is not finite, the step overflowed (with loss scaling) or diverged (without).
static enum status settle(struct steps *steps, struct issued_step *step) {
    struct run *run = steps->run;
    const struct config *config = run->config;
    struct step_metrics *now = &step->now;
    const bool overflow = step->result.skipped == UPDATE_NOT_FINITE && run->state.loss_scale.scale > 0;
    const int64_t spikes_before = run->state.spikes.seen;
    now->loss = step->result.loss_sum / step->weighted_targets;
    now->grad_norm = step->result.norm;
    now->loss_scale = step->plan.loss_scale;
    now->lr = step->plan.lr;
    if (!step->result.skipped)
        run->state.average = step->average;
    TRY(settle_spikes(steps, step, overflow));
    TRY(loss_scale_update(&run->state.loss_scale, config, now->step - 1, overflow));
    // Gradients of a spike are left out: they would distort the moving averages of the noise scale.
    if (step->small_square >= 0 && !step->result.skipped && run->state.spikes.seen == spikes_before)
        note_noise(steps, step);
    now->skipped_steps = run_skipped(run);
    if (overflow) {
        log_live_end();
        log_info("step %lld  gradients overflowed: step skipped; the loss scale is %g", (long long)now->step,
                 run->state.loss_scale.scale);
    }
    return STATUS_OK;
}

// Sets the memory figures of the step's metrics.
static void measure_memory(const struct steps *steps, struct step_metrics *now) {
    const struct run *run = steps->run;
    const struct region_table *table = &run->memory.table;
    // The ranks' reports are from before the update. The first update takes more memory, so this rank's peak
    // is read again here.
    now->memory.total = (size_t)fmax((double)now->memory.total, (double)metrics_peak_memory());
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        now->memory.planned[kind] = region_kind_bytes(table, (enum region_kind)kind);
        now->memory.measured[kind] = run->memory.taken[kind];
    }
    now->memory.total_planned = region_place_bytes(table, REGION_HOST) + steps->output->program_bytes;
    now->memory.model_planned = region_place_bytes(table, REGION_HOST);
    now->memory.model = measured_on_host(steps);
    now->threads = (run->machine.host_device ? run->machine.host_device : run->machine.device)->n_threads;
    now->memory.device_planned = region_place_bytes(table, REGION_DEVICE);
    if (run->machine.device->place == REGION_DEVICE)
        now->memory.device = run->memory.device_measured + run_device_sums_bytes(run);
}

// Counts the tokens that the steps so far took from each source of a mixture.
static void count_sources(struct steps *steps, struct step_metrics *now) {
    const int n = loader_sources(steps->data->train)->n;
    for (int i = 0; i < n; i++)
        steps->source_tokens[i] =
            (int64_t)loader_n_drawn(steps->data->train, i, now->step) * steps->run->config->train.seq_len;
    now->source_tokens = steps->source_tokens;
    now->n_sources = n > 1 && !steps->run->config->train.overfit_one_batch ? n : 0;
}

static enum status finish_step(struct steps *steps) {
    struct run *run = steps->run;
    struct issued_step *step = &steps->issued[steps->n_finished % STEP_SLOTS];
    struct step_metrics *now = &step->now;
    // If this rank's device failed, return without run_agree, because the other ranks do not call it here.
    // Their next collectives fail (zero/comm/comm.h).
    if (!step->is_decided)
        TRY(step_control_receive(&run->engine.optimizer.control, step->slot, &step->result, &step->device_s));
    enum status status = settle(steps, step);
    if (status != STATUS_OK) // all ranks fail here, because their losses and norms are bitwise equal
        return run_agree(run, status);
    steps->n_finished++;
    // If two steps are already done on the device, the host finishes the second right after the first. So the
    // measured duration of a step is at least its time on the device.
    const double finished_s = clock_monotonic_s(),
                 seconds = fmax(finished_s - fmax(step->began_s, steps->finished_s), step->device_s);
    steps->finished_s = finished_s;
    steps->finished_step_s = seconds;
    comm_expect_seconds(run->comm, seconds);
    pacing_measure(steps->pacing, now->step - 1, seconds);
    if (!run_leads(run))
        return STATUS_OK;
    const struct ledger_step ledger_step = {now->step,
                                            step->data,
                                            {[LEDGER_LR] = now->lr,
                                             [LEDGER_LOSS] = now->loss,
                                             [LEDGER_NORM] = now->grad_norm,
                                             [LEDGER_LOSS_SCALE] = now->loss_scale}};
    run_fail_later(run, audit_step(run->audit, &ledger_step));
    measure_memory(steps, now);
    count_sources(steps, now);
    now->total = pacing_estimate_total(steps->pacing, now->step, seconds);
    now->steps_left = batch_sizes_work(&run->batches, now->step, now->total, now->step - 1);
    now->batch_size = step->batch_size;
    now->tokens_per_s = run_step_tokens(run, step->batch_size) / seconds;
    now->step_ms = seconds * 1e3;
    const double rate = run_step_flops(run, step->batch_size) / seconds;
    now->of_gemm = rate / fmax(run->machine.gemm_rate, rate);
    now->mfu = run->machine.dense_peak > 0 ? rate / run->machine.dense_peak : now->of_gemm;
    now->mfu_of_dense_peak = run->machine.dense_peak > 0;
    progress_step(&steps->output->progress, now, clock_monotonic_s());
    if (run_output_writes_metrics(steps->output))
        run_fail_later(run, metrics_step(&steps->output->metrics, now));
    return STATUS_OK;
}

enum status steps_finish(struct steps *steps, int left) {
    while (steps->n_issued - steps->n_finished > left)
        TRY(finish_step(steps));
    return STATUS_OK;
}

void steps_free(struct steps *steps) {
    free_graphs(steps);
    free(steps->source_tokens);
}
