// All ranks decide by rank 0's measurements, which the ranks exchange in each step (struct step_report).
#include "trainer/pacing.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "trainer/auditing.h"

#define FIRST           0.02 // fraction of train.max_minutes at which the first decision is due
#define SECOND          0.2  // fraction at which the second decision is due
#define FEW_STEPS       8    // with fewer steps left, a decision is due only when the time is over
#define PASSES_PER_STEP 3    // a step costs as much as three forward passes; an evaluation is one

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
    // Without a measured step, or with few steps left, a decision is due only when the time is over.
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

// ---- the pacing of a run

// The fraction of the GEMM rate that whole steps reach. On CPUs, about the lowest figure in
// benchmarks/cpu.md; on GPUs, what llm.c and Megatron-LM report.
#define STEP_EFFICIENCY_CPU 0.75
#define STEP_EFFICIENCY_GPU 0.5

double pacing_estimate_step_s(const struct pacing *pacing) {
    const struct run *run = pacing->run;
    double efficiency =
        run->machine.device->place == REGION_DEVICE ? STEP_EFFICIENCY_GPU : STEP_EFFICIENCY_CPU;
    return run_step_flops(run, batch_sizes_at(&run->batches, run->step)) /
           (efficiency * run->machine.gemm_rate);
}

// Compares the estimated time of FEW_STEPS steps (or train.max_steps, if fewer) with the whole of
// train.max_minutes. The time that setup took is not subtracted, because a slow start on a busy machine is no
// reason to refuse the run.
enum status pacing_check_minutes(const struct pacing *pacing) {
    const struct config *config = pacing->run->config;
    const double step_s = pacing_estimate_step_s(pacing),
                 n = fmin(FEW_STEPS, (double)config->train.max_steps), budget = budget_s(config);
    if (budget == 0 || pacing->run->step > 0 || budget >= n * step_s)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "train.max_minutes=%g is %.3g s, and a step takes about %.3g s here: too few steps for a "
                "schedule. Set at least %.2g, lower train.train_batch_size, or give train.max_steps instead",
                config->train.max_minutes, budget, step_s, 1.05 * n * step_s / 60);
}

static double spent_s(const struct pacing *pacing) {
    return pacing->spent_before_s + clock_monotonic_s() - pacing->began_s;
}

void pacing_record_spent(const struct pacing *pacing) {
    if (pacing->run->config->train.max_minutes > 0)
        pacing->run->state.pacing.spent_s = spent_s(pacing);
}

// The learning rate of the next step by a config, warm-up and decision. Without train.max_minutes, skipped
// steps do not advance the schedule, just as they do not advance Adam's bias correction. With it they do,
// because they take time.
static double rate_of_next(const struct pacing *pacing, const struct config *config, int64_t warmup,
                           const struct pacing_decision *decision) {
    const struct run *run = pacing->run;
    if (config->train.max_minutes > 0)
        return schedule_lr_paced(config, warmup, decision, run->step);
    return schedule_lr(config, warmup, run->step - run_skipped(run));
}

double pacing_lr(const struct pacing *pacing) {
    const struct run *run = pacing->run;
    return rate_of_next(pacing, run->config, run->state.warmup_steps, &run->state.pacing.decision);
}

int64_t pacing_estimate_total(const struct pacing *pacing, int64_t done, double step_s) {
    const struct run *run = pacing->run;
    const double minutes = run->config->train.max_minutes;
    if (minutes == 0 || run->state.pacing.decision.spent_s > 0)
        return run->last_step;
    double left = fmax(0, (60 * minutes - spent_s(pacing)) / step_s);
    return left < (double)(run->last_step - done) ? done + (int64_t)left : run->last_step;
}

void pacing_measure(struct pacing *pacing, int64_t step, double step_s) {
    if (pacing->is_warm) {
        pacing->sum_s += step_s;
        pacing->n_steps += batch_sizes_work(&pacing->run->batches, step, step + 1, 0);
    }
    pacing->is_warm = true;
}

