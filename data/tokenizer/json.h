// Reads a Hugging Face tokenizer.json and the files beside it. Internal to data/tokenizer.
#ifndef ZERO_DATA_TOKENIZER_JSON_H
#define ZERO_DATA_TOKENIZER_JSON_H

#include <cjson/cJSON.h>

#include "data/tokenizer/tokenizer.h"

// Ids that end generation, if a file itself names them.
struct token_ends {
    int32_t ids[TOKENIZER_MOST_ENDS];
    int n;
};
// Reads a Hugging Face tokenizer.json.
//   json   NUL-terminated
//   ends   for tokenizer_choose_ends
// STATUS_INVALID: malformed, or not a supported kind of tokenizer (the message has the first difference).
enum status tokenizer_read_json(const char *path, const char *json, size_t length,
                                const struct token_ends *ends, struct tokenizer **out) MUST_CHECK;
// True if the file is a tokenizer.json. False if it cannot be read.
bool tokenizer_is_json(const char *path);

// Returns the JSON of a file beside the tokenizer's path; NULL if there is none, or it is not JSON.
cJSON *tokenizer_read_beside(const char *path, const char *name);
// Chooses end-of-text and the other ends, as documented for tokenizer_load.
//   path   of the tokenizer; files beside it are read
//   ends   ends that the file itself names: no others are read. NULL: none
enum status tokenizer_choose_ends(struct tokenizer *tokenizer, const char *path,
                                  const struct token_ends *ends) MUST_CHECK;

#endif
