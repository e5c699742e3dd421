// Gives files of token ids without a header, as nanoGPT's .bin files, one: ./train tokenize --raw.
#ifndef ZERO_CLI_TOKENIZE_RAW_H
#define ZERO_CLI_TOKENIZE_RAW_H

#include "cli/tokenize/options.h"
#include "data/tokenizer.h"

//   tokenizer   NULL: not known
// STATUS_INVALID: a file holds an id that the tokenizer, or without one any model, does not have, or is of
// another kind.
enum status raw_tokenize(const struct tokenize_options *options, const struct tokenizer *tokenizer,
                         const char *const *paths, int n_paths) MUST_CHECK;

#endif
