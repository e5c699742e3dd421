// The manifest of a checkpoint: manifest_print.c writes manifest.json, manifest_parse.c reads and checks it.
// Used by zero/checkpoint only (and by tests that forge one).
//
//   config   the resolved config, including the options that describe the model
//   logical_ranks   the run's number of logical ranks (zero/partition/logical.h)
//   world, partition, alignment, unit_elements   what partition_init computes the partition from
//   partition_xxh3   checkpoint_partition_digest of that partition
//   tensors   the parameter table, and how many moments each tensor has (struct checkpoint_kinds)
//   ranks     [bytes, "xxh3"] of each rank's file, rank-00000.bin and so on
//   files     name, bytes and xxh3 of the other files (the tokenizer's)
// zero/checkpoint/layout.h defines the order of values in a rank's file. Only the current version of the
// format can be read.
#ifndef ZERO_ZERO_CHECKPOINT_MANIFEST_H
#define ZERO_ZERO_CHECKPOINT_MANIFEST_H

#include "base/text.h"
#include "zero/checkpoint/format.h"

// Prefix of the name that an existing step-N gets while a new checkpoint of the same step replaces it.
// Readers ignore such names.
#define REPLACED_PREFIX ".tmp-replaced-"

#define MANIFEST_NAME           "manifest.json"
#define MANIFEST_RANK_FILE      "rank-%05d.bin"
#define MANIFEST_FORMAT         "zero.c checkpoint"
#define MANIFEST_FORMAT_VERSION 4
#define MANIFEST_MAX_BYTES      ((size_t)256 << 20)
#define MANIFEST_SEAL_BYTES     40 // the seal: the last bytes, with the checksum of all text before them

// Appends the whole manifest to `out`.
//   version     version of the program
//   tokenizer   "bytes", the name of the tokenizer's file, or NULL
//   files       (n_files) the ranks' files, then the others
void manifest_print(const struct checkpoint_contents *contents, const char *version, const char *tokenizer,
                    const struct checkpoint_file *files, int n_files, struct text *out);
// Completes a manifest that lacks only its seal. Appends the last member, "manifest_xxh3" (the checksum of
// all text before it), and the closing brace.
void manifest_seal(struct text *text);
// Prints the seal for a manifest whose text up to the seal is `json`.
void manifest_print_seal(const char *json, size_t length, char seal[MANIFEST_SEAL_BYTES + 1]);

// Parses a manifest into all members of a checkpoint but `path` and `open`. Do not move the checkpoint in
// memory afterwards: its members point to each other.
//   source   names the text in messages
// STATUS_INVALID: the message states what is wrong. STATUS_UNSUPPORTED: another version of the program wrote
// it.
enum status manifest_parse(struct checkpoint *checkpoint, const char *json, size_t length,
                           const char *source) MUST_CHECK;

// Frees the members of a checkpoint, but not the struct (checkpoint.c).
void checkpoint_clear(struct checkpoint *checkpoint);

#endif
