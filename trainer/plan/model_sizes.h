// The model's sizes where a config leaves them to others: the weights that a run starts from, the tokenizer.
#ifndef ZERO_TRAINER_PLAN_MODEL_SIZES_H
#define ZERO_TRAINER_PLAN_MODEL_SIZES_H

#include "configs/config.h"
#include "model/params.h"

// Takes the sizes that were found in model.init_from. STATUS_INVALID when one was given that disagrees.
enum status model_sizes_from_weights(struct config *config, const struct gpt_config *found) MUST_CHECK;
// Whether model.vocab_size is the number of ids of data.tokenizer.
bool model_sizes_want_tokenizer(const struct config *config);
// Takes model.vocab_size from a tokenizer of n_ids if it is wanted. STATUS_INVALID when the model has fewer.
enum status model_sizes_from_tokenizer(struct config *config, int n_ids) MUST_CHECK;
struct gpt_config model_sizes(const struct config *config);

#endif
