// Checkpoints that a run writes (format: zero/checkpoint/checkpoint.h).
#include <math.h>

#include "trainer/trainer_internal.h"

// All ranks know the same loss, and decide alike. Only losses on the same sequences are compared.
static void judge(struct trainer *trainer) {
    struct run_best *best = &trainer->run.best;
    const struct run_best *now = &trainer->evaluated;
    if (!trainer->config->checkpoint.keep_best)
        *best = (struct run_best){0};
    else if (now->sequences > 0 && now->step == trainer->step && isfinite(now->loss) &&
             (best->sequences != now->sequences || now->loss < best->loss))
        *best = *now;
}

static void prune(const struct trainer *trainer) {
    const struct run_best *best = &trainer->run.best;
    const int64_t best_step = best->sequences > 0 ? best->step : -1;
    checkpoint_name_best(trainer->folder.checkpoints, best_step);
    // While steps are being skipped (fp16 overflow, spikes) the run may be lost, and an older checkpoint
    // needed: keep all.
    if (trainer->run.loss_scale.consecutive == 0 && trainer->run.spikes.consecutive == 0)
        checkpoint_prune(trainer->folder.checkpoints, trainer->config->checkpoint.keep, trainer->step,
                         best_step);
}

// An average of no update yet is not written.
static struct checkpoint_kinds kinds_to_save(const struct trainer *trainer) {
    struct checkpoint_kinds kinds = model_states_kinds(&trainer->engine.state);
    kinds.has_average &= trainer->run.average.n > 0;
    return kinds;
}

enum status trainer_take_failure(struct trainer *trainer, struct text *reason) {
    text_add(reason, "%s", status_message()[0] ? status_message() : "the run failed");
    status_clear();
    trainer->pending = STATUS_OK; // it is this failure, or came after it
    const enum status lost = trainer_agree(trainer, trainer_check_folder(trainer));
    if (lost != STATUS_OK)
        text_free(reason);
    return lost;
}

enum status trainer_save(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct model_states *state = &trainer->engine.state;
    struct state_reader reader = {state, &trainer->stream};
    const struct checkpoint_contents contents = {.comm = trainer->comm,
                                                 .partition = state->stage.partition,
                                                 .step = trainer->step,
                                                 .tokens = trainer->tokens,
                                                 .config = config,
                                                 .params = &trainer->params,
                                                 .tokenizer = trainer->tokenizer,
                                                 .compute = trainer->type,
                                                 .device = trainer->device->arithmetic,
                                                 .attention = trainer->attention,
                                                 .kinds = kinds_to_save(trainer),
                                                 .run = &trainer->run,
                                                 .source = model_states_source(&reader)};
    // A failure that waits to be agreed on is first: its message is recorded.
    TRY(trainer_agree_between_steps(trainer, trainer->pending == STATUS_OK ? trainer_check_folder(trainer)
                                                                           : trainer->pending));
    TRY(trainer_show_average(trainer, false));
    judge(trainer);
    if (config->train.max_minutes > 0)
        trainer->run.pacing.spent_s = trainer_spent_s(trainer);
    const enum status status = checkpoint_write(trainer->folder.checkpoints, &contents);
    if (status != STATUS_OK) {
        struct text reason = {0};
        TRY(trainer_take_failure(trainer, &reason));
        const enum status failure = FAIL(status, "%s", reason.data);
        text_free(&reason);
        return trainer_agree(trainer, failure);
    }
    trainer->saved_step = trainer->step;
    if (trainer_leads(trainer))
        prune(trainer);
    return STATUS_OK;
}
