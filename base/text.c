// The growing string, and numbers formatted for display and for JSON.
#include "base/text.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"

void text_free(struct text *text) {
    free(text->data);
    *text = (struct text){0};
}

// Makes room for `more` bytes and a NUL.
static void text_reserve(struct text *text, size_t more) {
    RESERVE(text->data, text->length + more + 1, text->capacity);
}

void text_add_bytes(struct text *text, const void *bytes, size_t length) {
    text_reserve(text, length);
    if (length > 0) // bytes may be NULL if length is 0
        memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void text_vadd(struct text *text, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length >= 0) {
        text_reserve(text, (size_t)length);
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

void text_add(struct text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    text_vadd(text, format, arguments);
    va_end(arguments);
}

void text_add_shell_word(struct text *text, const char *word) {
    if (*word && !strpbrk(word, " \t\n[]{}*?\"'$&|;<>()\\`!~#")) {
        text_add(text, "%s", word);
        return;
    }
    text_add(text, "'");
    for (; *word; word++)
        text_add(text, *word == '\'' ? "'\\''" : "%c", *word);
    text_add(text, "'");
}

void text_add_folded(struct text *text, const char *line, size_t columns, const char *indent,
                     const char *mark) {
    // begin: start of the part not yet appended. blank: the last space after it where it may be split.
    // used: columns of the current line before `begin`.
    size_t begin = 0, blank = 0, at = 0, used = 0;
    bool quoted = false;
    for (; line[at]; at++) {
        quoted = quoted != (line[at] == '\'');
        if (used + at - begin + (line[at] == ' ' ? 0 : 1) + strlen(mark) > columns && blank > begin) {
            text_add(text, "%.*s%s\n%s", (int)(blank - begin), line + begin, mark, indent);
            begin = blank + 1;
            used = strlen(indent);
        }
        if (line[at] == ' ' && !quoted && at > begin + strspn(line + begin, " "))
            blank = at;
    }
    text_add(text, "%s", line + begin);
}

// Dynamic programming with one row of the table in memory. If a name is longer than LONGEST, returns LONGEST.
int text_distance(const char *a, const char *b) {
    enum { LONGEST = 127 };
    int row[LONGEST + 1];
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > LONGEST || n_b > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= n_b; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n_b];
}

const char *text_nearest(const char *name, const char *const *names, int n) {
    const char *nearest = NULL;
    // The largest distance allowed: a third of the length of `name`, but at least 2.
    int within = (int)strlen(name) / 3;
    int best = (within > 2 ? within : 2) + 1;
    for (int i = 0; i < n; i++) {
        size_t longer = strlen(name) > strlen(names[i]) ? strlen(name) : strlen(names[i]);
        int distance = text_distance(name, names[i]);
        if (distance < best && 2 * (size_t)distance <= longer) { // at least half of the letters must match
            best = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

// Formats in the largest unit in which the printed value is at least 1: 999,960 becomes 1.00M, not 1000.0K.
enum { N_UNITS = 6 };
static const char *format_scaled(char *buffer, size_t size, double value, double base,
                                 const char *const units[N_UNITS]) {
    int unit = 0;
    for (; fabs(value) >= base - (unit == 0 ? 0.5 : 0.05) && unit < N_UNITS - 1; unit++)
        value /= base;
    snprintf(buffer, size, "%.*f%s", unit == 0 ? 0 : fabs(value) < 9.995 ? 2 : 1, value, units[unit]);
    return buffer;
}

const char *text_bytes(char *buffer, size_t size, double bytes) {
    static const char *const units[N_UNITS] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
    return format_scaled(buffer, size, bytes, 1024, units);
}

// The bytes of a unit: 1 for "", 0 for an unknown unit.
static double bytes_of_unit(const char *unit) {
    static const char letters[] = "KMGT";
    if (!*unit || strcasecmp(unit, "B") == 0)
        return 1;
    const char *letter = strchr(letters, toupper((unsigned char)*unit));
    if (!letter)
        return 0;
    bool binary = !unit[1] || strcasecmp(unit + 1, "iB") == 0;
    if (!binary && strcasecmp(unit + 1, "B") != 0)
        return 0;
    return pow(binary ? 1024 : 1000, (double)(letter - letters + 1));
}

bool text_read_bytes(const char *text, uint64_t *bytes) {
    if (*text < '0' || *text > '9') // strtod would also accept signs, spaces and "inf"
        return false;
    char *end;
    double number = strtod(text, &end);
    double unit = bytes_of_unit(end + strspn(end, " "));
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        return false;
    if (unit == 0 || !(number * unit <= 0x1p53))
        return false;
    *bytes = (uint64_t)(number * unit);
    return true;
}

const char *text_count(char *buffer, size_t size, double count) {
    static const char *const units[N_UNITS] = {"", "K", "M", "B", "T", "Q"};
    return format_scaled(buffer, size, count, 1000, units);
}

const char *text_flops(char *buffer, size_t size, double flops) {
    static const char *const units[N_UNITS] = {" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP"};
    return format_scaled(buffer, size, flops, 1000, units);
}

const char *text_duration(char *buffer, size_t size, double seconds) {
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(buffer, size, "-");
        return buffer;
    }
    long long s = (long long)(seconds + 0.5);
    if (s >= 86400)
        snprintf(buffer, size, "%lldd %02lld:%02lld:%02lld", s / 86400, s / 3600 % 24, s / 60 % 60, s % 60);
    else if (s >= 3600)
        snprintf(buffer, size, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buffer, size, "%lld:%02lld", s / 60, s % 60);
    return buffer;
}

#define FLOAT_BUFFER 32

const char *text_float(char *buffer, float value) {
    if (!isfinite(value))
        return strcpy(buffer, "null");
    // Start at six digits: fewer could print 10 as "1e+01", and %g drops trailing zeros anyway. Subnormal
    // values may need fewer.
    for (int digits = fabsf(value) < FLT_MIN ? 1 : 6; digits <= 9; digits++) {
        snprintf(buffer, FLOAT_BUFFER, "%.*g", digits, (double)value);
        if (strtof(buffer, NULL) == value)
            break;
    }
    return buffer;
}

double text_plain_nan(double value) {
    return isnan(value) ? fabs(value) : value;
}

const char *text_double(char *buffer, double value) {
    if (!isfinite(value))
        return strcpy(buffer, "null");
    for (int digits = fabs(value) < DBL_MIN ? 1 : 6; digits <= 17; digits++) {
        snprintf(buffer, FLOAT_BUFFER, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value)
            break;
    }
    return buffer;
}

// The length of a UTF-8 character that starts with this byte; 0 if no character starts with it.
static size_t character_bytes(unsigned char first) {
    return first < 0x80                    ? 1
           : first >= 0xC2 && first < 0xE0 ? 2
           : first >= 0xE0 && first < 0xF0 ? 3
           : first >= 0xF0 && first < 0xF5 ? 4
                                           : 0;
}

bool text_is_readable(const char *bytes, size_t n) {
    for (size_t i = 0; i < n;) {
        const unsigned char first = (unsigned char)bytes[i];
        const size_t length = character_bytes(first);
        if (length == 0 || first == 0x7F || (first < ' ' && !strchr("\t\n\v\f\r\b\x1b", first)) || first == 0)
            return false;
        for (size_t k = 1; k < length && i + k < n; k++)
            if (((unsigned char)bytes[i + k] & 0xC0) != 0x80)
                return false;
        i += length;
    }
    return n > 0;
}

bool text_is_blank(const char *bytes, size_t n) {
    while (n > 0 &&
           (bytes[n - 1] == ' ' || bytes[n - 1] == '\t' || bytes[n - 1] == '\r' || bytes[n - 1] == '\n'))
        n--;
    return n == 0;
}

size_t text_mark_bytes(const char *bytes, size_t n) {
    return n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

size_t text_line_bytes(const char *line, size_t n) {
    return n > 0 && line[n - 1] == '\r' ? n - 1 : n;
}

bool text_ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

bool text_has_word(const char *words, const char *word, size_t n) {
    for (size_t length; *words; words += length + (words[length] != '\0')) {
        length = strcspn(words, ", ");
        if (length == n && memcmp(words, word, n) == 0)
            return true;
    }
    return false;
}
