// Growing text and small string helpers. A struct text is always NUL-terminated once anything was added;
// out of memory is sticky: further calls do nothing and text_status says so once, at the end.
#ifndef ZERO_BASE_TEXT_H
#define ZERO_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct text {
    char *data; // NULL while empty
    size_t length, capacity;
    bool failed;
};

void text_free(struct text *text);
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_bytes(struct text *text, const void *bytes, size_t length);
// A word as a shell reads it back: in single quotes where it would do something else with it.
void text_add_shell_word(struct text *text, const char *word);
enum status text_status(const struct text *text) MUST_CHECK; // STATUS_FAILED after an allocation failed

// The number of single-character edits between two names: for "did you mean".
int text_distance(const char *a, const char *b);
// The nearest of `names` (count n) to `name`, or NULL when none is near enough to be meant.
const char *text_nearest(const char *name, const char *const *names, int n);
// "512 B", "3.4 KiB", "1.25 GiB"; "124.5M", "1.56B"; "1:02:03". Each returns buffer.
const char *text_bytes(char *buffer, size_t size, double bytes);
// Reads a size: a number and, with or without a blank, a unit. K M G T and KiB MiB GiB TiB are powers of
// 1024, KB MB GB TB of 1000; capitals do not matter, none is bytes. False when it is something else, or more
// than 2^53.
bool text_read_bytes(const char *text, uint64_t *bytes);
const char *text_count(char *buffer, size_t size, double count);
const char *text_duration(char *buffer, size_t size, double seconds);
// The shortest decimal that reads back as the same float or double (never "nan" or "inf": those give "null",
// as JSON has it). Returns buffer, which needs 32 bytes.
const char *text_float(char *buffer, float value);
const char *text_double(char *buffer, double value);

#endif
