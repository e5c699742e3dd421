// Exports trained weights to the formats of other programs, with the tokenizer and the other files needed to
// load them: Hugging Face (transformers) and GGUF (llama.cpp). Values are read and written one tensor at a
// time.
#ifndef ZERO_INFER_EXPORT_EXPORT_H
#define ZERO_INFER_EXPORT_EXPORT_H

#include "base/file.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/weights.h"
#include "model/param_values.h"

enum export_format {
    EXPORT_HF,   // config.json, model.safetensors, tokenizer.json, vocab.json, merges.txt, ..., README.md
    EXPORT_GGUF, // model.gguf
    N_EXPORT_FORMATS
};
const char *export_format_name(enum export_format format); // "hf", "gguf"

// Written last; lists the other files (JSON). A folder with this file was written by this program.
#define EXPORT_RECORD "export.json"

struct export_options {
    enum export_format format;
    enum value_type type;
    uint64_t max_shard_bytes; // EXPORT_HF: limit per safetensors file, unless one tensor is larger
    const char *tokenizer;    // NULL: the weights' own tokenizer; "none"; or a path for tokenizer_load
    const char *weights;      // "average", "latest" or NULL, as in weights_choose
    bool force;               // write into a folder that no export wrote; its other files are kept
    bool (*is_stopped)(void); // polled; once true, the export ends with STATUS_STOPPED. NULL: never
};

// An export: its inputs, its state and its results.
struct exporter {
    const char *path, *folder; // path: of the weights; folder: to write
    const struct export_options *options;
    struct weights weights;
    struct params params;
    struct tokenizer *tokenizer; // NULL: none
    struct param_source source;  // reads `weights`
    char *target;                // `folder` with links resolved, without a "/" at its end
    char *temporary;             // folder beside it, in which files are written first
    size_t first_missing;        // of its path, before it was created (base/file.h)
    struct file_list files;      // names of the files written
    uint64_t bytes;              // bytes of those files
    uint64_t done, total;        // elements read so far, and in all tensors
    double reported;             // time of the last progress report
};

// Exports the weights at `path` (infer/weights.h) to `folder`. The folder is created; an existing one is
// replaced if an earlier export wrote all its files. It appears once all files are complete; a failure leaves
// it unchanged. STATUS_INVALID: the format has no such dtype; the tokenizer does not fit; the folder has
// files that no export wrote, and `force` is not set; or a value does not fit the dtype. STATUS_FAILED: a
// read or a write failed, or the export was stopped.
enum status export_run(struct exporter *exporter, const char *path, const char *folder,
                       const struct export_options *options) MUST_CHECK;
void export_free(struct exporter *exporter); // also after a failure

// ---- what the formats share

// Returns the path of a new file of the export, to be freed, and adds it to the list of files.
static inline char *export_new_file(struct exporter *exporter, const char *name) {
    file_list_add(&exporter->files, name);
    return file_path("%s/%s", exporter->temporary, name);
}
enum status export_huggingface(struct exporter *exporter) MUST_CHECK;
enum status export_gguf(struct exporter *exporter) MUST_CHECK;

#endif
