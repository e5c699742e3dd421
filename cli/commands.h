// The commands of ./train. Each has a file in cli/ or a folder (cli/bench, cli/serve, ...). main.c lists
// them.
#ifndef ZERO_CLI_COMMANDS_H
#define ZERO_CLI_COMMANDS_H

#include "base/args.h"

extern const struct command command_train;
extern const struct command command_check;
extern const struct command command_plan;
extern const struct command command_options;
extern const struct command command_generate;
extern const struct command command_serve;
extern const struct command command_eval;
extern const struct command command_export;
extern const struct command command_inspect;
extern const struct command command_checkpoint;
extern const struct command command_bench;
extern const struct command command_devices;
extern const struct command command_tokenize;
extern const struct command command_tokenizer;
extern const struct command command_from_deepspeed;
extern const struct command command_report;
extern const struct command command_runs;
extern const struct command command_audit;

#endif
