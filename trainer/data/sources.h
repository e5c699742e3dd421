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
// Logs these lines for data.train of a resolved config, if it is a mixture, for commands that do not train.
//   warn   of what a run would refuse, such as absent shards; otherwise nothing is said then
void data_log_mixture(const struct config *config, bool warn);

#endif
