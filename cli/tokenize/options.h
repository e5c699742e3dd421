// The flags of ./train tokenize.
#ifndef ZERO_CLI_TOKENIZE_OPTIONS_H
#define ZERO_CLI_TOKENIZE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct tokenize_options {
    const char *out, *tokenizer_path; // tokenizer_path: NULL only with `raw`
    const char *field;                // of JSON Lines; NULL: not given
    const char *dtype;                // "uint16", "uint32"; NULL: not given
    double held_out;
    int64_t shard_tokens;
    bool end_of_text, raw, force, restart;
};

#endif
