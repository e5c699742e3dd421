// The trainer's part is collective: rank 0's measurements travel with the reports of a step.
#include "trainer/pacing.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "trainer/schedule.h"
#include "trainer/trainer_internal.h"

#define FEW_STEPS       8 // with fewer left, their length is not looked at again
#define PASSES_PER_STEP 3 // a step costs as much as three forward passes; an evaluation is one

static double budget_s(const struct config *config) {
    return 60 * config->train.max_minutes;
}

bool pacing_is_due(const struct history *history, const struct config *config, int64_t step,
                   const struct pacing_report *report) {
    static const double fractions[] = {0.02, 0.05, 0.1, 0.2,  0.3,  0.4,  0.5,  0.6, 0.7,
                                       0.8,  0.85, 0.9, 0.93, 0.96, 0.98, 0.99, 1};
    const double budget = budget_s(config);
    if (!(report->step_s > 0)) // none measured yet since the start, or since the run was resumed
        return report->spent_s >= budget;
    if (history->n_decisions == 0)
        return true;
    const struct history_decision *decision = &history->decisions[history->n_decisions - 1];
    const int64_t left = decision->total - decision->step;
    if (left >= FEW_STEPS && 2 * (step - decision->step) >= left)
        return true;
    const double last = decision->spent_s;
    for (size_t i = 0; i < sizeof fractions / sizeof *fractions; i++)
        if (last < fractions[i] * budget && fractions[i] * budget <= report->spent_s)
            return true;
    return report->spent_s >= budget;
}

int64_t pacing_total(const struct config *config, const struct pacing_evaluations *evaluations, int64_t step,
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
    const double left = (budget_s(config) - report->spent_s - final_s) / per_step;
    const int64_t most = config->train.max_steps;
    if (!(left >= 1))
        return step;
    return left < (double)(most - step) ? step + (int64_t)left : most;
}

// ---- the trainer's

double trainer_spent_s(const struct trainer *trainer) {
    return trainer->pacing.spent_before_s + clock_monotonic_s() - trainer->began_s;
}

static const struct history_decision *last_decision(const struct history *history) {
    return history->n_decisions > 0 ? &history->decisions[history->n_decisions - 1] : NULL;
}

// Skipped steps count neither for the schedule nor for Adam's bias correction; with train.max_minutes, the
// schedule counts them, as the time does.
double trainer_lr_after(const struct trainer *trainer, int64_t skipped) {
    if (trainer->config->train.max_minutes > 0)
        return schedule_lr_paced(trainer->config, last_decision(&trainer->history), trainer->step);
    return schedule_lr(trainer->config, trainer->step - skipped);
}

double trainer_lr(const struct trainer *trainer) {
    return trainer_lr_after(trainer, trainer->loss_scale.skipped + trainer->spikes.skipped);
}

