// Whole tensors of safetensors files, for tests that compare their values. Header only.
#ifndef ZERO_TESTS_SUPPORT_TENSORS_H
#define ZERO_TESTS_SUPPORT_TENSORS_H

#include <stdlib.h>

#include "model/formats/safetensors.h"

// Returns the bytes of a tensor, to be freed; NULL if they cannot be read.
static inline uint8_t *tensor_load(const struct safetensors *file, const struct safetensor *tensor) {
    uint8_t *data = malloc(tensor->bytes + 1);
    if (data && safetensors_read(file, tensor, 0, tensor->elements, data) != STATUS_OK) {
        free(data);
        return NULL;
    }
    return data;
}

#endif
