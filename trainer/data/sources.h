// The sources of a run's data, from its config, and what is said about a mixture of them.
#ifndef ZERO_TRAINER_DATA_SOURCES_H
#define ZERO_TRAINER_DATA_SOURCES_H

#include "data/loader.h"
#include "options/config.h"

// The shards of data.train or, for validation, of data.val or what data.val_split holds out.
//   list   [out] memory for the options' list; it refers to the config
struct sources_options data_sources(const struct config *config, bool validation,
                                    struct source_option list[CONFIG_MAX_SOURCES]);

// Appends a line about a source of a mixture: its share, size, and how often n_rows rows of the mixture read
// it. "data.train[1] b/*.bin: 30 % of sequences, 1.2M tokens in 3 shards, 0.52 epochs"
//   n_drawn   the rows that come from it, or those expected
//   until     what n_drawn counts: " in 2000 steps"; "" to leave out the epochs
void data_describe_source(const struct sources *sources, int index, double n_drawn, const char *until,
                          struct text *out);
// Logs for each source how many sequences it has, the tokens in them, and those that are left out. Warns from
// 5 % on.
void data_log_sequences(const struct sources *sources);
// Logs these lines for data.train of a resolved config, if it is a mixture and its shards are there, for a
// plan.
void data_log_mixture(const struct config *config);
// Opens the data of a resolved config as a run does, and logs these lines. Of what is absent, or too little
// for a sequence, it warns. STATUS_INVALID: a file is no shard, or shards do not belong together.
enum status data_check(const struct config *config) MUST_CHECK;

// STATUS_INVALID: the shards were made with different tokenizers, with one of more ids than model.vocab_size,
// or not with the run's.
//   val   NULL: none
//   own   the run's tokenizer, read from `path`; n_ids 0: none
enum status data_check_tokenizers(const struct config *config, const struct sources *train,
                                  const struct sources *val, const struct tokenizer_identity *own,
                                  const char *path) MUST_CHECK;

#endif
