// What the commands share that run a trained model: the flags that name and place it, and its loading.
#ifndef ZERO_CLI_TEXT_MODEL_H
#define ZERO_CLI_TEXT_MODEL_H

#include "base/args.h"
#include "infer/session.h"
#include "model/generate.h"

// Rows of a table of flags, for the members of a struct session_options.
#define TOKENIZER_FLAG(tokenizer)                                                                            \
    { "--tokenizer", ARG_STRING, &(tokenizer), 0, 0, TOKENIZER_HELP }
#define WEIGHTS_FLAG(weights)                                                                                \
    { "--weights", ARG_STRING, &(weights), 0, 0, WEIGHTS_HELP }
#define DEVICE_FLAG(device)                                                                                  \
    { "--device", ARG_STRING, &(device), 0, 0, "auto, cpu or cuda (auto)" }
#define THREADS_FLAG(threads)                                                                                \
    { "--threads", ARG_INTEGER, &(threads), 0, 4096, THREADS_HELP }

#define TOKENIZER_HELP "the tokenizer, where the model comes without one"
#define WEIGHTS_HELP   "average or latest, of a checkpoint that has both (default: average)"
#define THREADS_HELP   "CPU threads; 0: OMP_NUM_THREADS if set, otherwise one per core (0)"

// Opens a model that writes text. STATUS_INVALID: also where it has no tokenizer.
enum status text_model_open(struct session *session, const struct session_options *options) MUST_CHECK;
// Loads its weights into a generator, which the caller deletes, also after a failure.
enum status text_model_load(struct session *session, const struct generator_options *options,
                            struct generator **generator) MUST_CHECK;

#endif
