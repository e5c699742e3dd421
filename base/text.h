// A growing string, and helpers for names and numbers. A struct text is NUL-terminated once anything was
// added.
#ifndef ZERO_BASE_TEXT_H
#define ZERO_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
    char *data; // NULL while empty
    size_t length, capacity;
};

void text_free(struct text *text);
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_vadd(struct text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
void text_add_bytes(struct text *text, const void *bytes, size_t length);
// Appends `word` quoted for a shell: in single quotes if it contains characters that a shell interprets.
void text_add_shell_word(struct text *text, const char *word);
// Appends `line`, broken at blanks outside of single quotes where it would be wider than `columns`. Lines
// that go on end with `mark` ("" or " \\"); those that follow begin with `indent`. A word that is too wide
// stays whole.
void text_add_folded(struct text *text, const char *line, size_t columns, const char *indent,
                     const char *mark);

// Whether bytes are text for people: UTF-8 without control characters but white space. A character that is
// cut at the end counts, so that the start of a file can be asked about. False when empty.
bool text_is_readable(const char *bytes, size_t n);

// Whether bytes are blanks, tabs and line ends only. True when empty.
bool text_is_blank(const char *bytes, size_t n);

// The bytes of a byte-order mark of UTF-8 at the start of a text: 3, or 0 where there is none.
size_t text_mark_bytes(const char *bytes, size_t n);
// The bytes of a line of n without the carriage return at its end, if it has one (CRLF).
size_t text_line_bytes(const char *line, size_t n);
bool text_ends_with(const char *text, const char *end);
// Whether the n bytes, at least one, are one of the words, which blanks or commas separate.
bool text_has_word(const char *words, const char *word, size_t n);

// Levenshtein distance of two names.
int text_distance(const char *a, const char *b);
// The one of `names` (count n) closest to `name`, for "did you mean"; NULL when none is close.
const char *text_nearest(const char *name, const char *const *names, int n);
// Format a number for display; each returns `buffer`. Of bytes and FLOPs the unit is theirs: B is no billion.
const char *text_bytes(char *buffer, size_t size, double bytes);      // "512 B", "3.4 KiB", "1.25 GiB"
const char *text_count(char *buffer, size_t size, double count);      // "124.5M", "1.56B"
const char *text_flops(char *buffer, size_t size, double flops);      // "372.0 GFLOP"
const char *text_duration(char *buffer, size_t size, double seconds); // "1:02:03"
// Parses a size: a number and optionally a unit, with or without a blank between. K M G T and KiB MiB GiB TiB
// are powers of 1024, KB MB GB TB powers of 1000; case does not matter; no unit means bytes. Returns false
// for anything else, and above 2^53.
bool text_read_bytes(const char *text, uint64_t *bytes);
// NaN without its sign, which printf would write: "-nan". Other values unchanged.
double text_plain_nan(double value);
// The shortest decimal that parses back to the same float or double. NaN and infinity give "null", as JSON
// has neither. Returns buffer, which needs 32 bytes.
const char *text_float(char *buffer, float value);
const char *text_double(char *buffer, double value);

#endif
