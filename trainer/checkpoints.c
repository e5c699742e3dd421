// The checkpoint to resume, and what the resumed run changes: options, on purpose, and its schedule.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "trainer/schedule.h"
#include "trainer/trainer_internal.h"

static enum status find_checkpoint(struct trainer *trainer) {
    const char *resume = trainer->config->checkpoint.resume;
    if (strcmp(resume, "auto") == 0)
        return checkpoint_open_newest(trainer->comm, trainer->folder.checkpoints, &trainer->resumed);
    if (strcmp(resume, "never") != 0)
        return checkpoint_open_path(trainer->comm, resume, &trainer->resumed);
    return checkpoint_require_none(trainer->comm, trainer->folder.checkpoints);
}

static enum status record_change(void *context, const char *option, const char *was, const char *is) {
    struct trainer *trainer = context;
    run_state_add_change(&trainer->run, trainer->resumed->step, option, was, is);
    return STATUS_OK;
}

// Options changed on purpose are said at the start, and kept in every later checkpoint.
static enum status check_resumed(struct trainer *trainer) {
    const int n_before = trainer->run.n_changes;
    config_resume_batch(trainer->config, &trainer->resumed->config, trainer->comm->world);
    TRY(checkpoint_check_model(trainer->resumed, &trainer->params));
    TRY(trainer_check_resumed_tokenizer(trainer));
    const struct config_decided decided = {trainer->resumed->compute, trainer->resumed->attention.kernel};
    TRY(config_check_resume(&trainer->resumed->config, &decided, trainer->config, record_change, trainer));
    for (int i = n_before; i < trainer->run.n_changes; i++) {
        const struct run_change *change = &trainer->run.changes[i];
        log_info("%s changes from %s to %s after step %lld (checkpoint.resume_with)", change->option,
                 change->was, change->is, (long long)change->step);
    }
    return STATUS_OK;
}

// The best checkpoint may have been removed since, or be in the folder of another run.
static enum status find_best(struct trainer *trainer) {
    char *path = checkpoint_path(trainer->folder.checkpoints, trainer->run.best.step);
    int32_t is_there = file_is_folder(path);
    free(path);
    TRY(comm_broadcast(trainer->comm, &is_there, sizeof is_there, 0));
    if (!is_there)
        trainer->run.best = (struct run_best){0};
    return STATUS_OK;
}

// Whether the checkpoint to resume is in the folder of this run's checkpoints.
static enum status find_own(struct trainer *trainer, int32_t *is_own) {
    char *own = checkpoint_path(trainer->folder.checkpoints, trainer->resumed->step);
    char *real = realpath(own, NULL), *resumed = realpath(trainer->resumed->path, NULL);
    *is_own = real && resumed && strcmp(real, resumed) == 0;
    free(own), free(real), free(resumed);
    return comm_broadcast(trainer->comm, is_own, sizeof *is_own, 0);
}

// Versions that did not record it derived it from the length each time.
int64_t trainer_warmup_before(const struct trainer *trainer) {
    const struct checkpoint *from = trainer->resumed;
    const struct pacing_record *pacing = &from->run.pacing;
    if (from->run.warmup_steps > 0)
        return from->run.warmup_steps;
    if (pacing->decision.position > 0) // it was over
        return 0;
    return schedule_warmup_of(from->config.scheduler.warmup_steps, pacing->max_minutes > 0
                                                                       ? pacing->decision.total
                                                                       : config_decay_steps(&from->config));
}

enum status trainer_find_resume(struct trainer *trainer) {
    int32_t is_own;
    trainer->saved_step = -1;
    trainer->run.warmup_steps = trainer->config->scheduler.warmup_steps;
    trainer->run.loss_scale = loss_scale_initial(trainer->config);
    TRY(trainer_agree(trainer, find_checkpoint(trainer)));
    if (!trainer->resumed)
        return STATUS_OK;
    run_state_move(&trainer->run, &trainer->resumed->run);
    TRY(trainer_agree(trainer, check_resumed(trainer)));
    TRY(find_best(trainer));
    TRY(find_own(trainer, &is_own));
    trainer->step = trainer->resumed->step;
    trainer->saved_step = is_own ? trainer->step : -1;
    trainer->tokens = trainer->resumed->tokens;
    const int64_t warmup = trainer->config->scheduler.warmup_steps;
    trainer->run.warmup_steps = trainer->step > 0 && warmup == trainer->resumed->config.scheduler.warmup_steps
                                    ? trainer_warmup_before(trainer)
                                    : warmup;
    trainer->run.average = averaging_resumed(trainer->config, &trainer->resumed->run.average,
                                             trainer->resumed->kinds.has_average);
    // Another batch size, or a schedule, replaces the sizes that the batch grew to.
    if (trainer->config->train.batch_size_schedule.n > 0 ||
        trainer->config->train.train_batch_size != trainer->resumed->config.train.train_batch_size)
        trainer->run.noise.grown.n = 0;
    return STATUS_OK;
}

