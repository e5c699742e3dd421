// Printed and recorded figures do not depend on the number of ranks: each rank computes its share of the
// batches, and all ranks add up their results.
#include "trainer/evaluation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/utf8.h"
#include "infer/sample.h"
#include "infer/text_loss.h"

#define LONG_EVALUATION_S 10 // in seconds; a final evaluation that is expected to take longer is announced

// ---- the loss on data.val

// Adds the sum of a batch's losses and the bytes of its text to `totals`. Sequences that are padding do not
// count: their targets have weight 0.
static enum status evaluate_batch(struct evaluator *evaluator, const struct token_batch *batch,
                                  struct text_loss *totals) {
    struct run *run = evaluator->run;
    const int64_t B = run->config->train.micro_batch_size, T = run->config->train.seq_len;
    double sum;
    TRY(gpt_evaluate(run->engine.gpt, &run->machine.stream, &run->engine.state.hooks, batch, &sum, NULL));
    totals->nats += sum;
    for (int64_t row = 0; row < B; row++)
        if (!batch->weights || batch->weights[row * T] > 0)
            text_loss_count(totals, evaluator->data->tokenizer, batch->tokens[row * T],
                            batch->targets + row * T, (size_t)T);
    return STATUS_OK;
}

// Evaluates this rank's micro-batches: rank, rank + world, ... Micro-batch i belongs to logical rank i mod L.
// The last one may be partly padding. A rank with none left evaluates padding only, because in stage 3 the
// others need its shard of the parameters.
//   may_stop   true: a signal ends the evaluation with STATUS_STOPPED. false: the evaluation goes on, and the
//              next step handles the signal
//   totals     [out] (S) one for each logical rank that this rank computes
static enum status evaluate_micro_batches(struct evaluator *evaluator, int64_t n_sequences, bool may_stop,
                                          struct text_loss *totals) {
    struct run *run = evaluator->run;
    const struct comm *comm = run->comm;
    const int64_t B = run->config->train.micro_batch_size, batches = (n_sequences + B - 1) / B;
    const int n_logical = logical_per_rank(&run->engine.state.stage.logical);
    memset(totals, 0, (size_t)n_logical * sizeof *totals);
    for (int64_t first = 0; first < batches; first += comm->world) {
        struct token_batch batch;
        enum status status = loader_batch(evaluator->data->val, first + comm->rank, 0, &batch);
        if (status == STATUS_OK && may_stop && signals_stop_requested())
            status = STATUS_STOPPED;
        TRY(run_agree_between_steps(run, status));
        TRY(evaluate_batch(evaluator, &batch, &totals[first / comm->world % n_logical]));
    }
    return STATUS_OK;
}

// The number of sequences of a source to evaluate. In a mixture it is proportional to the source's share, but
// at least one. It depends neither on the number of ranks nor on the micro-batch size, so losses of different
// runs are comparable.
//   steps   train.eval_steps or train.eval_final_steps; 0: all of data.val
static int64_t sequences_of_source(const struct evaluator *evaluator, const struct source *source,
                                   int64_t steps) {
    const int64_t all = (int64_t)source->n_sequences,
                  total = steps * evaluator->run->config->train.train_batch_size,
                  asked = llround(source->share * (double)total);
    return total > 0 && asked < all ? (asked > 0 ? asked : 1) : all;
}

static int64_t sequences_to_evaluate(const struct evaluator *evaluator, int64_t steps) {
    const struct sources *sources = loader_sources(evaluator->data->val);
    int64_t n = 0;
    for (int i = 0; i < sources->n; i++)
        n += sequences_of_source(evaluator, &sources->list[i], steps);
    return n;
}

