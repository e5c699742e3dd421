// What a run gives besides its steps: evaluations, samples, checkpoints.
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "zero/sample.h"
#include "zero/trainer_parts.h"

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

enum status trainer_evaluate(struct trainer *trainer) {
    const struct config *config = trainer->config;
    size_t n = (size_t)(config->train.micro_batch_size * config->train.seq_len);
    int64_t whole = (int64_t)loader_n_sequences(trainer->val) / config->train.micro_batch_size;
    int64_t batches =
        config->train.eval_steps > 0 && config->train.eval_steps < whole ? config->train.eval_steps : whole;
    double sum = 0;
    int64_t bytes = 0;
    for (int64_t i = 0; i < batches; i++) {
        const int32_t *tokens, *targets;
        double batch_sum;
        TRY(loader_batch(trainer->val, i, 0, &tokens, &targets));
        TRY(gpt_evaluate(trainer->gpt, &trainer->stream, &trainer->state.hooks, tokens, targets, &batch_sum,
                         NULL));
        sum += batch_sum;
        bytes += trainer->tokenizer ? count_bytes(trainer, targets, n) : 0;
    }
    struct eval_metrics eval = {.step = trainer->step,
                                .loss = sum / ((double)batches * (double)n),
                                .bits_per_byte = bytes > 0 ? sum / log(2) / (double)bytes : NAN};
    log_live_end();
    if (bytes > 0)
        log_info("step %lld  val loss %.4f  %.4f bits per byte (%lld batches of data.val)",
                 (long long)eval.step, eval.loss, eval.bits_per_byte, (long long)batches);
    else
        log_info("step %lld  val loss %.4f (%lld batches of data.val)", (long long)eval.step, eval.loss,
                 (long long)batches);
    return metrics_eval(&trainer->metrics, &eval);
}

// ---------------------------------------------------------------------------------------------------------
// samples

static enum status add_to_text(void *context, const char *bytes, size_t n_bytes) {
    text_add_bytes(context, bytes, n_bytes);
    return STATUS_OK;
}

enum status trainer_sample(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct text text = {0};
    const struct sample_request request = {
        .tokenizer = trainer->tokenizer,
        .vocab_size = (int)config->model.vocab_size,
        .positions = (int)config->train.seq_len, // later ones were never trained
        .prompt = config->train.sample_prompt,
        .n_tokens = config->train.sample_tokens,
        .sampling = {.temperature = 1, .top_p = 1, .seed = (uint64_t)config->train.seed},
        .first_counter = (uint64_t)trainer->step << 32,
        .write = add_to_text,
        .context = &text};
    text_add(&text, "%s", config->train.sample_prompt);
    generator_reset(trainer->generator);
    enum status status =
        sample_run(trainer->generator, &trainer->stream, &trainer->state.hooks, &request, NULL);
    if (status == STATUS_OK)
        status = text_status(&text);
    char *path = NULL;
    if (status == STATUS_OK)
        status = file_make_folders(trainer->folder.samples);
    if (status == STATUS_OK) {
        path = file_path("%s/step-%08lld.txt", trainer->folder.samples, (long long)trainer->step);
        status = path ? file_write_all(path, text.data ? text.data : "", text.length) : STATUS_FAILED;
    }
    if (status == STATUS_OK) {
        log_live_end();
        log_info("step %lld  sample: %s", (long long)trainer->step, text.data ? text.data : "");
    }
    free(path);
    text_free(&text);
    return status;
}

// -----------------------------------------------------------------------------------------------------
// checkpoints

enum status trainer_save(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct state_reader reader = {&trainer->state, &trainer->stream};
    const struct checkpoint_contents contents = {.step = trainer->step,
                                                 .tokens = trainer->step * config->train.train_batch_size *
                                                           config->train.seq_len,
                                                 .config = config,
                                                 .params = &trainer->params,
                                                 .tokenizer = trainer->tokenizer,
                                                 .compute = trainer->type,
                                                 .n_kinds = trainer->state.n_kinds,
                                                 .source = state_source(&reader)};
    TRY(checkpoint_write(trainer->folder.checkpoints, &contents));
    trainer->saved_step = trainer->step;
    return checkpoint_prune(trainer->folder.checkpoints, config->checkpoint.keep, trainer->step);
}
