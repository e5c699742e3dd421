// What a resumed run changes: its schedule.
#include <math.h>

#include "base/log.h"
#include "trainer/schedule.h"
#include "trainer/trainer_internal.h"

// The rate restarts where max_steps was raised and decay_steps is not given.
static void describe_changed_rate(const struct trainer *trainer) {
    const struct config *before = &trainer->resumed->config, *now = trainer->config;
    const int64_t updates = trainer->step - trainer->loss_scale.skipped;
    const double was = schedule_lr(before, updates), is = schedule_lr(now, updates);
    const long long steps_before = config_decay_steps(before), steps_now = config_decay_steps(now);
    if (steps_before == steps_now || fabs(is - was) <= 1e-6 * fmax(is, was))
        return;
    log_info(
        "the learning rate schedule was %lld steps long and is now %lld: step %lld trains at %.3g instead "
        "of %.3g. scheduler.decay_steps=%lld keeps the schedule as it was",
        steps_before, steps_now, (long long)trainer->step + 1, is, was, steps_before);
}

void trainer_describe_schedule(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    const int64_t warmup = schedule_warmup_steps(config);
    if (warmup < config->scheduler.warmup_steps)
        log_info(
            "warm-up: %lld step%s, as scheduler.warmup_steps=%lld is longer than the schedule of %lld steps",
            (long long)warmup, warmup == 1 ? "" : "s", (long long)config->scheduler.warmup_steps,
            (long long)config_decay_steps(config));
    if (trainer->resumed)
        describe_changed_rate(trainer);
}
