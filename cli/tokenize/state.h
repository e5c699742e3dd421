// What an interrupted ./train tokenize needs to go on: a file in the output folder, written every few
// seconds.
#ifndef ZERO_CLI_TOKENIZE_STATE_H
#define ZERO_CLI_TOKENIZE_STATE_H

#include "cli/tokenize/meta.h"
#include "cli/tokenize/options.h"
#include "cli/tokenize/output.h"
#include "data/text/reader.h"

struct state {
    const struct tokenize_options *options;
    const struct tokenizer_identity *tokenizer;
    const struct text_sources *sources;
    struct text_split split;
    struct source_counts *counts; // (sources->n)
    struct text_position position;
    uint64_t n_markers; // that were encoded as text
    bool is_complete;   // all shards are finished: only their names are missing
};

// Saves the state and the counts of `output`, which must be on disk.
enum status state_save(const struct state *state, const struct output *output) MUST_CHECK;
// Loads the state of an earlier run, if there is one, into position, counts, is_complete and `output`.
//   found   [out]
// STATUS_INVALID: it had other options, inputs or another tokenizer; the message has the first difference.
enum status state_load(struct state *state, struct output *output, bool *found) MUST_CHECK;
enum status state_remove(const char *folder) MUST_CHECK;
// STATUS_INVALID: there is one, which a run that cannot be continued would destroy.
enum status state_refuse(const char *folder) MUST_CHECK;

#endif
