// The loop: gradients of the micro-batches, the update, and what is due after it.
#include "zero/trainer.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "zero/progress.h"
#include "zero/schedule.h"
#include "zero/signals.h"
#include "zero/trainer_parts.h"

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

// Gradients of the whole step, and its mean loss. The weights are untouched.
static enum status accumulate(struct trainer *trainer, double *loss) {
    const struct config *config = trainer->config;
    int B = (int)config->train.micro_batch_size;
    int64_t n_micro = config->train.gradient_accumulation_steps;
    double n_tokens = (double)(n_micro * B * config->train.seq_len), sum = 0;
    int64_t data_step = config->train.overfit_one_batch ? 0 : trainer->step;
    TRY(state_clear_grads(&trainer->state, &trainer->stream));
    for (int64_t k = 0; k < n_micro; k++) {
        const int32_t *tokens, *targets;
        double micro_sum;
        TRY(loader_batch(trainer->train, data_step, (int)(k * B), &tokens, &targets));
        TRY(gpt_forward_backward(trainer->gpt, &trainer->stream, &trainer->state.hooks, tokens, targets,
                                 (float)(1.0 / n_tokens), &micro_sum));
        sum += micro_sum;
    }
    *loss = sum / n_tokens;
    return STATUS_OK;
}

static enum status train_step(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct step_metrics now = {.step = trainer->step, .lr = schedule_lr(config, trainer->step)};
    double began = clock_monotonic_s();
    TRY(accumulate(trainer, &now.loss));
    TRY(optimizer_norm(&trainer->optimizer, &trainer->stream, &now.grad_norm));
    if (!isfinite(now.loss) || !isfinite(now.grad_norm))
        return FAIL(STATUS_FAILED,
                    "step %lld: the loss is %g and the gradient norm %g; the run has diverged. The last "
                    "checkpoint stands; "
                    "lower optimizer.lr, or go on from an earlier one with checkpoint.resume=PATH",
                    (long long)now.step, now.loss, now.grad_norm);
    TRY(optimizer_update(&trainer->optimizer, &trainer->stream, trainer->step + 1, now.lr, now.grad_norm));
    TRY(trainer->device->synchronize(&trainer->stream));
    double seconds = clock_monotonic_s() - began;

    int64_t step_tokens = config->train.train_batch_size * config->train.seq_len;
    trainer->step++;
    now.tokens = trainer->step * step_tokens;
    now.tokens_per_s = (double)step_tokens / seconds;
    now.step_ms = seconds * 1e3;
    now.mfu = params_flops_per_token(&trainer->params, (int)config->train.seq_len) * now.tokens_per_s /
              trainer->gemm_rate;
    now.memory_planned_bytes = region_total_bytes(&trainer->memory.table);
    now.memory_peak_bytes = metrics_peak_memory();
    progress_step(config, &now);
    return metrics_step(&trainer->metrics, &now);
}

// Evaluation, samples and a checkpoint, as far as they are due after this many updates.
static enum status after_step(struct trainer *trainer, bool last) {
    const struct config *config = trainer->config;
    if (trainer->val && (last || due(config->train.eval_every, trainer->step)))
        TRY(trainer_evaluate(trainer));
    if (trainer->generator && due(config->train.sample_every, trainer->step))
        TRY(trainer_sample(trainer));
    if (last || due(config->checkpoint.every, trainer->step))
        TRY(trainer_save(trainer));
    return STATUS_OK;
}

static enum status stop(struct trainer *trainer) {
    log_live_end();
    if (trainer->saved_step != trainer->step)
        TRY(trainer_save(trainer));
    log_info("stopped after step %lld of %lld; go on with: %s", (long long)trainer->step,
             (long long)trainer->config->train.max_steps, trainer->command);
    return STATUS_STOPPED;
}

static enum status loop(struct trainer *trainer) {
    int64_t last = trainer->config->train.max_steps;
    if (trainer->step == last) // no steps at all: the run is its initial weights
        return after_step(trainer, true);
    while (trainer->step < last) {
        if (signals_stop_asked())
            return stop(trainer);
        enum status status = train_step(trainer);
        if (status == STATUS_INVALID && trainer->saved_step != trainer->step) {
            // Bad data met on the way: the weights are whole, and the first failure stays the one that is
            // told.
            log_live_end();
            if (trainer_save(trainer) != STATUS_OK)
                log_warning("the progress up to step %lld could not be saved", (long long)trainer->step);
        }
        TRY(status);
        TRY(after_step(trainer, trainer->step == last));
    }
    return STATUS_OK;
}

static enum status run(struct trainer *trainer) {
    bool complete;
    TRY(trainer_setup(trainer, &complete));
    if (complete) {
        log_info("the run in %s is complete: %lld of train.max_steps=%lld steps; raise train.max_steps to go "
                 "on, or name "
                 "another run.dir",
                 trainer->folder.path, (long long)trainer->step, (long long)trainer->config->train.max_steps);
        return STATUS_OK;
    }
    double began = clock_monotonic_s();
    int64_t first = trainer->step;
    TRY(loop(trainer));
    log_live_end();
    char duration[32];
    log_info("done: %lld steps in %s; the run is in %s", (long long)(trainer->step - first),
             text_duration(duration, sizeof duration, clock_monotonic_s() - began), trainer->folder.path);
    return STATUS_OK;
}

enum status trainer_run(struct config *config, const char *command) {
    struct trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer)
        return FAIL(STATUS_FAILED, "out of memory for a trainer");
    trainer->config = config;
    trainer->command = command;
    signals_catch();
    enum status status = run(trainer);
    log_live_end();
    trainer_free(trainer);
    free(trainer);
    return status;
}
