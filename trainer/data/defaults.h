// What a config may leave open about its data, filled in from the shards of data.train, so that naming these
// is enough to start a run:
// - model.vocab_size: the number of ids of the tokenizer that the shards record
// - data.tokenizer: that tokenizer, if its file is found
// - data.val: the validation shards beside them, by name: train in a file's name becomes val
// - otherwise the last part of data.train, data.val_split of it, is held out
// An option that the config gives is never changed. Shards that are absent or damaged leave everything as it
// is: opening them later reports why.
#ifndef ZERO_TRAINER_DATA_DEFAULTS_H
#define ZERO_TRAINER_DATA_DEFAULTS_H

#include "options/config.h"

// Sets model.vocab_size only: all that a plan needs.
void data_defaults_vocabulary(struct config *config);
// Sets all of them. data.val_split becomes 0 where data.val names shards, because nothing is held out then.
void data_defaults_apply(struct config *config);

#endif
