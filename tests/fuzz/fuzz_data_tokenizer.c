// Tokenizer files of every kind, alone in their folder. A tokenizer that loads encodes the file's own bytes
// and decodes them to the same.
#include <string.h>

#include "base/parallel.h"
#include "data/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#define LONGEST_TEXT 4096

static void check_round_trip(const struct tokenizer *tokenizer, const char *text, size_t size) {
    struct token_list list = {0};
    size_t at = 0, n_bytes;
    FUZZ_REQUIRE(tokenizer_encode(tokenizer, text, size, &list) == STATUS_OK);
    for (size_t i = 0; i < list.n; i++) {
        const char *bytes = tokenizer_bytes(tokenizer, list.ids[i], &n_bytes);
        FUZZ_REQUIRE(bytes && list.ids[i] != tokenizer_end_of_text(tokenizer));
        FUZZ_REQUIRE(n_bytes <= size - at && memcmp(bytes, text + at, n_bytes) == 0);
        at += n_bytes;
    }
    FUZZ_REQUIRE(at == size);
    token_list_free(&list);
}

// The first byte chooses the file's name.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"tokenizer.json", "merges.txt", "vocab.bpe", "gpt2.tiktoken",
                                        "tokenizer.bin"};
    struct tokenizer *tokenizer = NULL;
    if (size == 0)
        return 0;
    const char *path = fuzz_file(names[data[0] % (sizeof names / sizeof *names)], data + 1, size - 1);
    if (fuzz_accepted(tokenizer_load(path, &tokenizer)))
        check_round_trip(tokenizer, (const char *)data, size < LONGEST_TEXT ? size : LONGEST_TEXT);
    tokenizer_delete(tokenizer);
    unlink(path);
    return 0;
}
