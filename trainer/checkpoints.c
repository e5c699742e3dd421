// For the format of checkpoints see zero/checkpoint/checkpoint.h.
#include "trainer/checkpoints.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "options/resume.h"
#include "trainer/auditing.h"

// ---- saving

// Makes this step's checkpoint the best one if its loss is lower than the best loss so far, or if that was on
// another number of sequences. All ranks know the same loss, so they decide alike.
static void judge(struct run *run, const struct run_best *now) {
    struct run_best *best = &run->state.best;
    if (!run->config->checkpoint.keep_best)
        *best = (struct run_best){0};
    else if (now->sequences > 0 && now->step == run->step && isfinite(now->loss) &&
             (best->sequences != now->sequences || now->loss < best->loss))
        *best = *now;
}

static void prune(const struct run *run) {
    const struct run_best *best = &run->state.best;
    const int64_t best_step = best->sequences > 0 ? best->step : -1;
    checkpoint_name_best(run->folder.checkpoints, best_step);
    // Keep all checkpoints while steps are being skipped (fp16 overflow, spikes): if the run does not
    // recover, an older one is needed.
    if (run->state.loss_scale.consecutive == 0 && run->state.spikes.consecutive == 0)
        checkpoint_prune(run->folder.checkpoints, run->config->checkpoint.keep,
                         run->config->checkpoint.keep_every, run->step, best_step);
}

enum status checkpoints_take_failure(struct run *run, struct text *reason) {
    text_add(reason, "%s", status_message()[0] ? status_message() : "the run failed");
    status_clear();
    run->pending = STATUS_OK; // its message, or an earlier failure's, is in `reason`
    const enum status lost = run_agree(run, run_check_folder(run));
    if (lost != STATUS_OK)
        text_free(reason);
    return lost;
}

enum status checkpoints_save(struct run *run, const struct tokenizer *tokenizer,
                             const struct run_best *evaluated) {
    const struct config *config = run->config;
    struct model_states *state = &run->engine.state;
    struct state_reader reader = {state, &run->machine.stream};
    const struct checkpoint_contents contents = {.comm = run->comm,
                                                 .partition = state->stage.partition,
                                                 .step = run->step,
                                                 .tokens = run->tokens,
                                                 .config = config,
                                                 .params = &run->params,
                                                 .tokenizer = tokenizer,
                                                 .compute = run->type,
                                                 .device = run->machine.device->arithmetic,
                                                 .fingerprint = run->machine.fingerprint,
                                                 .attention = run->attention,
                                                 .kinds = run_checkpoint_kinds(run),
                                                 .run = &run->state,
                                                 .source = model_states_source(&reader)};
    // A pending failure comes before one of the folder, because its message is already the status message.
    TRY(run_agree_between_steps(run, run->pending == STATUS_OK ? run_check_folder(run) : run->pending));
    TRY(run_show_average(run, false));
    judge(run, evaluated);
    const enum status status = checkpoint_write(run->folder.checkpoints, &contents);
    if (status != STATUS_OK) {
        struct text reason = {0};
        TRY(checkpoints_take_failure(run, &reason));
        const enum status failure = FAIL(status, "%s", reason.data);
        text_free(&reason);
        return run_agree(run, failure);
    }
    run->saved_step = run->step;
    if (run_leads(run))
        prune(run);
    return STATUS_OK;
}

// ---- resuming

static enum status find_checkpoint(struct run *run, struct checkpoint **out) {
    const char *resume = run->config->checkpoint.resume;
    if (strcmp(resume, "auto") == 0)
        return checkpoint_open_newest(run->comm, run->folder.checkpoints, out);
    if (strcmp(resume, "never") != 0)
        return checkpoint_open_path(run->comm, resume, out);
    return checkpoint_require_none(run->comm, run->folder.checkpoints);
}

static enum status record_change(void *context, const char *option, const char *was, const char *is) {
    struct run *run = context;
    run_state_add_change(&run->state, run->step, option, was, is);
    return STATUS_OK;
}

// Checks that the run can resume from the checkpoint. Options that were changed on purpose are logged, and
// recorded in every later checkpoint.
static enum status check_resumed(struct run *run, struct training_data *data, const struct checkpoint *from) {
    const int n_before = run->state.n_changes;
    config_resume_batch(run->config, &from->config, from->logical_ranks, run->comm->world);
    TRY(checkpoint_check_model(from, &run->params));
    TRY(training_data_check_resumed(data, from));
    const struct config_decided decided = run_decided_before(from);
    if (audit_repeats(run->audit)) // which options change here is the ledger's to say
        return STATUS_OK;
    TRY(config_check_resume(&from->config, &decided, run->config, record_change, run));
    for (int i = n_before; i < run->state.n_changes; i++) {
        const struct run_change *change = &run->state.changes[i];
        log_info("%s changes from %s to %s after step %lld (checkpoint.resume_with)", change->option,
                 change->was, change->is, (long long)change->step);
    }
    return STATUS_OK;
}

