// The sizes of a run's model. Sizes that the config leaves out come from the initial weights or the
// tokenizer.
#ifndef ZERO_TRAINER_PLAN_MODEL_SIZES_H
#define ZERO_TRAINER_PLAN_MODEL_SIZES_H

#include "base/text.h"
#include "infer/weights.h"
#include "model/params.h"
#include "options/config.h"
#include "zero/checkpoint/config_model.h"

// Sets the sizes of the config to those `found` in the weights at `path`: model.init_from or, with `resumes`,
// the run to resume. STATUS_INVALID: the config gives other values; the message lists them. Exception: if the
// initial weights have no table of positions, the config may give another n_positions, RoPE and windows.
enum status model_sizes_from_weights(struct config *config, const struct gpt_config *found, const char *path,
                                     bool resumes) MUST_CHECK;
// Logs with which n_positions, RoPE and windows the initial weights were trained, if the run uses others.
void model_sizes_log_context(const struct config *config, const struct gpt_config *found);
// True if model.vocab_size is left out, so that the number of ids of data.tokenizer determines it.
bool model_sizes_want_tokenizer(const struct config *config);
// Sets model.vocab_size, if it is left out, to n_ids of the tokenizer at `path`. STATUS_INVALID: it is given
// and smaller than n_ids.
enum status model_sizes_from_tokenizer(struct config *config, const char *path, int n_ids) MUST_CHECK;

// Appends "model: 124.4M parameters (n_layer 12, n_head 12, ...)"; for families other than GPT-2 also the
// family, key-value heads, the widths of a head and of the MLP, and windows.
void model_sizes_print(const struct params *params, struct text *out);

// Opens the weights from which a new run starts, model.init_from, with weights_open. Error messages name the
// option and the config.
enum status initial_weights_open(struct weights *weights, const struct config *config) MUST_CHECK;
// Reads only the model sizes of the weights in model.init_from.
enum status initial_weights_sizes(const struct config *config, struct gpt_config *sizes) MUST_CHECK;

#endif
