// Exports trained weights to the formats of other programs: Hugging Face (transformers) and GGUF (llama.cpp).
// Also writes the tokenizer and the other files that these programs need. Values are read and written one
// tensor at a time.
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

// A JSON file that is written last and lists the other files of an export. A folder that contains it was
// written by an export.
#define EXPORT_RECORD "export.json"

struct export_options {
    enum export_format format;
    enum value_type type;
    uint64_t max_shard_bytes; // EXPORT_HF: maximum tensor bytes per file, unless one tensor has more
    const char *tokenizer;    // path for tokenizer_load; NULL: the weights' own; "none": export no tokenizer
    const char *weights;      // "average", "latest" or NULL, as in weights_choose
    // Also write into the folder of the weights, or into one with files that no export wrote. Such files are
    // kept, unless the export writes one of the same name.
    bool force;
    // Called repeatedly. If it returns true, the export ends with STATUS_STOPPED. NULL: it is never
    // stopped.
    bool (*is_stopped)(void);
};

// An export: its inputs, its state and its results.
struct exporter {
    const char *path, *folder; // the path of the weights, and the folder to write
    const struct export_options *options;
    struct weights weights;
    struct params params;
    struct tokenizer *tokenizer; // the tokenizer to export; NULL: none
    struct param_source source;  // reads the tensors' values from `weights`
    char *target;                // `folder` with links resolved, without a "/" at its end
    char *temporary;             // folder beside `target`, in which files are written first
    // For file_remove_made: length of the prefix of `temporary` that names the first folder that was
    // missing.
    size_t first_missing;
    struct file_list files; // names of the files written
    uint64_t bytes;         // total size of the files written
    uint64_t done, total;   // elements read so far, and in all tensors
    double reported;        // when progress was last reported (clock_monotonic_s)
};

// Exports the weights at `path` (infer/weights.h) to `folder`. An existing folder is replaced if earlier
// exports wrote all of its files, or with `force`. The new folder appears once all its files are complete. A
// failure before that changes nothing. STATUS_INVALID:
// - there are no weights at `path`
// - the format does not support the dtype, or a feature of the model or its tokenizer
// - the tokenizer has more ids than the model
// - the folder has files that no export wrote, or is the folder of the weights, and `force` is not set
// - a value does not fit the dtype
// STATUS_FAILED: a read or a write failed. STATUS_STOPPED: is_stopped returned true.
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
