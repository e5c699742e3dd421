// The manifest of a checkpoint: what manifest.json says, made and checked. Used by zero/checkpoint only (and
// by tests that forge one).
//
// Version 2 stores a partition's kind instead of its spans where partition_init yields the same partition:
//   world, partition, alignment, unit_elements   the arguments of partition_init
//   partition_xxh3   checkpoint_partition_digest of the result
//   spans            instead of that digest, for any other partition: a list
//   ranks            [bytes, "xxh3"] of each rank's file, rank-00000.bin and so on
//   files            name, bytes and xxh3 of the other files (the tokenizer's)
// zero/checkpoint/layout.h has the order of values in a rank's file. Version 1 is read too: it lists all
// spans, and all files by name.
#ifndef ZERO_ZERO_CHECKPOINT_MANIFEST_H
#define ZERO_ZERO_CHECKPOINT_MANIFEST_H

#include "base/text.h"
#include "zero/checkpoint/checkpoint.h"

#define MANIFEST_NAME           "manifest.json"
#define MANIFEST_RANK_FILE      "rank-%05d.bin"
#define MANIFEST_FORMAT         "zero.c checkpoint"
#define MANIFEST_FORMAT_VERSION 2
#define MANIFEST_MAX_BYTES      ((size_t)256 << 20)
#define MANIFEST_SEAL_BYTES     40 // at the end: the checksum of all before it
#define TOKENIZER_NAME          "tokenizer.tiktoken"

// The whole text. `tokenizer`: "bytes", TOKENIZER_NAME or NULL. files: those of the ranks, then others;
// layout: of contents->partition.
enum status manifest_print(const struct checkpoint_contents *contents, const char *version,
                           const char *tokenizer, const struct checkpoint_file *files, int n_files,
                           const struct checkpoint_layout *layout, struct text *out) MUST_CHECK;
// Ends a text that lacks its last member: adds "manifest_xxh3", the checksum of all before it, and the brace.
void manifest_seal(struct text *text);

// Prints that member and the brace for the text before them.
void manifest_print_seal(const char *json, size_t length, char seal[MANIFEST_SEAL_BYTES + 1]);

// Fills everything but `path` and `open` from a manifest's text; `source` names it in messages. The
// checkpoint must stay where it is from then on.
enum status manifest_parse(struct checkpoint *checkpoint, const char *json, size_t length,
                           const char *source) MUST_CHECK;

#endif
