// The files that a config names, as each rank finds them. Ranks compare their lists before anything is
// derived from the files. Otherwise a file that is missing on one machine would show up as another model, or
// not at all.
#ifndef ZERO_TRAINER_DATA_INPUT_FILES_H
#define ZERO_TRAINER_DATA_INPUT_FILES_H

#include "options/config.h"

// Appends the files that match a path or pattern. If there are none, appends the pattern as a missing file.
//   option    name of the option that names the files, for messages
//   checked   true: add size and checksum, for files whose contents are not compared elsewhere
void input_files_add(struct text *files, const char *option, const char *pattern, bool checked);
// Appends the files of those of data.train, data.val, data.tokenizer and eval.tasks that are set.
void input_files_add_config(struct text *files, const struct config *config);
// Compares two lists on the rank of `mine`. Each list begins with a line "HOST:FOLDER/", the place of its
// rank. STATUS_INVALID: a file is missing or different, here or on rank 0.
enum status input_files_compare(const struct text *mine, const struct text *of_rank_0) MUST_CHECK;

#endif
