// The files that a corpus is made of: those named, and those in the folders named.
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
    bool is_sized;       // a regular file of plain text that is not packed: `bytes` are those of its text
    size_t mark_bytes;   // before its text: a byte-order mark
    uint64_t bytes;      // of the file after it; 0 for pipes
    int64_t modified_ns; // when the file was last changed
};
// Where a text is split: it, and those after it, are held out from this place on. source -1: none is.
struct text_split {
    int source;
    uint64_t offset; // in its text
};
struct text_sources {
    struct text_source *list;
    int n, capacity;
};

// Finds the files, in the order of `paths`. "-" is standard input. A folder stands for all files in it and in
// its folders, sorted bytewise, but those whose names begin with a dot; links to folders are not followed.
//   json_lines   all are JSON Lines; else those named .jsonl, .ndjson or .json are (before .gz and .zst)
// STATUS_INVALID: a path is absent, a folder holds no file, or a file is neither text nor packed text: the
// message says what it is and how to convert it.
enum status text_sources_find(const char *const *paths, int n_paths, bool json_lines,
                              struct text_sources *sources) MUST_CHECK;
void text_sources_free(struct text_sources *sources);

// The format of a file of this name.
enum text_format text_format_of(const char *path);
bool text_sources_are_sized(const struct text_sources *sources);
// Where the last fraction of all bytes begins, by corpus_split_point. None where sizes are not known.
//   documents   CORPUS_END_OF_TEXT ends a document
enum status text_sources_split(const struct text_sources *sources, double held_out, bool documents,
                               struct text_split *split) MUST_CHECK;

#endif
