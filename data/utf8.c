// See data/utf8.h.
#include "data/utf8.h"

#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#define HIGH_BITS 0x8080808080808080u

size_t utf8_valid_bytes(const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        uint64_t word;
        if (n - at >= sizeof word && (memcpy(&word, text + at, sizeof word), (word & HIGH_BITS) == 0)) {
            at += sizeof word; // eight ASCII characters
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
