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
    uint64_t bytes;      // of the file, after the mark; 0 for pipes
    int64_t modified_ns; // when the file was last changed
};
// The split of a text. This source from `offset` on, and all later sources, are held out. source -1: no
// split.
struct text_split {
    int source;
    uint64_t offset; // in the source's text
};
struct text_sources {
    struct text_source *list;
    int n, capacity;
};

// Finds the files, in the order of `paths`. "-" is standard input. A folder means all files in it and its
// subfolders, sorted bytewise; files whose names begin with a dot and links to folders are skipped.
//   json_lines   all files are JSON Lines; false: only those named .jsonl, .ndjson or .json (before .gz and
//                .zst)
// STATUS_INVALID: a path is absent, a folder has no files, or a file is neither text nor compressed text. The
// message says what it is and how to convert it.
enum status text_sources_find(const char *const *paths, int n_paths, bool json_lines,
                              struct text_sources *sources) MUST_CHECK;
void text_sources_free(struct text_sources *sources);

// Returns the format for a file name.
enum text_format text_format_of(const char *path);
bool text_sources_are_sized(const struct text_sources *sources);
// Returns where the last fraction of all bytes begins, by corpus_split_point. No split if sizes are not
// known.
//   documents   CORPUS_END_OF_TEXT ends a document
enum status text_sources_split(const struct text_sources *sources, double held_out, bool documents,
                               struct text_split *split) MUST_CHECK;

#endif
