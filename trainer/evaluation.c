// Evaluation: the loss on data.val, in nats per token and, with a tokenizer, in bits per byte.
#include <math.h>

#include "base/log.h"
#include "trainer/trainer_internal.h"

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
static enum status evaluate_micro_batches(struct trainer *trainer, int64_t n_sequences, double *totals) {
    const struct comm *comm = trainer->comm;
    const int64_t B = trainer->config->train.micro_batch_size, batches = (n_sequences + B - 1) / B;
    for (int64_t first = 0; first < batches; first += comm->world) {
        const int64_t mine = first + comm->rank, left = n_sequences - mine * B;
        const int64_t rows = left < 0 ? 0 : left < B ? left : B;
        const int32_t *tokens, *targets;
        TRY(trainer_agree_between_steps(
            trainer, loader_batch(trainer->val, mine < batches ? mine : batches - 1, 0, &tokens, &targets)));
        TRY(evaluate_batch(trainer, tokens, targets, rows, totals));
    }
    return STATUS_OK;
}

// The count depends on neither ranks nor micro-batches, so that losses of different runs are comparable.
static int64_t sequences_to_evaluate(const struct trainer *trainer) {
    const int64_t all = (int64_t)loader_n_sequences(trainer->val),
                  asked = trainer->config->train.eval_steps * trainer->config->train.train_batch_size;
    return asked > 0 && asked < all ? asked : all;
}

enum status trainer_evaluate(struct trainer *trainer) {
    const struct config *config = trainer->config;
    const int64_t n_sequences = sequences_to_evaluate(trainer);
    double totals[2] = {0, 0}; // of losses, of bytes
    TRY(evaluate_micro_batches(trainer, n_sequences, totals));
    TRY(comm_sum(trainer->comm, totals, 2));
    struct eval_metrics eval = {.step = trainer->step,
                                .loss = totals[0] / (double)(n_sequences * config->train.seq_len),
                                .bits_per_byte = totals[1] > 0 ? totals[0] / log(2) / totals[1] : NAN};
    log_live_end();
    if (totals[1] > 0)
        log_info("step %lld  val loss %.4f  %.4f bits per byte (%lld sequences of data.val)",
                 (long long)eval.step, eval.loss, eval.bits_per_byte, (long long)n_sequences);
    else
        log_info("step %lld  val loss %.4f (%lld sequences of data.val)", (long long)eval.step, eval.loss,
                 (long long)n_sequences);
    if (trainer_leads(trainer))
        trainer_fail_later(trainer, metrics_eval(&trainer->metrics, &eval));
    return STATUS_OK;
}
