// Evaluation between steps:
// - the loss on data.val, in nats per token and, with a tokenizer, in bits per byte
// - the figures of eval.tasks
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/utf8.h"
#include "infer/text_loss.h"
#include "trainer/trainer_internal.h"
#include "zero/stages/averaging.h"

enum status trainer_show_average(struct trainer *trainer, bool average) {
    return average_show(&trainer->engine.state, &trainer->stream, average && trainer->run.average.n > 0);
}

#define LONG_EVALUATION_S 10 // a final evaluation that takes longer is announced

// ---- data.val

// Adds the first `rows` sequences of a batch to `totals`.
static enum status evaluate_batch(struct trainer *trainer, const int32_t *tokens, const int32_t *targets,
                                  int64_t rows, struct text_loss *totals) {
    const int64_t T = trainer->config->train.seq_len;
    const bool whole = rows == trainer->config->train.micro_batch_size;
    double sum;
    TRY(gpt_evaluate(trainer->engine.gpt, &trainer->stream, &trainer->engine.state.hooks, tokens, targets,
                     &sum, whole ? NULL : trainer->val_losses));
    if (!whole)
        sum = 0;
    for (int64_t i = 0; !whole && i < rows * T; i++)
        sum += (double)trainer->val_losses[i];
    totals->nats += sum;
    for (int64_t row = 0; row < rows; row++)
        text_loss_count(totals, trainer->tokenizer, tokens[row * T], targets + row * T, (size_t)T);
    return STATUS_OK;
}

// Evaluates this rank's micro-batches: rank, rank + world, ... The last one may be partial; its remaining
// rows are not counted. A rank with none left repeats the last one without counting it, because in stage 3
// the others need its shard of the parameters.
//   may_stop   a signal ends the evaluation with STATUS_STOPPED; otherwise the next step sees it
static enum status evaluate_micro_batches(struct trainer *trainer, int64_t n_sequences, bool may_stop,
                                          struct text_loss *totals) {
    const struct comm *comm = trainer->comm;
    const int64_t B = trainer->config->train.micro_batch_size, batches = (n_sequences + B - 1) / B;
    for (int64_t first = 0; first < batches; first += comm->world) {
        const int64_t mine = first + comm->rank, left = n_sequences - mine * B;
        const int64_t rows = left < 0 ? 0 : left < B ? left : B;
        const int32_t *tokens, *targets;
        enum status status =
            loader_batch(trainer->val, mine < batches ? mine : batches - 1, 0, &tokens, &targets);
        if (status == STATUS_OK && may_stop && signals_stop_requested())
            status = STATUS_STOPPED;
        TRY(trainer_agree_between_steps(trainer, status));
        TRY(evaluate_batch(trainer, tokens, targets, rows, totals));
    }
    return STATUS_OK;
}

// How many sequences of a source are evaluated: those of a mixture share the length by their weights, and
// each has one at least. The count depends on neither ranks nor micro-batches, so that losses of different
// runs are comparable.
//   steps   train.eval_steps or train.eval_final_steps; 0: all of data.val
static int64_t sequences_of_source(const struct trainer *trainer, const struct source *source,
                                   int64_t steps) {
    const int64_t all = (int64_t)source->n_sequences, total = steps * trainer->config->train.train_batch_size,
                  asked = llround(source->share * (double)total);
    return total > 0 && asked < all ? (asked > 0 ? asked : 1) : all;
}

static int64_t sequences_to_evaluate(const struct trainer *trainer, int64_t steps) {
    const struct sources *sources = loader_sources(trainer->val);
    int64_t n = 0;
    for (int i = 0; i < sources->n; i++)
        n += sequences_of_source(trainer, &sources->list[i], steps);
    return n;
}

void trainer_evaluation_lengths(const struct trainer *trainer, int64_t *during, int64_t *final) {
    const struct config *config = trainer->config;
    *during = trainer->val ? sequences_to_evaluate(trainer, config->train.eval_steps) : 0;
    *final = trainer->val ? sequences_to_evaluate(trainer, config->train.eval_final_steps) : 0;
    if (config->train.ema.type != CONFIG_EMA_NONE || optimizer_averages(config))
        *final *= 2; // of the latest weights too
}

static void print_sources(const struct eval_metrics *eval) {
    for (int i = 0; i < eval->n_sources; i++)
        log_info("  %s: val loss %.4f (%lld sequences, weight %.4g)", eval->sources[i].name,
                 text_plain_nan(eval->sources[i].loss), (long long)eval->sources[i].sequences,
                 eval->sources[i].share);
}

