// The sources of a run's data, as its config names them, and log lines about a mixture of sources.
#ifndef ZERO_TRAINER_DATA_SOURCES_H
#define ZERO_TRAINER_DATA_SOURCES_H

#include "data/loader.h"
#include "options/config.h"

// The shards of data.train or, for validation, those of data.val or the part of data.train that
// data.val_split holds out.
//   list   [out] memory for the list in the result, which refers to the config
struct sources_options data_sources(const struct config *config, bool validation,
                                    struct source_option list[CONFIG_MAX_SOURCES]);

// Appends a line about a source of a mixture with its share, its size, and its epochs, such as
// "data.train[1] b/*.bin: 30 % of sequences, 1.2M tokens in 3 shards, 0.52 epochs in 2000 steps"
//   n_drawn   number of rows from this source, counted or expected
//   until     the steps over which n_drawn is counted, such as " in 2000 steps"; "": leave out the epochs
void data_describe_source(const struct sources *sources, int index, double n_drawn, const char *until,
                          struct text *out);
// Logs the sequences of each source, the tokens in them, and the tokens that are left out. Warns if 5 % or
// more of the tokens are left out.
void data_log_sequences(const struct sources *sources);
// For `./train plan`: logs the lines of data_describe_source and data_log_sequences for data.train of a
// resolved config. Does nothing unless data.train is a mixture and its shards can be opened.
void data_log_mixture(const struct config *config);
// Opens the data of a resolved config as a run does. Logs the lines of data_describe_source, for a mixture,
// and of data_log_sequences. Warns of data that is absent or too short for a sequence. STATUS_INVALID: a file
// is not a usable shard, or data_check_tokenizers fails.
enum status data_check(const struct config *config) MUST_CHECK;

// STATUS_INVALID: the shards were made with different tokenizers, with a tokenizer of more ids than
// model.vocab_size, or with another tokenizer than the run's.
//   val   NULL: none
//   own   the run's tokenizer, read from `path`; n_ids 0: none
enum status data_check_tokenizers(const struct config *config, const struct sources *train,
                                  const struct sources *val, const struct tokenizer_identity *own,
                                  const char *path) MUST_CHECK;

#endif
