// Shared by the fuzzers. libFuzzer calls LLVMFuzzerTestOneInput with one input after another. Whatever the
// input is, the code must neither crash, leak, nor allocate much more memory than the input's size justifies.
#ifndef ZERO_TESTS_FUZZ_FUZZ_H
#define ZERO_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Ends the process with this text, so that libFuzzer keeps the input: a contract was broken.
#define FUZZ_REQUIRE(condition)                                                                              \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #condition, status_message()); \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

// Returns whether the input was accepted. A refusal must have the right status and a message.
static inline bool fuzz_accepted(enum status status) {
    if (status == STATUS_OK)
        return true;
    FUZZ_REQUIRE(status == STATUS_INVALID && status_message()[0] != '\0');
    status_clear();
    return false;
}

// Writes the input to a file of this process, for readers that take a path, and returns the path.
//   name   name of the file, in a folder of its own
static inline const char *fuzz_file(const char *name, const uint8_t *data, size_t size) {
    static char folder[256], path[320];
    if (!folder[0]) {
        const char *temporary = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/zero-fuzz-XXXXXX", temporary ? temporary : "/tmp");
        FUZZ_REQUIRE(mkdtemp(folder));
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    FUZZ_REQUIRE(file && fwrite(data, 1, size, file) == size);
    FUZZ_REQUIRE(fclose(file) == 0);
    return path;
}

#endif
