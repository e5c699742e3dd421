// Files too large for the repository: in $ZERO_SHARED, or beside the repository. A test is skipped if its
// file is absent.
#ifndef ZERO_TESTS_SUPPORT_SHARED_H
#define ZERO_TESTS_SUPPORT_SHARED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

// Returns true if the file exists, and writes its path to the buffer.
static inline bool shared_path(const char *name, char *buffer, size_t size) {
    const char *folder = getenv("ZERO_SHARED");
    snprintf(buffer, size, "%s/%s", folder && *folder ? folder : "../shared", name);
    return file_exists(buffer);
}

#endif
