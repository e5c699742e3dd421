#include "cli/clean_text.h"

#include "base/json.h"
#include "base/utf8.h"

#define REPLACEMENT "\xEF\xBF\xBD"

// C0 without tab and newline, DEL, and C1 (U+0080 to U+009F, in two bytes).
static bool is_control(const char *bytes, size_t n) {
    const unsigned char first = (unsigned char)bytes[0];
    if (first == 0xC2)
        return n > 1 && (unsigned char)bytes[1] < 0xA0;
    return (first < 0x20 && first != '\t' && first != '\n') || first == 0x7F;
}

void clean_text_add(struct text *out, const char *bytes, size_t n) {
    while (n > 0) {
        size_t valid = utf8_valid_bytes(bytes, n), plain = 0;
        while (plain < valid && !is_control(bytes + plain, valid - plain))
            plain++;
        text_add_bytes(out, bytes, plain);
        bytes += plain;
        n -= plain;
        if (n == 0)
            return;
        const size_t replaced = plain < valid && (unsigned char)bytes[0] == 0xC2 ? 2 : 1;
        text_add_bytes(out, REPLACEMENT, sizeof REPLACEMENT - 1);
        bytes += replaced;
        n -= replaced;
    }
}

void clean_text_add_json(struct text *out, const char *bytes, size_t n) {
    struct text clean = {0};
    clean_text_add(&clean, bytes, n);
    json_add_string(out, clean.data ? clean.data : "");
    text_free(&clean);
}
