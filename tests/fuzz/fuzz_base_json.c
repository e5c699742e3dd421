// JSON texts: parsing, which explains mistakes, places in the text, and what Hjson allows beyond JSON.
#include <string.h>

#include "base/json.h"
#include "tests/fuzz/fuzz.h"

static void check_lines(const char *text, size_t size, const cJSON *root) {
    const cJSON *item;
    size_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    cJSON_ArrayForEach(item, root) {
        FUZZ_REQUIRE(json_line(text, size, root, item) <= lines);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    // A copy that ends with the text, so that a read past it is found.
    char *text = malloc(size ? size : 1);
    cJSON *root = NULL;
    FUZZ_REQUIRE(text);
    memcpy(text, data, size);
    if (fuzz_accepted(json_parse(text, size, "the input", &root)))
        check_lines(text, size, root);
    cJSON_Delete(root);
    json_blank_extensions(text, size);
    root = NULL;
    (void)fuzz_accepted(json_parse(text, size, "the input", &root));
    cJSON_Delete(root);
    free(text);
    return 0;
}
