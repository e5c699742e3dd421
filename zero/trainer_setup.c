// From a config to a trainer that can take its first step. Sizes may come from weights, and those from a path
// in the config: so what the config means is settled step by step, cheap checks first.
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "zero/trainer_parts.h"

// ------------------------------------------------------------------------------------------- what the config
// means

static enum status find_checkpoint(struct trainer *trainer) {
    const char *resume = trainer->config->checkpoint.resume;
    int64_t *steps = NULL;
    int n_steps = 0;
    if (strcmp(resume, "auto") == 0)
        return checkpoint_open_newest(trainer->folder.checkpoints, &trainer->resumed);
    if (strcmp(resume, "never") != 0)
        return checkpoint_open_path(resume, &trainer->resumed);
    TRY(checkpoint_list(trainer->folder.checkpoints, &steps, &n_steps));
    free(steps);
    if (n_steps > 0)
        return FAIL(
            STATUS_INVALID,
            "checkpoint.resume is never, but %s holds %d checkpoint%s; name another run.dir, or remove "
            "the folder",
            trainer->folder.checkpoints, n_steps, n_steps == 1 ? "" : "s");
    return STATUS_OK;
}

// Takes the model's sizes from the weights; an explicit option that disagrees is an error.
static enum status adopt_sizes(struct config *config, const struct gpt_config *found, const char *path) {
    const struct {
        const char *option;
        int64_t *value;
        int found;
    } sizes[] = {{"model.n_layer", &config->model.n_layer, found->n_layer},
                 {"model.n_head", &config->model.n_head, found->n_head},
                 {"model.n_embd", &config->model.n_embd, found->n_embd},
                 {"model.vocab_size", &config->model.vocab_size, found->vocab_size},
                 {"model.n_positions", &config->model.n_positions, found->n_positions}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (config_given(config, sizes[i].option) && *sizes[i].value != sizes[i].found)
            return FAIL(STATUS_INVALID, "%s: %s is %lld, but the weights in %s have %d; leave the option out",
                        config->source, sizes[i].option, (long long)*sizes[i].value, path, sizes[i].found);
        *sizes[i].value = sizes[i].found;
    }
    return STATUS_OK;
}

static enum status load_tokenizer(struct trainer *trainer) {
    struct config *config = trainer->config;
    if (!config->data.tokenizer[0])
        return STATUS_OK;
    TRY(tokenizer_load(config->data.tokenizer, &trainer->tokenizer));
    int n = tokenizer_n_ids(trainer->tokenizer);
    bool sized = config_given(config, "model.vocab_size") || config->model.init_from[0];
    if (!sized)
        config->model.vocab_size = n;
    if (n > config->model.vocab_size)
        return FAIL(STATUS_INVALID, "%s: data.tokenizer %s has %d ids, more than model.vocab_size %lld",
                    config->source, config->data.tokenizer, n, (long long)config->model.vocab_size);
    trainer->token_bytes = calloc((size_t)n, sizeof *trainer->token_bytes);
    if (!trainer->token_bytes)
        return FAIL(STATUS_FAILED, "out of memory for a tokenizer's table");
    for (int32_t id = 0; id < n; id++) {
        size_t bytes = 0;
        if (id != tokenizer_end_of_text(trainer->tokenizer))
            (void)tokenizer_bytes(trainer->tokenizer, id, &bytes);
        trainer->token_bytes[id] = (int)bytes;
    }
    return STATUS_OK;
}

static enum status settle_config(struct trainer *trainer) {
    struct config *config = trainer->config;
    TRY(config_require_training(config));
    if (config->model.init_from[0]) {
        TRY(weights_open(&trainer->weights, config->model.init_from));
        TRY(adopt_sizes(config, &trainer->weights.config, config->model.init_from));
    }
    TRY(load_tokenizer(trainer));
    TRY(config_resolve(config, 1));
    const struct gpt_config sizes = {(int)config->model.n_layer, (int)config->model.n_head,
                                     (int)config->model.n_embd, (int)config->model.vocab_size,
                                     (int)config->model.n_positions};
    return params_init(&trainer->params, &sizes);
}

