// The manifest of a checkpoint: what manifest.json says, made and checked. Used by zero/checkpoint only (and
// by tests that forge one).
//
// Version 2 keeps a partition's kind, not its spans, where the partition is the one that partition_init
// makes:
//   "world", "partition", "alignment", "unit_elements"   what partition_init makes it of
//   "partition_xxh3"   checkpoint_partition_digest; or "spans", one by one, for any other partition
//   "ranks"   of each rank's file, in order: [bytes, "xxh3"]; the files are called rank-00000.bin,
//   rank-00001.bin, ... "files"   name, bytes and xxh3 of the others (the tokenizer's)
// The order of values in a rank's file is zero/checkpoint_layout.h's. Version 1 is read too: it has spans
// always, and all files by name.
#ifndef ZERO_ZERO_MANIFEST_H
#define ZERO_ZERO_MANIFEST_H

#include "base/text.h"
#include "zero/checkpoint.h"

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

// That member and the brace, for the text before them.
void manifest_print_seal(const char *json, size_t length, char seal[MANIFEST_SEAL_BYTES + 1]);

// Fills everything but `path` and `open` from a manifest's text; `source` names it in messages. The
// checkpoint must stay where it is from then on.
enum status manifest_parse(struct checkpoint *checkpoint, const char *json, size_t length,
                           const char *source) MUST_CHECK;

#endif
