// Any text, encoded with a tokenizer that is trained on itself, and decoded to the same bytes; split by every
// pattern, where pre-tokens begin at the places that chunks may be cut at; and normalized as utf8proc does.
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "data/tokenizer/encode.h"
#include "tests/fuzz/fuzz.h"

static void check_pattern(enum token_pattern pattern, const char *text, size_t size) {
    const struct token_rules rules = {.pattern = pattern};
    for (size_t at = 0, cut = 0, n; at < size; at += n) {
        n = tokenizer_next_pretoken(rules, text + at, size - at);
        FUZZ_REQUIRE(n > 0 && n <= size - at);
        if (cut <= at)
            cut = tokenizer_next_boundary(rules, text, size, at + 1);
        FUZZ_REQUIRE(cut > at && at + n <= cut);
    }
}

static void check_normalization(const char *text, size_t size) {
    struct text out = {0};
    utf8proc_uint8_t *wanted = NULL;
    FUZZ_REQUIRE(utf8_normalize(text, size, &out) == STATUS_OK);
    FUZZ_REQUIRE(utf8_may_normalize(text, size) || (out.length == size && memcmp(out.data, text, size) == 0));
    if (utf8_valid_bytes(text, size) == size) {
        const utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size,
                                                &wanted, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        FUZZ_REQUIRE(n >= 0 && out.length == (size_t)n && memcmp(out.data, wanted, out.length) == 0);
    }
    free(wanted);
    text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] =
        "In the beginning God created the heaven and the earth. And the earth was without form, "
        "and void; and darkness was upon the face of the deep. And the Spirit of God moved "
        "upon the face of the waters.\n  'Tis 1611's -- \xC3\xA9t\xC3\xA9 \xE2\x80\x94\n";
    static struct tokenizer *tokenizer;
    if (!tokenizer)
        FUZZ_REQUIRE(tokenizer_train(text, strlen(text), NULL, 0, 290, &tokenizer) == STATUS_OK);
    for (int pattern = TOKEN_PATTERN_GPT2; pattern <= TOKEN_PATTERN_O200K; pattern++)
        check_pattern((enum token_pattern)pattern, (const char *)data, size);
    if (size > 0)
        check_normalization((const char *)data, size);
    struct token_list list = {0};
    size_t at = 0, n_bytes;
    FUZZ_REQUIRE(tokenizer_encode(tokenizer, (const char *)data, size, &list) == STATUS_OK);
    for (size_t i = 0; i < list.n; i++) {
        const char *bytes = tokenizer_bytes(tokenizer, list.ids[i], &n_bytes);
        FUZZ_REQUIRE(bytes && n_bytes <= size - at && memcmp(bytes, data + at, n_bytes) == 0);
        at += n_bytes;
    }
    FUZZ_REQUIRE(at == size);
    token_list_free(&list);
    return 0;
}
