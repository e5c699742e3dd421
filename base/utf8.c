// UTF-8 through the library utf8proc: validity, display on terminals, and NFC.
#include "base/utf8.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define HIGH_BITS 0x8080808080808080u

size_t utf8_valid_bytes(const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        uint64_t word;
        if (n - at >= sizeof word && (memcpy(&word, text + at, sizeof word), (word & HIGH_BITS) == 0)) {
            at += sizeof word; // eight ASCII characters, which are valid
            continue;
        }
        utf8proc_int32_t character;
        const size_t left = n - at < 4 ? n - at : 4;
        const utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)left, &character);
        if (length <= 0)
            return at;
        at += (size_t)length;
    }
    return n;
}

size_t utf8_character_bytes(const char *text, size_t n) {
    for (size_t length = 1; length <= 4 && length <= n; length++)
        if (utf8_valid_bytes(text, length) == length)
            return length;
    return 1;
}

// Whether the character counts as a control character. Includes line separators and bidirectional controls
// (U+2028 to U+202E, U+2066 to U+2069), because they can break or reorder a line. Excludes tabs and newlines.
static bool is_control(const char *character) {
    const unsigned char first = (unsigned char)character[0];
    if (first == 0xE2 && (memcmp(character, "\xe2\x80", 2) == 0 || memcmp(character, "\xe2\x81", 2) == 0)) {
        const unsigned char last = (unsigned char)character[2];
        return character[1] == '\x80' ? last >= 0xA8 && last <= 0xAE : last >= 0xA6 && last <= 0xA9;
    }
    if (first == 0xC2) // the C1 controls are U+0080 to U+009F
        return (unsigned char)character[1] < 0xA0;
    return (first < 0x20 && first != '\t' && first != '\n') || first == 0x7F;
}

void utf8_add_visible(struct text *out, const char *bytes, size_t n, const char *instead) {
    for (size_t length; n > 0; bytes += length, n -= length) {
        length = utf8_character_bytes(bytes, n);
        if (utf8_valid_bytes(bytes, length) == length && !is_control(bytes))
            text_add_bytes(out, bytes, length);
        else if (instead)
            text_add(out, "%s", instead);
        else
            for (size_t i = 0; i < length; i++)
                text_add(out, "\\x%02x", (unsigned char)bytes[i]);
    }
}

// ---- normalization

// A character is inert if NFC never changes it, whatever its neighbors are. Text from one inert character
// to the next can therefore be normalized on its own.
#define N_CODE_POINTS 0x110000

static uint8_t active[N_CODE_POINTS / 8]; // one bit per code point; 1: not inert
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

static void set_active(utf8proc_int32_t c) {
    active[c / 8] |= (uint8_t)(1u << c % 8);
}

static bool is_active(utf8proc_int32_t c) {
    return active[c / 8] >> c % 8 & 1;
}

// Marks the characters that c's canonical decomposition makes active: all but the first of the decomposition,
// because they may compose with the character before them. Marks c itself only if NFC does not restore it.
static void prepare_decomposable(utf8proc_int32_t c) {
    utf8proc_int32_t parts[32];
    utf8proc_uint8_t source[4], *composed = NULL;
    const utf8proc_ssize_t n = utf8proc_encode_char(c, source);
    const utf8proc_ssize_t n_parts = utf8proc_decompose_char(c, parts, sizeof parts / sizeof *parts,
                                                             UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
    for (utf8proc_ssize_t i = 1; i < n_parts && i < (utf8proc_ssize_t)(sizeof parts / sizeof *parts); i++)
        set_active(parts[i]);
    const utf8proc_ssize_t length = utf8proc_map(source, n, &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (length != n || memcmp(composed, source, (size_t)n) != 0)
        set_active(c);
    free(composed);
}

static void prepare(void) {
    for (utf8proc_int32_t c = 0x80; c < N_CODE_POINTS; c++) {
        const utf8proc_property_t *property = utf8proc_get_property(c);
        // Hangul syllables are composed by a rule, not by a table. Their components are marked below.
        const bool is_hangul = c >= 0xAC00 && c <= 0xD7A3;
        if (property->combining_class != 0)
            set_active(c);
        if (property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0 && !is_hangul)
            prepare_decomposable(c);
    }
    for (utf8proc_int32_t c = 0x1161; c <= 0x11C2; c++) // Hangul vowels and final consonants
        set_active(c);
}

// The length of the character at `text`, and whether it is active. An invalid byte is inert.
static size_t next_character(const char *text, size_t n, bool *is_active_one) {
    utf8proc_int32_t c;
    *is_active_one = false;
    if ((unsigned char)text[0] < 0x80)
        return 1;
    const utf8proc_ssize_t length =
        utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)(n < 4 ? n : 4), &c);
    if (length <= 0)
        return 1;
    *is_active_one = is_active(c);
    return (size_t)length;
}

// Returns the start of the first active character from `at` on; n if there is none.
//   before   [out] the start of the character before the active one; `at` if there is none
static size_t find_active(const char *text, size_t n, size_t at, size_t *before) {
    *before = at;
    while (at < n) {
        uint64_t word;
        bool found;
        if (n - at >= sizeof word && (memcpy(&word, text + at, sizeof word), (word & HIGH_BITS) == 0)) {
            at += sizeof word;
            *before = at - 1;
            continue;
        }
        const size_t length = next_character(text + at, n - at, &found);
        if (found)
            return at;
        *before = at;
        at += length;
    }
    return n;
}

bool utf8_may_normalize(const char *text, size_t n) {
    size_t before;
    pthread_once(&prepared, prepare);
    return find_active(text, n, 0, &before) < n;
}

// Normalizes a short text without invalid bytes.
static enum status add_normalized(const char *text, size_t n, struct text *out) {
    utf8proc_uint8_t *composed = NULL;
    const utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n,
                                                 &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (length >= 0)
        text_add_bytes(out, composed, (size_t)length);
    free(composed);
    return length >= 0 ? STATUS_OK
                       : FAIL(STATUS_FAILED, "cannot normalize text: %s", utf8proc_errmsg(length));
}

static bool is_valid_start(const char *text, size_t n) {
    utf8proc_int32_t c;
    return utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)(n < 4 ? n : 4), &c) > 0;
}

enum status utf8_normalize(const char *text, size_t n, struct text *out) {
    pthread_once(&prepared, prepare);
    out->length = 0;
    for (size_t at = 0; at < n;) {
        size_t begin, end;
        bool found = true;
        end = find_active(text, n, at, &begin);
        if (end == n) {
            text_add_bytes(out, text + at, n - at);
            break;
        }
        if (!is_valid_start(text + begin, n - begin)) // an invalid byte precedes; leave it as it is
            begin = end;
        while (end < n && found) {
            const size_t length = next_character(text + end, n - end, &found);
            end += found ? length : 0;
        }
        text_add_bytes(out, text + at, begin - at);
        TRY(add_normalized(text + begin, end - begin, out));
        at = end;
    }
    return STATUS_OK;
}
