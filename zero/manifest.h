// The manifest of a checkpoint: what manifest.json says, made and checked. Used by zero/checkpoint only (and
// by tests that forge one).
#ifndef ZERO_ZERO_MANIFEST_H
#define ZERO_ZERO_MANIFEST_H

#include "base/text.h"
#include "zero/checkpoint.h"

#define MANIFEST_NAME           "manifest.json"
#define MANIFEST_FORMAT         "zero.c checkpoint"
#define MANIFEST_FORMAT_VERSION 1
#define MANIFEST_MAX_BYTES      ((size_t)256 << 20)
#define TOKENIZER_NAME          "tokenizer.tiktoken"

// The whole text. `tokenizer`: "bytes", TOKENIZER_NAME or NULL.
enum status manifest_print(const struct checkpoint_contents *contents, const char *version,
                           const char *tokenizer, const struct checkpoint_file *files, int n_files,
                           const struct checkpoint_span *spans, int n_spans, struct text *out) MUST_CHECK;
// Ends a text that lacks its last member: adds "manifest_xxh3", the checksum of all before it, and the brace.
void manifest_seal(struct text *text);

// Fills everything but `path` and the descriptors from a manifest's text; `source` names it in messages.
enum status manifest_parse(struct checkpoint *checkpoint, const char *json, size_t length,
                           const char *source) MUST_CHECK;

#endif
