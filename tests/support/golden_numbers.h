// Reads numbers of golden files in JSON, and elements of buffers that a test holds in fp32 or double.
#ifndef ZERO_TESTS_SUPPORT_GOLDEN_NUMBERS_H
#define ZERO_TESTS_SUPPORT_GOLDEN_NUMBERS_H

#include <cjson/cJSON.h>

#include "base/dtype.h"

static inline double number(const cJSON *array, size_t i) {
    const cJSON *item = cJSON_GetArrayItem(array, (int)i);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static inline void store(void *to, enum dtype type, size_t i, double value) {
    if (type == DTYPE_F64)
        ((double *)to)[i] = value;
    else
        ((float *)to)[i] = (float)value;
}

static inline double load(const void *from, enum dtype type, size_t i) {
    return type == DTYPE_F64 ? ((const double *)from)[i] : (double)((const float *)from)[i];
}

#endif
