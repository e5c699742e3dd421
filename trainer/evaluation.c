// Evaluation: the loss on data.val, in nats per token and, with a tokenizer, in bits per byte.
#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "trainer/signals.h"
#include "trainer/trainer_internal.h"

#define LONG_EVALUATION_S 10 // a final evaluation that takes longer is announced

// Bytes of the text that the targets encode.
static int64_t count_bytes(const struct trainer *trainer, const int32_t *targets, size_t n) {
    int64_t bytes = 0;
    int32_t n_ids = tokenizer_n_ids(trainer->tokenizer);
    for (size_t i = 0; i < n; i++)
        bytes += targets[i] < n_ids ? trainer->token_bytes[targets[i]] : 0;
    return bytes;
}

// Adds the first `rows` sequences of a batch to `totals`: their losses, and the bytes of their text.
static enum status evaluate_batch(struct trainer *trainer, const int32_t *tokens, const int32_t *targets,
                                  int64_t rows, double *totals) {
    const int64_t T = trainer->config->train.seq_len;
    const bool whole = rows == trainer->config->train.micro_batch_size;
    double sum;
    TRY(gpt_evaluate(trainer->engine.gpt, &trainer->stream, &trainer->engine.state.hooks, tokens, targets,
                     &sum, whole ? NULL : trainer->val_losses));
    if (!whole)
        sum = 0;
    for (int64_t i = 0; !whole && i < rows * T; i++)
        sum += (double)trainer->val_losses[i];
    totals[0] += sum;
    totals[1] += trainer->tokenizer ? (double)count_bytes(trainer, targets, (size_t)(rows * T)) : 0;
    return STATUS_OK;
}

// Evaluates this rank's micro-batches: rank, rank + world, ... The last one may be partial; its remaining
// rows are not counted. A rank with none left repeats the last one without counting it, because in stage 3
// the others need its shard of the parameters.
//   may_stop   a signal ends the evaluation with STATUS_STOPPED; otherwise the next step sees it
static enum status evaluate_micro_batches(struct trainer *trainer, int64_t n_sequences, bool may_stop,
                                          double *totals) {
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

// The count depends on neither ranks nor micro-batches, so that losses of different runs are comparable.
//   steps   train.eval_steps or train.eval_final_steps; 0: all of data.val
static int64_t sequences_to_evaluate(const struct trainer *trainer, int64_t steps) {
    const int64_t all = (int64_t)loader_n_sequences(trainer->val),
                  asked = steps * trainer->config->train.train_batch_size;
    return asked > 0 && asked < all ? asked : all;
}

void trainer_evaluation_lengths(const struct trainer *trainer, int64_t *during, int64_t *final) {
    const struct config *config = trainer->config;
    *during = trainer->val ? sequences_to_evaluate(trainer, config->train.eval_steps) : 0;
    *final = trainer->val ? sequences_to_evaluate(trainer, config->train.eval_final_steps) : 0;
}

static void print(const struct eval_metrics *eval) {
    char bits[64] = "", extent[64];
    if (isfinite(eval->bits_per_byte))
        snprintf(bits, sizeof bits, "  %.4f bits per byte", eval->bits_per_byte);
    if (eval->sequences == eval->all_sequences)
        snprintf(extent, sizeof extent, "all %lld", (long long)eval->sequences);
    else
        snprintf(extent, sizeof extent, "%lld of %lld", (long long)eval->sequences,
                 (long long)eval->all_sequences);
    log_live_end();
    log_info("step %lld  %sval loss %.4f%s (%s sequences of data.val)", (long long)eval->step,
             eval->final ? "final " : "", eval->loss, bits, extent);
}

// Evaluates sequences that are evenly spaced over data.val.
static enum status evaluate(struct trainer *trainer, int64_t n_sequences, struct eval_metrics *eval) {
    const double began = clock_monotonic_s();
    double totals[2] = {0, 0}; // of losses, of bytes
    loader_spread(trainer->val, (size_t)n_sequences);
    TRY(evaluate_micro_batches(trainer, n_sequences, eval->final && trainer->saved_step == trainer->step,
                               totals));
    TRY(comm_sum(trainer->comm, totals, 2));
    trainer->eval_sequence_s = (clock_monotonic_s() - began) / (double)n_sequences;
    eval->step = trainer->step;
    eval->loss = totals[0] / (double)(n_sequences * trainer->config->train.seq_len);
    eval->bits_per_byte = totals[1] > 0 ? totals[0] / log(2) / totals[1] : NAN;
    eval->sequences = n_sequences;
    eval->all_sequences = (int64_t)loader_n_sequences(trainer->val);
    print(eval);
    if (trainer_leads(trainer))
        trainer_fail_later(trainer, metrics_eval(&trainer->metrics, eval));
    return STATUS_OK;
}

enum status trainer_evaluate(struct trainer *trainer) {
    const struct config *config = trainer->config;
    const int64_t n = sequences_to_evaluate(trainer, config->train.eval_steps);
    // The final evaluation too, if that has the same length.
    struct eval_metrics eval = {.final = trainer->step == trainer->last_step &&
                                         n == sequences_to_evaluate(trainer, config->train.eval_final_steps)};
    TRY(evaluate(trainer, n, &eval));
    trainer->evaluated = (struct history_best){trainer->step, n, eval.loss};
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
    enum status status = evaluate(trainer, n, &eval);
    if (status == STATUS_STOPPED)
        log_info(
            "stopped during the final evaluation; all steps are done and saved. To evaluate: ./train eval "
            "%s --data FILES",
            trainer->folder.path);
    return status;
}