struct pacing_report pacing_measured(const struct pacing *pacing) {
    return (struct pacing_report){.spent_s = spent_s(pacing),
                                  .step_s = pacing->n_steps > 0 ? pacing->sum_s / pacing->n_steps : 0,
                                  .eval_sequence_s = pacing->evaluator->sequence_s,
                                  .sample_s = pacing->sample_s,
                                  .save_s = pacing->save_s,
                                  .tasks_s = pacing->evaluator->tasks.seconds};
}

// Logs the number of warm-up steps in two cases: it was shortened for a schedule of `steps` steps, or the run
// keeps that of its start although a new run of this length would have another.
static void describe_warmup(const struct pacing *pacing, int64_t steps) {
    const struct config *config = pacing->run->config;
    const int64_t warmup = pacing->run->state.warmup_steps,
                  derived = schedule_warmup_of(config->scheduler.warmup_steps, steps);
    if (warmup != derived)
        log_info(
            "warm-up: %lld step%s, kept from the start of the run; a new run of %lld steps would have %lld",
            (long long)warmup, warmup == 1 ? "" : "s", (long long)steps, (long long)derived);
    else if (warmup < config->scheduler.warmup_steps)
        log_info("warm-up: %lld step%s, as scheduler.warmup_steps=%lld is longer than the schedule of %lld "
                 "step%s",
                 (long long)warmup, warmup == 1 ? "" : "s", (long long)config->scheduler.warmup_steps,
                 (long long)steps, steps == 1 ? "" : "s");
}

// Logs the total number of steps when it is first known, and when it has since changed by 20 % or more.
static void say_length(struct pacing *pacing, double step_s) {
    struct run *run = pacing->run;
    char duration[32];
    const struct config *config = run->config;
    const struct pacing_decision *decision = &run->state.pacing.decision;
    int64_t *said = &pacing->said_total;
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
    if (run->step < config->scheduler.warmup_steps)
        describe_warmup(pacing, decision->total);
}

// Decides by the measurements.
static struct pacing_decision decide(const struct pacing *pacing, const struct pacing_report *report) {
    const struct run *run = pacing->run;
    struct pacing_evaluations evaluations = {.task_sequences = evaluator_tasks_sequences(pacing->evaluator)};
    evaluator_lengths(pacing->evaluator, &evaluations.sequences, &evaluations.final_sequences);
    return (struct pacing_decision){
        .step = run->step,
        .total = pacing_total(run->config, &run->batches, &evaluations, run->step, report),
        .position = schedule_position(run->state.warmup_steps, &run->state.pacing.decision, run->step - 1),
        .spent_s = report->spent_s};
}

void pacing_decide(struct pacing *pacing, const struct pacing_report *report) {
    struct run *run = pacing->run;
    struct pacing_decision *last = &run->state.pacing.decision, now = {0}; // total 0: none is made
    if (!audit_repeats_decision(run->audit, run->step, &now) && run->config->train.max_minutes > 0 &&
        run->step < run->last_step && pacing_is_due(last, run->config, run->step, report)) {
        now = decide(pacing, report);
        audit_decision(run->audit, &now);
    }
    if (now.total == 0)
        return;
    *last = now;
    run->state.warmup_steps = schedule_warmup_of(run->state.warmup_steps, last->total);
    run->last_step = last->total;
    audit_limit(run);
    pacing->sum_s = pacing->n_steps = 0;
    say_length(pacing, report->step_s);
}

// ---- resuming

// Returns the number of warm-up steps of the run that wrote a checkpoint. Earlier versions of this program
// did not record it, but derived it from the length of the run at each start.
static int64_t warmup_before(const struct checkpoint *from) {
    const struct pacing_record *pacing = &from->run.pacing;
    if (from->run.warmup_steps > 0)
        return from->run.warmup_steps;
    if (pacing->decision.position > 0) // the warm-up was over
        return 0;
    return schedule_warmup_of(from->config.scheduler.warmup_steps, pacing->max_minutes > 0
                                                                       ? pacing->decision.total
                                                                       : config_decay_steps(&from->config));
}

