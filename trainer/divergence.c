// Steps that diverge, and what train.on_spike does about them. All ranks know the same losses and norms to
// the bit, and come to the same end.
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/log.h"
#include "trainer/spikes.h"
#include "trainer/trainer_internal.h"
#include "zero/stages/gradients.h"

// ---- what to say

enum { SEQUENCES_NAMED = 3 };

// "token 0 of a.bin, token 64 of b.bin and 6 others": `n` rows of a step's batch, from `row` on.
static void add_sequences(const struct trainer *trainer, int64_t step, int64_t row, int64_t n,
                          struct text *out) {
    const int64_t data_step = trainer->config->train.overfit_one_batch ? 0 : step - 1;
    for (int64_t i = 0; i < n && i < SEQUENCES_NAMED; i++) {
        const char *path;
        size_t token;
        loader_locate(trainer->train, data_step, (int)(row + i), &path, &token);
        text_add(out, "%stoken %zu of %s", i ? ", " : "", token, path);
    }
    if (n > SEQUENCES_NAMED)
        text_add(out, " and %lld others", (long long)(n - SEQUENCES_NAMED));
}

static void add_figures(const struct trainer *trainer, const struct trainer_step *step, struct text *out) {
    const struct spike_limits *limits = &step->limits;
    const bool loss = step->now.loss > limits->loss;
    text_add(out,
             "%s %.6g is above %.6g: the median is %.6g over the last %lld steps (train.spike_threshold=%g)",
             loss ? "the loss" : "the gradient norm", loss ? step->now.loss : step->now.grad_norm,
             loss ? limits->loss : limits->norm, loss ? limits->median_loss : limits->median_norm,
             (long long)limits->n_steps, trainer->config->train.spike_threshold);
}

// ---- the first tensor that is not finite

struct found {
    struct finding finding;
    int64_t micro_batch;
};

// Forward and backward of the step's micro-batches once more, with the weights that the step had.
static enum status repeat_step(struct trainer *trainer, const struct trainer_step *step,
                               struct found *found) {
    struct engine *engine = &trainer->engine;
    const struct config *config = trainer->config;
    const int64_t n_micro = trainer_micro_batches(trainer, step->batch_size),
                  data_step = config->train.overfit_one_batch ? 0 : step->now.step - 1,
                  tokens_before = step->now.tokens - (int64_t)trainer_step_tokens(trainer, step->batch_size);
    for (int64_t k = 0; k < n_micro; k++) {
        const int32_t *tokens, *targets;
        const bool was_found = found->finding.is_found;
        TRY(trainer_agree(trainer, loader_batch(trainer->train, data_step, (int)trainer_first_row(trainer, k),
                                                &tokens, &targets)));
        TRY(gpt_load(engine->gpt, &trainer->stream, tokens, targets,
                     trainer_first_token(trainer, tokens_before, k)));
        TRY(gradients_begin(&engine->state.gradients, &trainer->stream, k, n_micro));
        const struct gpt_loss loss = {.scale = step->plan.loss_factor,
                                      .sum = optimizer_loss_sum(&engine->optimizer),
                                      .accumulate = k > 0};
        TRY(finding_train(engine->gpt, &trainer->params, &engine->state.stage.groups, trainer->device,
                          &trainer->stream, &engine->state.hooks, &loss, &found->finding));
        if (found->finding.is_found && !was_found)
            found->micro_batch = k;
    }
    return gradients_finish(&engine->state.gradients, &trainer->stream);
}

// As after a step that is given up: offload copies gradients while it adds their squares.
static enum status drop_gradients(struct trainer *trainer) {
    struct optimizer *optimizer = &trainer->engine.optimizer;
    double norm;
    if (!optimizer_decides_on_device(optimizer))
        TRY(optimizer_norm(optimizer, &trainer->stream, &norm));
    TRY(optimizer_skip(optimizer, &trainer->stream));
    return trainer->device->synchronize(&trainer->stream);
}