int64_t trainer_estimate_total(const struct trainer *trainer, int64_t done, double step_s) {
    const double minutes = trainer->config->train.max_minutes;
    if (minutes == 0 || trainer->history.n_decisions > 0)
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

static enum status write_decisions(const struct trainer *trainer) {
    char number[32];
    struct text json = {0};
    char *path = file_path("%s/" PACING_NAME, trainer->folder.path);
    text_add(&json,
             "{\"max_minutes\": %s, \"decisions\": ", text_double(number, trainer->history.max_minutes));
    history_print_decisions(&trainer->history, &json);
    text_add(&json, "}\n");
    enum status status = path ? text_status(&json) : STATUS_FAILED;
    if (status == STATUS_OK)
        status = file_write_all(path, json.data, json.length);
    text_free(&json);
    free(path);
    return status;
}

// Says the length when it is first known well, and when it has changed much since.
static void say_length(struct trainer *trainer, const struct history_decision *decision, double step_s) {
    char duration[32];
    int64_t *said = &trainer->pacing.said_total;
    const double change = fabs((double)decision->total / (double)*said - 1);
    if (trainer->history.n_decisions < 2 || (*said > 0 && change < 0.2))
        return;
    *said = decision->total;
    log_live_end();
    if (decision->total == trainer->config->train.max_steps)
        log_info(
            "train.max_steps=%lld ends the run before train.max_minutes=%g does: about %s are left",
            (long long)decision->total, trainer->config->train.max_minutes,
            text_duration(duration, sizeof duration, (double)(decision->total - decision->step) * step_s));
    else
        log_info("train.max_minutes=%g: about %lld steps in all, at %.3g ms each; %s are left",
                 trainer->config->train.max_minutes, (long long)decision->total, step_s * 1e3,
                 text_duration(duration, sizeof duration, budget_s(trainer->config) - decision->spent_s));
    if (trainer->step < trainer->config->scheduler.warmup_steps)
        trainer_describe_warmup(trainer->config, decision->total);
}

static enum status take(struct trainer *trainer, const struct history_decision *decision) {
    TRY(history_add_decision(&trainer->history, decision));
    trainer->last_step = decision->total;
    trainer->pacing.sum_s /= 2; // older steps count less and less
    trainer->pacing.n_steps /= 2;
    return trainer_leads(trainer) ? write_decisions(trainer) : STATUS_OK;
}

// With steps of different batch sizes, pacing_total counts steps like the first one.
static int64_t total_of(const struct trainer *trainer, const struct pacing_evaluations *evaluations,
                        const struct pacing_report *report) {
    struct config config = *trainer->config;
    if (trainer->batches.stages.n == 0)
        return pacing_total(&config, evaluations, trainer->step, report);
    config.train.max_steps = INT64_MAX / 2;
    const int64_t total = pacing_total(&config, evaluations, trainer->step, report);
    return batch_sizes_reach(&trainer->batches, trainer->step, (double)(total - trainer->step), 0,
                             trainer->config->train.max_steps);
}

enum status trainer_pace(struct trainer *trainer, const struct pacing_report *report) {
    const struct config *config = trainer->config;
    struct trainer_pacing *pacing = &trainer->pacing;
    const struct history *made = &pacing->made;
    if (config->train.max_minutes == 0)
        return STATUS_OK;
    if (pacing->n_taken < made->n_decisions && made->decisions[pacing->n_taken].step == trainer->step)
        return take(trainer, &made->decisions[pacing->n_taken++]);
    if (trainer->step < pacing->made_until || trainer->step >= trainer->last_step ||
        !pacing_is_due(&trainer->history, config, trainer->step, report))
        return STATUS_OK;
    struct pacing_evaluations evaluations = {0};
    trainer_evaluation_lengths(trainer, &evaluations.sequences, &evaluations.final_sequences);
    evaluations.task_sequences = trainer_tasks_sequences(trainer);
    const struct history_decision *last = last_decision(&trainer->history);
    const struct history_decision decision = {.step = trainer->step,
                                              .total = total_of(trainer, &evaluations, report),
                                              .position = schedule_position(config, last, trainer->step - 1),
                                              .spent_s = report->spent_s};
    TRY(take(trainer, &decision));
    say_length(trainer, &decision, report->step_s);
    return STATUS_OK;
}

// ---- resuming

// The decisions that the run made after the checkpoint, before it was stopped, and the step at which it was.
// None if that was under another train.max_minutes.
static enum status read_made(const struct trainer *trainer, struct history *made, int64_t *until) {
    cJSON *root = NULL;
    const cJSON *array;
    double minutes;
    struct history all = {0};
    char *path = file_path("%s/" PACING_NAME, trainer->folder.path);
    if (!path)
        return STATUS_FAILED;
    enum status status = STATUS_OK;
    if (file_exists(path)) {
        status = json_read_file(path, &root);
        if (status == STATUS_OK)
            status = json_get_number(root, "max_minutes", path, &minutes);
        if (status == STATUS_OK && minutes == trainer->config->train.max_minutes) {
            status = json_get_array(root, "decisions", path, &array);
            if (status == STATUS_OK)
                status = history_parse_decisions(&all, array, INT64_C(1) << 53, path);
            if (status == STATUS_OK)
                status = metrics_last_step(trainer->folder.path, until);
        }
    }
    for (int i = 0; i < all.n_decisions && status == STATUS_OK; i++)
        if (all.decisions[i].step > trainer->step)
            status = history_add_decision(made, &all.decisions[i]);
    cJSON_Delete(root);
    history_free(&all);
    free(path);
    return status;
}

// Rank 0 reads; all ranks take the same.
static enum status share_made(struct trainer *trainer) {
    struct history *made = &trainer->pacing.made;
    int64_t *until = &trainer->pacing.made_until;
    TRY(trainer_agree(trainer, trainer_leads(trainer) ? read_made(trainer, made, until) : STATUS_OK));
    TRY(comm_broadcast(trainer->comm, until, sizeof *until, 0));
    int32_t n = made->n_decisions;
    TRY(comm_broadcast(trainer->comm, &n, sizeof n, 0));
    const struct history_decision none = {0};
    enum status status = STATUS_OK;
    while (made->n_decisions < n && status == STATUS_OK)
        status = history_add_decision(made, &none);
    TRY(trainer_agree(trainer, status));
    return n > 0 ? comm_broadcast(trainer->comm, made->decisions, (size_t)n * sizeof *made->decisions, 0)
                 : STATUS_OK;
}

// Of the next step, had the run gone on as it was.
static double rate_before(const struct trainer *trainer) {
    const struct config *config = &trainer->resumed->config;
    if (config->train.max_minutes > 0)
        return schedule_lr_paced(config, last_decision(&trainer->history), trainer->step);
    return schedule_lr(config, trainer->step - trainer->loss_scale.skipped - trainer->spikes.skipped);
}

static void say_changed_rate(const struct trainer *trainer, double before) {
    log_info("step %lld trains at the rate %.3g instead of %.3g", (long long)trainer->step + 1,
             trainer_lr(trainer), before);
}

// Another time than before: the schedule goes on from the fraction of the new time that is spent, and its
// length follows from the speed so far until it is measured.
static enum status begin_other_time(struct trainer *trainer) {
    struct history *history = &trainer->history;
    const struct config *config = trainer->config;
    const double budget = budget_s(config), spent = history->spent_s;
    const double before = rate_before(trainer);
    log_info("train.max_minutes was %g and is now %g", history->max_minutes, config->train.max_minutes);
    const struct history_decision *last = history->n_decisions > 0 ? last_decision(history) : NULL;
    const bool warms_up =
        last && last->position == 0 && trainer->step < schedule_warmup_of(config, last->total);
    history->n_decisions = 0;
    if (!(history->max_minutes > 0 && spent > 0) || budget == 0) {
        // From steps to minutes, or back: the schedule has another shape.
        say_changed_rate(trainer, before);
        return STATUS_OK;
    }
    const double total = (double)trainer->step * budget / spent, most = (double)config->train.max_steps;
    const struct history_decision decision = {.step = trainer->step,
                                              .total = spent >= budget ? trainer->step
                                                       : total < most  ? (int64_t)total
                                                                       : config->train.max_steps,
                                              .position = warms_up         ? 0
                                                          : spent < budget ? spent / budget
                                                                           : 1,
                                              .spent_s = spent};
    TRY(take(trainer, &decision));
    say_changed_rate(trainer, before);
    return STATUS_OK;
}

enum status trainer_pacing_resume(struct trainer *trainer) {
    struct history *history = &trainer->history;
    const double minutes = trainer->config->train.max_minutes;
    enum status status = STATUS_OK;
    trainer->last_step = trainer->config->train.max_steps;
    trainer->pacing.spent_before_s = history->spent_s;
    if (trainer->resumed && history->max_minutes != minutes)
        status = begin_other_time(trainer);
    else if (history->n_decisions > 0)
        trainer->last_step = last_decision(history)->total;
    history->max_minutes = minutes;
    TRY(trainer_agree(trainer, status));
    return trainer->resumed && minutes > 0 ? share_made(trainer) : STATUS_OK;
}
