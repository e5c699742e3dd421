// Parts of ./train inspect: JSON files, and folders of token shards.
#ifndef ZERO_CLI_INSPECT_DATA_H
#define ZERO_CLI_INSPECT_DATA_H

#include <stdbool.h>

#include "base/status.h"

// Prints what a file that begins with '{' is: a configuration, metadata of a model or of shards, metrics.
//   described   [out] false when it is not JSON; nothing was printed then
enum status inspect_json(const char *path, bool *described) MUST_CHECK;
// Prints the splits of a folder of token shards (*.bin): shards, tokens, and their tokenizer.
//   described   [out] false when it holds none; nothing was printed then
enum status inspect_shards(const char *folder, bool *described) MUST_CHECK;

#endif
