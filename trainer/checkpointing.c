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

static enum status prune(const struct trainer *trainer) {
    const struct run_best *best = &trainer->run.best;
    const int64_t best_step = best->sequences > 0 ? best->step : -1;
    checkpoint_name_best(trainer->folder.checkpoints, best_step);
    // While steps are being skipped (fp16 overflow, spikes) the run may be lost, and an older checkpoint
    // needed: keep all.
    if (trainer->run.loss_scale.consecutive > 0 || trainer->run.spikes.consecutive > 0)
        return STATUS_OK;
    return checkpoint_prune(trainer->folder.checkpoints, trainer->config->checkpoint.keep, trainer->step,
                            best_step);
}

// An average of no update yet is not written.
static struct checkpoint_kinds kinds_to_save(const struct trainer *trainer) {
    struct checkpoint_kinds kinds = model_states_kinds(&trainer->engine.state);
    kinds.has_average &= trainer->run.average.n > 0;
    return kinds;
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
    TRY(trainer_show_average(trainer, false));
    judge(trainer);
    if (config->train.max_minutes > 0)
        trainer->run.pacing.spent_s = trainer_spent_s(trainer);
    TRY(checkpoint_write(trainer->folder.checkpoints, &contents));
    trainer->saved_step = trainer->step;
    return trainer_agree(trainer, trainer_leads(trainer) ? prune(trainer) : STATUS_OK);
}
