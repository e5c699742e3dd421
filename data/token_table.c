// See data/token_table.h.
#include "data/token_table.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "data/tokenizer_internal.h"

enum status token_table_add(struct token_table *tokens, const char *bytes, size_t n, int line) {
    if (tokens->n + 2 > tokens->capacity) {
        int capacity = tokens->capacity ? 2 * tokens->capacity : 1024;
        uint32_t *offsets = realloc(tokens->offsets, (size_t)capacity * sizeof *offsets);
        if (offsets)
            tokens->offsets = offsets;
        int *lines = realloc(tokens->lines, (size_t)capacity * sizeof *lines);
        if (lines)
            tokens->lines = lines;
        if (!offsets || !lines)
            return FAIL(STATUS_FAILED, "out of memory for %d tokens", tokens->n);
        tokens->capacity = capacity;
        tokens->offsets[0] = 0;
    }
    text_add_bytes(&tokens->bytes, bytes, n);
    TRY(text_status(&tokens->bytes));
    tokens->lines[tokens->n] = line;
    tokens->offsets[++tokens->n] = (uint32_t)tokens->bytes.length;
    return STATUS_OK;
}

void token_table_free(struct token_table *tokens) {
    text_free(&tokens->bytes);
    free(tokens->offsets);
    free(tokens->lines);
}

enum status token_table_finish(struct token_table *tokens, const char *kind, const char *source,
                               struct tokenizer **out) {
    enum status status = tokenizer_from_tokens(kind, tokens->bytes.data, tokens->offsets, tokens->lines,
                                               tokens->n, source, out);
    free(tokens->lines);
    *tokens = (struct token_table){0};
    return status;
}

void token_alphabet(int code_points[256], int order[256]) {
    int n = 0, next = 256;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        code_points[byte] = printable ? byte : 0;
        if (printable)
            order[n++] = byte;
    }
    for (int byte = 0; byte < 256; byte++)
        if (!code_points[byte]) {
            code_points[byte] = next++;
            order[n++] = byte;
        }
}

int token_decode(const char *text, size_t n, const int code_points[256], char *out) {
    int bytes = 0;
    while (n > 0) {
        utf8proc_int32_t c;
        utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &c);
        int byte = 0;
        while (length > 0 && byte < 256 && code_points[byte] != c)
            byte++;
        if (length <= 0 || byte == 256)
            return -1;
        out[bytes++] = (char)byte;
        text += length;
        n -= (size_t)length;
    }
    return bytes;
}
