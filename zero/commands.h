// The program's commands that live in zero/, one file each; main.c lists them with those of data/commands.h.
#ifndef ZERO_ZERO_COMMANDS_H
#define ZERO_ZERO_COMMANDS_H

#include "base/args.h"

extern const struct command command_train;
extern const struct command command_check;
extern const struct command command_plan;
extern const struct command command_options;
extern const struct command command_generate;
extern const struct command command_eval;
extern const struct command command_inspect;
extern const struct command command_checkpoint;
extern const struct command command_bench;
extern const struct command command_devices;

#endif
