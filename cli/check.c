// ./train check CONFIG.json: validates a configuration. ./train options: lists every option.
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "cli/commands.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/tasks/task.h"
#include "options/config.h"
#include "options/print.h"
#include "trainer/data/defaults.h"
#include "trainer/data/sources.h"
#include "trainer/plan/model_sizes.h"
#include "zero/optimizer/rules/optimizer_groups.h"

// Sets the model sizes from the weights at model.init_from. These may be absent, because a resumed run does
// not need them.
static enum status find_sizes(struct config *config) {
    const char *path = config->model.init_from;
    struct gpt_config sizes;
    if (!path[0])
        return STATUS_OK;
    if (!file_exists(path)) {
        log_warning("%s: model.init_from: %s does not exist, so the sizes are not compared with it",
                    config->source, path);
        return STATUS_OK;
    }
    TRY(initial_weights_sizes(config, &sizes));
    return model_sizes_from_weights(config, &sizes, path, false);
}

// Returns false if the vocabulary size comes from a tokenizer whose file is absent. That is allowed, because
// only training needs the file.
static bool knows_vocabulary(const struct config *config) {
    const char *path = config->data.tokenizer;
    return !model_sizes_want_tokenizer(config) || strcmp(path, "bytes") == 0 || file_exists(path);
}

// Sets the vocabulary size from data.tokenizer, if it comes from there and is known.
static enum status find_vocabulary(struct config *config) {
    const char *path = config->data.tokenizer;
    struct tokenizer *tokenizer;
    if (!model_sizes_want_tokenizer(config) || !knows_vocabulary(config))
        return STATUS_OK;
    TRY(tokenizer_load(path, &tokenizer));
    const int n_ids = tokenizer_n_ids(tokenizer);
    tokenizer_delete(tokenizer);
    return model_sizes_from_tokenizer(config, path, n_ids);
}

// The batch sizes as the user gave them, so that the printed config keeps "auto". The value of "auto" depends
// on the machine and the number of ranks, and is chosen when the run starts.
struct given {
    int64_t batch, least, micro, accumulation;
};

static void restore_auto(struct config *config, const struct given *given) {
    if (config->batch_is_auto) {
        config->train.train_batch_size = given->batch;
        config->train.min_batch_size = given->least;
        config->train.micro_batch_size = given->micro;
        config->train.gradient_accumulation_steps = given->accumulation;
    } else if (given->micro == CONFIG_AUTO && config->micro_batch_is_open) {
        config->train.micro_batch_size = CONFIG_AUTO;
        config->train.gradient_accumulation_steps = 0;
    }
}

static enum status check_tasks(const struct config *config) {
    for (int i = 0; i < config->eval.tasks.n_paths; i++) {
        enum task_kind kind;
        const char *path;
        TRY(task_parse("eval.tasks", config->eval.tasks.paths[i], &kind, &path));
    }
    return STATUS_OK;
}

static void log_text(struct text *text) {
    if (text->length > 0)
        log_info("%s", text->data);
    text_free(text);
}

// Checks optimizer.groups against the names of the tensors.
//   has_counts   also print the groups with their element counts, which need the vocabulary size
static enum status check_groups(const struct config *config, const struct params *params, bool has_counts) {
    struct optimizer_groups groups = {0};
    struct text lines = {0};
    if (config->optimizer.groups.n == 0)
        return STATUS_OK;
    enum status status = optimizer_groups_init(&groups, config, params);
    if (status == STATUS_OK && has_counts)
        optimizer_groups_print(&groups, config, params, &lines);
    log_text(&lines);
    optimizer_groups_free(&groups);
    return status;
}

// Sets options of the model's sizes that are 0, which stands for a default, to the resolved values. GPT-2 has
// none of these options.
static void show_sizes(struct config *config, const struct gpt_config *sizes) {
    if (sizes->family == FAMILY_GPT2)
        return;
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++)
        if (config_field_get(config, field) == 0)
            config_field_set(config, field, gpt_field_get(field, sizes));
}

// Runs the checks that need the model's tensors. Sets the model's options to their resolved values, unless
// they depend on weights of model.init_from that are absent.
static enum status check_model(struct config *config) {
    const bool has_vocabulary = knows_vocabulary(config);
    struct params params = {0};
    struct text line = {0};
    if (config->model.init_from[0] && !file_exists(config->model.init_from))
        return STATUS_OK;
    const struct gpt_config sizes = config_model(config);
    enum status status = params_init(&params, &sizes);
    if (status == STATUS_OK)
        status = check_groups(config, &params, has_vocabulary);
    if (status == STATUS_OK && has_vocabulary)
        model_sizes_print(&params, &line);
    log_text(&line);
    if (status == STATUS_OK)
        show_sizes(config, &sizes);
    params_free(&params);
    return status;
}

static enum status check(struct config *config) {
    struct text schedule = {0}, out = {0};
    config_log_dropped(config);
    TRY(find_sizes(config));
    data_defaults_apply(config);
    TRY(find_vocabulary(config));
    const struct given given = {config->train.train_batch_size, config->train.min_batch_size,
                                config->train.micro_batch_size, config->train.gradient_accumulation_steps};
    TRY(config_resolve(config, 1));
    TRY(check_tasks(config));
    TRY(check_model(config));
    TRY(data_check(config));
    config_print_schedule(config, &schedule);
    log_text(&schedule);
    restore_auto(config, &given);
    config_print(config, &out);
    output_text(&out);
    return STATUS_OK;
}

static enum status run_check(int n_args, char **args) {
    struct config config;
    if (n_args < 1)
        return FAIL(
            STATUS_INVALID,
            "train check: no configuration named; usage: train check CONFIG.json [section.key=value ...]");
    enum status status = config_read(&config, args[0], n_args - 1, args + 1);
    if (status == STATUS_OK)
        status = check(&config);
    config_free(&config);
    return status;
}

static enum status run_options(int n_args, char **args) {
    struct text out = {0};
    (void)args;
    if (n_args > 0)
        return FAIL(STATUS_INVALID, "train options takes no arguments");
    config_print_options(&out);
    output_text(&out);
    return STATUS_OK;
}

const struct command command_check = {
    .name = "check",
    .synopsis = "CONFIG.json [section.key=value ...]",
    .summary = "validate a configuration and print it with every option resolved",
    .examples = "Find mistakes without training.\n./train check configs/quickstart.json optimizer.lr=3e-4\n",
    .run = run_check,
};

const struct command command_options = {
    .name = "options",
    .synopsis = "",
    .summary = "list every option with type, default, bounds and description (Markdown)",
    .examples = "Look for the options about the learning rate.\n./train options | grep scheduler\n",
    .run = run_options,
};
