// What a run gives besides its steps: evaluations, samples, checkpoints.
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "infer/sample.h"
#include "trainer/trainer_internal.h"

// ------------------------------------------------------------------------------------------------------
// evaluation

// Bytes of the text that the targets stand for.
static int64_t count_bytes(const struct trainer *trainer, const int32_t *targets, size_t n) {
    int64_t bytes = 0;
    int32_t n_ids = tokenizer_n_ids(trainer->tokenizer);
    for (size_t i = 0; i < n; i++)
        bytes += targets[i] < n_ids ? trainer->token_bytes[targets[i]] : 0;
    return bytes;
}

// Sums over the first `rows` sequences of a batch: of their losses, and of the bytes of their text.
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

// Micro-batches are dealt out to the ranks. The last one may be partial: its other rows are not counted. A
// rank that has none left goes through the last one again, uncounted: in stage 3 the others need its shard of
// the parameters.
static enum status evaluate_share(struct trainer *trainer, int64_t n_sequences, double *totals) {
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

// The same sequences whatever the ranks and micro-batches are.
static int64_t sequences_to_evaluate(const struct trainer *trainer) {
    const int64_t all = (int64_t)loader_n_sequences(trainer->val),
                  asked = trainer->config->train.eval_steps * trainer->config->train.train_batch_size;
    return asked > 0 && asked < all ? asked : all;
}

enum status trainer_evaluate(struct trainer *trainer) {
    const struct config *config = trainer->config;
    const int64_t n_sequences = sequences_to_evaluate(trainer);
    double totals[2] = {0, 0}; // of losses, of bytes
    TRY(evaluate_share(trainer, n_sequences, totals));
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

// ---------------------------------------------------------------------------------------------------------
// samples

static enum status add_to_text(void *context, const char *bytes, size_t n_bytes) {
    text_add_bytes(context, bytes, n_bytes);
    return STATUS_OK;
}

static enum status write_sample(const struct trainer *trainer, const struct text *text) {
    char *path = NULL;
    enum status status = text_status(text);
    if (status == STATUS_OK && file_make_folders(trainer->folder.samples) != STATUS_OK)
        status = STATUS_FAILED; // it could be used when the run began
    if (status == STATUS_OK) {
        path = file_path("%s/step-%08lld.txt", trainer->folder.samples, (long long)trainer->step);
        status = path ? file_write_all(path, text->data ? text->data : "", text->length) : STATUS_FAILED;
    }
    if (status == STATUS_OK) {
        log_live_end();
        log_info("step %lld  sample: %s", (long long)trainer->step, text->data ? text->data : "");
    }
    free(path);
    return status;
}

// In stage 3 every rank writes the same sample, as each holds a share of the model; rank 0's is kept.
enum status trainer_sample(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct generator *generator = trainer->engine.generator;
    struct text text = {0};
    if (!generator)
        return trainer_agree(trainer, STATUS_OK);
    const char *const prompt = config->train.sample_prompt;
    const struct sample_request request = {
        .tokenizer = trainer->tokenizer,
        .vocab_size = (int)config->model.vocab_size,
        .positions = (int)config->train.seq_len, // later ones were never trained
        .sequences = 1,
        .prompts = &prompt,
        .n_prompts = 1,
        .n_samples = 1,
        .n_tokens = config->train.sample_tokens,
        .sampling = {.temperature = 1, .top_p = 1, .seed = (uint64_t)config->train.seed},
        .first_counter = (uint64_t)trainer->step << 32,
        .write = add_to_text,
        .context = &text};
    text_add(&text, "%s", prompt);
    // Ranks sample together: one that fails here cannot meet the others in an agreement.
    enum status status =
        sample_run(generator, &trainer->stream, &trainer->engine.state.hooks, &request, NULL);
    if (status != STATUS_OK) {
        text_free(&text);
        return status;
    }
    if (trainer_leads(trainer))
        status = write_sample(trainer, &text);
    text_free(&text);
    return trainer_agree_between_steps(trainer, status);
}

// -----------------------------------------------------------------------------------------------------
// checkpoints

enum status trainer_save(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct model_states *state = &trainer->engine.state;
    struct state_reader reader = {state, &trainer->stream};
    const struct checkpoint_contents contents = {.comm = trainer->comm,
                                                 .partition = &state->partition,
                                                 .step = trainer->step,
                                                 .tokens = trainer->step * config->train.train_batch_size *
                                                           config->train.seq_len,
                                                 .config = config,
                                                 .params = &trainer->params,
                                                 .tokenizer = trainer->tokenizer,
                                                 .compute = trainer->type,
                                                 .n_kinds = state->placement.n_kinds,
                                                 .has_factors = state->second_moments.n > 0,
                                                 .loss_scale = trainer->loss_scale,
                                                 .data = &trainer->data,
                                                 .source = model_states_source(&reader)};
    TRY(checkpoint_write(trainer->folder.checkpoints, &contents));
    trainer->saved_step = trainer->step;
    enum status status = STATUS_OK;
    // While steps are being skipped the run may be dead, and an older checkpoint the one to go back to.
    if (trainer_leads(trainer) && trainer->loss_scale.consecutive == 0)
        status = checkpoint_prune(trainer->folder.checkpoints, config->checkpoint.keep, trainer->step);
    return trainer_agree(trainer, status);
}
