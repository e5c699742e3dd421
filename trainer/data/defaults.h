// Sets options that a config leaves open, from the shards of data.train. So data.train is the only option
// about data that a config must give. The options are:
// - model.vocab_size: the number of ids of the tokenizer that the shards record
// - data.tokenizer: that tokenizer, if its file is found
// - data.val: the validation shards beside those of data.train, named with "val" instead of "train"
// If there are no validation shards, the fraction data.val_split at the end of data.train is held out
// instead. An option that the config gives is never changed. If shards are absent or damaged, nothing is
// changed: opening them later reports the reason.
#ifndef ZERO_TRAINER_DATA_DEFAULTS_H
#define ZERO_TRAINER_DATA_DEFAULTS_H

#include "options/config.h"

// Sets model.vocab_size only, which is all that a plan needs.
void data_defaults_vocabulary(struct config *config);
// Sets all options listed above. data.val_split becomes 0 if data.val names shards, because then nothing is
// held out.
void data_defaults_apply(struct config *config);

#endif
