// Internal to infer/export: what the formats share.
#ifndef ZERO_INFER_EXPORT_INTERNAL_H
#define ZERO_INFER_EXPORT_INTERNAL_H

#include "base/text.h"
#include "infer/export/export.h"

// The path of a new file of the export, to be freed; it is listed. NULL: out of memory, recorded.
char *export_new_file(struct exporter *exporter, const char *name);
// Writes a small file.
enum status export_write_text(struct exporter *exporter, const char *name, struct text *text) MUST_CHECK;

enum status export_huggingface(struct exporter *exporter) MUST_CHECK;
enum status export_gguf(struct exporter *exporter) MUST_CHECK;
// The keys tokenizer.ggml.*, for a model of any family.
//   tokenizer    NULL: none
//   vocab_size   of the model: ids that the tokenizer does not have become tokens that are not used
struct gguf_keys;
enum status export_add_gguf_tokenizer(const struct tokenizer *tokenizer, int vocab_size,
                                      struct gguf_keys *keys) MUST_CHECK;
// The model card, README.md.
void export_add_card(const struct exporter *exporter, struct text *out);

// Checks that the folder may be written to, and creates it with a temporary folder inside (folder.c).
enum status export_make_folder(struct exporter *exporter) MUST_CHECK;
// Moves the written files to the folder, and writes EXPORT_RECORD. Files of an earlier export that this one
// does not have are removed.
enum status export_commit(struct exporter *exporter) MUST_CHECK;
void export_remove_temporary(struct exporter *exporter);

#endif