// Replaces the last decision, because train.max_minutes has changed. The schedule continues at the fraction
// of the new time that is already spent. Until steps are measured again, the number of steps follows from the
// mean time per step so far.
static void begin_other_time(struct pacing *pacing) {
    struct run *run = pacing->run;
    struct pacing_record *record = &run->state.pacing;
    struct pacing_decision *last = &record->decision;
    const struct config *config = run->config;
    const double budget = budget_s(config), spent = record->spent_s,
                 total = fmin((double)run->step * budget / spent, (double)config->train.max_steps);
    const bool warms_up = last->position == 0 && run->step < run->state.warmup_steps;
    // After a change from steps to minutes, or back, there is no position to continue from.
    if (record->max_minutes > 0 && spent > 0 && budget > 0)
        *last = (struct pacing_decision){.step = run->step,
                                         .total = spent < budget ? (int64_t)total : run->step,
                                         .position = warms_up ? 0 : fmin(1, spent / budget),
                                         .spent_s = spent};
    else
        *last = (struct pacing_decision){.total = config->train.max_steps};
}

void pacing_resume(struct pacing *pacing, const struct checkpoint *resumed) {
    struct run *run = pacing->run;
    struct pacing_record *record = &run->state.pacing;
    const struct config *config = run->config;
    const int64_t warmup = config->scheduler.warmup_steps;
    run->state.warmup_steps =
        run->step > 0 && warmup == resumed->config.scheduler.warmup_steps ? warmup_before(resumed) : warmup;
    const double minutes_before = record->max_minutes;
    const bool is_other = resumed && minutes_before != config->train.max_minutes;
    pacing->spent_before_s = record->spent_s;
    if (is_other)
        begin_other_time(pacing);
    record->max_minutes = config->train.max_minutes;
    if (record->max_minutes == 0)
        *record = (struct pacing_record){0};
    else if (record->decision.spent_s == 0)
        record->decision.total = config->train.max_steps;
    run->last_step = record->max_minutes > 0 ? record->decision.total : config->train.max_steps;
    run->state.warmup_steps = schedule_warmup_of(
        run->state.warmup_steps, record->max_minutes > 0 ? run->last_step : config_decay_steps(config));
    if (!is_other)
        return;
    const double rate_before =
        rate_of_next(pacing, &resumed->config, warmup_before(resumed), &resumed->run.pacing.decision);
    log_info("train.max_minutes was %g and is now %g", minutes_before, config->train.max_minutes);
    log_info("step %lld trains at the learning rate %.3g instead of %.3g", (long long)run->step + 1,
             pacing_lr(pacing), rate_before);
}

// Logs if the next step has another learning rate because the schedule's length has changed. For example, a
// larger train.max_steps without scheduler.decay_steps raises the learning rate again.
static void describe_changed_rate(const struct pacing *pacing, const struct checkpoint *resumed) {
    const struct run *run = pacing->run;
    const struct config *before = &resumed->config, *now = run->config;
    const int64_t updates = run->step - run_skipped(run);
    const double was = schedule_lr(before, warmup_before(resumed), updates),
                 is = schedule_lr(now, run->state.warmup_steps, updates);
    const long long steps_before = config_decay_steps(before), steps_now = config_decay_steps(now);
    if (steps_before == steps_now || fabs(is - was) <= 1e-6 * fmax(is, was))
        return;
    log_info(
        "the learning rate schedule was %lld steps long and is now %lld: step %lld trains at %.3g instead "
        "of %.3g. scheduler.decay_steps=%lld keeps the schedule as it was",
        steps_before, steps_now, (long long)run->step + 1, is, was, steps_before);
}

void pacing_describe_schedule(const struct pacing *pacing, const struct checkpoint *resumed) {
    const struct config *config = pacing->run->config;
    if (config->train.max_minutes > 0) // the length is not known yet
        return;
    describe_warmup(pacing, config_decay_steps(config));
    if (resumed && resumed->config.train.max_minutes == 0)
        describe_changed_rate(pacing, resumed);
}
