// Runs the command that the arguments name and turns its status into the exit code.
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "base/signals.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/launch.h"
#include "cli/version.h"
#include "options/foreign.h"
#include "zero/checkpoint/checkpoint.h"

// The commands `help` and `completion` read the list of all commands, so they are defined beside it.
static enum status run_help(int n_args, char **args);
static enum status run_completion(int n_args, char **args);
static const struct command command_help = {
    .name = "help",
    .synopsis = "[COMMAND] [--man]",
    .summary = "print all commands, or the help of one",
    .flags = help_flags,
    .n_flags = HELP_FLAGS,
    .examples = "Read the manual page of a command.\ntrain help generate --man | man -l -\n",
    .run = run_help,
};
static const struct command command_completion = {
    .name = "completion",
    .synopsis = "bash|zsh|fish",
    .summary = "print the script that completes words in a shell",
    .details = "The script completes commands, flags, options of a configuration and their values. Print it\n"
               "again after updating the program.",
    .examples = "Complete words in this bash or zsh; to keep it, add the line to ~/.bashrc or ~/.zshrc.\n"
                "source <(./train completion bash)\n"
                "Install the script for fish.\n"
                "./train completion fish >~/.config/fish/completions/train.fish\n",
    .run = run_completion,
};

static const struct command *const commands[] = {
    &command_train, &command_check,    &command_plan,           &command_options,    &command_generate,
    &command_eval,  &command_tokenize, &command_tokenizer,      &command_inspect,    &command_checkpoint,
    &command_bench, &command_devices,  &command_from_deepspeed, &command_report,     &command_runs,
    &command_serve, &command_export,   &command_audit,          &command_completion, &command_help,
};
static const struct command_list list = {commands, sizeof commands / sizeof *commands, &command_train};

static enum status run_help(int n_args, char **args) {
    return help_run(&list, n_args, args);
}

static enum status run_completion(int n_args, char **args) {
    return help_completion(&list, n_args, args);
}

static bool names_config(const char *argument) {
    size_t length = strlen(argument);
    return (length > 5 && strcmp(argument + length - 5, ".json") == 0) || strchr(argument, '/') ||
           file_exists(argument);
}

// True if --help is among the arguments of the command, before any "--".
static bool asks_for_help(int n_args, char **args) {
    for (int i = 1; i < n_args && strcmp(args[i], "--") != 0; i++)
        if (strcmp(args[i], "--help") == 0)
            return true;
    return false;
}

// Closes standard output and returns the exit code for a command's status. If the command succeeded but the
// close failed, returns the code of that failure. Prints the recorded message unless the code is 0.
static int exit_code(enum status status) {
    const enum status printed = output_close();
    if (status_exit_code(status) == 0 && printed != STATUS_OK)
        status = printed;
    const int stopped_by = status == STATUS_STOPPED ? signals_number() : 0,
              code = stopped_by ? 128 + stopped_by
                                : (status == STATUS_OK ? launch_exit_code : status_exit_code(status));
    if (code != 0 && status_message()[0])
        log_error("%s", status_message());
    return code;
}

int main(int argc, char **argv) {
    // SIGPIPE would kill the program once the reader of its output has closed the pipe (| head). When it is
    // ignored, writes fail with EPIPE instead.
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); // likewise: writes beyond ulimit -f then fail with EFBIG
    checkpoint_set_version(version_text());
    if (argc < 2) {
        help_print_usage(stderr, &list);
        return status_exit_code(STATUS_INVALID);
    }
    const int n_args = argc - 1;
    char **args = argv + 1;
    const struct command *command = help_find(&list, args[0]);
    enum status status = gone_command(n_args, args);
    if (status != STATUS_OK)
        return exit_code(status);
    if (strcmp(args[0], "--help") == 0 || strcmp(args[0], "-h") == 0)
        status = help_run(&list, n_args - 1, args + 1);
    else if (strcmp(args[0], "--version") == 0)
        version_print();
    else if (command)
        status = asks_for_help(n_args, args) ? help_run(&list, 1, args) : command->run(n_args - 1, args + 1);
    else
        status = names_config(args[0]) ? command_train.run(n_args, args) : help_unknown(&list, args[0]);
    return exit_code(status);
}
