// Writes trained weights in the formats of other programs, with the tokenizer and what the program needs to
// load them: Hugging Face (transformers), GGUF (llama.cpp). Values are read and written a tensor at a
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

// The file that is written last and lists the others (JSON): a folder with it was written by this program.
#define EXPORT_RECORD "export.json"

struct export_options {
    enum export_format format;
    enum value_type type;
    uint64_t max_shard_bytes; // EXPORT_HF: of one safetensors file, unless one tensor is larger
    const char *tokenizer; // NULL: the one that belongs to the weights; "none"; or a path for tokenizer_load
    const char *weights;   // "average", "latest" or NULL, as for weights_choose
    bool force;            // into a folder that no export wrote; its other files are kept
    bool (*is_stopped)(void); // asked now and then; once true, it ends with STATUS_STOPPED. NULL: never
};

// What an export is made of, and what it made.
struct exporter {
    const char *path, *folder; // of the weights; to write
    const struct export_options *options;
    struct weights weights;
    struct params params;
    struct tokenizer *tokenizer; // NULL: none
    struct param_source source;  // reads `weights`
    char *target;                // `folder` without links and a "/" at its end
    char *temporary;             // folder beside it, where the files are written first
    size_t first_missing;        // of its path, before it was made (base/file.h)
    struct file_list files;      // names of those written
    uint64_t bytes;              // of them
    uint64_t done, total;        // elements read so far, and of all tensors
    double reported;             // when progress was last reported
};

// Exports the weights at `path` (infer/weights.h) to `folder`, which is created, or replaced where an earlier
// export wrote all of its files. It appears when all files are complete; a failure leaves it as it was.
// STATUS_INVALID: the format has no such type; the tokenizer does not fit; the folder has files that no
// export wrote, and `force` is not set; a value does not fit the type. STATUS_FAILED: a read or a write
// failed, or the export was stopped.
enum status export_run(struct exporter *exporter, const char *path, const char *folder,
                       const struct export_options *options) MUST_CHECK;
void export_free(struct exporter *exporter); // also after a failure

// ---- what the formats share

// The path of a new file of the export, to be freed; it is listed.
static inline char *export_new_file(struct exporter *exporter, const char *name) {
    file_list_add(&exporter->files, name);
    return file_path("%s/%s", exporter->temporary, name);
}
enum status export_huggingface(struct exporter *exporter) MUST_CHECK;
enum status export_gguf(struct exporter *exporter) MUST_CHECK;

#endif
