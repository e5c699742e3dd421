// Samples: text that the model generates during training, in the log and in samples/step-N.txt.
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "infer/sample.h"
#include "trainer/trainer_internal.h"

static enum status add_to_text(void *context, const char *bytes, size_t n_bytes) {
    text_add_bytes(context, bytes, n_bytes);
    return STATUS_OK;
}

static enum status write_sample(const struct trainer *trainer, const struct text *text) {
    TRY(trainer_check_folder(trainer));
    if (file_make_folders(trainer->folder.samples) != STATUS_OK)
        return STATUS_FAILED; // the folder was writable at the start (run_folder_try)
    char *path = file_path("%s/step-%08lld.txt", trainer->folder.samples, (long long)trainer->step);
    const enum status status = file_write_all(path, text->data ? text->data : "", text->length);
    if (status == STATUS_OK) {
        log_live_end();
        log_info("step %lld  sample: %s", (long long)trainer->step, text->data ? text->data : "");
    }
    free(path);
    return status;
}

// In stage 3 every rank generates the same sample, as each holds a shard of the parameters; rank 0 writes it.
enum status trainer_sample(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct generator *generator = trainer->engine.generator;
    struct text text = {0};
    TRY(trainer_show_average(trainer, true));
    if (!generator)
        return trainer_agree(trainer, STATUS_OK);
    const char *const bytes = config->train.sample_prompt;
    struct prompt prompt = {bytes, strlen(bytes), {0}};
    const struct sample_request request = {
        .tokenizer = trainer->tokenizer,
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
                    .first_counter = (uint64_t)trainer->step << 32},
        .write = add_to_text,
        .context = &text};
    text_add(&text, "%s", bytes);
    // Ranks generate together: one that fails here cannot reach the agreement at the end.
    enum status status = prompt_encode(request.tokenizer, request.vocab_size, &prompt);
    if (status == STATUS_OK)
        status = sample_run(generator, &trainer->stream, &trainer->engine.state.hooks, &request, NULL);
    token_list_free(&prompt.tokens);
    if (status != STATUS_OK) {
        text_free(&text);
        return status;
    }
    if (trainer_leads(trainer))
        status = write_sample(trainer, &text);
    text_free(&text);
    return trainer_agree_between_steps(trainer, status);
}
