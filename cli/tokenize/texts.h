// Tokenizes the sources into shards: from the first, or from where an earlier run stopped.
#ifndef ZERO_CLI_TOKENIZE_TEXTS_H
#define ZERO_CLI_TOKENIZE_TEXTS_H

#include "cli/tokenize/state.h"

// STATUS_STOPPED: a signal came; the same call goes on later, as after a failure.
enum status texts_tokenize(const struct tokenize_options *options, const struct tokenizer *tokenizer,
                           const struct text_sources *sources) MUST_CHECK;
// Prints what a split has become.
void texts_report(const struct split_writer *split, bool has_text);

#endif
