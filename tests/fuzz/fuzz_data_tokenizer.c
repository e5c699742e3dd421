// Tokenizer files of every kind, alone in their folder. A tokenizer that loads encodes the file's own bytes
// and, if it loses none and does not normalize, decodes them to the same; if it can be exported, the
// tokenizer.json gives the same tokens.
#include <string.h>

#include "base/file.h"
#include "base/parallel.h"
#include "data/tokenizer/export.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#define LONGEST_TEXT 4096

static void check_round_trip(const struct tokenizer *tokenizer, const char *text, size_t size) {
    const bool is_exact = !tokenizer_rules(tokenizer).nfc && tokenizer_n_lost_bytes(tokenizer) == 0 &&
                          !tokenizer_adds_space(tokenizer);
    struct token_list list = {0};
    size_t at = 0, n_bytes;
    FUZZ_REQUIRE(tokenizer_encode(tokenizer, text, size, &list) == STATUS_OK);
    for (size_t i = 0; i < list.n; i++) {
        const char *bytes = tokenizer_bytes(tokenizer, list.ids[i], &n_bytes);
        FUZZ_REQUIRE(bytes);
        if (!is_exact)
            continue;
        FUZZ_REQUIRE(tokenizer_type(tokenizer, list.ids[i]) == TOKEN_NORMAL ||
                     tokenizer_type(tokenizer, list.ids[i]) == TOKEN_USER);
        FUZZ_REQUIRE(n_bytes <= size - at && memcmp(bytes, text + at, n_bytes) == 0);
        at += n_bytes;
    }
    FUZZ_REQUIRE(at == size || !is_exact);
    token_list_free(&list);
}

static void check_export(const struct tokenizer *tokenizer, const char *path) {
    char *folder = file_path("%.*s/exported", (int)(strrchr(path, '/') - path), path);
    struct tokenizer *again = NULL;
    FUZZ_REQUIRE(folder && file_make_folders(folder) == STATUS_OK);
    if (fuzz_accepted(tokenizer_save_huggingface(tokenizer, folder))) {
        char *file = file_path("%s/tokenizer.json", folder);
        FUZZ_REQUIRE(file && tokenizer_load(file, &again) == STATUS_OK);
        FUZZ_REQUIRE(tokenizer_checksum(again) == tokenizer_checksum(tokenizer));
        tokenizer_delete(again);
        free(file);
    }
    FUZZ_REQUIRE(file_remove_tree(folder) == STATUS_OK);
    free(folder);
}

// The first byte chooses the file's name; its highest bit, whether to export.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"tokenizer.json", "merges.txt",      "vocab.bpe",     "gpt2.tiktoken",
                                        "tokenizer.bin",  "tokenizer.model", "qwen.tiktoken", "model.gguf"};
    struct tokenizer *tokenizer = NULL;
    if (size == 0)
        return 0;
    const char *path =
        fuzz_file(names[(data[0] & 0x7f) % (sizeof names / sizeof *names)], data + 1, size - 1);
    if (fuzz_accepted(tokenizer_load(path, &tokenizer))) {
        check_round_trip(tokenizer, (const char *)data, size < LONGEST_TEXT ? size : LONGEST_TEXT);
        if (data[0] & 0x80) // it writes files, and takes most of the time
            check_export(tokenizer, path);
    }
    tokenizer_delete(tokenizer);
    unlink(path);
    return 0;
}
