// Finds a tensor by name.
#ifndef ZERO_TESTS_SUPPORT_SAFETENSORS_FIND_H
#define ZERO_TESTS_SUPPORT_SAFETENSORS_FIND_H

#include <string.h>

#include "model/formats/safetensors.h"

// Returns NULL if there is none.
static inline const struct safetensor *safetensors_find(const struct safetensors *file, const char *name) {
    for (int i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

#endif
