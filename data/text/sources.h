// The files of a corpus: the named files, and the files in the named folders.
#ifndef ZERO_DATA_TEXT_SOURCES_H
#define ZERO_DATA_TEXT_SOURCES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum text_format { TEXT_PLAIN, TEXT_JSON_LINES };

struct text_source {
    char *path; // "-": standard input
    enum text_format format;
    bool is_sized;       // an uncompressed regular file of plain text: `bytes` is the size of its text
    size_t mark_bytes;   // bytes of a byte-order mark before its text
    uint64_t bytes;      // size of the file as stored, without the mark; 0 for pipes
    int64_t modified_ns; // when the file was last changed, in ns since 1970; 0 for pipes
};
// The point at which a text is split. Held out are the text of `source` from `offset` on, and all later
// sources.
struct text_split {
    int source;      // index in text_sources.list; -1: no split
    uint64_t offset; // byte offset in the source's text
};
struct text_sources {
    struct text_source *list;
    int n, capacity;
};

// Finds the files, in the order of `paths`. "-" is standard input. A folder means all files in it and its
// subfolders, sorted bytewise. Files and folders in it whose names begin with a dot are skipped, and so are
// links to folders.
//   json_lines   true: all files are JSON Lines; false: only those whose names end in .jsonl, .ndjson or
//                .json, which .gz, .zst or .zstd may follow
// STATUS_INVALID: a path is absent, a folder has no files, "-" is given twice, or a file is neither text nor
// compressed text. For such a file, the message says what it is and how to convert it.
enum status text_sources_find(const char *const *paths, int n_paths, bool json_lines,
                              struct text_sources *sources) MUST_CHECK;
void text_sources_free(struct text_sources *sources);

// Returns the format that a file's name stands for: TEXT_JSON_LINES for the endings above, else TEXT_PLAIN.
enum text_format text_format_of(const char *path);
// True if all sources are uncompressed files of plain text (is_sized).
bool text_sources_are_sized(const struct text_sources *sources);
// Splits off the last fraction `held_out` of all bytes. corpus_split_point moves the split to the end of a
// document or line. There is no split if held_out is 0 or a source is not sized (is_sized).
//   documents   true: CORPUS_END_OF_TEXT ends a document
enum status text_sources_split(const struct text_sources *sources, double held_out, bool documents,
                               struct text_split *split) MUST_CHECK;

#endif
