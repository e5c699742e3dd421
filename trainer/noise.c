// The gradient noise scale of a run, and the batch size that follows from it.
#include <math.h>

#include "base/log.h"
#include "trainer/trainer_internal.h"

void trainer_take_batches(struct trainer *trainer) {
    trainer->batches = batch_sizes_of(trainer->config);
    if (trainer->noise.grown.n > 0)
        trainer->batches.stages = trainer->noise.grown;
}

bool trainer_measures_noise(const struct trainer *trainer, int64_t batch_size) {
    const struct config *config = trainer->config;
    return config->train.noise_scale_every > 0 &&
           (trainer->step + 1) % config->train.noise_scale_every == 0 &&
           batch_size > config->train.micro_batch_size;
}

// The step after this one may be issued already, wherever the decision is made: the one after that is the
// first.
static void grow(struct trainer *trainer, const struct trainer_step *step) {
    struct config_stages *grown = &trainer->noise.grown;
    const int64_t batch = step->batch_size;
    if (grown->n == CONFIG_SCHEDULE_MOST ||
        batch != batch_sizes_at(&trainer->batches, step->now.step + 1) || // it has grown since
        !noise_wants_more(&trainer->noise, batch, trainer->config->train.max_batch_size))
        return;
    grown->stages[grown->n++] = (struct config_stage){step->now.step + 1, 2 * batch};
    trainer->noise.n_since = 0;
    trainer_take_batches(trainer);
    log_live_end();
    log_info("step %lld: the gradient noise scale is %.4g sequences; from step %lld on, the batch has %lld",
             (long long)step->now.step, noise_scale(&trainer->noise), (long long)step->now.step + 2,
             (long long)(2 * batch));
}

void trainer_note_noise(struct trainer *trainer, struct trainer_step *step, const struct update_plan *plan) {
    const double n_small = (double)trainer->config->train.micro_batch_size,
                 n_large = (double)step->batch_size,
                 to_mean = (double)plan->loss_factor * n_small * (double)trainer->config->train.seq_len;
    noise_record_add(&trainer->noise, step->small_square / (to_mean * to_mean), n_small,
                     step->now.grad_norm * step->now.grad_norm, n_large);
    step->now.measures_noise = true;
    step->now.noise_scale = noise_scale(&trainer->noise);
    if (!isnan(step->now.noise_scale)) {
        log_live_end();
        log_info("step %lld: gradient noise scale %.4g sequences, batch %lld", (long long)step->now.step,
                 step->now.noise_scale, (long long)step->batch_size);
    }
    grow(trainer, step);
}
