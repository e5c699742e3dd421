// Runs the command that the arguments name and turns its status into the exit code. No other file exits.
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/version.h"
#include "zero/checkpoint/checkpoint.h"

static const struct command *const commands[] = {
    &command_train, &command_check,    &command_plan,           &command_options, &command_generate,
    &command_eval,  &command_tokenize, &command_tokenizer,      &command_inspect, &command_checkpoint,
    &command_bench, &command_devices,  &command_from_deepspeed,
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const struct command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static void print_usage(FILE *stream) {
    fprintf(stream, "zero.c %s: trains GPT models\n\n", ZERO_VERSION);
    fprintf(stream,
            "usage: train CONFIG.json [section.key=value ...]\n       train COMMAND ...\n\ncommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(stream, "  %-14s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(stream, "  %-14s %s\n\n", "help",
            "print this text, or the help of a command: train help generate");
    fprintf(stream, "Train a first model: scripts/quickstart.sh\nVersion, libraries and GPU architectures: "
                    "train --version\n");
}

static void print_help(const struct command *command) {
    printf("usage: train %s%s%s\n\n%s\n", command == &command_train ? "" : command->name,
           command == &command_train ? "" : " ", command->synopsis, command->summary);
    if (command->details)
        printf("%s\n", command->details);
    if (command->n_flags > 0) {
        printf("\n");
        args_print_help(stdout, command->flags, command->n_flags);
    }
}

static enum status unknown_command(const char *name) {
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i]->name;
    const char *nearest = text_nearest(name, names, N_COMMANDS);
    if (nearest)
        return FAIL(STATUS_INVALID, "\"%s\" is neither a configuration file nor a command; did you mean %s?",
                    name, nearest);
    return FAIL(STATUS_INVALID, "\"%s\" is neither a configuration file nor a command; see: train help",
                name);
}

static enum status help(int n_args, char **args) {
    if (n_args == 0) {
        print_usage(stdout);
        return STATUS_OK;
    }
    const struct command *command = find_command(args[0]);
    if (!command)
        return unknown_command(args[0]);
    print_help(command);
    return STATUS_OK;
}

static bool names_config(const char *argument) {
    size_t length = strlen(argument);
    return (length > 5 && strcmp(argument + length - 5, ".json") == 0) || strchr(argument, '/') ||
           file_exists(argument);
}

// n_args, args: without the program's name; at least one.
static enum status dispatch(int n_args, char **args) {
    const struct command *command = find_command(args[0]);
    if (strcmp(args[0], "help") == 0 || strcmp(args[0], "--help") == 0 || strcmp(args[0], "-h") == 0)
        return help(n_args - 1, args + 1);
    if (strcmp(args[0], "--version") == 0) {
        version_print();
        return STATUS_OK;
    }
    if (!command)
        return names_config(args[0]) ? command_train.run(n_args, args) : unknown_command(args[0]);
    for (int i = 1; i < n_args && strcmp(args[i], "--") != 0; i++)
        if (strcmp(args[i], "--help") == 0)
            return help(1, args);
    return command->run(n_args - 1, args + 1);
}

int main(int argc, char **argv) {
    // A reader that closes the pipe (| head) must end the output, not kill the program in the middle of a
    // write.
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); // a write beyond the limit on file sizes fails instead
    checkpoint_set_version(version_text());
    if (argc < 2) {
        print_usage(stderr);
        return status_exit_code(STATUS_INVALID);
    }
    enum status status = dispatch(argc - 1, argv + 1);
    const enum status printed = output_close();
    if (status_exit_code(status) == 0 && printed != STATUS_OK)
        status = printed;
    if (status_exit_code(status) != 0)
        log_error("%s", status_message());
    return status_exit_code(status);
}
