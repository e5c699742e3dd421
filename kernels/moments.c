// Encodes and decodes spans of moments, one block at a time.
#include "kernels/moments.h"

void moments_load(enum dtype type, enum moment moment, const void *state, const float *scales, size_t n,
                  float *values) {
    for (size_t i = 0; i < n; i++)
        values[i] = type == DTYPE_I8
                        ? moment_decode(((const uint8_t *)state)[i], moment, scales[i / MOMENT_BLOCK])
                    : type == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)state)[i])
                                         : ((const float *)state)[i];
}

// Encodes one block of n <= MOMENT_BLOCK elements. Rounds to nearest if `key` is NULL, otherwise
// stochastically.
static void store_block(enum moment moment, const float *values, size_t n, const uint32_t *key,
                        uint64_t first, uint8_t *codes, float *scale) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = moment_bits(values[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    *scale = moment_scale(largest);
    float inverse = moment_inverse(*scale);
    for (size_t i = 0; i < n; i++)
        codes[i] = moment_encode(values[i], moment, inverse,
                                 key ? moment_code_noise(moment, *key, first + i) : MOMENT_NEAREST);
}

static void store(enum dtype type, enum moment moment, const float *values, size_t n, const uint32_t *key,
                  uint64_t first, void *state, float *scales) {
    if (type == DTYPE_I8) {
        for (size_t i = 0; i < n; i += MOMENT_BLOCK)
            store_block(moment, values + i, n - i < MOMENT_BLOCK ? n - i : MOMENT_BLOCK, key, first + i,
                        (uint8_t *)state + i, &scales[i / MOMENT_BLOCK]);
    } else if (type == DTYPE_BF16) {
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)state)[i] = key ? moment_to_bf16(values[i], moment, moment_noise(*key, first + i))
                                         : bf16_from_float(values[i]);
    } else {
        memcpy(state, values, n * sizeof *values);
    }
}

void moments_store(enum dtype type, enum moment moment, const float *values, size_t n, void *state,
                   float *scales) {
    store(type, moment, values, n, NULL, 0, state, scales);
}

void moments_store_step(enum dtype type, enum moment moment, const float *values, size_t n, uint32_t key,
                        uint64_t first, void *state, float *scales) {
    store(type, moment, values, n, &key, first, state, scales);
}
