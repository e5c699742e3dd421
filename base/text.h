// A growing string, and helpers for names and numbers. Zero-initialize a struct text. It is NUL-terminated
// once something was added to it.
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
// Appends `line`, wrapped to `columns` at spaces outside single quotes. Words that are too wide stay whole.
//   indent   begins each continuation line
//   mark     ends each line but the last: "" or " \\"
void text_add_folded(struct text *text, const char *line, size_t columns, const char *indent,
                     const char *mark);

// Whether the bytes are readable text: UTF-8 with no control characters except white space, backspace and
// escape. The last character may be incomplete, so that the start of a file can be tested. False when empty.
bool text_is_readable(const char *bytes, size_t n);

// Whether the bytes are only spaces, tabs and line ends. True when empty.
bool text_is_blank(const char *bytes, size_t n);

// The length of the UTF-8 byte-order mark at the start of a text: 3, or 0 if there is none.
size_t text_mark_bytes(const char *bytes, size_t n);
// The length of a line of n bytes without the carriage return at its end, if it has one (CRLF).
size_t text_line_bytes(const char *line, size_t n);
bool text_ends_with(const char *text, const char *end);
// Whether the n > 0 bytes at `word` are one of `words`, which are separated by spaces or commas.
bool text_has_word(const char *words, const char *word, size_t n);

// Levenshtein distance of two names.
int text_distance(const char *a, const char *b);
// The entry of `names` (n) closest to `name`, for "did you mean"; NULL if none is close.
const char *text_nearest(const char *name, const char *const *names, int n);
// Format a number for display; each returns `buffer`. "B" means bytes in text_bytes, billions in text_count.
const char *text_bytes(char *buffer, size_t size, double bytes);      // "512 B", "3.4 KiB", "1.25 GiB"
const char *text_count(char *buffer, size_t size, double count);      // "124.5M", "1.56B"
const char *text_flops(char *buffer, size_t size, double flops);      // "372.0 GFLOP"
const char *text_duration(char *buffer, size_t size, double seconds); // "1:02:03"
// Parses a size: a number, optionally followed by a unit, with or without spaces between. K M G T and KiB MiB
// GiB TiB are powers of 1024, KB MB GB TB powers of 1000. Case does not matter; no unit means bytes. Returns
// false for anything else, and for sizes above 2^53 bytes.
bool text_read_bytes(const char *text, uint64_t *bytes);
// Clears the sign of a NaN, because printf would print "-nan". Returns other values unchanged.
double text_plain_nan(double value);
// Format the shortest decimal that parses back to the same float or double. NaN and infinity give "null",
// because JSON has neither. Return buffer, which needs 32 bytes.
const char *text_float(char *buffer, float value);
const char *text_double(char *buffer, double value);

#endif
