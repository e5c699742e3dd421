// A temporary folder for one test program. Header only, like everything that tests share.
#ifndef ZERO_TESTS_TEMPORARY_H
#define ZERO_TESTS_TEMPORARY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

struct temporary {
    char folder[256];
};

// Returns false if it cannot be created.
static inline bool temporary_init(struct temporary *temporary) {
    const char *parent = getenv("TMPDIR");
    snprintf(temporary->folder, sizeof temporary->folder, "%s/zero-test-XXXXXX",
             parent && *parent ? parent : "/tmp");
    return mkdtemp(temporary->folder) != NULL;
}

static inline bool temporary_free(struct temporary *temporary) {
    return file_remove_tree(temporary->folder) == STATUS_OK;
}

// Returns FOLDER/NAME, in the caller's buffer.
static inline const char *temporary_path(const struct temporary *temporary, const char *name, char *buffer,
                                         size_t size) {
    snprintf(buffer, size, "%s/%s", temporary->folder, name);
    return buffer;
}

#endif
