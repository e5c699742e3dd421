// The trainer's part is collective: rank 0's measurements travel with the reports of a step.
#include "trainer/pacing.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "trainer/schedule.h"
#include "trainer/trainer_internal.h"

#define FIRST           0.02 // of the time: the decisions on the schedule
#define SECOND          0.2
#define FEW_STEPS       8 // with fewer left, their length is not looked at again
#define PASSES_PER_STEP 3 // a step costs as much as three forward passes; an evaluation is one

static double budget_s(const struct config *config) {
    return 60 * config->train.max_minutes;
}

bool pacing_is_due(const struct pacing_decision *last, const struct config *config, int64_t step,
                   const struct pacing_report *report) {
    const double budget = budget_s(config), spent = report->spent_s;
    const int64_t left = last->total - last->step;
    const double next = last->spent_s < FIRST * budget    ? FIRST * budget
                        : last->spent_s < SECOND * budget ? SECOND * budget
                                                          : (last->spent_s + budget) / 2;
    // No step is measured yet since the start or the last decision, or only the last few could change.
    if (!(report->step_s > 0) || left < FEW_STEPS)
        return spent >= budget;
    return spent >= next || 2 * (step - last->step) >= left;
}

int64_t pacing_total(const struct config *config, const struct batch_sizes *sizes,
                     const struct pacing_evaluations *evaluations, int64_t step,
                     const struct pacing_report *report) {
    const double sequence_s = report->eval_sequence_s > 0
                                  ? report->eval_sequence_s
                                  : report->step_s / (double)config->train.train_batch_size / PASSES_PER_STEP;
    const double evaluation_s = (double)evaluations->sequences * sequence_s,
                 tasks_s =
                     report->tasks_s > 0 ? report->tasks_s : (double)evaluations->task_sequences * sequence_s,
                 final_s = (double)evaluations->final_sequences * sequence_s +
                           (config->checkpoint.keep_best ? evaluation_s : 0) + tasks_s + report->save_s;
    double per_step = report->step_s;
    if (config->train.eval_every > 0)
        per_step += evaluation_s / (double)config->train.eval_every;
    if (config->eval.every > 0)
        per_step += tasks_s / (double)config->eval.every;
    if (config->train.sample_every > 0)
        per_step += report->sample_s / (double)config->train.sample_every;
    if (config->checkpoint.every > 0)
        per_step += report->save_s / (double)config->checkpoint.every;
    return batch_sizes_reach(sizes, step, (budget_s(config) - report->spent_s - final_s) / per_step, 0,
                             config->train.max_steps);
}

// ---- the trainer's

// The fraction of the GEMM rate that whole steps reach: about the least that benchmarks/cpu.md has on CPUs;
// on GPUs, what llm.c and Megatron-LM report.
#define STEP_EFFICIENCY_CPU 0.75
#define STEP_EFFICIENCY_GPU 0.5

double trainer_estimate_step_s(const struct trainer *trainer) {
    double efficiency = trainer->device->place == REGION_DEVICE ? STEP_EFFICIENCY_GPU : STEP_EFFICIENCY_CPU;
    return trainer_step_flops(trainer, batch_sizes_at(&trainer->batches, trainer->step)) /
           (efficiency * trainer->gemm_rate);
}

// By the estimate and not by the clock: a busy machine takes longer to start, and must not refuse for that.
enum status trainer_check_minutes(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    const double step_s = trainer_estimate_step_s(trainer),
                 n = fmin(FEW_STEPS, (double)config->train.max_steps), budget = budget_s(config);
    if (budget == 0 || trainer->step > 0 || budget >= n * step_s)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "train.max_minutes=%g is %.3g s, and a step takes about %.3g s here: too few steps for a "
                "schedule. Set at least %.2g, lower train.train_batch_size, or give train.max_steps instead",
                config->train.max_minutes, budget, step_s, 1.05 * n * step_s / 60);
}

double trainer_spent_s(const struct trainer *trainer) {
    return trainer->pacing.spent_before_s + clock_monotonic_s() - trainer->began_s;
}

// Skipped steps count neither for the schedule nor for Adam's bias correction; with train.max_minutes, the
// schedule counts them, as the time does.
static double rate_of_next(const struct trainer *trainer, const struct config *config, int64_t warmup,
                           const struct pacing_decision *decision) {
    if (config->train.max_minutes > 0)
        return schedule_lr_paced(config, warmup, decision, trainer->step);
    return schedule_lr(config, warmup, trainer->step - trainer_skipped(trainer));
}

double trainer_lr(const struct trainer *trainer) {
    return rate_of_next(trainer, trainer->config, trainer->run.warmup_steps, &trainer->run.pacing.decision);
}

int64_t trainer_estimate_total(const struct trainer *trainer, int64_t done, double step_s) {
    const double minutes = trainer->config->train.max_minutes;
    if (minutes == 0 || trainer->run.pacing.decision.spent_s > 0)
        return trainer->last_step;
    double left = fmax(0, (60 * minutes - trainer_spent_s(trainer)) / step_s);
    return left < (double)(trainer->last_step - done) ? done + (int64_t)left : trainer->last_step;
}

void trainer_pacing_measure(struct trainer *trainer, int64_t step, double step_s) {
    struct trainer_pacing *pacing = &trainer->pacing;
    if (pacing->is_warm) {
        pacing->sum_s += step_s;
        pacing->n_steps += batch_sizes_work(&trainer->batches, step, step + 1, 0);
    }
    pacing->is_warm = true;
}

