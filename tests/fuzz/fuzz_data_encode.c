// Any text, encoded with a tokenizer that is trained on itself, and decoded to the same bytes.
#include <string.h>

#include "data/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] =
        "In the beginning God created the heaven and the earth. And the earth was without form, "
        "and void; and darkness was upon the face of the deep. And the Spirit of God moved "
        "upon the face of the waters.\n  'Tis 1611's -- \xC3\xA9t\xC3\xA9 \xE2\x80\x94\n";
    static struct tokenizer *tokenizer;
    if (!tokenizer)
        FUZZ_REQUIRE(tokenizer_train(text, strlen(text), 290, &tokenizer) == STATUS_OK);
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