static enum status settle_resume(struct trainer *trainer) {
    trainer->saved_step = -1;
    TRY(find_checkpoint(trainer));
    if (!trainer->resumed)
        return STATUS_OK;
    TRY(checkpoint_check_model(trainer->resumed, &trainer->params));
    TRY(config_check_resume(&trainer->resumed->config, trainer->config));
    trainer->step = trainer->saved_step = trainer->resumed->step;
    return STATUS_OK;
}

// ------------------------------------------------------------------------------------------------- device
// and data

#define MOST_MEASURED_ROWS 65536

static enum status choose_type(struct trainer *trainer) {
    const struct config *config = trainer->config;
    int64_t all_rows = config->train.micro_batch_size * config->train.seq_len;
    int rows = all_rows < MOST_MEASURED_ROWS ? (int)all_rows : MOST_MEASURED_ROWS;
    if (strcmp(config->precision.compute, "fp32") == 0)
        trainer->type = DTYPE_F32;
    else if (strcmp(config->precision.compute, "bf16") == 0)
        trainer->type = DTYPE_BF16;
    else if (trainer->resumed) // measured once; the run keeps it
        trainer->type = trainer->resumed->compute;
    else
        TRY(device_measure_compute_type(trainer->device, &trainer->type));
    return device_measure_gemm_rate(trainer->device, rows, (int)config->model.n_embd, trainer->type,
                                    &trainer->gemm_rate);
}

static enum status open_loader(const struct trainer *trainer, bool validation, struct loader **out) {
    const struct config *config = trainer->config;
    struct loader_options options = {.patterns = validation ? &config->data.val : &config->data.train,
                                     .option = validation ? "data.val" : "data.train",
                                     .vocab_size = (int)config->model.vocab_size,
                                     .seq_len = (int)config->train.seq_len,
                                     .batch_size = (int)config->train.train_batch_size,
                                     .micro_batch_size = (int)config->train.micro_batch_size,
                                     .shuffle = config->data.shuffle,
                                     .seed = (uint64_t)config->train.seed};
    if (validation) { // one micro-batch a step, in file order, as many as there are
        options.batch_size = options.micro_batch_size;
        options.shuffle = false;
    }
    return loader_new(&options, out);
}

static enum status open_data(struct trainer *trainer) {
    TRY(open_loader(trainer, false, &trainer->train));
    if (trainer->config->data.val.n_paths > 0)
        TRY(open_loader(trainer, true, &trainer->val));
    return STATUS_OK;
}

// ---------------------------------------------------------------------------------------------------------
// memory

static enum status make_model(struct trainer *trainer) {
    const struct config *config = trainer->config;
    struct region_table *table = &trainer->memory.table;
    const struct gpt_options options = {
        .type = trainer->type,
        .B = (int)config->train.micro_batch_size,
        .T = (int)config->train.seq_len,
        .recompute = strcmp(config->top.recompute, "block") == 0 ? RECOMPUTE_BLOCK : RECOMPUTE_NONE,
        .training = true};
    TRY(state_init(&trainer->state, &trainer->params, config, trainer->type, trainer->device, table));
    TRY(optimizer_init(&trainer->optimizer, config, &trainer->state, table));
    TRY(gpt_new(&trainer->params, &options, trainer->device, table, &trainer->gpt));
    if (config->train.sample_every > 0)
        TRY(generator_new(&trainer->params, trainer->type, (int)config->train.seq_len, trainer->device, table,
                          &trainer->generator));
    plan_print(table);
    TRY(memory_allocate(&trainer->memory));
    state_bind(&trainer->state, table);
    optimizer_bind(&trainer->optimizer, table);
    gpt_bind(trainer->gpt, table, &trainer->stream);
    if (trainer->generator)
        generator_bind(trainer->generator, table, &trainer->stream);
    return STATUS_OK;
}

static enum status read_checkpoint(void *context, enum checkpoint_kind kind, int unit, size_t begin,
                                   size_t end, float *out) {
    const struct trainer *trainer = context;
    return checkpoint_read_span(trainer->resumed, kind, unit, begin, end, out);
}