struct pacing_report trainer_pacing_report(const struct trainer *trainer) {
    const struct trainer_pacing *pacing = &trainer->pacing;
    return (struct pacing_report){.spent_s = trainer_spent_s(trainer),
                                  .step_s = pacing->n_steps > 0 ? pacing->sum_s / pacing->n_steps : 0,
                                  .eval_sequence_s = trainer->eval_sequence_s,
                                  .sample_s = pacing->sample_s,
                                  .save_s = pacing->save_s,
                                  .tasks_s = trainer->tasks.seconds};
}

// Says the length when it is first known, and when it has changed much since.
static void say_length(struct trainer *trainer, double step_s) {
    char duration[32];
    const struct config *config = trainer->config;
    const struct pacing_decision *decision = &trainer->run.pacing.decision;
    int64_t *said = &trainer->pacing.said_total;
    if (*said > 0 && fabs((double)decision->total / (double)*said - 1) < 0.2)
        return;
    *said = decision->total;
    log_live_end();
    if (decision->total == config->train.max_steps)
        log_info(
            "train.max_steps=%lld ends the run before train.max_minutes=%g does: about %s are left",
            (long long)decision->total, config->train.max_minutes,
            text_duration(duration, sizeof duration, (double)(decision->total - decision->step) * step_s));
    else
        log_info("train.max_minutes=%g: about %lld steps in all, at %.3g ms each; %s are left",
                 config->train.max_minutes, (long long)decision->total, step_s * 1e3,
                 text_duration(duration, sizeof duration, budget_s(config) - decision->spent_s));
    if (trainer->step < config->scheduler.warmup_steps)
        trainer_describe_warmup(trainer, decision->total);
}

void trainer_pace(struct trainer *trainer, const struct pacing_report *report) {
    const struct config *config = trainer->config;
    struct pacing_decision *last = &trainer->run.pacing.decision;
    if (config->train.max_minutes == 0 || trainer->step >= trainer->last_step ||
        !pacing_is_due(last, config, trainer->step, report))
        return;
    struct pacing_evaluations evaluations = {.task_sequences = trainer_tasks_sequences(trainer)};
    trainer_evaluation_lengths(trainer, &evaluations.sequences, &evaluations.final_sequences);
    *last = (struct pacing_decision){
        .step = trainer->step,
        .total = pacing_total(config, &trainer->batches, &evaluations, trainer->step, report),
        .position = schedule_position(trainer->run.warmup_steps, last, trainer->step - 1),
        .spent_s = report->spent_s};
    trainer->run.warmup_steps = schedule_warmup_of(trainer->run.warmup_steps, last->total);
    trainer->last_step = last->total;
    trainer->pacing.sum_s = trainer->pacing.n_steps = 0;
    say_length(trainer, report->step_s);
}

// ---- resuming

// Another time than before: the schedule goes on from the fraction of the new time that is spent, and its
// length follows from the speed so far until it is measured.
static void begin_other_time(struct trainer *trainer) {
    struct pacing_record *pacing = &trainer->run.pacing;
    struct pacing_decision *last = &pacing->decision;
    const struct config *config = trainer->config;
    const double budget = budget_s(config), spent = pacing->spent_s,
                 total = fmin((double)trainer->step * budget / spent, (double)config->train.max_steps);
    const bool warms_up = last->position == 0 && trainer->step < trainer->run.warmup_steps;
    // From steps to minutes, or back, the schedule has another shape.
    if (pacing->max_minutes > 0 && spent > 0 && budget > 0)
        *last = (struct pacing_decision){.step = trainer->step,
                                         .total = spent < budget ? (int64_t)total : trainer->step,
                                         .position = warms_up ? 0 : fmin(1, spent / budget),
                                         .spent_s = spent};
    else
        *last = (struct pacing_decision){.total = config->train.max_steps};
}

void trainer_pacing_resume(struct trainer *trainer) {
    struct pacing_record *pacing = &trainer->run.pacing;
    const struct config *config = trainer->config;
    const double minutes_before = pacing->max_minutes;
    const bool is_other = trainer->resumed && minutes_before != config->train.max_minutes;
    trainer->pacing.spent_before_s = pacing->spent_s;
    if (is_other)
        begin_other_time(trainer);
    pacing->max_minutes = config->train.max_minutes;
    if (pacing->max_minutes == 0)
        *pacing = (struct pacing_record){0};
    else if (pacing->decision.spent_s == 0)
        pacing->decision.total = config->train.max_steps;
    trainer->last_step = pacing->max_minutes > 0 ? pacing->decision.total : config->train.max_steps;
    trainer->run.warmup_steps = schedule_warmup_of(
        trainer->run.warmup_steps, pacing->max_minutes > 0 ? trainer->last_step : config_decay_steps(config));
    if (!is_other)
        return;
    const double rate_before =
        rate_of_next(trainer, &trainer->resumed->config, trainer_warmup_before(trainer),
                     &trainer->resumed->run.pacing.decision);
    log_info("train.max_minutes was %g and is now %g", minutes_before, config->train.max_minutes);
    log_info("step %lld trains at the rate %.3g instead of %.3g", (long long)trainer->step + 1,
             trainer_lr(trainer), rate_before);
}