// How many times the rate Adam's first steps are at most, where moments of zero meet the bias correction of a
// late step and gradients stay alike.
static double largest_first_step(const struct config *config) {
    const double beta1 = config->optimizer.betas.value[0], beta2 = config->optimizer.betas.value[1];
    double largest = 0, m = 1, v = 1;
    for (int step = 1; step <= 1000; step++) {
        m *= beta1;
        v *= beta2;
        largest = fmax(largest, (1 - m) / sqrt(1 - v));
    }
    return largest;
}

// Tensors that are trained and whose moments the checkpoint does not have.
static void warn_of_new_moments(const struct trainer *trainer, const struct checkpoint *from,
                                const struct optimizer_groups *written_by) {
    const struct optimizer_groups *groups = &trainer->engine.state.stage.groups;
    const char *first = NULL;
    int n = 0;
    bool corrects = false; // the bias of moments
    for (int i = 0; i < trainer->params.n_params; i++) {
        const struct optimizer_group *group = optimizer_group_of(groups, i);
        if (group->n_moments == 0 || optimizer_groups_keep(written_by, groups, i, group->n_moments))
            continue;
        first = first ? first : trainer->params.params[i].name;
        corrects = corrects || group->rule == OPTIMIZER_ADAMW || group->rule == OPTIMIZER_ADAM;
        n++;
    }
    const double times = largest_first_step(trainer->config);
    if (n > 0 && corrects && from->step > 0 && times > 1.5)
        log_warning("%d tensor%s, such as %s, begin%s with moments of zero after step %lld: with "
                    "optimizer.betas, the "
                    "first updates may be %.2g times the rate; a lower lr in optimizer.groups avoids that",
                    n, n == 1 ? "" : "s", first, n == 1 ? "s" : "", (long long)from->step, times);
    else if (n > 0)
        log_info("%d tensor%s, such as %s, begin%s with moments of zero", n, n == 1 ? "" : "s", first,
                 n == 1 ? "s" : "");
}

// States that would not mean the same are refused.
static enum status check_states(const struct trainer *trainer, const struct checkpoint *from) {
    const double beta_before = from->config.optimizer.betas.value[0],
                 beta = trainer->config->optimizer.betas.value[0];
    if (optimizer_averages(trainer->config) && beta != beta_before)
        return FAIL(
            STATUS_INVALID,
            "optimizer.betas begin with %g, but with %g in %s: schedule-free AdamW's average follows from "
            "that; leave it, or begin a new run with model.init_from",
            beta, beta_before, from->path);
    return STATUS_OK;
}

static enum status read_checkpoint(void *context, enum checkpoint_kind kind, int unit, size_t begin,
                                   size_t end, float *out) {
    return checkpoint_read_span(context, kind, unit, begin, end, out);
}

enum status trainer_load_states(struct trainer *trainer, struct checkpoint *from) {
    struct optimizer_groups written_by = {0};
    const struct checkpoint_source source = {from, read_checkpoint, from->kinds.has_average, &written_by};
    enum status status = optimizer_groups_init(&written_by, &from->config, &from->params);
    if (status == STATUS_OK)
        status = check_states(trainer, from);
    status = trainer_agree(trainer, status);
    if (status == STATUS_OK) {
        warn_of_new_moments(trainer, from, &written_by);
        status = model_states_load(&trainer->engine.state, &trainer->stream, &source, true);
    }
    optimizer_groups_free(&written_by);
    return status;
}

