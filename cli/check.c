// ./train check CONFIG.json and ./train options: validate a configuration, print every option.
#include <stdio.h>

#include "base/text.h"
#include "cli/commands.h"
#include "configs/config.h"
#include "trainer/data_defaults.h"

static enum status print_text(struct text *text) {
    TRY(text_status(text));
    fwrite(text->data, 1, text->length, stdout);
    return STATUS_OK;
}

static enum status run_check(int n_args, char **args) {
    struct config config;
    struct text out = {0};
    if (n_args < 1)
        return FAIL(
            STATUS_INVALID,
            "train check: no configuration named; usage: train check CONFIG.json [section.key=value ...]");
    enum status status = config_read(&config, args[0], n_args - 1, args + 1);
    if (status == STATUS_OK)
        status = data_defaults_apply(&config);
    if (status == STATUS_OK)
        status = config_resolve(&config, 1);
    if (status == STATUS_OK) {
        config_print(&config, &out);
        status = print_text(&out);
    }
    text_free(&out);
    config_free(&config);
    return status;
}

static enum status run_options(int n_args, char **args) {
    struct text out = {0};
    (void)args;
    if (n_args > 0)
        return FAIL(STATUS_INVALID, "train options takes no arguments");
    config_print_options(&out);
    enum status status = print_text(&out);
    text_free(&out);
    return status;
}

const struct command command_check = {
    .name = "check",
    .synopsis = "CONFIG.json [section.key=value ...]",
    .summary = "validate a configuration and print it with every option resolved",
    .run = run_check,
};

const struct command command_options = {
    .name = "options",
    .synopsis = "",
    .summary = "list every option with type, default, bounds and description (Markdown)",
    .run = run_options,
};
