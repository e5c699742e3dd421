// The kinds of files that users pass, recognized by their contents: one table for all commands and options.
// The message that refuses an unexpected kind names the kind and says what to do with such a file.
#ifndef ZERO_BASE_FILE_KIND_H
#define ZERO_BASE_FILE_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum file_kind {
    FILE_KIND_UNKNOWN, // binary or empty
    FILE_KIND_SHARD,   // token shard of this program, or of llm.c for GPT-2 or Llama 3
    FILE_KIND_SAFETENSORS,
    FILE_KIND_TEXT,        // its first bytes are UTF-8; includes JSON and tokenizer files
    FILE_KIND_TEXT_8_BIT,  // Latin-1 and the like; few control characters
    FILE_KIND_TEXT_UTF_16, // or small 2-byte token ids, which look the same
    FILE_KIND_LLMC_MODEL,
    FILE_KIND_LLMC_LLAMA_MODEL,
    FILE_KIND_LLMC_TOKENIZER,
    FILE_KIND_LLMC_STATE,
    FILE_KIND_LLMC_EVAL,
    FILE_KIND_PYTORCH, // a zip archive of torch.save, or its older format
    FILE_KIND_PICKLE,
    FILE_KIND_NPY,
    FILE_KIND_NPZ,
    FILE_KIND_ZIP,
    FILE_KIND_GGUF,
    FILE_KIND_HDF5,
    FILE_KIND_MEGATRON_INDEX,
    FILE_KIND_PARQUET,
    FILE_KIND_ARROW,
    FILE_KIND_PICTURE,
    FILE_KIND_PDF,
    FILE_KIND_TAR,
    FILE_KIND_GZIP,
    FILE_KIND_ZSTD,
    FILE_KIND_XZ,
    FILE_KIND_BZIP2,
    N_FILE_KINDS
};

#define FILE_KIND_START_BYTES 4096 // bytes from the start of a file that suffice to recognize it

// The kind of a file, given its first n bytes: the whole file, or at least FILE_KIND_START_BYTES.
enum file_kind file_kind_of(const char *start, size_t n);
// The kind of the regular file at `path`; FILE_KIND_UNKNOWN if it cannot be read. Records no failure.
enum file_kind file_kind_of_path(const char *path);
// Whether the kind is text, in UTF-8 or another encoding.
bool file_kind_is_text(enum file_kind kind);

// A noun for files of this kind: "PyTorch's pickled weights".
const char *file_kind_name(enum file_kind kind);
// Advice on what to do with a file of this kind, with its path and folder filled in; "" if there is none. The
// caller frees the string.
char *file_kind_advice(enum file_kind kind, const char *path);
// Fails with STATUS_INVALID and the message "PATH is a model of llm.c, expected EXPECTED; ADVICE".
//   more   "" or further facts about the file: " (12 bytes)"
enum status file_kind_refuse(enum file_kind kind, const char *path, const char *more,
                             const char *expected) MUST_CHECK;

#endif