// Forgets the best checkpoint if rank 0 does not find it in this run's folder.
static enum status find_best(struct run *run) {
    char *path = checkpoint_path(run->folder.checkpoints, run->state.best.step);
    int32_t is_there = file_is_folder(path);
    free(path);
    TRY(comm_broadcast(run->comm, &is_there, sizeof is_there, 0));
    if (!is_there)
        run->state.best = (struct run_best){0};
    return STATUS_OK;
}

// Sets *is_own: true if rank 0 finds the checkpoint to resume in this run's own folder.
static enum status find_own(struct run *run, const struct checkpoint *from, int32_t *is_own) {
    char *own = checkpoint_path(run->folder.checkpoints, from->step);
    char *real = realpath(own, NULL), *resumed = realpath(from->path, NULL);
    *is_own = real && resumed && strcmp(real, resumed) == 0;
    free(own), free(real), free(resumed);
    return comm_broadcast(run->comm, is_own, sizeof *is_own, 0);
}

enum status checkpoints_find(struct run *run, struct training_data *data, struct checkpoint **resumed) {
    const struct config *config = run->config;
    int32_t is_own;
    run->saved_step = -1;
    run->state.loss_scale = loss_scale_initial(config);
    TRY(run_agree(run, find_checkpoint(run, resumed)));
    if (!*resumed)
        return STATUS_OK;
    struct checkpoint *from = *resumed;
    run_state_move(&run->state, &from->run);
    run->step = from->step;
    run->tokens = from->tokens;
    TRY(run_agree(run, check_resumed(run, data, from)));
    TRY(find_best(run));
    TRY(find_own(run, from, &is_own));
    run->saved_step = is_own ? run->step : -1;
    run->state.average = averaging_resumed(config, &from->run.average, from->kinds.has_average);
    // A changed train_batch_size, or a batch_size_schedule, replaces the sizes that the noise scale led to.
    if (config->train.batch_size_schedule.n > 0 ||
        config->train.train_batch_size != from->config.train.train_batch_size)
        run->state.noise.grown.n = 0;
    return STATUS_OK;
}

// Returns the largest ratio of Adam's updates to the learning rate if moments start at zero late in a run.
// Bias correction depends on the run's step number, so it then corrects too little. Assumes the same gradient
// in each step.
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

// Logs the trained tensors whose moments the checkpoint does not have, so that they start at zero.
static void warn_of_new_moments(const struct run *run, const struct checkpoint *from,
                                const struct optimizer_groups *written_by) {
    const struct optimizer_groups *groups = &run->engine.state.groups;
    const char *first = NULL;
    int n = 0;
    bool corrects = false; // true: the rule of one of these tensors corrects the bias of moments
    for (int i = 0; i < run->params.n_params; i++) {
        const struct optimizer_group *group = optimizer_group_of(groups, i);
        if (group->n_moments == 0 || optimizer_groups_keep(written_by, groups, i, group->n_moments))
            continue;
        first = first ? first : run->params.params[i].name;
        corrects = corrects || group->rule == OPTIMIZER_ADAMW || group->rule == OPTIMIZER_ADAM;
        n++;
    }
    const double times = largest_first_step(run->config);
    if (n > 0 && corrects && from->step > 0 && times > 1.5)
        log_warning(
            "%d tensor%s, such as %s, begin%s with moments of zero after step %lld: with these "
            "optimizer.betas, the first updates may be up to %.2g times the learning rate; a lower lr "
            "in optimizer.groups avoids that",
            n, n == 1 ? "" : "s", first, n == 1 ? "s" : "", (long long)from->step, times);
    else if (n > 0)
        log_info("%d tensor%s, such as %s, begin%s with moments of zero", n, n == 1 ? "" : "s", first,
                 n == 1 ? "s" : "");
}

// Logs the tensors that are frozen now and were trained before.
static void log_newly_frozen(const struct run *run, const struct checkpoint *from,
                             const struct optimizer_groups *written_by) {
    const char *first = NULL;
    int n = 0;
    for (int i = 0; i < run->params.n_params; i++) {
        if (!run->params.params[i].is_frozen || optimizer_group_of(written_by, i)->is_frozen)
            continue;
        first = first ? first : run->params.params[i].name;
        n++;
    }
    if (n > 0)
        log_info(
            "%d tensor%s, such as %s, %s frozen after step %lld: the moments are dropped and the weights "
            "kept in %s",
            n, n == 1 ? "" : "s", first, n == 1 ? "is" : "are", (long long)from->step, dtype_name(run->type));
}

