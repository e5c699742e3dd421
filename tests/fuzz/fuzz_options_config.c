// Configurations: what is accepted and resolved is printed as a text that gives the same configuration.
#include <string.h>

#include "base/text.h"
#include "options/config.h"
#include "options/print.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct config config = {0}, again = {0};
    struct text printed = {0}, twice = {0};
    if (size > 0 && fuzz_accepted(config_parse(&config, (const char *)data + 1, size - 1, "the input")) &&
        fuzz_accepted(config_resolve(&config, 1 + data[0]))) {
        config_print(&config, &printed);
        FUZZ_REQUIRE(config_parse(&again, printed.data, printed.length, "the printed text") == STATUS_OK);
        config_print(&again, &twice);
        FUZZ_REQUIRE(printed.length == twice.length && memcmp(printed.data, twice.data, twice.length) == 0);
    }
    text_free(&printed);
    text_free(&twice);
    config_free(&config);
    config_free(&again);
    return 0;
}