static enum status read_weights(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                                float *out) {
    const struct trainer *trainer = context;
    (void)kind; // only master weights are asked for
    return weights_read_span(&trainer->weights, unit, begin, end, out);
}

static enum status make_weights(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                                float *out) {
    const struct trainer *trainer = context;
    (void)kind;
    params_init_span(&trainer->params, (uint64_t)trainer->config->train.seed, unit, begin, end, out);
    return STATUS_OK;
}

static enum status load_state(struct trainer *trainer) {
    struct checkpoint_source source = {trainer, make_weights};
    if (trainer->resumed) {
        source.read = read_checkpoint;
        TRY(checkpoint_set_aside_later(trainer->folder.checkpoints, trainer->step));
    } else if (trainer->config->model.init_from[0]) {
        source.read = read_weights;
        TRY(weights_bind(&trainer->weights, &trainer->params));
    }
    TRY(state_load(&trainer->state, &trainer->stream, &source, trainer->resumed != NULL));
    checkpoint_close(trainer->resumed);
    weights_close(&trainer->weights);
    trainer->resumed = NULL;
    trainer->weights = (struct weights){0};
    return STATUS_OK;
}

// ------------------------------------------------------------------------------------------------------- the
// whole

static void describe(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    char weights[32], tokens[32];
    log_info("device: %s; %s, GEMM %.0f GFLOP/s", trainer->device->description, dtype_name(trainer->type),
             trainer->gemm_rate / 1e9);
    log_info(
        "model: %s parameters (n_layer %lld, n_head %lld, n_embd %lld, vocab_size %lld, n_positions %lld)",
        text_count(weights, sizeof weights, (double)trainer->params.n_weights),
        (long long)config->model.n_layer, (long long)config->model.n_head, (long long)config->model.n_embd,
        (long long)config->model.vocab_size, (long long)config->model.n_positions);
    log_info("data: %s tokens in %d shard%s; a step is %lld x %lld sequences of %lld tokens",
             text_count(tokens, sizeof tokens, (double)loader_n_tokens(trainer->train)),
             loader_n_shards(trainer->train), loader_n_shards(trainer->train) == 1 ? "" : "s",
             (long long)config->train.gradient_accumulation_steps, (long long)config->train.micro_batch_size,
             (long long)config->train.seq_len);
}

enum status trainer_setup(struct trainer *trainer, bool *complete) {
    struct config *config = trainer->config;
    *complete = false;
    trainer->folder.lock = -1;
    TRY(settle_config(trainer));
    TRY(run_folder_open(&trainer->folder, config->run.dir));
    TRY(settle_resume(trainer));
    *complete = trainer->resumed && trainer->step >= config->train.max_steps;
    if (*complete)
        return STATUS_OK;
    TRY(open_data(trainer));
    TRY(device_open(config->top.device, (int)config->run.threads, &trainer->device));
    trainer->stream.device = trainer->device;
    memory_init(&trainer->memory, trainer->device);
    TRY(choose_type(trainer));
    TRY(run_folder_begin(&trainer->folder, config));
    describe(trainer);
    TRY(make_model(trainer));
    if (trainer->resumed)
        log_info("resuming after step %lld of %lld, from %s", (long long)trainer->step,
                 (long long)config->train.max_steps, trainer->resumed->path);
    TRY(load_state(trainer));
    return metrics_open(&trainer->metrics, trainer->folder.path, trainer->step);
}

void trainer_free(struct trainer *trainer) {
    metrics_close(&trainer->metrics);
    loader_delete(trainer->train);
    loader_delete(trainer->val);
    gpt_delete(trainer->gpt);
    generator_delete(trainer->generator);
    if (trainer->device) {
        memory_free(&trainer->memory);
        device_close(trainer->device);
    }
    params_free(&trainer->params);
    checkpoint_close(trainer->resumed);
    weights_close(&trainer->weights);
    tokenizer_delete(trainer->tokenizer);
    free(trainer->token_bytes);
    run_folder_close(&trainer->folder);
    log_close_file();
}