static void print(const struct eval_metrics *eval) {
    char bits[64] = "", extent[64], average[80] = "", latest[64] = "";
    if (isfinite(eval->bits_per_byte))
        snprintf(bits, sizeof bits, "  %.4f bits per byte", eval->bits_per_byte);
    if (eval->sequences == eval->all_sequences)
        snprintf(extent, sizeof extent, "all %lld", (long long)eval->sequences);
    else
        snprintf(extent, sizeof extent, "%lld of %lld", (long long)eval->sequences,
                 (long long)eval->all_sequences);
    log_live_end();
    if (eval->averaged > 0)
        snprintf(average, sizeof average, ", the weights' average over %lld update%s",
                 (long long)eval->averaged, eval->averaged == 1 ? "" : "s");
    if (eval->averaged > 0 && eval->final)
        snprintf(latest, sizeof latest, "; the latest weights: %.4f", text_plain_nan(eval->latest_loss));
    log_info("step %lld  %sval loss %.4f%s (%s sequences of data.val%s)%s", (long long)eval->step,
             eval->final ? "final " : "", text_plain_nan(eval->loss), bits, extent, average, latest);
    print_sources(eval);
}

// Evaluates sequences that are evenly spaced over each source of data.val. The loss of a mixture is the mean
// of its sources' by their shares, whatever was evaluated of each; likewise its text.
//   losses   [out] (sources)
static enum status evaluate_sources(struct trainer *trainer, int64_t steps, struct eval_metrics *eval,
                                    struct eval_source *losses) {
    const struct sources *sources = loader_sources(trainer->val);
    const int64_t T = trainer->config->train.seq_len, n = sequences_to_evaluate(trainer, steps);
    const bool may_stop = eval->final && trainer->saved_step == trainer->step;
    struct text_loss totals = {.tokens = (double)(n * T)};
    for (int i = 0; i < sources->n; i++) {
        const struct source *source = &sources->list[i];
        const int64_t n_sequences = sequences_of_source(trainer, source, steps);
        struct text_loss sums = {0};
        loader_spread(trainer->val, i, (size_t)n_sequences);
        TRY(evaluate_micro_batches(trainer, n_sequences, may_stop, &sums));
        TRY(comm_sum(trainer->comm, (double *)&sums, sizeof sums / sizeof(double)));
        losses[i] = (struct eval_source){.name = source->name,
                                         .share = source->share,
                                         .loss = text_loss_mean(&sums),
                                         .sequences = n_sequences};
        const double weight = source->share * ((double)n / (double)n_sequences);
        totals.nats += weight * sums.nats;
        totals.bytes += weight * sums.bytes;
    }
    eval->loss = text_loss_mean(&totals);
    eval->bits_per_byte = text_loss_bits_per_byte(&totals);
    eval->sequences = n;
    return STATUS_OK;
}

static enum status evaluate(struct trainer *trainer, int64_t steps, struct eval_metrics *eval) {
    const double began = clock_monotonic_s();
    const int n_sources = loader_sources(trainer->val)->n;
    struct eval_source losses[CONFIG_MAX_SOURCES];
    eval->averaged = trainer->run.average.n;
    if (eval->final && eval->averaged > 0) {
        TRY(trainer_show_average(trainer, false));
        TRY(evaluate_sources(trainer, steps, eval, losses));
        eval->latest_loss = eval->loss;
    }
    TRY(trainer_show_average(trainer, true));
    TRY(evaluate_sources(trainer, steps, eval, losses));
    trainer->eval_sequence_s = (clock_monotonic_s() - began) / (double)eval->sequences;
    eval->step = trainer->step;
    eval->all_sequences = (int64_t)loader_n_sequences(trainer->val);
    eval->sources = losses;
    eval->n_sources = n_sources > 1 ? n_sources : 0;
    print(eval);
    if (trainer_writes_metrics(trainer))
        trainer_fail_later(trainer, metrics_eval(&trainer->metrics, eval));
    eval->sources = NULL;
    return STATUS_OK;
}

enum status trainer_evaluate(struct trainer *trainer) {
    const struct config *config = trainer->config;
    const int64_t n = sequences_to_evaluate(trainer, config->train.eval_steps);
    // The final evaluation too, if that has the same length.
    struct eval_metrics eval = {.final = trainer->step == trainer->last_step &&
                                         n == sequences_to_evaluate(trainer, config->train.eval_final_steps)};
    TRY(evaluate(trainer, config->train.eval_steps, &eval));
    trainer->evaluated = (struct run_best){trainer->step, n, eval.loss};
    if (eval.final)
        trainer->evaluated_final = trainer->step;
    return STATUS_OK;
}

