// meta.json, which ./train tokenize writes beside its shards: what the shards were made of. Here only the
// path of their tokenizer is read.
#ifndef ZERO_DATA_SHARD_META_H
#define ZERO_DATA_SHARD_META_H

#include "data/shard.h"

// Finds the tokenizer that the shard records: "bytes", or a file. Looks in the shard's folder, then where
// meta.json says that it was. Only a file with the recorded checksum counts.
// Returns the path for tokenizer_load, to be freed; NULL when it is not found.
char *shard_find_tokenizer(const struct shard *shard);

#endif
