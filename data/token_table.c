// See data/token_table.h.
#include "data/token_table.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "data/tokenizer_internal.h"

enum status token_table_add(struct token_table *tokens, const char *bytes, size_t n, enum token_type type,
                            int line) {
    if (tokens->n + 2 > tokens->capacity) {
        const int capacity = tokens->capacity ? 2 * tokens->capacity : 1024;
        uint32_t *offsets = realloc(tokens->offsets, (size_t)capacity * sizeof *offsets);
        if (offsets)
            tokens->offsets = offsets;
        int *lines = realloc(tokens->lines, (size_t)capacity * sizeof *lines);
        if (lines)
            tokens->lines = lines;
        uint8_t *types = realloc(tokens->types, (size_t)capacity * sizeof *types);
        if (types)
            tokens->types = types;
        if (!offsets || !lines || !types)
            return FAIL(STATUS_FAILED, "out of memory for %d tokens", tokens->n);
        tokens->capacity = capacity;
        tokens->offsets[0] = 0;
    }
    text_add_bytes(&tokens->bytes, bytes, n);
    TRY(text_status(&tokens->bytes));
    tokens->lines[tokens->n] = line;
    tokens->types[tokens->n] = (uint8_t)type;
    tokens->offsets[++tokens->n] = (uint32_t)tokens->bytes.length;
    return STATUS_OK;
}

void token_table_free(struct token_table *tokens) {
    text_free(&tokens->bytes);
    free(tokens->offsets);
    free(tokens->types);
    free(tokens->lines);
    *tokens = (struct token_table){0};
}

void token_alphabet_init(struct token_alphabet *alphabet) {
    int n = 0, next = 256;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        alphabet->code_points[byte] = printable ? byte : 0;
        if (printable)
            alphabet->order[n++] = byte;
    }
    for (int byte = 0; byte < 256; byte++)
        if (!alphabet->code_points[byte]) {
            alphabet->code_points[byte] = next++;
            alphabet->order[n++] = byte;
        }
    for (int c = 0; c < TOKEN_ALPHABET_END; c++)
        alphabet->bytes[c] = -1;
    for (int byte = 0; byte < 256; byte++)
        alphabet->bytes[alphabet->code_points[byte]] = (int16_t)byte;
}

int token_decode(const char *text, size_t n, const struct token_alphabet *alphabet, char *out) {
    int bytes = 0;
    while (n > 0) {
        utf8proc_int32_t c;
        utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &c);
        if (length <= 0 || c >= TOKEN_ALPHABET_END || alphabet->bytes[c] < 0)
            return -1;
        out[bytes++] = (char)alphabet->bytes[c];
        text += length;
        n -= (size_t)length;
    }
    return bytes;
}