enum status trainer_evaluate_final(struct trainer *trainer) {
    if (trainer->evaluated_final == trainer->step && trainer->step > 0)
        return STATUS_OK;
    struct eval_metrics eval = {.final = true};
    const int64_t n = sequences_to_evaluate(trainer, trainer->config->train.eval_final_steps);
    const double seconds = (double)n * trainer->eval_sequence_s;
    char duration[32];
    if (seconds > LONG_EVALUATION_S)
        log_info(
            "final evaluation: %lld sequences of data.val, about %s; the checkpoint of step %lld is saved",
            (long long)n, text_duration(duration, sizeof duration, seconds), (long long)trainer->step);
    enum status status = evaluate(trainer, trainer->config->train.eval_final_steps, &eval);
    if (status == STATUS_STOPPED)
        log_info(
            "stopped during the final evaluation; all steps are done and saved. To evaluate: ./train eval "
            "%s --data FILES",
            trainer->folder.path);
    return status;
}

// ---- eval.tasks: opening

static enum status load_tasks(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct trainer_tasks *tasks = &trainer->tasks;
    const struct file_list *named = &config->eval.tasks;
    const int B = (int)config->train.micro_batch_size, T = (int)config->train.seq_len;
    if (!trainer->tokenizer)
        return FAIL(STATUS_INVALID, "%s: eval.tasks are texts, which need a tokenizer; set data.tokenizer",
                    config->source);
    TRY(task_list_load(&tasks->list, "eval.tasks", (const char *const *)named->paths, named->n_paths,
                       &(struct task_options){.tokenizer = trainer->tokenizer,
                                              .vocab_size = (int)config->model.vocab_size,
                                              .seq_len = T, // positions beyond were never trained
                                              .limit = config->eval.limit}));
    tasks->batches = allocate((size_t)tasks->list.n, sizeof *tasks->batches);
    tasks->scores = allocate((size_t)tasks->list.n, sizeof *tasks->scores);
    tasks->results = allocate((size_t)tasks->list.n, sizeof *tasks->results);
    for (int i = 0; i < tasks->list.n; i++) {
        task_batches_make(&tasks->batches[i], &tasks->list.tasks[i], B, T);
        task_scores_init(&tasks->scores[i], &tasks->list.tasks[i]);
    }
    task_scorer_init(&tasks->scorer, B, T);
    return STATUS_OK;
}

void trainer_tasks_free(struct trainer_tasks *tasks) {
    for (int i = 0; tasks->batches && i < tasks->list.n; i++) {
        task_batches_free(&tasks->batches[i]);
        task_scores_free(&tasks->scores[i]);
    }
    free(tasks->batches);
    free(tasks->scores);
    free(tasks->results);
    task_list_free(&tasks->list);
    task_scorer_free(&tasks->scorer);
    *tasks = (struct trainer_tasks){0};
}

// Ranks with different files would add up scores of different items.
static enum status check_same_tasks(struct trainer *trainer) {
    for (int i = 0; i < trainer->tasks.list.n; i++) {
        const struct task *task = &trainer->tasks.list.tasks[i];
        uint64_t of_rank_0 = task->checksum;
        TRY(comm_broadcast(trainer->comm, &of_rank_0, sizeof of_rank_0, 0));
        TRY(trainer_agree(
            trainer, of_rank_0 == task->checksum
                         ? STATUS_OK
                         : FAIL(STATUS_INVALID,
                                "eval.tasks: %s has other contents on this rank than on rank 0; every rank "
                                "must see the same file",
                                task->path)));
    }
    return STATUS_OK;
}

static const struct data_task *find_recorded(const struct data_record *record, const char *name) {
    for (int i = 0; i < record->n_tasks; i++)
        if (strcmp(record->tasks[i].name, name) == 0)
            return &record->tasks[i];
    return NULL;
}

// Files may change: figures are then not comparable, but the weights are the same.
static void record_tasks(struct trainer *trainer) {
    const struct task_list *list = &trainer->tasks.list;
    struct data_task *now = allocate((size_t)list->n, sizeof *now);
    for (int i = 0; i < list->n; i++) {
        const struct task *task = &list->tasks[i];
        now[i] = (struct data_task){.items = task->n_items, .checksum = task->checksum};
        snprintf(now[i].name, sizeof now[i].name, "%s", task->name);
        now[i].name[utf8_valid_bytes(now[i].name, strlen(now[i].name))] = 0; // a character that was cut
        const struct data_task *before = find_recorded(&trainer->run.data, now[i].name);
        if (before && (before->checksum != task->checksum || before->items != task->n_items))
            log_warning(
                "the items of the task %s have changed (%lld, now %d): figures of it cannot be compared "
                "with those before step %lld",
                task->name, (long long)before->items, task->n_items, (long long)trainer->step);
    }
    free(trainer->run.data.tasks);
    trainer->run.data.tasks = now;
    trainer->run.data.n_tasks = list->n;
}