// Stages 2 and 3 reduce the gradients of every micro-batch, stages 0 and 1 those of the step. The batch may
// become larger than it is at first.
static bool reduces_every_micro_batch(const struct config *config) {
    const bool may_have_several = config->train.gradient_accumulation_steps > 1 ||
                                  config->train.batch_size_schedule.n > 0 || config->train.max_batch_size > 0;
    return may_have_several &&
           (config->zero_optimization.stage >= 2 || config->zero_optimization.reduce_every_micro_batch);
}

// The ranks and the stage may change in a run. Says whether its bits are then those of a run that went on.
static void describe_changed_ranks(const struct trainer *trainer) {
    const struct checkpoint *from = trainer->resumed;
    const struct config *before = &from->config, *now = trainer->config;
    const int stage_before = (int)before->zero_optimization.stage, stage = (int)now->zero_optimization.stage;
    const int world = trainer->comm->world;
    if (from->world == world && stage_before == stage &&
        before->zero_optimization.partition == now->zero_optimization.partition)
        return;
    const bool same_bits = from->world == world &&
                           before->zero_optimization.partition == now->zero_optimization.partition &&
                           reduces_every_micro_batch(before) == reduces_every_micro_batch(now);
    log_info(
        "the checkpoint is of %d rank%s in stage %d, partition %s; now %d rank%s in stage %d, partition %s: "
        "results are equal to %s",
        from->world, from->world == 1 ? "" : "s", stage_before,
        config_partition_name(before->zero_optimization.partition), world, world == 1 ? "" : "s", stage,
        config_partition_name(now->zero_optimization.partition),
        same_bits ? "the last bit" : "rounding, as sums are added in another order");
}

static void describe_changed_device(const struct trainer *trainer) {
    const char *before = trainer->resumed->device, *now = trainer->device->arithmetic;
    if (strcmp(before, now) != 0)
        log_info("the checkpoint is of a run by %s; now by %s: results are equal to rounding", before, now);
}

void trainer_describe_resume(const struct trainer *trainer) {
    if (!trainer->resumed)
        return;
    char total[32];
    log_info("resuming after step %lld%s from %s", (long long)trainer->step,
             trainer_of_total(trainer, total, sizeof total), trainer->resumed->path);
    describe_changed_ranks(trainer);
    describe_changed_device(trainer);
}

// The rate restarts where max_steps was raised and decay_steps is not given.
static void describe_changed_rate(const struct trainer *trainer) {
    const struct config *before = &trainer->resumed->config, *now = trainer->config;
    const int64_t updates = trainer->step - trainer_skipped(trainer);
    const double was = schedule_lr(before, trainer_warmup_before(trainer), updates),
                 is = schedule_lr(now, trainer->run.warmup_steps, updates);
    const long long steps_before = config_decay_steps(before), steps_now = config_decay_steps(now);
    if (steps_before == steps_now || fabs(is - was) <= 1e-6 * fmax(is, was))
        return;
    log_info(
        "the learning rate schedule was %lld steps long and is now %lld: step %lld trains at %.3g instead "
        "of %.3g. scheduler.decay_steps=%lld keeps the schedule as it was",
        steps_before, steps_now, (long long)trainer->step + 1, is, was, steps_before);
}

void trainer_describe_warmup(const struct trainer *trainer, int64_t steps) {
    const struct config *config = trainer->config;
    const int64_t warmup = trainer->run.warmup_steps,
                  derived = schedule_warmup_of(config->scheduler.warmup_steps, steps);
    if (warmup != derived)
        log_info("warm-up: %lld step%s, as the run began with; a new run of %lld steps would have %lld",
                 (long long)warmup, warmup == 1 ? "" : "s", (long long)steps, (long long)derived);
    else if (warmup < config->scheduler.warmup_steps)
        log_info("warm-up: %lld step%s, as scheduler.warmup_steps=%lld is longer than the schedule of %lld "
                 "step%s",
                 (long long)warmup, warmup == 1 ? "" : "s", (long long)config->scheduler.warmup_steps,
                 (long long)steps, steps == 1 ? "" : "s");
}

void trainer_describe_schedule(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    if (config->train.max_minutes > 0) // the length is not known yet
        return;
    trainer_describe_warmup(trainer, config_decay_steps(config));
    if (trainer->resumed && trainer->resumed->config.train.max_minutes == 0)
        describe_changed_rate(trainer);
}
