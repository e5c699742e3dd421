// Reads a Hugging Face tokenizer.json and the files beside it. Internal to data/tokenizer.
#ifndef ZERO_DATA_TOKENIZER_JSON_H
#define ZERO_DATA_TOKENIZER_JSON_H

#include <cjson/cJSON.h>

#include "data/tokenizer/tokenizer.h"

// The ids that end generation, if the tokenizer's own file (GGUF) names them.
struct token_ends {
    int32_t ids[TOKENIZER_MOST_ENDS];
    int n;
};
// Reads a Hugging Face tokenizer.json.
//   json   NUL-terminated
//   ends   the ids that end generation; NULL: read them from the files beside `path`
// STATUS_INVALID: the JSON is malformed, or the tokenizer is not of a supported kind. The message names the
// first setting that is not supported.
enum status tokenizer_read_json(const char *path, const char *json, size_t length,
                                const struct token_ends *ends, struct tokenizer **out) MUST_CHECK;
// True if the file is a tokenizer.json. False if it cannot be read.
bool tokenizer_is_json(const char *path);

// Returns the JSON of the file `name` beside the tokenizer's path; NULL if there is none, or it is not JSON.
cJSON *tokenizer_read_beside(const char *path, const char *name);
// Sets end_of_text (unless it is set) and `ends` of a tokenizer. End-of-text is the token <|endoftext|>,
// <|end_of_text|> or </s>; without these, it is the first id that ends generation.
//   path   path of the tokenizer's file
//   ends   the ids that end generation; NULL: read them from the files beside `path`
// STATUS_INVALID: there is neither such a token nor an id that ends generation.
enum status tokenizer_choose_ends(struct tokenizer *tokenizer, const char *path,
                                  const struct token_ends *ends) MUST_CHECK;

#endif
