// The files that a config names, as one rank finds them. Ranks compare them before anything is derived from
// them: a file that is missing on one machine would otherwise show as another model, or not at all.
#ifndef ZERO_TRAINER_DATA_INPUT_FILES_H
#define ZERO_TRAINER_DATA_INPUT_FILES_H

#include "options/config.h"

// Appends the files that match a path or pattern, or that none does.
//   checked   with size and checksum: of files whose contents are not compared otherwise
void input_files_add(struct text *files, const char *option, const char *pattern, bool checked);
// Appends those of data.train, data.val, data.tokenizer and eval.tasks, as far as they are set.
void input_files_add_config(struct text *files, const struct config *config);
// Compares two lists, each behind a line "HOST:FOLDER/" with the place of its rank, on the rank of `mine`.
// STATUS_INVALID: a file is missing, or another one, here or on rank 0.
enum status input_files_compare(const struct text *mine, const struct text *of_rank_0) MUST_CHECK;

#endif
