// Reads the tokenizer inside a GGUF model. Internal to data/tokenizer.
#ifndef ZERO_DATA_TOKENIZER_GGUF_H
#define ZERO_DATA_TOKENIZER_GGUF_H

#include "data/tokenizer/tokenizer.h"

// Reads the tokenizer of a GGUF file. STATUS_INVALID: the file is malformed, or has no tokenizer of a
// supported kind.
enum status tokenizer_read_gguf(const char *path, struct tokenizer **out) MUST_CHECK;
// True if the GGUF file contains a tokenizer. False if it cannot be read.
bool tokenizer_is_in_gguf(const char *path);

#endif
