// Matrix products by oneDNN on the calling thread: c = finish(a b + bias), each shape's primitives built once
// and kept. Sums of products are accumulated in fp32, and fp32 products are never rounded down to a narrower
// type. For matmul.c alone, which cuts large products to these.
#ifndef ZERO_KERNELS_CPU_PRODUCT_H
#define ZERO_KERNELS_CPU_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum product_finish {
    PRODUCT_PLAIN,
    PRODUCT_RESIDUAL,   // c = a b + bias + residual
    PRODUCT_ACCUMULATE, // c = c + a b
};

// Every field is 64 bits wide so that shapes compare as bytes.
struct product_shape {
    int64_t m, n, k;
    int64_t a_row, a_column; // strides of a (m, k) and b (k, n) in elements; one of each pair is 1
    int64_t b_row, b_column;
    int64_t c_row;    // stride between rows of c (m, n), which is fp32
    int64_t type;     // enum dtype, of a and b
    int64_t has_bias; // bias (n) is fp32
    int64_t finish;   // enum product_finish; residual has c's layout
};

// For one thread at a time.
struct product_cache;
struct product;

enum status product_cache_new(struct product_cache **out) MUST_CHECK;
void product_cache_delete(struct product_cache *cache); // NULL is fine

// The product of this shape, from the cache or new.
enum status product_find(struct product_cache *cache, const struct product_shape *shape,
                         struct product **out) MUST_CHECK;
// Whether oneDNN has it on this processor: bf16 is missing before AVX-512, fp16 before AVX-512-FP16.
bool product_is_supported(const struct product *product);

struct product_operands {
    const void *a, *b;
    const float *bias, *residual; // read if the shape has them
    float *c;
};
size_t product_workspace_bytes(const struct product *product);
// workspace: product_workspace_bytes, aligned to 64.
enum status product_run(struct product_cache *cache, struct product *product,
                        const struct product_operands *operands, void *workspace) MUST_CHECK;

// The stride that rows of n fp32 elements are best given: rows a multiple of 4 KiB apart would fall on the
// same few sets of the cache.
static inline int64_t product_row(int64_t n) {
    return (n + 15) / 16 * 16 + 16;
}

// Whether bf16 products run on matrix units (AMX).
bool product_has_matrix_units(void);
// "oneDNN 2.6.3"
const char *product_library(char *buffer, size_t size);

#endif
