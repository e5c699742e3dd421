// Flags shared by several commands, most of which run a trained model. Each macro with an argument is a row
// of a command's table of flags (struct arg in base/args.h). Its argument is the variable that the flag
// sets.
#ifndef ZERO_CLI_MODEL_FLAGS_H
#define ZERO_CLI_MODEL_FLAGS_H

#include "base/args.h"

#define TOKENIZER_FLAG(tokenizer)                                                                            \
    { "--tokenizer", ARG_STRING, &(tokenizer), 0, 0, TOKENIZER_HELP }
#define WEIGHTS_FLAG(weights)                                                                                \
    { "--weights", ARG_STRING, &(weights), 0, 0, WEIGHTS_HELP }
#define DEVICE_FLAG(device)                                                                                  \
    { "--device", ARG_STRING, &(device), 0, 0, "auto, cpu or cuda (auto)" }
#define THREADS_FLAG(threads)                                                                                \
    { "--threads", ARG_INTEGER, &(threads), 0, 4096, THREADS_HELP }

#define TOKENIZER_HELP "the tokenizer file, if the model comes without one"
#define WEIGHTS_HELP   "average or latest, if the checkpoint has both (default: average)"
#define THREADS_HELP   "CPU threads; 0: OMP_NUM_THREADS if set, otherwise one per core (0)"

#endif