void evaluator_lengths(const struct evaluator *evaluator, int64_t *during, int64_t *final) {
    const struct config *config = evaluator->run->config;
    *during = evaluator->data->val ? sequences_to_evaluate(evaluator, config->train.eval_steps) : 0;
    *final = evaluator->data->val ? sequences_to_evaluate(evaluator, config->train.eval_final_steps) : 0;
    if (config->train.ema.type != CONFIG_EMA_NONE || optimizer_averages(config))
        *final *= 2; // the latest weights are evaluated, too
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

// Evaluates sequences that are evenly spaced over each source of data.val. The loss and the bits per byte of
// a mixture weight its sources by their shares, however many sequences of each were evaluated.
//   losses   [out] (number of sources) loss of each source
static enum status evaluate_sources(struct evaluator *evaluator, int64_t steps, struct eval_metrics *eval,
                                    struct eval_source *losses) {
    struct run *run = evaluator->run;
    const struct sources *sources = loader_sources(evaluator->data->val);
    const int64_t T = run->config->train.seq_len, n = sequences_to_evaluate(evaluator, steps);
    const bool may_stop = eval->final && run->saved_step == run->step;
    struct text_loss totals = {.tokens = (double)(n * T)};
    for (int i = 0; i < sources->n; i++) {
        const struct source *source = &sources->list[i];
        const int64_t n_sequences = sequences_of_source(evaluator, source, steps);
        struct text_loss sums, mine[logical_per_rank(&run->engine.state.stage.logical)];
        loader_spread(evaluator->data->val, i, (size_t)n_sequences);
        TRY(evaluate_micro_batches(evaluator, n_sequences, may_stop, mine));
        TRY(run_sum_logical(run, (const double *)mine, sizeof sums / sizeof(double), (double *)&sums));
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

static enum status evaluate(struct evaluator *evaluator, int64_t steps, struct eval_metrics *eval) {
    struct run *run = evaluator->run;
    const double began = clock_monotonic_s();
    const int n_sources = loader_sources(evaluator->data->val)->n;
    struct eval_source losses[CONFIG_MAX_SOURCES];
    eval->averaged = run->state.average.n;
    if (eval->final && eval->averaged > 0) {
        TRY(run_show_average(run, false));
        TRY(evaluate_sources(evaluator, steps, eval, losses));
        eval->latest_loss = eval->loss;
    }
    TRY(run_show_average(run, true));
    TRY(evaluate_sources(evaluator, steps, eval, losses));
    evaluator->sequence_s = (clock_monotonic_s() - began) / (double)eval->sequences;
    eval->step = run->step;
    eval->all_sequences = (int64_t)loader_n_sequences(evaluator->data->val);
    eval->sources = losses;
    eval->n_sources = n_sources > 1 ? n_sources : 0;
    print(eval);
    if (run_output_writes_metrics(evaluator->output))
        run_fail_later(run, metrics_eval(&evaluator->output->metrics, eval));
    eval->sources = NULL;
    return STATUS_OK;
}

enum status evaluator_val(struct evaluator *evaluator) {
    struct run *run = evaluator->run;
    const struct config *config = run->config;
    const int64_t n = sequences_to_evaluate(evaluator, config->train.eval_steps);
    // At the last step this is also the final evaluation, if that has the same length.
    struct eval_metrics eval = {.final =
                                    run->step == run->last_step &&
                                    n == sequences_to_evaluate(evaluator, config->train.eval_final_steps)};
    TRY(evaluate(evaluator, config->train.eval_steps, &eval));
    evaluator->latest = (struct run_best){run->step, n, eval.loss};
    if (eval.final)
        evaluator->final_step = run->step;
    return STATUS_OK;
}

enum status evaluator_val_final(struct evaluator *evaluator) {
    struct run *run = evaluator->run;
    if (evaluator->final_step == run->step && run->step > 0)
        return STATUS_OK;
    struct eval_metrics eval = {.final = true};
    const int64_t n = sequences_to_evaluate(evaluator, run->config->train.eval_final_steps);
    const double seconds = (double)n * evaluator->sequence_s;
    char duration[32];
    if (seconds > LONG_EVALUATION_S)
        log_info(
            "final evaluation: %lld sequences of data.val, about %s; the checkpoint of step %lld is saved",
            (long long)n, text_duration(duration, sizeof duration, seconds), (long long)run->step);
    enum status status = evaluate(evaluator, run->config->train.eval_final_steps, &eval);
    if (status == STATUS_STOPPED)
        log_info(
            "stopped during the final evaluation; all steps are done and saved. To evaluate: ./train eval "
            "%s --data FILES",
            run->folder.path);
    return status;
}

// ---- eval.tasks: opening

static enum status load_tasks(struct evaluator *evaluator) {
    const struct config *config = evaluator->run->config;
    struct eval_tasks *tasks = &evaluator->tasks;
    const struct file_list *named = &config->eval.tasks;
    const int B = (int)config->train.micro_batch_size, T = (int)config->train.seq_len;
    if (!evaluator->data->tokenizer)
        return FAIL(STATUS_INVALID, "%s: eval.tasks are texts, which need a tokenizer; set data.tokenizer",
                    config->source);
    TRY(task_list_load(&tasks->list, "eval.tasks", (const char *const *)named->paths, named->n_paths,
                       &(struct task_options){.tokenizer = evaluator->data->tokenizer,
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
    task_scorer_init(&tasks->scorer, B, T, training_data_document_start(evaluator->data));
    return STATUS_OK;
}

// Checks that all ranks have the same task files; otherwise they would add up scores of different items.
static enum status check_same_tasks(struct evaluator *evaluator) {
    for (int i = 0; i < evaluator->tasks.list.n; i++) {
        const struct task *task = &evaluator->tasks.list.tasks[i];
        uint64_t of_rank_0 = task->checksum;
        TRY(comm_broadcast(evaluator->run->comm, &of_rank_0, sizeof of_rank_0, 0));
        TRY(run_agree(evaluator->run,
                      of_rank_0 == task->checksum
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

// Records the tasks in the run's state, which checkpoints store. Only warns if the items of a task are not
// those that the resumed checkpoint records: its figures are not comparable, but training does not depend
// on it.
static void record_tasks(struct evaluator *evaluator) {
    struct run *run = evaluator->run;
    const struct task_list *list = &evaluator->tasks.list;
    struct data_task *now = allocate((size_t)list->n, sizeof *now);
    for (int i = 0; i < list->n; i++) {
        const struct task *task = &list->tasks[i];
        now[i] = (struct data_task){.items = task->n_items, .checksum = task->checksum};
        snprintf(now[i].name, sizeof now[i].name, "%s", task->name);
        // If the name was truncated inside a character, drop that character.
        now[i].name[utf8_valid_bytes(now[i].name, strlen(now[i].name))] = 0;
        const struct data_task *before = find_recorded(&run->state.data, now[i].name);
        if (before && (before->checksum != task->checksum || before->items != task->n_items))
            log_warning(
                "the items of the task %s have changed (%lld before, %d now): its figures cannot be compared "
                "with those before step %lld",
                task->name, (long long)before->items, task->n_items, (long long)run->step);
    }
    free(run->state.data.tasks);
    run->state.data.tasks = now;
    run->state.data.n_tasks = list->n;
}

enum status evaluator_open(struct evaluator *evaluator) {
    struct run *run = evaluator->run;
    const struct config *config = run->config;
    if (config->eval.tasks.n_paths == 0)
        return STATUS_OK;
    TRY(run_agree(run, load_tasks(evaluator)));
    TRY(check_same_tasks(evaluator));
    record_tasks(evaluator);
    return STATUS_OK;
}

void evaluator_free(struct evaluator *evaluator) {
    struct eval_tasks *tasks = &evaluator->tasks;
    for (int i = 0; tasks->batches && i < tasks->list.n; i++) {
        task_batches_free(&tasks->batches[i]);
        task_scores_free(&tasks->scores[i]);
    }
    free(tasks->batches);
    free(tasks->scores);
    free(tasks->results);
    task_list_free(&tasks->list);
    task_scorer_free(&tasks->scorer);
}

void evaluator_describe_tasks(const struct evaluator *evaluator) {
    const int64_t every = evaluator->run->config->eval.every;
    char when[48] = "";
    if (every > 0)
        snprintf(when, sizeof when, "every %lld steps and ", (long long)every);
    for (int i = 0; i < evaluator->tasks.list.n; i++) {
        const struct task *task = &evaluator->tasks.list.tasks[i];
        log_info("task %s: %d item%s of %s, %sat the end", task->name, task->n_items,
                 task->n_items == 1 ? "" : "s", task->path, when);
    }
}

int64_t evaluator_tasks_sequences(const struct evaluator *evaluator) {
    int64_t batches = 0;
    for (int i = 0; i < evaluator->tasks.list.n; i++)
        batches += evaluator->tasks.batches[i].n;
    return batches * evaluator->run->config->train.micro_batch_size;
}

// ---- eval.tasks: scoring
//
// Every rank has all items and scores its share of the batches. It then gets the scores of all ranks, so that
// figures do not depend on the number of ranks.

// Scores this rank's batches: rank, rank + world, ... A rank with none left repeats the last batch without
// counting it, because in stage 3 the other ranks need its shard of the parameters.
static enum status score(struct evaluator *evaluator, int index) {
    struct run *run = evaluator->run;
    struct eval_tasks *tasks = &evaluator->tasks;
    const struct task *task = &tasks->list.tasks[index];
    const struct task_batches *batches = &tasks->batches[index];
    struct task_scores *scores = &tasks->scores[index];
    const size_t n = (size_t)task->n_requests;
    memset(scores->log_probabilities, 0, n * sizeof *scores->log_probabilities);
    memset(scores->greedy, 0, n * sizeof *scores->greedy);
    for (int first = 0; first < batches->n; first += run->comm->world) {
        const int mine = first + run->comm->rank;
        TRY(run_agree_between_steps(run, signals_stop_requested() ? STATUS_STOPPED : STATUS_OK));
        TRY(task_score_batch(&tasks->scorer, task, batches, mine < batches->n ? mine : batches->n - 1,
                             mine < batches->n ? scores : NULL));
    }
    TRY(comm_sum(run->comm, scores->log_probabilities, n));
    TRY(comm_sum(run->comm, scores->greedy, n));
    tasks->results[index] = task_result_of(task, scores);
    return STATUS_OK;
}

static void print_result(const struct evaluator *evaluator, int index) {
    struct text line = {0};
    task_result_add_line(&line, &evaluator->tasks.results[index]);
    log_live_end();
    log_info("step %lld  %s: %s", (long long)evaluator->run->step, evaluator->tasks.list.tasks[index].name,
             line.data);
    text_free(&line);
}

static enum status evaluate_all_tasks(struct evaluator *evaluator) {
    struct run *run = evaluator->run;
    struct eval_tasks *tasks = &evaluator->tasks;
    const double began = clock_monotonic_s();
    TRY(run_show_average(run, true));
    tasks->scorer.gpt = run->engine.gpt;
    tasks->scorer.stream = &run->machine.stream;
    tasks->scorer.hooks = &run->engine.state.hooks;
    for (int i = 0; i < tasks->list.n; i++) {
        TRY(score(evaluator, i));
        if (run_leads(run))
            print_result(evaluator, i);
    }
    tasks->seconds = clock_monotonic_s() - began;
    if (run_output_writes_metrics(evaluator->output))
        run_fail_later(run,
                       metrics_tasks(&evaluator->output->metrics, run->step, &tasks->list, tasks->results));
    return STATUS_OK;
}

enum status evaluator_tasks(struct evaluator *evaluator) {
    struct run *run = evaluator->run;
    const bool last = run->step == run->last_step;
    enum status status = evaluate_all_tasks(evaluator);
    if (status != STATUS_STOPPED)
        return status;
    if (last)
        log_info("stopped during the evaluation of tasks; all steps are done and saved. To evaluate: ./train "
                 "eval %s --task %s",
                 run->folder.path, run->config->eval.tasks.paths[0]);
    return last ? status : STATUS_OK; // before the last step, the next step handles the signal and saves
}

// ---- samples: text that the model generates, in the log and in samples/step-N.txt

static enum status add_to_text(void *context, const char *bytes, size_t n_bytes) {
    text_add_bytes(context, bytes, n_bytes);
    return STATUS_OK;
}

static enum status write_sample(const struct evaluator *evaluator, const struct text *text) {
    const struct run *run = evaluator->run;
    TRY(run_check_folder(run));
    if (file_make_folders(run->folder.samples) != STATUS_OK)
        return STATUS_FAILED; // not STATUS_INVALID: run_folder_try found run.dir writable at the start
    char *path = file_path("%s/step-%08lld.txt", run->folder.samples, (long long)run->step);
    const enum status status = file_write_all(path, text->data ? text->data : "", text->length);
    if (status == STATUS_OK) {
        log_live_end();
        log_info("step %lld  sample: %s", (long long)run->step, text->data ? text->data : "");
    }
    free(path);
    return status;
}

// Generates a sample. In stage 3 every rank generates the same sample, because each has a shard of the
// parameters; rank 0 writes it.
enum status evaluator_sample(struct evaluator *evaluator) {
    struct run *run = evaluator->run;
    const struct config *config = run->config;
    struct generator *generator = run->engine.generator;
    struct text text = {0};
    TRY(run_show_average(run, true));
    if (!generator)
        return run_agree(run, STATUS_OK);
    const char *const bytes = config->train.sample_prompt;
    struct prompt prompt = {bytes, strlen(bytes), {0}};
    const struct sample_request request = {
        .tokenizer = evaluator->data->tokenizer,
        .vocab_size = (int)config->model.vocab_size,
        .positions = (int)config->train.seq_len, // positions beyond were never trained
        .sequences = 1,
        .prompts = &prompt,
        .n_prompts = 1,
        .n_samples = 1,
        .options = {.sampling = {.temperature = 1, .top_p = 1, .seed = (uint64_t)config->train.seed},
                    .repetition_penalty = 1,
                    .n_tokens = config->train.sample_tokens,
                    .n_top = -1,
                    .first_counter = (uint64_t)run->step << 32},
        .write = add_to_text,
        .context = &text};
    text_add(&text, "%s", bytes);
    // A failure here is returned without an agreement: the other ranks may still wait for this one in a
    // collective of the model.
    enum status status = tokenizer_encode_prompt(request.tokenizer, prompt.bytes, prompt.n_bytes,
                                                 request.vocab_size, &prompt.tokens);
    if (status == STATUS_OK)
        status = sample_run(generator, &run->machine.stream, &run->engine.state.hooks, &request, NULL);
    token_list_free(&prompt.tokens);
    if (status != STATUS_OK) {
        text_free(&text);
        return status;
    }
    if (run_leads(run))
        status = write_sample(evaluator, &text);
    text_free(&text);
    return run_agree_between_steps(run, status);
}
