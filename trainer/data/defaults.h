// Fills in what a config leaves open about its data, from the shards of data.train, so that naming these is
// enough to start a run:
// - model.vocab_size: the number of ids of the tokenizer that the shards record
// - data.tokenizer: that tokenizer, if its file is found
// - data.val: the validation shards beside them, named with "val" instead of "train"
// - if there are none, the end of data.train is held out: the fraction data.val_split
// An option that the config gives is never changed. If shards are absent or damaged, nothing is changed:
// opening them later reports the reason.
#ifndef ZERO_TRAINER_DATA_DEFAULTS_H
#define ZERO_TRAINER_DATA_DEFAULTS_H

#include "options/config.h"

// Sets model.vocab_size only, which is all that a plan needs.
void data_defaults_vocabulary(struct config *config);
// Sets all of them. data.val_split becomes 0 if data.val names shards, because then nothing is held out.
void data_defaults_apply(struct config *config);

#endif