// Refuses a checkpoint whose states would have another meaning in this run.
static enum status check_states(const struct config *config, const struct checkpoint *from) {
    const double beta_before = from->config.optimizer.betas.value[0], beta = config->optimizer.betas.value[0];
    if (optimizer_averages(config) && beta != beta_before)
        return FAIL(STATUS_INVALID,
                    "optimizer.betas[0] is %g, but %g in %s: schedule-free AdamW computes its "
                    "average with this beta; restore it, or begin a new run with model.init_from",
                    beta, beta_before, from->path);
    return STATUS_OK;
}

enum status checkpoints_load_states(struct run *run, struct checkpoint *from) {
    struct optimizer_groups written_by = {0};
    struct checkpoint_source source = checkpoint_source_of(from);
    source.written_by = &written_by;
    enum status status = optimizer_groups_init(&written_by, &from->config, &from->params);
    if (status == STATUS_OK)
        status = check_states(run->config, from);
    status = run_agree(run, status);
    if (status == STATUS_OK) {
        warn_of_new_moments(run, from, &written_by);
        log_newly_frozen(run, from, &written_by);
        status = model_states_load(&run->engine.state, &run->machine.stream, &source, true);
    }
    optimizer_groups_free(&written_by);
    return status;
}

static void add_change(struct text *out, const char *format, int64_t before, int64_t now) {
    if (before == now)
        return;
    text_add(out, out->length ? ", and " : " (");
    text_add(out, format, (long long)before, (long long)now);
}

// Appends what makes the resumed run add in another order than the run of the checkpoint: " (..., and ...)".
// Nothing if its results are bitwise equal.
static void add_changed_sums(const struct run *run, const struct checkpoint *from, struct text *out) {
    const struct config *before = &from->config, *now = run->config;
    const bool was_every = stage_adds_micro_batches(before, from->logical_ranks, from->world),
               is_every = stage_adds_micro_batches(now, now->logical_ranks, run->comm->world);
    add_change(out,
               run->machine.lacks_memory ? "%lld logical ranks before, %lld now, for lack of memory"
                                         : "%lld logical ranks before, %lld now",
               from->logical_ranks, now->logical_ranks);
    add_change(out, "micro-batches of %lld sequences before, of %lld now", before->train.micro_batch_size,
               now->train.micro_batch_size);
    if (was_every != is_every)
        text_add(out, "%sgradients reduced %s", out->length ? ", and " : " (",
                 was_every ? "after every micro-batch before, once per step now"
                           : "once per step before, after every micro-batch now");
    if (out->length)
        text_add(out, ")");
}

enum status checkpoints_check_sums(const struct run *run, const struct checkpoint *resumed) {
    struct text changes = {0};
    enum status status = STATUS_OK;
    if (!resumed || audit_repeats(run->audit) || run->config->train.logical_ranks == 0 ||
        resumed->logical_ranks != run->config->logical_ranks) // allowed by checkpoint.resume_with
        return STATUS_OK;
    add_changed_sums(run, resumed, &changes);
    if (changes.length)
        status =
            FAIL(STATUS_INVALID,
                 "%s: train.logical_ranks is given, but this run would not have the bits of the run that "
                 "it resumes%s; restore these, or continue with results equal up to rounding: leave "
                 "train.logical_ranks out",
                 run->config->source, changes.data);
    text_free(&changes);
    return status;
}

// If the run resumes with another number of ranks, stage, partition or micro-batch size, logs the change, and
// whether results remain bitwise equal to those without it.
static void describe_changed_ranks(const struct run *run, const struct checkpoint *from) {
    const struct config *before = &from->config, *now = run->config;
    const int stage_before = (int)before->zero_optimization.stage, stage = (int)now->zero_optimization.stage;
    const int world = run->comm->world;
    struct text changes = {0};
    add_changed_sums(run, from, &changes);
    if (changes.length || from->world != world || stage_before != stage ||
        before->zero_optimization.partition != now->zero_optimization.partition)
        log_info(
            "the checkpoint is of %d rank%s in stage %d, partition %s; now %d rank%s in stage %d, partition "
            "%s: results are equal %s%s",
            from->world, from->world == 1 ? "" : "s", stage_before,
            config_partition_name(before->zero_optimization.partition), world, world == 1 ? "" : "s", stage,
            config_partition_name(now->zero_optimization.partition),
            changes.length ? "up to rounding, as sums are added in another order" : "to the last bit",
            changes.data ? changes.data : "");
    text_free(&changes);
}

void checkpoints_describe_resumed(const struct run *run, const struct checkpoint *resumed) {
    if (!resumed)
        return;
    char total[32];
    log_info("resuming after step %lld%s from %s", (long long)run->step,
             run_of_total(run, total, sizeof total), resumed->path);
    describe_changed_ranks(run, resumed);
}
