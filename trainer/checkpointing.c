// Checkpoints that a run writes (format: zero/checkpoint/checkpoint.h).
#include "trainer/trainer_internal.h"

enum status trainer_save(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct model_states *state = &trainer->engine.state;
    struct state_reader reader = {state, &trainer->stream};
    const struct checkpoint_contents contents = {.comm = trainer->comm,
                                                 .partition = &state->partition,
                                                 .step = trainer->step,
                                                 .tokens = trainer->tokens,
                                                 .config = config,
                                                 .params = &trainer->params,
                                                 .tokenizer = trainer->tokenizer,
                                                 .compute = trainer->type,
                                                 .n_kinds = state->placement.n_kinds,
                                                 .has_factors = state->second_moments.n > 0,
                                                 .loss_scale = trainer->loss_scale,
                                                 .data = &trainer->data,
                                                 .history = &trainer->history,
                                                 .source = model_states_source(&reader)};
    TRY(checkpoint_write(trainer->folder.checkpoints, &contents));
    trainer->saved_step = trainer->step;
    enum status status = STATUS_OK;
    // While steps are being skipped (fp16 overflow) the run may be lost, and an older checkpoint needed: keep
    // all.
    if (trainer_leads(trainer) && trainer->loss_scale.consecutive == 0)
        status = checkpoint_prune(trainer->folder.checkpoints, config->checkpoint.keep, trainer->step);
    return trainer_agree(trainer, status);
}
