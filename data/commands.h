// The program's commands that live in data/.
#ifndef ZERO_DATA_COMMANDS_H
#define ZERO_DATA_COMMANDS_H

#include "base/args.h"

extern const struct command command_tokenizer;
extern const struct command command_tokenize;

#endif