// Appends where the first value that is not finite is, over all ranks, and in which data. Collective.
static enum status add_first(struct trainer *trainer, const struct trainer_step *step, struct text *out) {
    const struct comm *comm = trainer->comm;
    const int64_t B = trainer->config->train.micro_batch_size;
    struct found mine = {0};
    struct found *all = allocate((size_t)comm->world, sizeof *all);
    enum status status = repeat_step(trainer, step, &mine);
    if (status == STATUS_OK)
        status = drop_gradients(trainer);
    if (status == STATUS_OK)
        status = comm_gather(trainer->comm, &mine, sizeof mine, all);
    int first = -1;
    for (int rank = 0; rank < comm->world && status == STATUS_OK; rank++)
        if (all[rank].finding.is_found &&
            (first < 0 || all[rank].finding.n_operations < all[first].finding.n_operations))
            first = rank;
    if (status == STATUS_OK && first >= 0) {
        const int64_t row = (all[first].micro_batch * comm->world + first) * B;
        text_add(out,
                 "The first tensor that is not finite is %s of micro-batch %lld of rank %d, with the "
                 "sequences at ",
                 all[first].finding.what, (long long)all[first].micro_batch + 1, first);
        add_sequences(trainer, step->now.step, row, B, out);
    } else if (status == STATUS_OK) {
        text_add(out, "All tensors are finite when the step is repeated: the sum over micro-batches and "
                      "ranks overflows");
    }
    free(all);
    return status;
}

// ---- what to do

static enum status end_run(const struct trainer *trainer, const struct trainer_step *step,
                           const struct text *what, const char *advice) {
    return FAIL(STATUS_FAILED, "step %lld: %s; the run has diverged. %s. %s", (long long)step->now.step,
                what->data ? what->data : "", advice,
                trainer->saved_step >= 0
                    ? "The last checkpoint is kept; lower optimizer.lr, or resume from an "
                      "earlier one with checkpoint.resume=PATH"
                    : "It has saved no checkpoint; lower optimizer.lr");
}

static enum status skip(struct trainer *trainer, const struct trainer_step *step, const struct text *what) {
    struct spike_record *spikes = &trainer->run.spikes;
    const int64_t most = trainer->config->train.max_spikes;
    spikes->skipped++;
    spikes->consecutive++;
    if (most > 0 && spikes->consecutive >= most)
        return end_run(trainer, step, what, "train.max_spikes updates in a row were skipped");
    log_warning("step %lld: %s. The update is skipped (train.on_spike=skip)", (long long)step->now.step,
                what->data);
    return STATUS_OK;
}

static enum status act(struct trainer *trainer, const struct trainer_step *step, bool is_finite,
                       const struct text *what) {
    switch (trainer->config->train.on_spike) {
    case CONFIG_ON_SPIKE_SKIP:
        return skip(trainer, step, what);
    case CONFIG_ON_SPIKE_OFF:
    case CONFIG_ON_SPIKE_WARN:
        if (is_finite) {
            log_warning("step %lld: %s", (long long)step->now.step, what->data);
            return STATUS_OK;
        }
        break;
    case CONFIG_ON_SPIKE_STOP:
        break;
    }
    return end_run(trainer, step, what, "train.on_spike=skip leaves such updates out");
}

enum status trainer_diverged(struct trainer *trainer, const struct trainer_step *step) {
    struct text what = {0};
    const bool is_finite = isfinite(step->now.loss) && isfinite(step->now.grad_norm);
    enum status status = STATUS_OK;
    trainer->run.spikes.seen++;
    log_live_end();
    if (is_finite) {
        add_figures(trainer, step, &what);
        text_add(&what, "; its sequences begin at ");
        add_sequences(trainer, step->now.step, 0, step->batch_size, &what);
    } else {
        text_add(&what, "the loss is %g and the gradient norm %g. ", text_plain_nan(step->now.loss),
                 text_plain_nan(step->now.grad_norm));
        status = add_first(trainer, step, &what);
    }
    if (status == STATUS_OK)
        status = act(trainer, step, is_finite, &what);
    text_free(&what);
    return status;
}

void trainer_log_spikes(const struct trainer *trainer) {
    const struct spike_record *spikes = &trainer->run.spikes;
    char often[32] = "once", skipped[64] = "no update was skipped";
    if (spikes->seen == 0)
        return;
    if (spikes->seen > 1)
        snprintf(often, sizeof often, "%lld times", (long long)spikes->seen);
    if (spikes->skipped > 0)
        snprintf(skipped, sizeof skipped, "%lld update%s skipped", (long long)spikes->skipped,
                 spikes->skipped == 1 ? " was" : "s were");
    log_warning("the run diverged %s (train.on_spike); %s", often, skipped);
}