enum status trainer_open_tasks(struct trainer *trainer) {
    if (trainer->config->eval.tasks.n_paths == 0)
        return STATUS_OK;
    TRY(trainer_agree(trainer, load_tasks(trainer)));
    TRY(check_same_tasks(trainer));
    record_tasks(trainer);
    return STATUS_OK;
}

void trainer_describe_tasks(const struct trainer *trainer) {
    const int64_t every = trainer->config->eval.every;
    char when[48] = "";
    if (every > 0)
        snprintf(when, sizeof when, "every %lld steps and ", (long long)every);
    for (int i = 0; i < trainer->tasks.list.n; i++) {
        const struct task *task = &trainer->tasks.list.tasks[i];
        log_info("task %s: %d item%s of %s, %sat the end", task->name, task->n_items,
                 task->n_items == 1 ? "" : "s", task->path, when);
    }
}

int64_t trainer_tasks_sequences(const struct trainer *trainer) {
    int64_t batches = 0;
    for (int i = 0; i < trainer->tasks.list.n; i++)
        batches += trainer->tasks.batches[i].n;
    return batches * trainer->config->train.micro_batch_size;
}

// ---- eval.tasks: scoring. Every rank has all items and scores every N-th batch. Each then gets all scores,
// so that figures do not depend on the number of ranks.

// This rank's batches: rank, rank + world, ... A rank with none left repeats the last one without its scores,
// because in stage 3 the others need its shard of the parameters.
static enum status score(struct trainer *trainer, int index) {
    struct trainer_tasks *tasks = &trainer->tasks;
    const struct task *task = &tasks->list.tasks[index];
    const struct task_batches *batches = &tasks->batches[index];
    struct task_scores *scores = &tasks->scores[index];
    const size_t n = (size_t)task->n_requests;
    memset(scores->log_probabilities, 0, n * sizeof *scores->log_probabilities);
    memset(scores->greedy, 0, n * sizeof *scores->greedy);
    for (int first = 0; first < batches->n; first += trainer->comm->world) {
        const int mine = first + trainer->comm->rank;
        TRY(trainer_agree_between_steps(trainer, signals_stop_requested() ? STATUS_STOPPED : STATUS_OK));
        TRY(task_score_batch(&tasks->scorer, task, batches, mine < batches->n ? mine : batches->n - 1,
                             mine < batches->n ? scores : NULL));
    }
    TRY(comm_sum(trainer->comm, scores->log_probabilities, n));
    TRY(comm_sum(trainer->comm, scores->greedy, n));
    tasks->results[index] = task_result_of(task, scores);
    return STATUS_OK;
}

static void print_result(const struct trainer *trainer, int index) {
    struct text line = {0};
    task_result_add_line(&line, &trainer->tasks.results[index]);
    log_live_end();
    log_info("step %lld  %s: %s", (long long)trainer->step, trainer->tasks.list.tasks[index].name, line.data);
    text_free(&line);
}

static enum status evaluate_all_tasks(struct trainer *trainer) {
    struct trainer_tasks *tasks = &trainer->tasks;
    const double began = clock_monotonic_s();
    TRY(trainer_show_average(trainer, true));
    tasks->scorer.gpt = trainer->engine.gpt;
    tasks->scorer.stream = &trainer->stream;
    tasks->scorer.hooks = &trainer->engine.state.hooks;
    for (int i = 0; i < tasks->list.n; i++) {
        TRY(score(trainer, i));
        if (trainer_leads(trainer))
            print_result(trainer, i);
    }
    tasks->seconds = clock_monotonic_s() - began;
    if (trainer_writes_metrics(trainer))
        trainer_fail_later(trainer,
                           metrics_tasks(&trainer->metrics, trainer->step, &tasks->list, tasks->results));
    return STATUS_OK;
}

enum status trainer_evaluate_tasks(struct trainer *trainer) {
    const bool last = trainer->step == trainer->last_step;
    enum status status = evaluate_all_tasks(trainer);
    if (status != STATUS_STOPPED)
        return status;
    if (last)
        log_info("stopped during the evaluation of tasks; all steps are done and saved. To evaluate: ./train "
                 "eval %s --task %s",
                 trainer->folder.path, trainer->config->eval.tasks.paths[0]);
    return last ? status : STATUS_OK; // the next step sees the signal too, and saves
}
